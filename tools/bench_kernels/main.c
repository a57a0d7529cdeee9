/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels - benchmarks of kernels/, run by tools/bench and by hand. */
#include "bench.h"

#include "process.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(struct bench_options, field)
#define OPTION(n, l, a, h, k, field, ...)                                                                              \
    {                                                                                                                  \
        .name = n, .letter = l, .argument = a, .help = h, .kind = k, .at = AT(field), __VA_ARGS__                      \
    }
#define RANGE(from, to) .least = (from), .most = (to)
#define COMMON                                                                                                         \
    OPTION("mib", 'm', "N", "MiB of weights of each format or shape (512)", TOOLS_NUMBER, mib, RANGE(1, 65536)),       \
        OPTION("rounds", 'r', "N", "medians of N rounds (7)", TOOLS_UNSIGNED, rounds, RANGE(1, ROUNDS_MAX)),           \
        OPTION("weights", 'w', "FILE", "weights, float32 (normal ones)", TOOLS_TEXT, weights)

#define PATH OPTION("path", 'p', "NAME", "only scalar, avx2, avx512 or neon", TOOLS_TEXT, path)

static const struct tools_option coder_options[] = {
    COMMON,
    PATH,
    OPTION("threads", 't', "N", "threads, each with its own part (1)", TOOLS_UNSIGNED, threads, RANGE(1, THREADS_MAX)),
    OPTION("format", 'f', "NAME", "only bf16, f16, f32, e4m3, e5m2 or bytes", TOOLS_TEXT, format),
    OPTION("span", 's', "N", "symbols of a span: 32768, or 4096 or 8192 (32768)", TOOLS_UNSIGNED, span,
           RANGE(4096, 32768)),
    {0}};
static const struct tools_option products_options[] = {
    COMMON,
    PATH,
    OPTION("threads", 't', "N", "1 and N (all processors)", TOOLS_UNSIGNED, threads, RANGE(1, THREADS_MAX)),
    OPTION("tokens", 'T', "N", "vectors at once, beside one (16)", TOOLS_UNSIGNED, tokens, RANGE(2, 4096)),
    OPTION("f16", 'F', NULL, "F16 matrices, vectors rounded to F16", TOOLS_FLAG, f16),
    {0}};
static const struct tools_option gpu_options[] = {
    COMMON, OPTION("format", 'f', "NAME", "only bf16, f16, f32, e4m3, e5m2 or bytes", TOOLS_TEXT, format), {0}};

int main(int argc, char **argv)
{
    static const struct tools_command coder = {
        .options = coder_options,
        .help = "Exponent coder and merge, memory to memory, against memcpy in the same run: lines of JSON. "
                "limit_ratio: the ratio that reading the coded bytes or writing the raw ones alone would have, the "
                "slower of them.\v"
                "bench_kernels products --help: products of matrices; bench_kernels gpu --help: graphics processors."};
    static const struct tools_command products = {
        .options = products_options,
        .arguments = "[ROWSxCOLS...]",
        .help = "Products of BF16 matrices (2880x2880 and 4096x1536) with vectors, coded against plain: lines of "
                "JSON. GB/s are of plain bytes. limit: coded over plain if the coded bytes came as fast as reading "
                "alone.",
        .at = AT(shapes)};
    static const struct tools_command gpu = {
        .options = gpu_options,
        .help = "Kernels on the first graphics processor, from and to its memory, against a copy of the plain bytes "
                "there in the same run: lines of JSON. GB/s are of plain bytes; decode_launches: 8 MiB of coded bytes "
                "at a time; link: a copy of the plain bytes from registered memory to the device."};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct bench_options o = {.mib = 512, .rounds = 7, .threads = 1, .tokens = 16, .span = EFS_SPAN};
    tools_init();
    if (argc >= 2 && strcmp(argv[1], "gpu") == 0) {
        static char gpu_title[] = "bench_kernels gpu";
        argv[1] = gpu_title;
        tools_parse(&gpu, argc - 1, argv + 1, &o);
        return bench_gpu(&o);
    }
    if (argc < 2 || strcmp(argv[1], "products") != 0) {
        tools_parse(&coder, argc, argv, &o);
        if (o.span != EFS_SPAN && o.span != 4096 && o.span != 8192)
            bench_fail("--span", EINVAL);
        return bench_coder(&o);
    }
    o.threads = processors < 1 ? 1 : processors > THREADS_MAX ? THREADS_MAX : (unsigned)processors;
    static char title[] = "bench_kernels products";
    argv[1] = title;
    tools_parse(&products, argc - 1, argv + 1, &o);
    return bench_products(&o);
}
