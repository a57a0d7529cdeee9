/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - runs a program on a store or a mount, with the ggml backend preloaded. */
#ifndef EXPERTCTL_RUN_H
#define EXPERTCTL_RUN_H

/* Exit statuses as of env(1), timeout(1) and shells: 125 to 127 are failures before the program ran. */
enum { RUN_FAILED = 125, RUN_NOT_EXECUTABLE = 126, RUN_NOT_FOUND = 127, RUN_SIGNAL = 128 };

/*
 * Runs words, a program and its arguments that end with NULL, on source, a store or a path in a mount, and waits for
 * it.
 * {} in words is the path of the mount, {gguf} its GGUF file. A store is mounted in a temporary folder meanwhile if a
 * word has one of these or options, as of -o, is not NULL; otherwise the program opens it itself (EXPERTFS_STORE).
 * Returns the status of the program, or one of those above after a message.
 */
int ctl_run_program(const char *source, const char *options, char **words);

#endif
