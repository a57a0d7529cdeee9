/* SPDX-License-Identifier: Apache-2.0 */
/* run_plain.h - the plain file with the bytes of a file on a mount. */
#ifndef EXPERTCTL_RUN_PLAIN_H
#define EXPERTCTL_RUN_PLAIN_H

#include "run_values.h"

struct ctl_run_plain {
    char file[4096];  /* the plain GGUF file */
    char store[4096]; /* the store, or the checkpoint, that the mount serves */
    uint64_t bytes;   /* of all files of the mount */
    struct ctl_run_memory memory;
};
/*
 * Finds the plain file of gguf, the path of a GGUF file on the mount at root. It is the file that is served in place,
 * or one whose bytes were compared with those of the store before (efs_same_known()), and that has not changed since;
 * this user can open it and the store. false: there is none, or it is not known.
 */
bool ctl_run_plain_find(const char *root, const char *gguf, struct ctl_run_plain *plain);

#endif
