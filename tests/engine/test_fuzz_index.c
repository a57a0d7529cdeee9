/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of files' names and indexes, over its corpus, and over inputs that are made of it: run from the
 * repository's root. */
#include "../fuzz/fuzz_index.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    LLVMFuzzerInitialize(&argc, &argv);
    return mutate_main("fuzz_index", argv[0], 20000);
}
