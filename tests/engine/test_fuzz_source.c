/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of foreign checkpoints over its corpus, which has every input that ever failed, and over files that are
 * made of it: run from the repository's root. */
#include "../fuzz/fuzz_source.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_source", argv[0], 100000);
}
