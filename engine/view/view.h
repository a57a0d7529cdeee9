/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h - the virtual files and the bytes they consist of.
 *
 * view/ maps offsets in the virtual files to objects of the store. cache/, trace/, fetch/ and serve/ call it; core/
 * contains its struct. It never does I/O and never takes efs.lock.
 *
 * Every expert has a file layout (header, tensors, length), which memory files of the full pool use and clients
 * receive. The view may be hidden: experts then have no file number, and efs_view_expert_file() returns EFS_NONE.
 *
 * A file is a sequence of segments. Those of a checkpoint file are its extents in the store; those of an expert's file
 * are a generated safetensors header and the expert's tensors, or its slices of stacked tensors.
 */
#ifndef EFS_VIEW_H
#define EFS_VIEW_H

#include "store.h"

struct efs_view_location {
    uint32_t object;        /* EFS_NONE: the header of an expert's file */
    uint32_t expert;        /* of that header */
    uint64_t object_offset; /* in the object, of the byte at the offset */
    uint64_t bytes;         /* from the offset to the segment's end */
};

/* A tensor of an expert, or its slice of one. */
struct efs_expert_part {
    uint32_t object;
    uint64_t file_offset; /* of its bytes in the expert's file */
};

struct efs_view_expert {
    uint32_t header_bytes; /* a multiple of 4 KiB */
    uint32_t part_count;   /* tensors; of several with the same name only the first is in the file */
};

/* Code outside view.c reads only memory_bytes, file_count and hidden. */
struct efs_view {
    const struct efs_store *store;
    bool hidden; /* the checkpoint has its own top-level "experts" or ".expertfs": only its files are served */
    uint32_t expert_first, file_count; /* number of the first expert's file; number of files */
    struct efs_view_expert *experts;   /* [expert] */
    struct efs_expert_part *parts;     /* indexed like objects: an expert's parts start at its group's object_first */
    size_t memory_bytes;               /* size of experts and parts */
};

/* Builds the tables; store must outlive the view. -ENOMEM; efs_view_destroy() is due also after an error. */
errint_t efs_view_build(struct efs_view *view, const struct efs_store *store, struct efs_error *err);
void efs_view_destroy(struct efs_view *view);
errint_t efs_view_info(const struct efs_view *view, uint32_t file, struct efs_file_info *info);
uint64_t efs_view_bytes(const struct efs_view *view, uint32_t file);
/* Sets *at to the segment at offset, which must be below the file's size. efs_view_expert_header() returns the bytes of
 * a header. */
void efs_view_locate(const struct efs_view *view, uint32_t file, uint64_t offset, struct efs_view_location *at);
/* Whether any byte of [offset, offset + bytes) belongs to a tensor of an expert. Bytes past the end of the file do not
 * count. */
bool efs_view_holds_expert(const struct efs_view *view, uint32_t file, uint64_t offset, uint64_t bytes);

/* Size of an expert's file in bytes, also if the view is hidden. */
uint64_t efs_view_expert_bytes(const struct efs_view *view, uint32_t expert);
uint32_t efs_view_expert_header_bytes(const struct efs_view *view, uint32_t expert);
/* Writes the header (8-byte length, JSON, spaces): efs_view_expert_header_bytes() bytes. */
void efs_view_expert_header(const struct efs_view *view, uint32_t expert, char *out);
/* The expert's *count tensors in file order; owned by the view. */
static inline const struct efs_expert_part *efs_view_expert_parts(const struct efs_view *view, uint32_t expert,
                                                                  uint32_t *count)
{
    *count = view->experts[expert].part_count;
    return view->parts + view->store->groups[expert].object_first;
}
/* Offset of the object's bytes in the expert's file; UINT64_MAX: the object is not in the file. */
uint64_t efs_view_expert_offset(const struct efs_view *view, uint32_t expert, uint32_t object);
/* Writes the name, such as "L03/E017" or "encoder-L03/E017", truncated to bytes - 1 characters. */
void efs_view_expert_name(const struct efs_view *view, uint32_t expert, char *text, size_t bytes);
/* The text "layers" of efs_describe(), which the caller frees. -ENOMEM. */
errint_t efs_view_layers(const struct efs_view *view, char **text, size_t *bytes);
/* The number of the expert's file; EFS_NONE if the view is hidden. */
uint32_t efs_view_expert_file(const struct efs_view *view, uint32_t expert);

#endif
