/*
 * mapping.h - one expert's file of a mount, open and mapped, and the tensors in it.
 *
 * It stays open as long as it is mapped: of a file that the kernel serves by itself the mount hears of opens, not of
 * mappings. What is in the file is checked like a file of strangers.
 */
#ifndef EFS_MAPPING_H
#define EFS_MAPPING_H

#include "source.h"

#define EFS_MAPPING_PATH 80u

struct efs_mapped_file {
    int fd; /* < 0: not open, nothing below is set */
    const uint8_t *data;
    size_t bytes;
    struct efs_source_list list; /* owns the names */
    struct efs_tensor *tensors;
    uint32_t tensor_count;
};

/* "experts/L03/E017.safetensors", "experts/encoder-L03/E017.safetensors". */
void efs_mapped_path(const char *stack, uint32_t layer, uint32_t expert, char path[EFS_MAPPING_PATH]);
/* Open path below the directory root, map it, have its pages there, read its header. Blocks: the mount brings the
 * expert. -EUCLEAN: not a safetensors file that one may trust; -EIO: its pages cannot be read; -ENOMEM, ... */
errint_t efs_mapped_open(int root, const char *path, struct efs_mapped_file *file);
/* Unmap and close; one that is not open is fine. */
void efs_mapped_close(struct efs_mapped_file *file);

/* What __metadata__ says of tensors that safetensors has no dtype for: ggml types and their shapes. The header was
 * checked. -ENOMEM. */
errint_t efs_mapped_notes(const char *header, size_t bytes, struct efs_tensor *tensors, uint32_t count);

#endif
