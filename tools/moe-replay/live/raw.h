/* SPDX-License-Identifier: Apache-2.0 */
/* raw.h - files and offsets of the experts' tensors in a checkpoint that is not packed. */
#ifndef MOE_REPLAY_RAW_H
#define MOE_REPLAY_RAW_H

#include "model.h"

struct replay_raw {
    struct replay_model model;
    char **paths; /* [file_count]; NULL: a file without tensors */
    uint32_t file_count, most_tensors;
    /* The tensors of unit layer * experts + expert are first[unit] to first[unit + 1] - 1, by file and offset. */
    uint32_t *first;
    struct efs_tensor *tensors; /* data is not set */
    struct replay_raw_place {
        uint32_t file;
        uint64_t at;
    } * places;                  /* parallel to tensors */
    struct efs_catalog *catalog; /* owns the names of the tensors */
};

/* path: a directory or a file, as for mkexpertfs. Blocks. -EUCLEAN: damaged; -ENOENT: no experts. */
errint_t replay_raw_open(const char *path, struct replay_raw *raw, struct efs_error *err);
void replay_raw_close(struct replay_raw *raw); /* a zeroed struct is allowed */

#endif
