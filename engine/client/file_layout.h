/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_layout.h - what stands where in an expert's file: read from its header once, and used again as long as the
 * header is the same.
 */
#ifndef EFS_FILE_LAYOUT_H
#define EFS_FILE_LAYOUT_H

#include "expertfs-protocol.h"
#include "source.h"

/* Of one that comes coded (coded_layout.h). */
struct efs_coded_layout {
    struct efs_export_layout_shard *shards; /* [shard_count], tensor by tensor of the layout that it belongs to */
    uint32_t *shards_of;                    /* [tensors]: how many each has */
    uint32_t shard_count, extent_count, shard_elements;
    uint64_t bytes; /* of all chunks */
};

struct efs_file_layout {
    size_t file_bytes, header_bytes; /* of the file; of its length word and header */
    uint8_t *header;
    struct efs_source_list list; /* owns the names */
    struct efs_tensor *tensors;  /* without data */
    uint32_t tensor_count;
    struct efs_coded_layout *coded; /* of one that comes coded, whose header is not kept; else NULL */
};

/* Of the file of bytes that is mapped at data. Its header is checked like one of strangers.
 * -EUCLEAN, -ENOMEM. */
errint_t efs_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);
/* NULL is fine. */
void efs_layout_free(struct efs_file_layout *layout);
/* Does the file that is mapped at data, of layout->file_bytes, begin with that header? */
bool efs_layout_fits(const struct efs_file_layout *layout, const uint8_t *data);
/* Its tensors with data, in an array to be freed; names are the layout's. NULL: no memory. */
struct efs_tensor *efs_layout_tensors(const struct efs_file_layout *layout, const uint8_t *data);

/* What __metadata__ says of tensors that safetensors has no dtype for: ggml types and their shapes. The header was
 * checked. -ENOMEM. */
errint_t efs_layout_notes(const char *header, size_t bytes, struct efs_tensor *tensors, uint32_t count);

#endif
