/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what fuzzers share. Each defines LLVMFuzzerTestOneInput(), which returns for any bytes or aborts; clang's
 * libFuzzer runs it (`make fuzz`), and mutate.c in the tests of any compiler.
 */
#ifndef EFS_FUZZ_H
#define EFS_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv); /* of some */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(STDERR_FILENO, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Make a folder from mkdtemp()'s template. A child takes it away when the process has ended, in whatever way. */
static inline void fuzz_folder(char *template)
{
    int ends[2];
    char end;
    CHECK(mkdtemp(template) && pipe2(ends, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) {
        close(ends[0]); /* the other end stays open for as long as we live */
        return;
    }
    for (int fd = 0; fd < 3; fd++)
        close(fd); /* who reads what we print waits for us alone */
    close(ends[1]);
    while (read(ends[0], &end, 1) > 0) {
    }
    execlp("rm", "rm", "-rf", template, (char *)NULL);
    _exit(1);
}

#endif
