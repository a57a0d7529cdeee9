/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.h - an expert's file of a mount, opened and mapped, and its tensors.
 *
 * The file stays open while it is mapped: with passthrough the mount is notified of opens and closes, not of mappings.
 * The content of the file is not trusted.
 */
#ifndef EFS_MAPPING_H
#define EFS_MAPPING_H

#include "expert_key.h"
#include "file_layout.h"

#define EFS_MAPPING_PATH 80u

struct efs_mapped_file {
    int fd; /* < 0: not a file, or not open */
    const uint8_t *data;
    size_t bytes;                       /* coded: bytes of its chunks */
    struct efs_tensor *tensors;         /* names point into the known layout, or into `new_layout` */
    struct efs_coded_shard *shards;     /* shards of a coded expert's tensors */
    struct efs_file_layout *new_layout; /* the layout, if it was not known (efs_expert_keep_layout()) */
    uint32_t tensor_count;
};

/* "experts/L03/E017.safetensors", "experts/encoder-L03/E017.safetensors". */
void efs_mapped_path(const struct efs_expert_key *key, char path[EFS_MAPPING_PATH]);
/* Opens the expert's file below the directory root, maps it, populates its pages and parses its header, unless it
 * matches `known` (NULL: none), which must outlive the file. Blocks until the mount has loaded the expert. -EUCLEAN:
 * not a valid safetensors file; -EIO: its pages cannot be read; -ENOMEM, ... */
errint_t efs_mapped_open(int root, const struct efs_expert_key *key, const struct efs_file_layout *known,
                         struct efs_mapped_file *file);
/* Unmaps and closes the file, if it is open, and frees the results of efs_mapped_tensors() or efs_coded_tensors(). */
void efs_mapped_close(struct efs_mapped_file *file);
/* Sets the tensors of a file whose data and bytes are set. -EUCLEAN, -ENOMEM. */
errint_t efs_mapped_tensors(const struct efs_file_layout *known, struct efs_mapped_file *file);
/* Sets the tensors of a coded expert, and its bytes. places: a struct efs_export_place for each extent, not aligned;
 * windows: those of its two components, NULL: none. -EUCLEAN: a chunk is not inside its window; -ENOMEM. coded_layout.c
 */
errint_t efs_coded_tensors(const struct efs_file_layout *layout, const uint8_t *places,
                           struct efs_export_window *const *windows, struct efs_mapped_file *file);

#endif
