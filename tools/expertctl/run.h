/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - runs a program on a store or a mount, with the ggml backend preloaded. */
#ifndef EXPERTCTL_RUN_H
#define EXPERTCTL_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* Exit statuses as of env(1), timeout(1) and shells: 125 to 127 are failures before the program ran. */
enum { RUN_FAILED = 125, RUN_NOT_EXECUTABLE = 126, RUN_NOT_FOUND = 127, RUN_SIGNAL = 128 };

/* A program and the model that it runs on. */
struct ctl_run {
    const char *source;  /* a store, a checkpoint that is served in place, or a path in a mount */
    const char *plain;   /* the files of the checkpoint, a folder or a GGUF file; NULL: only source has them */
    uint64_t bytes;      /* of these files */
    const char *options; /* of the mount, as of -o; NULL: none */
    char **words;        /* the program and its arguments, ended by NULL */
    bool fits;           /* ctl_run_is_plain(), decided once: the available memory changes */
};
/* Whether the program is to run on the plain files: these fit into memory, and neither options nor EXPERTFS_BUDGET set
 * how much of it experts take, nor EXPERTFS_DEVICE a device. Then no store is needed. */
bool ctl_run_is_plain(const struct ctl_run *run);
/* Checks, before a model is packed for it and a way is printed, that the program is there, and that {gguf} names a file
 * of the plain files. Returns 0, or one of the statuses above after a message. */
int ctl_run_check(const struct ctl_run *run);
/*
 * Runs a program in one of three ways, which is printed on standard error, and waits for it:
 * - on the plain files, if they fit;
 * - experts from the source, which the ggml backend opens in the program (EXPERTFS_STORE), all else from the plain GGUF
 *   files, if there are any, or without a placeholder from the file that the program opens by a name of its own;
 * - on a mount of the source in a temporary folder otherwise, and if there are options.
 * A mount given as the source is used as it is, but for a plain file of it that fits.
 * {} in words is the folder of the files in that way, {gguf} the GGUF file in it.
 * Returns the status of the program, or one of those above after a message.
 */
int ctl_run_program(const struct ctl_run *run);

#endif
