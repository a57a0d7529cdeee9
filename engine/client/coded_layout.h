/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coded_layout.h - what stands where in an expert that comes coded: read once from what the mount tells of it
 * (expertfs-protocol.h), used with the places where its extents are each time.
 */
#ifndef EFS_CODED_LAYOUT_H
#define EFS_CODED_LAYOUT_H

#include "file_layout.h"

/* From the bytes that a mount has told; nothing in them is trusted. -EUCLEAN, -ENOMEM. */
errint_t efs_coded_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);

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
