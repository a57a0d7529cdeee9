/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h - the virtual files: which bytes each consists of. Nothing here reads weights.
 *
 * A file is a row of segments: raw bytes of an object, or generated text. Checkpoint files have theirs in the store's
 * extents; an expert's file is a generated safetensors header and the expert's slices; experts/dense.safetensors holds
 * all other tensors (and fused ones whole), experts/model.safetensors.index.json names them all.
 */
#ifndef EFS_VIEW_H
#define EFS_VIEW_H

#include "store.h"

struct efs_segment_at {
    const char *text; /* generated: the bytes from the asked offset on; NULL: an object's */
    uint32_t object;
    uint64_t object_offset; /* of the asked offset */
    uint64_t bytes;         /* from the asked offset to the segment's end */
};

struct efs_dense_part {
    uint64_t file_offset;
    uint32_t object;
};

struct efs_view {
    const struct efs_store *store;
    bool hidden; /* the checkpoint has its own top-level "experts" or ".expertfs": no view */
    uint32_t expert_first, dense_file, index_file, alias_first, file_count; /* file numbers; aliases come last */
    uint32_t *expert_header_bytes;                                          /* by expert; a multiple of 4 KiB */
    uint32_t *aliases;                                                      /* file numbers of the checkpoint */
    uint32_t alias_count;
    char *dense_header, *index_text;
    size_t dense_header_bytes, index_bytes;
    struct efs_dense_part *dense;
    uint32_t dense_count;
    uint32_t *dense_tensors; /* tensors of dense.safetensors, the empty ones too */
    uint32_t dense_tensor_count;
    uint64_t dense_bytes; /* of the file */
    size_t memory_bytes;  /* what the view holds */
};

errint_t efs_view_build(struct efs_view *view, const struct efs_store *store, struct efs_error *err);
void efs_view_destroy(struct efs_view *view);
errint_t efs_view_info(const struct efs_view *view, uint32_t file, struct efs_file_info *info);
uint64_t efs_view_bytes(const struct efs_view *view, uint32_t file);
/* The segment at offset (< the file's size). An expert's header is not text yet: object = EFS_NONE and text = NULL;
 * ask efs_view_expert_header() for it. */
void efs_view_at(const struct efs_view *view, uint32_t file, uint64_t offset, struct efs_segment_at *at);
/* Are any of these bytes of the file an expert's? What lies behind its end is nobody's. */
bool efs_view_holds_expert(const struct efs_view *view, uint32_t file, uint64_t offset, uint64_t bytes);
/* Writes the expert file's header (8-byte length, JSON, spaces): expert_header_bytes[expert] bytes. */
void efs_view_expert_header(const struct efs_view *view, uint32_t expert, char *out);
/* "L03/E017", "encoder-L03/E017". */
void efs_view_expert_name(const struct efs_view *view, uint32_t expert, char *text, size_t bytes);
/* Whether its tensors are slices of tensors that hold all experts of a layer: then dense.safetensors has these whole.
 */
bool efs_view_expert_is_slice(const struct efs_view *view, uint32_t expert);
/* Where in the expert's file the object's bytes begin; EFS_NONE's order is the file's. The expert's objects in the
 * order in which its file has them: order[0..object_count), at most EFS_EXPERT_OBJECTS. Returns how many. */
#define EFS_EXPERT_OBJECTS 64
struct efs_expert_part {
    uint32_t object;
    uint64_t file_offset;
};
uint32_t efs_view_expert_parts(const struct efs_view *view, uint32_t expert,
                               struct efs_expert_part parts[EFS_EXPERT_OBJECTS]);

#endif
