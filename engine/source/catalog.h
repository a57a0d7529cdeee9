/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.h - what a checkpoint on disk consists of: files, tensors, experts. Made by source_*.c, used by the packer.
 *
 * The catalogue holds names and places, never weights. All offsets were checked against the files' sizes: every
 * tensor lies inside its file, tensors of one file do not overlap, and sizes agree with dtype and shape.
 */
#ifndef EFS_CATALOG_H
#define EFS_CATALOG_H

#include "layout.h"
#include "expertfs.h"

/* One file of the checkpoint. Tensor files and all others alike. */
struct efs_source_file {
    char *path; /* relative to the source, '/' between parts */
    uint64_t bytes;
    bool has_tensors; /* its format was understood */
    bool gguf;        /* as that of GGUF */
    bool apart;       /* its tensors are not of the model whose experts are in the catalogue */
    uint32_t index;   /* the index that names it, that of its model if several do; EFS_NONE: none */
    bool names_all;   /* an index, and all files that it names are there */
    char *missing;    /* an index: the first file that it names and that is not there, or NULL */
    /* What the user should know of it: "PATH: REASON"; NULL: nothing. */
    char *note;
    enum efs_source_state {
        EFS_SOURCE_WHOLE,
        EFS_SOURCE_UNREAD, /* a file of weights that is not understood: its bytes are carried */
        EFS_SOURCE_BROKEN  /* it looks like a download that failed */
    } state;
    bool copy;         /* it has the bytes of another file and no tensors here: pack_same.c */
    uint32_t original; /* of a copy */
};

enum efs_tensor_class {
    EFS_CLASS_EXPERT, /* belongs to one expert */
    EFS_CLASS_FUSED,  /* slowest dimension counts experts */
    EFS_CLASS_DENSE
};

struct efs_source_tensor {
    char *name;
    /* What a safetensors file says of a tensor that no dtype or shape here fits: "dtype":"F8_E3M4","shape":[2,3]. It is
     * one dimension of U8 here. NULL: dtype and shape are the file's. */
    char *type;
    enum efs_dtype dtype; /* of a ggml type that is not known EFS_DTYPE_GGML + its number, as of others */
    enum efs_tensor_class tensor_class;
    uint32_t file;
    uint32_t dims;
    uint64_t shape[EFS_MAX_DIMS]; /* slowest first */
    uint64_t offset, bytes;       /* in the file; bytes may be 0 */
    uint32_t expert_first;        /* EXPERT, FUSED: index into experts[] (FUSED: of slice 0; slices follow in order) */
};

/* An expert of the model; experts[] is sorted by (stack, layer, expert) and has no duplicates. */
struct efs_source_expert {
    char *stack; /* "", "encoder", "decoder", "mtp", ...: at most 31 bytes of [A-Za-z0-9_-] */
    uint32_t layer, expert;
};

struct efs_catalog {
    char *root;                    /* directory that the paths are relative to */
    struct efs_source_file *files; /* sorted by path (bytes) */
    size_t file_count;
    struct efs_source_tensor *tensors; /* sorted by (file, offset) */
    size_t tensor_count;
    struct efs_source_expert *experts;
    size_t expert_count;
    char *skipped; /* the first .git that the walk did not enter; NULL: there was none */
    char *family;  /* "qwen-moe", "mixtral", "gguf", ..., "dense": for the report */
};

/*
 * Reads SRC: a directory (every regular file below it, subdirectories too; safetensors and GGUF files are parsed) or
 * one file. A file that violates its format is one without tensors, with a note of file, offset and what is wrong.
 * A .git below SRC is not entered. Symbolic links to files are followed (as hub caches use them), links that lead
 * nowhere are an error, special files are refused. Blocks on I/O. 0 or -errno with err: -ESTALE for a file that
 * changed, -ENOENT, -EACCES, ... for what the system says.
 */
errint_t efs_catalog_read(const char *src, struct efs_catalog *catalog, struct efs_error *err);
void efs_catalog_free(struct efs_catalog *catalog);

#endif
