/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h - the virtual files: which bytes each consists of. Nothing here reads weights.
 *
 * Every expert has a file layout (header, tensors, length): memory files of the full pool have it, and clients get it.
 * The view may be hidden: experts then have no file number, and efs_view_expert_file() returns EFS_NONE.
 *
 * A file is a row of segments. Checkpoint files have theirs in the store's extents; an expert's file is a generated
 * safetensors header and the expert's tensors, or its slices of tensors.
 */
#ifndef EFS_VIEW_H
#define EFS_VIEW_H

#include "store.h"

struct efs_segment_at {
    uint32_t object;        /* EFS_NONE: the header of an expert's file */
    uint32_t expert;        /* whose header it is */
    uint64_t object_offset; /* of the asked offset */
    uint64_t bytes;         /* from the asked offset to the segment's end */
};

/* A tensor of an expert, or its slice of one. */
struct efs_expert_part {
    uint32_t object;
    uint64_t file_offset; /* of its bytes in the expert's file */
};

struct efs_view_expert {
    uint32_t header_bytes; /* a multiple of 4 KiB */
    uint32_t part_count;   /* of two tensors with one name, the file has the first */
};

/* Read by view.c alone, except memory_bytes, file_count and hidden. */
struct efs_view {
    const struct efs_store *store;
    bool hidden; /* the checkpoint has its own top-level "experts" or ".expertfs": only its files are served */
    uint32_t expert_first, file_count; /* file numbers: of the first expert, and of all */
    struct efs_view_expert *experts;   /* by expert */
    struct efs_expert_part *parts;     /* as objects: an expert's begin where its group's do */
    size_t memory_bytes;               /* what the view holds */
};

errint_t efs_view_build(struct efs_view *view, const struct efs_store *store, struct efs_error *err);
void efs_view_destroy(struct efs_view *view);
errint_t efs_view_info(const struct efs_view *view, uint32_t file, struct efs_file_info *info);
uint64_t efs_view_bytes(const struct efs_view *view, uint32_t file);
/* The segment at offset (< the file's size). efs_view_expert_header() writes a header. */
void efs_view_at(const struct efs_view *view, uint32_t file, uint64_t offset, struct efs_segment_at *at);
/* Are any of these bytes of the file an expert's? What lies behind its end is nobody's. */
bool efs_view_holds_expert(const struct efs_view *view, uint32_t file, uint64_t offset, uint64_t bytes);

/* The length of an expert's file, also while the view is hidden. */
uint64_t efs_view_expert_bytes(const struct efs_view *view, uint32_t expert);
uint32_t efs_view_expert_header_bytes(const struct efs_view *view, uint32_t expert);
/* Writes the header (8-byte length, JSON, spaces): efs_view_expert_header_bytes() bytes. */
void efs_view_expert_header(const struct efs_view *view, uint32_t expert, char *out);
/* Its tensors in the order of the file. */
static inline const struct efs_expert_part *efs_view_expert_parts(const struct efs_view *view, uint32_t expert,
                                                                  uint32_t *count)
{
    *count = view->experts[expert].part_count;
    return view->parts + view->store->groups[expert].object_first;
}
/* Where the object's bytes begin in the file; UINT64_MAX: it is not in the file. */
uint64_t efs_view_expert_offset(const struct efs_view *view, uint32_t expert, uint32_t object);
/* "L03/E017", "encoder-L03/E017". */
void efs_view_expert_name(const struct efs_view *view, uint32_t expert, char *text, size_t bytes);
/* The number of the file; EFS_NONE while the view is hidden. */
uint32_t efs_view_expert_file(const struct efs_view *view, uint32_t expert);

#endif
