/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - shared by the readers of the source formats.
 *
 * source/ reads the headers of foreign checkpoints (safetensors, GGUF) into a catalogue of files, tensors and experts.
 * pack/ and client/ call it, view/ uses its names of element types, expertctl and moe-replay read catalogues. It never
 * writes a file and never decodes the data of a tensor.
 *
 * This file has the input files, lists of tensors, and the steps of efs_catalog_read():
 *
 *   source.c         efs_catalog_read(): walks the directory, parses files, finds the experts
 *   source_kind.c    detects the format of a file
 *   source_index.c   files named by an index
 *   source_check.c   checks that a source is a complete checkpoint
 *   source_choose.c  which files belong to the model
 *   source_list.c    reading, lists of tensors
 *   source_downloads.c, source_holes.c   files whose download has not ended
 *   source_dir.c     lists the files
 *   source_skip.c    folders that are no part of a checkpoint
 *   source_safetensors.c, source_gguf.c   parse the tensors of one file
 *   source_facts.c     what config.json says of the model
 *   source_names.c     the names that are known for experts
 *   tensor_role.c      the role of a tensor in its expert, by its name
 *   source_pattern.c   other names, by the number of experts in config.json
 *   source_naming.c    sets the experts of one tensor
 *   source_experts.c   assigns tensors to experts
 */
#ifndef EFS_SOURCE_H
#define EFS_SOURCE_H

#include "catalog.h"

/* Limits of a checkpoint. Beyond them it is rejected (-E2BIG, -ENAMETOOLONG), or a tensor does not count as an
 * expert's. */
#define EFS_SOURCE_MAX_FILES 1000000u
#define EFS_SOURCE_MAX_TENSORS 640000u /* the index may limit it further: EFS_INDEX_BYTES */
#define EFS_SOURCE_MAX_PATH 1023u      /* bytes; the capacity in struct efs_file_info */
#define EFS_SOURCE_MAX_DEPTH 64u       /* nested directories */
#define EFS_SOURCE_MAX_NAME 65535u     /* bytes of a tensor's name */

/* A file being parsed. `bytes` is its size at the directory walk; reads stay below it. Owns nothing. */
struct efs_source_input {
    const struct efs_source_reader *reader; /* NULL: fd, or data */
    int fd;                                 /* used if data is NULL */
    const uint8_t *data;                    /* the whole file in memory */
    const char *path;                       /* for messages */
    uint64_t bytes;
    uint32_t file; /* index into the catalogue's files */
};

/* Reads exactly len bytes at offset. Blocks. -EUCLEAN: outside of the file; -ESTALE: the file was truncated; -EIO,
 * ... */
errint_t efs_source_read(const struct efs_source_input *in, uint64_t offset, void *buf, size_t len,
                         struct efs_error *err);

/* A tensor as described by its file. known: false for a GGUF tensor of unknown type, which extends to the next tensor,
 * and for a safetensors tensor whose name is too long. The latter, and GGUF tensors whose type number is too large for
 * dtype, are left out of the catalogue: their bytes are stored with the file. */
struct efs_source_entry {
    struct efs_source_tensor tensor;
    bool known;
};

struct efs_source_list {
    struct efs_source_entry *entries;
    size_t count, capacity;
    size_t before;                 /* tensors of other files, counted for EFS_SOURCE_MAX_TENSORS */
    struct efs_source_facts facts; /* of GGUF metadata */
    /* After -EUCLEAN: the file is shorter than its header describes; a safetensors file without a JSON header. */
    bool cut, no_header;
};

void efs_source_tensor_free(struct efs_source_tensor *tensor); /* frees name and type */
/* Checks that `more` further tensors of a file stay within the limit. 0, or -E2BIG with file, number and limit in
 * err. */
errint_t efs_source_list_room(const struct efs_source_list *list, uint64_t more, const char *path,
                              struct efs_error *err);
/* Appends an entry. The list takes ownership of entry->tensor.name and type, also on failure. 0 or -ENOMEM. */
errint_t efs_source_list_add(struct efs_source_list *list, const struct efs_source_entry *entry);
void efs_source_list_free(struct efs_source_list *list);
/* Sorts by (offset, bytes, name). */
void efs_source_list_sort(struct efs_source_list *list);

/* Parse one file; the entries are sorted by offset and checked: inside the file, no overlap. -EUCLEAN: bad format;
 * -ESTALE: the file was truncated; -E2BIG, -ENOMEM, -EIO. */
errint_t efs_source_safetensors(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err);
errint_t efs_source_gguf(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err);

/* Fills root and files of the catalogue. */
errint_t efs_source_walk(const char *src, struct efs_catalog *catalog, struct efs_error *err);
/* Why an entry below the root, at path, is no part of a checkpoint; NULL: it is one. Blocks on I/O. */
const char *efs_source_skip_reason(const char *path, const char *name, bool folder);
/* Whether the path is that of the folder that `hf download --local-dir` makes. */
bool efs_source_is_hub_folder(const char *path);
/* Whether the name is that of a file of weights: it ends with .safetensors or .gguf. */
bool efs_source_named_weights(const char *path);

