/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of stores, over its corpus, and over inputs that are made of it: run from the repository's root. */
#include "../fuzz/fuzz_store.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_store", argv[0], 1500);
}
