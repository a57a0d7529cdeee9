/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.h - the contents of a checkpoint: files, tensors, experts. Filled by source_*.c, used by the packer.
 *
 * The catalogue has names and file offsets, but no weights. All offsets are checked: every tensor is inside its file,
 * tensors of one file do not overlap, and sizes agree with dtype and shape.
 */
#ifndef EFS_CATALOG_H
#define EFS_CATALOG_H

#include "layout.h"
#include "expertfs.h"

#define EFS_SOURCE_COUNTS 8u
/* What config.json, params.json or the metadata of a GGUF file says of the model: its architecture, or "", and the
 * values that may be its number of experts, each from 2 to 65536. */
struct efs_source_facts {
    char architecture[64]; /* [A-Za-z0-9_.-] */
    unsigned count_count;
    uint32_t counts[EFS_SOURCE_COUNTS];
    /* split.count and split.no of a GGUF file: its part of a split model, from 0. 0, 0: no part. */
    uint16_t part_count, part;
    bool matched;   /* a tensor of the model has a name that is known for experts */
    bool companion; /* a GGUF file for use with a model: an image encoder, an importance matrix, an
                       adapter, a control vector, a vocabulary; by general.type and the architecture */
};

/* One file of the checkpoint, with or without tensors. */
struct efs_source_file {
    char *path; /* relative to the source, components separated by '/' */
    uint64_t bytes;
    bool has_tensors; /* its tensors were parsed */
    bool gguf;        /* parsed as GGUF */
    bool other_model; /* its tensors do not belong to the model whose experts are in the catalogue */
    uint32_t index;   /* the index that names it, preferably its model's; EFS_NONE: none */
    bool names_all;   /* an index whose files all exist */
    char *missing;    /* an index: the first missing file that it names; or NULL */
    /* Of a GGUF file, and of a config.json or params.json that was read; owned; or NULL. */
    struct efs_source_facts *facts;
    /* A notice for the user: "PATH: REASON"; or NULL. */
    char *note;
    enum efs_source_state {
        EFS_SOURCE_WHOLE,
        EFS_SOURCE_UNREAD,    /* a file of weights that cannot be parsed: stored as plain bytes */
        EFS_SOURCE_NO_HEADER, /* the same, of a safetensors file without a JSON header */
        EFS_SOURCE_BROKEN     /* looks like a download that failed or did not end; may have tensors */
    } state;
    bool copy;         /* has the same bytes as another file and no tensors in the catalogue: pack_copies.c */
    uint32_t original; /* of a copy: the index of the other file */
};

enum efs_tensor_class {
    EFS_CLASS_EXPERT, /* part of one expert */
    EFS_CLASS_FUSED,  /* its slowest dimension is the expert number */
    EFS_CLASS_DENSE
};

struct efs_source_tensor {
    char *name;
    /* The header's type of a safetensors tensor whose dtype or shape is not supported:
     * "dtype":"F8_E3M4","shape":[2,3]. Such a tensor has one dimension of U8 here. NULL: dtype and shape are the
     * file's. */
    char *type;
    enum efs_dtype dtype; /* a ggml type without a plain equivalent: EFS_DTYPE_GGML + its number, also if unknown */
    enum efs_tensor_class tensor_class;
    uint32_t file;
    uint32_t dims;
    uint64_t shape[EFS_MAX_DIMS]; /* slowest first */
    uint64_t offset, bytes;       /* offset in the file; bytes may be 0 */
    uint32_t expert_first; /* EXPERT: index into experts[]; FUSED: the index for slice 0, the other slices follow */
};

/* An expert of the model. experts[] is sorted by (stack, layer, expert) without duplicates. */
struct efs_source_expert {
    char *stack; /* "", "encoder", "decoder", "mtp", ...: at most 31 bytes of [A-Za-z0-9_-] */
    uint32_t layer, expert;
};

/* Reads files that are not in a folder: bytes of the catalogue's file with this index. 0, or -errno with err. */
struct efs_source_reader {
    errint_t (*read)(void *arg, uint32_t file, uint64_t offset, void *data, size_t bytes, struct efs_error *err);
    void *arg;
};

struct efs_catalog {
    const struct efs_source_reader *reader; /* NULL: the files are below root */
    char *root;                             /* the directory to which paths are relative */
    bool folder;                            /* all files in root are listed; else those that were given */
    struct efs_source_file *files;          /* sorted by path (bytes) */
    size_t file_count;
    struct efs_source_tensor *tensors; /* sorted by (file, offset) */
    size_t tensor_count;
    struct efs_source_expert *experts;
    size_t expert_count;
    char *skipped; /* "PATH: REASON" of the first folder that was skipped, as no part of the checkpoint; NULL: none */
    size_t skipped_count;
    char *lacks; /* "PATH: REASON" of the first part of it that could not be listed or was not downloaded; NULL: none */
    /* For the report: the architecture in config.json or GGUF metadata; else how experts are named, "mixtral", or
     * "dense". */
    char *family;
};

/*
 * Reads src: a directory (every regular file in its tree; safetensors and GGUF files are parsed) or one file. A file
 * that violates its format has no tensors, and a note with file, offset and reason. Folders that are no
 * part of a checkpoint are skipped (source_skip.c). Symbolic links are followed (hub caches use them); dangling links
 * and special files are rejected. Blocks on I/O.
 *
 * experts: NULL, or an extended regular expression that finds the tensors of experts before the names that are known:
 * its first group is the layer; its second one the expert, without which the first dimension counts experts.
 *
 * 0 or -errno with err: -ESTALE: a file changed; -EINVAL: experts is no such expression, or matches no tensor; -ENOENT,
 * -EACCES, ... of system calls.
 */
errint_t efs_catalog_read(const char *src, const char *experts, struct efs_catalog *catalog, struct efs_error *err);
/* The two steps of efs_catalog_read(): lists the files; parses those of weights and finds the experts. Each frees the
 * catalogue on error. */
errint_t efs_catalog_list(const char *src, struct efs_catalog *catalog, struct efs_error *err);
errint_t efs_catalog_parse(struct efs_catalog *catalog, const char *experts, struct efs_error *err);
/* After efs_catalog_list() of one file that is a part of a split model: adds the parts beside it. *added: whether there
 * are any. The caller frees the catalogue, also on error. */
errint_t efs_catalog_add_parts(struct efs_catalog *catalog, bool *added, struct efs_error *err);
/* efs_catalog_read() with these parts, as efs_store_open() serves and efs_pack() packs them. */
errint_t efs_catalog_read_parts(const char *src, const char *experts, struct efs_catalog *catalog, bool *added,
                                struct efs_error *err);
/* Checks that src has weights, all parts of split models, and all files named by its indexes. 0, or -ENODATA with the
 * reason and what to pack instead in err. */
errint_t efs_catalog_check(const char *src, const struct efs_catalog *catalog, struct efs_error *err);
/* Checks that no file looks like a download that failed or did not end, before the sources are removed. 0, or -ENODATA
 * as above. */
errint_t efs_catalog_check_whole(const char *src, const struct efs_catalog *catalog, struct efs_error *err);
void efs_catalog_free(struct efs_catalog *catalog);

#endif
