/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coded_layout.h - what stands where in an expert that comes coded: read once from what the mount tells of it
 * (expertfs-protocol.h), used with the places where its extents are each time.
 */
#ifndef EFS_CODED_LAYOUT_H
#define EFS_CODED_LAYOUT_H

#include "expertfs-protocol.h"
#include "file_layout.h"

struct efs_coded_layout {
    struct efs_export_layout_shard *shards; /* [shard_count], tensor by tensor of the layout that it belongs to */
    uint32_t *shards_of;                    /* [tensors]: how many each has */
    uint32_t shard_count, extent_count, shard_elements;
    uint64_t bytes; /* of all chunks */
};

/* From the bytes that a mount has told; nothing in them is trusted. -EUCLEAN, -ENOMEM. */
errint_t efs_coded_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);
void efs_coded_layout_free(struct efs_coded_layout *coded); /* NULL is fine */

/* Memory of a window; NULL: there is none of that number. */
struct efs_coded_window {
    const uint8_t *data;
    size_t bytes;
};
typedef struct efs_coded_window efs_coded_window_fn(void *arg, uint32_t number);
/* Its tensors, in arrays to be freed, with shards at these places, as many as the layout has extents; names are the
 * layout's. -EUCLEAN: a chunk is not inside its window; -ENOMEM. */
errint_t efs_coded_tensors(const struct efs_file_layout *layout, const struct efs_export_place *places,
                           efs_coded_window_fn *window, void *arg, struct efs_tensor **tensors,
                           struct efs_coded_shard **shards);

#endif
