/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - what a checkpoint consists of, before it is packed: by names and sizes, no weight is read. */
#ifndef TOOLS_CHECKPOINT_H
#define TOOLS_CHECKPOINT_H

#include "expertfs-pack.h"

struct tools_checkpoint {
    char family[32];
    uint64_t bytes;           /* of all files */
    uint32_t layers, experts; /* layers that have experts, of all stacks; experts of the widest */
    /* Tensors, as packing's table has them: class, dtype, tensors, raw_bytes; all else is 0. */
    struct efs_pack_row rows[EFS_PACK_ROWS];
    unsigned row_count;
    char config[4096]; /* the file config.json; "": there is none */
    char gguf[4096];   /* the GGUF file of the model, its first part; "": none */
};

/* A file or a directory, as mkexpertfs takes them. Blocks. -EUCLEAN for a file that violates its format, ... */
errint_t tools_checkpoint_read(const char *path, struct tools_checkpoint *checkpoint, struct efs_error *err);

#endif
