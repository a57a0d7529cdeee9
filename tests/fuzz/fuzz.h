/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - shared by the fuzzers. Each defines LLVMFuzzerTestOneInput(), which must return for any bytes; abort() is a
 * finding. clang's libFuzzer runs it (`make fuzz`), and so does mutate.c in the tests with any compiler.
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
int LLVMFuzzerInitialize(int *argc, char ***argv); /* optional */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(STDERR_FILENO, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Create a directory from mkdtemp()'s template. A child removes it when this process has ended, also after a crash. */
static inline void fuzz_folder(char *template)
{
    int ends[2];
    char end;
    CHECK(mkdtemp(template) && pipe2(ends, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) {
        close(ends[0]); /* ends[1] stays open until this process ends */
        return;
    }
    for (int fd = 0; fd < 3; fd++)
        close(fd); /* a reader of this process's output must not wait for the child */
    close(ends[1]);
    while (read(ends[0], &end, 1) > 0) {
    }
    execlp("rm", "rm", "-rf", template, (char *)NULL);
    _exit(1);
}

#endif
