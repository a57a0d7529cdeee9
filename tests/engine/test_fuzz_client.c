/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of what a mount's socket sends, over its corpus, and over inputs that are made of it: run from the
 * repository's root. */
#include "../fuzz/fuzz_client.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_client", argv[0], 800);
}
