/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what fuzzers share. Each defines LLVMFuzzerTestOneInput(), which returns for any bytes or aborts; clang's
 * libFuzzer runs it (`make fuzz`), and mutate.h in the tests of any compiler.
 */
#ifndef EFS_FUZZ_H
#define EFS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
