/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.h - one expert's file of a mount, open and mapped, and the tensors in it.
 *
 * It stays open as long as it is mapped: of a file that the kernel serves by itself the mount hears of opens, not of
 * mappings. What is in the file is checked like a file of strangers.
 */
#ifndef EFS_MAPPING_H
#define EFS_MAPPING_H

#include "expert_key.h"
#include "file_layout.h"

#define EFS_MAPPING_PATH 80u

struct efs_mapped_file {
    int fd; /* < 0: not open, nothing below is set */
    const uint8_t *data;
    size_t bytes;                    /* coded: of its chunks */
    struct efs_tensor *tensors;      /* their names are of the layout that was known, or of: */
    struct efs_coded_shard *shards;  /* theirs, of one that comes coded */
    struct efs_file_layout *learned; /* NULL: it was known. Its owner may take it over. */
    uint32_t tensor_count;
};

/* "experts/L03/E017.safetensors", "experts/encoder-L03/E017.safetensors". */
void efs_mapped_path(const struct efs_expert_key *key, char path[EFS_MAPPING_PATH]);
/* Open the expert's file below the directory root, map it, have its pages there, read its header if it is not the one
 * that is known (NULL: none), which must outlive it. Blocks: the mount brings the expert. -EUCLEAN: not a safetensors
 * file that one may trust; -EIO: its pages cannot be read; -ENOMEM, ... */
errint_t efs_mapped_open(int root, const struct efs_expert_key *key, const struct efs_file_layout *known,
                         struct efs_mapped_file *file);
/* Unmap and close; one that is not open is fine. */
void efs_mapped_close(struct efs_mapped_file *file);
/* Of a file whose data and bytes are there, by whatever means: its tensors. -EUCLEAN, -ENOMEM. */
errint_t efs_mapped_tensors(const struct efs_file_layout *known, struct efs_mapped_file *file);
/* Free what efs_mapped_tensors() made, or efs_coded_tensors(). */
void efs_mapped_let_go(struct efs_mapped_file *file);

#endif
