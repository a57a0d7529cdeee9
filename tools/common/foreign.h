/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign.h - the floats of a checkpoint that somebody else made: tensor by tensor, as float32.
 *
 * Its files are parsed by the engine's readers, so every place was checked against the file's size. Not thread-safe.
 */
#ifndef TOOLS_FOREIGN_H
#define TOOLS_FOREIGN_H

#include "expertfs.h"

#include <stddef.h>
#include <stdint.h>

struct tools_foreign;

struct tools_foreign_tensor {
    const char *name; /* lives as long as the checkpoint is open */
    uint32_t dims;
    uint64_t elements; /* > 0 */
};

/* A file or a directory, as mkexpertfs takes them; its tensors of BF16, F16, F32 and F64 are counted, in the order of
 * the files and of their places there. Blocks. 0, -EUCLEAN for a file that violates its format, -ENOENT, -ENOMEM, ...
 */
errint_t tools_foreign_open(const char *path, struct tools_foreign **foreign, struct efs_error *err);
void tools_foreign_close(struct tools_foreign *foreign); /* NULL is fine */

size_t tools_foreign_count(const struct tools_foreign *foreign);
/* index below the count. */
struct tools_foreign_tensor tools_foreign_tensor(const struct tools_foreign *foreign, size_t index);

/* Elements [first, first + count) of a tensor, all inside it, rounded to float32; what is not finite may become any
 * value that is not. Blocks. 0, -EUCLEAN: the file became shorter, -EIO, -ENOMEM, ... */
errint_t tools_foreign_read(struct tools_foreign *foreign, size_t index, uint64_t first, size_t count, float *out,
                            struct efs_error *err);

#endif
