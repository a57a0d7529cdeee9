/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of what a mount tells clients, over its corpus, and over inputs that are made of it: run from the
 * repository's root. */
#include "../fuzz/fuzz_layout.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_layout", argv[0], 100000);
}
