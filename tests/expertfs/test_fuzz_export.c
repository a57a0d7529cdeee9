/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of what clients send to a mount's socket, over its corpus, and over inputs that are made of it: run from
 * the repository's root. */
#include "../fuzz/fuzz_export.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_export", argv[0], 2000);
}
