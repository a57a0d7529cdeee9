/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - what the readers of the source formats share: one open file to read from, a list to put tensors in.
 *
 * source.c        efs_catalog_read(): walk, parse, name
 * source_kind.c   which format a file has
 * source_index.c  which files an index names
 * source_models.c which files are those of the model
 * source_list.c   reading, lists of tensors
 * source_dir.c    which files there are
 * source_safetensors.c, source_gguf.c   the tensors of one file
 * source_names.c  which tensors are whose expert
 */
#ifndef EFS_SOURCE_H
#define EFS_SOURCE_H

#include "catalog.h"

/* Limits of what a checkpoint may be; beyond them it is refused (-E2BIG, -ENAMETOOLONG) or is not an expert. */
#define EFS_SOURCE_MAX_FILES 1000000u
#define EFS_SOURCE_MAX_TENSORS 640000u /* the packer's index has room for fewer: pack_plan.c */
#define EFS_SOURCE_MAX_PATH 1023u      /* bytes; struct efs_file_info has room for so many */
#define EFS_SOURCE_MAX_DEPTH 64u       /* directories in each other */
#define EFS_SOURCE_MAX_NAME 65535u     /* bytes of a tensor's name */

/* A file being parsed. bytes is what it had when it was found; reads stay inside. Nothing here is owned. */
struct efs_source_input {
    int fd;              /* looked at where data is NULL */
    const uint8_t *data; /* all of its bytes in memory */
    const char *path;    /* as messages name it */
    uint64_t bytes;
    uint32_t file; /* index into the catalogue's files */
};

/* Read exactly len bytes at offset. Blocks. -EUCLEAN: not inside the file; -ESTALE: it became shorter; -EIO, ... */
errint_t efs_source_read(const struct efs_source_input *in, uint64_t offset, void *buf, size_t len,
                         struct efs_error *err);

/* A tensor as its file describes it. known: the size of its type is known, or it has a type as text. Tensors of unknown
 * ggml types reach to the next one. Others that are not known are carried as bytes of their file alone. */
struct efs_source_entry {
    struct efs_source_tensor tensor;
    bool known;
};

struct efs_source_list {
    struct efs_source_entry *entries;
    size_t count, capacity;
    size_t before; /* tensors of other files, which count towards EFS_SOURCE_MAX_TENSORS */
    bool cut;      /* after -EUCLEAN: the file ends before what its header describes, as a download that broke off */
};

void efs_source_tensor_free(struct efs_source_tensor *tensor); /* what it owns */
/* Is there room for more tensors of a file? -E2BIG, with the file, the number and the limit. */
errint_t efs_source_list_room(const struct efs_source_list *list, uint64_t more, const char *path,
                              struct efs_error *err);
/* Append. The list owns entry->tensor.name and type from then on, also when this fails. -ENOMEM. */
errint_t efs_source_list_add(struct efs_source_list *list, const struct efs_source_entry *entry);
void efs_source_list_free(struct efs_source_list *list);
/* Order by place: (offset, bytes, name). */
void efs_source_list_sort(struct efs_source_list *list);

/* Parse one file; entries come sorted by place and checked: inside the file, no overlap. -EUCLEAN, -ENOMEM, -EIO,
 * -ESTALE: the file became shorter. */
errint_t efs_source_safetensors(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err);
errint_t efs_source_gguf(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err);

/* Fill catalog's root and files. */
errint_t efs_source_walk(const char *src, struct efs_catalog *catalog, struct efs_error *err);
/* Whether the file's name is one of weights: it ends with .safetensors or .gguf. */
bool efs_source_named_weights(const char *path);

#define EFS_SOURCE_HEAD 64u /* bytes of a file that tell its kind */
struct efs_source_kind {
    enum { EFS_SOURCE_PLAIN, EFS_SOURCE_SAFETENSORS, EFS_SOURCE_GGUF } format;
    const char *what; /* of a plain file: what it is in place of weights, as a clause without subject, or NULL */
    bool broken;      /* what: is left by a download that failed */
};
/* The kind of a file by its first bytes: EFS_SOURCE_HEAD of them, or all; and by its name. weights: an index names it,
 * or its name is one of weights. */
struct efs_source_kind efs_source_kind(const char *path, bool weights, const uint8_t *head, size_t bytes);

/* PREFIX-00002-of-00003.safetensors, or .gguf: one file of several; "-OF-", too. They are counted from 0 or from 1. */
struct efs_source_part {
    int prefix_bytes, digits;
    unsigned long number, count;
    const char *end; /* "-of-" and what follows */
};
bool efs_source_part(const char *path, struct efs_source_part *part);

/* Bytes of the folder that a path begins with, its slash too; 0: there is none. */
size_t efs_source_folder(const char *path);
/* The file of this path; NULL: there is none. */
struct efs_source_file *efs_source_find(const struct efs_catalog *catalog, const char *path);
/* Whether the file's name is that of an index. */
bool efs_source_is_index(const char *path);
/* The map of an index, from tensors to files; owned by the caller. NULL: why says why there is none. */
struct json_t *efs_source_index_map(const struct efs_catalog *catalog, const struct efs_source_file *index,
                                    struct efs_error *why);
/* The path in the catalogue of a file that an index names, for free(). It begins with "/" or "../" where the file lies
 * outside of the checkpoint. NULL without memory. */
char *efs_source_index_path(const struct efs_source_file *index, const char *name);
/* Read an index: fill its names_all and missing, and index of the files that it names; or its note. -ENOMEM. */
errint_t efs_source_take_index(struct efs_catalog *catalog, uint32_t number);
/* Read all of them. -ENOMEM. */
errint_t efs_source_read_indexes(struct efs_catalog *catalog, struct efs_error *err);
/*
 * Choose the model whose experts the store has: fills apart of the catalogue's files, and notes. expert_bytes: of each
 * file, of its tensors with names of experts. *index: the file that is the model's index, EFS_NONE: it has none.
 * -ENOMEM.
 */
errint_t efs_source_choose_model(struct efs_catalog *catalog, const uint64_t *expert_bytes, uint32_t *index);

/* Give each tensor its class, and fill catalog's experts and family. tensors must be sorted. -ENOMEM, -E2BIG. */
errint_t efs_source_name_experts(struct efs_catalog *catalog, struct efs_error *err);

/* Make room for one more of element_bytes in *array: doubles *capacity. -ENOMEM. */
errint_t efs_source_grow(void **array, size_t count, size_t *capacity, size_t element_bytes);

#endif
