/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_layout.h - the layout of an expert's file: parsed once from its header, and reused while the header is the same.
 */
#ifndef EFS_FILE_LAYOUT_H
#define EFS_FILE_LAYOUT_H

#include "expertfs-protocol.h"
#include "source.h"

/* The layout of a coded expert (coded_layout.h). */
struct efs_coded_layout {
    struct efs_export_layout_shard *shards; /* [shard_count], tensor by tensor of the file layout */
    uint32_t *shards_of;                    /* [tensors]: number of shards of each */
    uint32_t shard_count, extent_count, shard_elements;
    uint64_t bytes; /* of all chunks */
};

struct efs_file_layout {
    size_t file_bytes, header_bytes; /* of the file; of its length word and header together */
    uint8_t *header;
    struct efs_source_list list; /* owns the names */
    struct efs_tensor *tensors;  /* without data */
    uint32_t tensor_count;
    struct efs_coded_layout *coded; /* of a coded expert, whose header is not stored; else NULL */
};

/* Parses the file of `bytes` bytes that is mapped at data. Its header is not trusted. -EUCLEAN, -ENOMEM. */
errint_t efs_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);
/* NULL is fine. */
void efs_layout_free(struct efs_file_layout *layout);
/* Whether the file at data, of layout->file_bytes, has the same header. */
bool efs_layout_matches(const struct efs_file_layout *layout, const uint8_t *data);
/* The tensors with their data, in an array that the caller frees; names point into the layout. NULL: no memory. */
struct efs_tensor *efs_layout_tensors(const struct efs_file_layout *layout, const uint8_t *data);

/* Reads from __metadata__ the type and shape of tensors that safetensors has no dtype for (ggml types). The header was
 * checked. -ENOMEM. */
errint_t efs_layout_apply_metadata(const char *header, size_t bytes, struct efs_tensor *tensors, uint32_t count);

#endif
