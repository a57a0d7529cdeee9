/* SPDX-License-Identifier: Apache-2.0 */
/* info_checkpoint.h - what a checkpoint holds before it is packed, by names and sizes: no weight is read. */
#ifndef EXPERTCTL_INFO_CHECKPOINT_H
#define EXPERTCTL_INFO_CHECKPOINT_H

#include "expertfs.h"

struct ctl_checkpoint {
    char family[32];
    uint64_t source_bytes, files, experts, layers; /* layers that have experts */
    uint64_t expert_raw_bytes;
    uint64_t expert_coded_bytes; /* estimated by the ratios that trained weights were measured to have */
};

/* Is it a directory or a file of weights, which mkexpertfs packs? */
bool ctl_is_checkpoint(const char *path);
/* Blocks. -EUCLEAN, -ENOENT, ...: it cannot be packed, in the words of mkexpertfs. */
errint_t ctl_checkpoint_look(const char *path, struct ctl_checkpoint *checkpoint, struct efs_error *err);

#endif
