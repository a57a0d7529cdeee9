/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_layout.h - the tensors of an expert in windows of the mount, by its layout: of a full one, parsed once from the
 * header of its file and reused while that is the same; of a coded one (expertfs-protocol.h), parsed once from the
 * bytes that the mount sends, and combined each time with the current places of its extents.
 */
#ifndef EFS_FILE_LAYOUT_H
#define EFS_FILE_LAYOUT_H

#include "expertfs-protocol.h"
#include "source.h"

#include <sys/queue.h>

/* Memory of the mount that stays mapped (export_windows.c). */
struct efs_export_window {
    LIST_ENTRY(efs_export_window) same_hash;
    TAILQ_ENTRY(efs_export_window) by_use;
    uint32_t number, users;
    bool once; /* unmapped with its last user */
    uint8_t *data;
    size_t bytes;
};

struct efs_file_layout {
    struct efs_file_layout *older;   /* that the expert had before, and whose names may be in use */
    size_t file_bytes, header_bytes; /* of the file; of its length word and header together */
    uint8_t *header;                 /* NULL: of a coded expert */
    struct efs_source_list list;     /* owns the names */
    struct efs_tensor *tensors;      /* without data; coded: with the number and size of their shards */
    uint32_t tensor_count;
    /* Of a coded expert: */
    struct efs_export_layout_shard *shards; /* [shard_count], tensor by tensor */
    uint32_t shard_count, extent_count;
    uint64_t chunk_bytes; /* of all shards */
};

/* An expert that was received. Its content is not trusted. */
struct efs_mapped_file {
    const uint8_t *data;                /* full: the start of its file */
    size_t bytes;                       /* coded: bytes of its chunks */
    struct efs_tensor *tensors;         /* names point into the known layout, or into `new_layout` */
    struct efs_coded_shard *shards;     /* shards of a coded expert's tensors */
    struct efs_file_layout *new_layout; /* the layout, if it was not known (efs_expert_keep_layout()) */
    uint32_t tensor_count;
};

/* Parses the file of `bytes` bytes that is mapped at data. Its header is not trusted. -EUCLEAN, -ENOMEM. */
errint_t efs_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);
/* Frees also the older ones. NULL is fine. */
void efs_layout_free(struct efs_file_layout *layout);
/* Whether the file at data, of layout->file_bytes, has the same header. */
bool efs_layout_matches(const struct efs_file_layout *layout, const uint8_t *data);
/* The tensors, with their data in the file at data (NULL: without), in an array that the caller frees; names point into
 * the layout. NULL: no memory. */
struct efs_tensor *efs_layout_tensors(const struct efs_file_layout *layout, const uint8_t *data);

/* Sets the tensors of a full expert whose data and bytes are set, by the known layout (NULL: none) if it still has it,
 * else by its header. -EUCLEAN, -ENOMEM. */
errint_t efs_mapped_tensors(const struct efs_file_layout *known, struct efs_mapped_file *file);
/* Frees the results of efs_mapped_tensors() or efs_coded_tensors(). */
void efs_mapped_free(struct efs_mapped_file *file);

/* ---- coded_layout.c ---- */
/* Parses the layout of a coded expert; all of it is checked. -EUCLEAN, -ENOMEM. */
errint_t efs_coded_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);
/* Sets the tensors of a coded expert, and its bytes. places: a struct efs_export_place for each extent, not aligned;
 * windows: those of its two components, NULL: none. -EUCLEAN: a chunk is not inside its window; -ENOMEM. */
errint_t efs_coded_tensors(const struct efs_file_layout *layout, const uint8_t *places,
                           struct efs_export_window *const *windows, struct efs_mapped_file *file);

/* ---- layers.c ---- */
/* Parses the text "layers" of efs_describe(), which it changes, as efs_client_experts() returns it. It is not trusted.
 * -EUCLEAN, -ENOMEM. */
errint_t efs_layers_parse(char *text, struct efs_listed_expert **experts, uint32_t *count);

#endif