#define EFS_SOURCE_HEAD 64u /* bytes from the start of a file that efs_source_kind() examines */
struct efs_source_kind {
    enum { EFS_SOURCE_PLAIN, EFS_SOURCE_SAFETENSORS, EFS_SOURCE_GGUF } format;
    const char *what; /* of a plain file named as weights: why it holds none, such as "is a Git LFS pointer"; or NULL */
    bool broken;      /* what: it is the result of a failed download */
};
/* Detects the kind of a file from its first EFS_SOURCE_HEAD bytes (or all, if it is shorter) and its name. weights:
 * an index names it, or its name is that of a file of weights. */
struct efs_source_kind efs_source_kind(const char *path, bool weights, const uint8_t *head, size_t bytes);

/* A file name of a split model: PREFIX-00002-of-00003.safetensors or .gguf, also with "-OF-". Numbers start at 0 or
 * 1. */
struct efs_source_part {
    int prefix_bytes, digits;
    unsigned long number, count;
    const char *end; /* "-of-" and the rest */
};
bool efs_source_part(const char *path, struct efs_source_part *part);

/* Sets the state EFS_SOURCE_BROKEN, and the note "PATH: " other what. 0 or -ENOMEM. */
errint_t efs_source_mark_broken(struct efs_source_file *file, const char *other, const char *what);
/* Marks the files of a parsed catalogue that are downloads in progress, or have the file of one in their folder. Blocks
 * on I/O. 0 or -ENOMEM. */
errint_t efs_source_mark_downloads(struct efs_catalog *catalog, struct efs_error *err);
/* Marks the file if it has a hole in a tensor of the list, which is sorted. Reads no data. 0 or -ENOMEM. */
errint_t efs_source_mark_holes(const struct efs_source_input *in, const struct efs_source_list *list,
                               struct efs_source_file *file);

/* Length of the directory part of a path, including the last slash; 0: no directory. */
size_t efs_source_folder(const char *path);
/* The file with this path; NULL: not in the catalogue. */
struct efs_source_file *efs_source_find(const struct efs_catalog *catalog, const char *path);
/* Whether the name is that of an index. */
bool efs_source_is_index(const char *path);
/* Parses a JSON file of the catalogue of at most max bytes; the caller owns the result. NULL on failure, with the
 * reason in why. Blocks on I/O. */
struct json_t *efs_source_json(const struct efs_catalog *catalog, const struct efs_source_file *file, uint32_t max,
                               struct efs_error *why);
/* The map of an index from tensors to files; the caller owns it. NULL on failure, with the reason in why. */
struct json_t *efs_source_index_map(const struct efs_catalog *catalog, const struct efs_source_file *index,
                                    struct efs_error *why);
/* The catalogue path of a file named by an index; the caller frees it. It starts with "/" or "../" if the file is
 * outside of the checkpoint. NULL: no memory. */
char *efs_source_index_path(const struct efs_source_file *index, const char *name);
/* Reads an index: sets its names_all and missing, and the index member of the files that it names; if it cannot be
 * read, sets its note. 0 or -ENOMEM. */
errint_t efs_source_read_index(struct efs_catalog *catalog, uint32_t number);
/* After all tensors are known: clears `missing`, with a note, of indexes whose tensors are all there, in other files,
 * and have together the size that the index states. 0 or -ENOMEM. */
errint_t efs_source_check_indexes(struct efs_catalog *catalog, struct efs_error *err);
/* Reads all indexes. 0 or -ENOMEM. */
errint_t efs_source_read_indexes(struct efs_catalog *catalog, struct efs_error *err);
/*
 * Chooses the model whose experts the store gets: sets other_model and note of files. expert_bytes: for each file,
 * bytes of tensors with expert names. *index: the file of the model's index, or EFS_NONE. 0 or -ENOMEM.
 */
errint_t efs_source_choose_model(struct efs_catalog *catalog, const uint64_t *expert_bytes, uint32_t *index);

/* Set the architecture of facts, unless the text is too long or has other characters. Adds a number of experts, unless
 * it is there, too small or too large, or there are EFS_SOURCE_COUNTS. */
void efs_source_set_architecture(struct efs_source_facts *facts, const char *text, size_t bytes);
void efs_source_add_count(struct efs_source_facts *facts, uint64_t count);
/*
 * The facts of a file with tensors: of a GGUF file those of its first part, else of the nearest config.json or
 * params.json above it, which is read if this was not done. *facts: owned by the catalogue; NULL if nothing is known.
 * Blocks on I/O. 0 or -ENOMEM.
 */
errint_t efs_source_facts(struct efs_catalog *catalog, uint32_t file, struct efs_source_facts **facts);

/* Sets the class of each tensor, and the catalogue's experts and family. tensors must be sorted; experts: see
 * efs_catalog_read(). 0, -ENOMEM, -E2BIG or -EINVAL. */
errint_t efs_source_name_experts(struct efs_catalog *catalog, const char *experts, struct efs_error *err);

/* Ensures room for one more element of element_bytes in *array; doubles *capacity. 0 or -ENOMEM. */
errint_t efs_source_grow(void **array, size_t count, size_t *capacity, size_t element_bytes);

#endif
