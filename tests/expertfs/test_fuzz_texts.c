/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer of texts over its corpus, and over texts that are made of it: run from the repository's root. */
#include "../fuzz/fuzz_texts.c"
#include "../fuzz/mutate.h"

int main(int argc, char **argv)
{
    (void)argc;
    return mutate_main("fuzz_texts", argv[0], 20000);
}
