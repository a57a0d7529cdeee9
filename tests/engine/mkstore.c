/* SPDX-License-Identifier: Apache-2.0 */
/* mkstore.c - writes a store of any logical size that takes little disk space (tests/common/large_store.h), for tests
 * and benchmarks. */
#include "expertfs-private.h"
#include "large_store.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "Usage: mkstore [OPTIONS] OUT.efs\n"
    "Write a store whose experts share the chunks of a few: it has the index, the sizes and the offsets of a large\n"
    "one and takes little disk.\n"
    "\n"
    "  -l, --layers=N      (48)\n"
    "  -e, --experts=N     a layer (128)\n"
    "  -d, --hidden=N      (2048)\n"
    "  -i, --inner=N       (768)\n"
    "  -n, --distinct=N    experts that are coded (64)\n"
    "  -f, --file-size=S   tensors in a file of the checkpoint, at most (5 GB)\n"
    "  -s, --spread=S      bytes of the store that chunks are spread over (as many as without sharing)\n";

static uint64_t size(const char *text)
{
    uint64_t bytes;
    if (efs_parse_size(text, &bytes) < 0 || bytes == 0) {
        fprintf(stderr, "mkstore: '%s' is no number above 0\n", text);
        exit(2);
    }
    return bytes;
}

static uint32_t number(const char *text)
{
    uint64_t n = size(text);
    if (n > 1u << 24) {
        fprintf(stderr, "mkstore: '%s' is too much\n", text);
        exit(2);
    }
    return (uint32_t)n;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"layers", required_argument, NULL, 'l'},
        {"experts", required_argument, NULL, 'e'},
        {"hidden", required_argument, NULL, 'd'},
        {"inner", required_argument, NULL, 'i'},
        {"distinct", required_argument, NULL, 'n'},
        {"file-size", required_argument, NULL, 'f'},
        {"spread", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct large_store store = {
        .layers = 48, .experts = 128, .hidden = 2048, .inner = 768, .distinct = 64, .file_bytes = UINT64_C(5000000000)};
    struct efs_error err = {""};
    int c;
    while ((c = getopt_long(argc, argv, "l:e:d:i:n:f:s:h", options, NULL)) != -1) {
        switch (c) {
        case 'l':
            store.layers = number(optarg);
            break;
        case 'e':
            store.experts = number(optarg);
            break;
        case 'd':
            store.hidden = number(optarg);
            break;
        case 'i':
            store.inner = number(optarg);
            break;
        case 'n':
            store.distinct = number(optarg);
            break;
        case 'f':
            store.file_bytes = size(optarg);
            break;
        case 's':
            store.spread_bytes = size(optarg);
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            return 2;
        }
    }
    if (optind + 1 != argc) {
        fputs(help, stderr);
        return 2;
    }
    if (large_store_write(argv[optind], &store, &err) < 0) {
        fprintf(stderr, "mkstore: %s\n", err.text);
        return 1;
    }
    return 0;
}
