/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - benchmark of the kernels on a graphics processor: decoding with merge, and recovery from exponents that are
 * plain, as ratios to a copy of the same plain bytes within the device's memory, alternating in one run; and the rate
 * of a copy to the device. All data are in the device's memory, and larger than its cache. The output of both kernels
 * is compared with the weights.
 */
#include "bench.h"

#include "cuda/gpu.h"
#include "driver.h"
#include "measure.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_ALIGN 64u
#define LAUNCH_BYTES ((size_t)8 << 20) /* coded bytes a launch, as in engine/gpu */

enum work { WORK_COPY, WORK_DECODE, WORK_LAUNCHES, WORK_RECOVER, WORK_LINK, WORK_COUNT };
static const char *const work_names[] = {"copy", "decode", "decode_launches", "recover", "link"};

struct gpu {
    struct efs_driver cu;
    efs_cu_module module;
    efs_cu_function decode, recover;
    efs_cu_stream stream;
    efs_cu_event begin, end;
    efs_cu_result (*copy)(efs_cu_address to, efs_cu_address from, size_t bytes, efs_cu_stream stream);
    char name[128];
};

/* The weights of one format. Addresses are of the device but for raw and back. */
struct gpu_data {
    enum efs_format format;
    size_t each, elements, shards, raw_bytes, coded_bytes;
    uint8_t *raw, *back;              /* raw is allocated by the driver, for copies to the device */
    efs_cu_address plain, out, coded; /* coded: chunks, then SM, then exponents */
    efs_cu_address tables[2];         /* of decode and recover: efs_gpu_shard[shards] */
    uint32_t *launches, launch_count; /* index of the first shard of each launch; [launch_count]: shards */
};

static const struct efs_driver *driver; /* for gpu_check() */

static void gpu_check(const char *call, efs_cu_result result)
{
    if (result == 0)
        return;
    fprintf(stderr, "bench_kernels: %s: %s (%d)\n", call, efs_driver_error(driver, result), result);
    exit(1);
}
#define CHECK(name, call) gpu_check(name, driver->call)

static void gpu_open(struct gpu *g)
{
    struct efs_error err = {""};
    efs_cu_context context;
    efs_cu_device device;
    if (efs_driver_open(&g->cu, &err) < 0) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        exit(1);
    }
    driver = &g->cu;
    if (efs_gpu_image_bytes == 0) {
        fprintf(stderr, "bench_kernels: built without kernels for graphics processors\n");
        exit(1);
    }
    CHECK("cuInit", init(0));
    CHECK("cuDeviceGet", device_get(&device, 0));
    CHECK("cuDeviceGetName", device_name(g->name, (int)sizeof(g->name) - 1, device));
    CHECK("cuDevicePrimaryCtxRetain", context_retain(&context, device));
    CHECK("cuCtxPushCurrent", context_push(context));
    CHECK("cuModuleLoadData", module_load(&g->module, efs_gpu_image));
    CHECK("cuModuleGetFunction", function_get(&g->decode, g->module, "efs_gpu_decode"));
    CHECK("cuFuncSetAttribute", function_set(g->decode, EFS_CU_FUNCTION_SHARED_BYTES, EFS_GPU_DECODE_SHARED));
    CHECK("cuModuleGetFunction", function_get(&g->recover, g->module, "efs_gpu_recover"));
    CHECK("cuStreamCreate", stream_create(&g->stream, EFS_CU_STREAM_NON_BLOCKING));
    CHECK("cuEventCreate", event_create(&g->begin, EFS_CU_EVENT_TIMING));
    CHECK("cuEventCreate", event_create(&g->end, EFS_CU_EVENT_TIMING));
    void *copy = dlsym(g->cu.library, "cuMemcpyDtoDAsync_v2");
    if (!copy)
        bench_fail("cuMemcpyDtoDAsync", ENOSYS);
    memcpy(&g->copy, &copy, sizeof(copy));
}

static size_t aligned(size_t bytes)
{
    return (bytes + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

static efs_cu_address device_memory(size_t bytes)
{
    efs_cu_address at;
    CHECK("cuMemAlloc", memory_alloc(&at, bytes));
    return at;
}

/* Codes the weights shard by shard, and copies all to the device. */
static void data_make(struct gpu *g, struct gpu_data *d, enum efs_format format, const struct bench_options *o)
{
    *d = (struct gpu_data){.format = format, .each = efs_format_bytes(format)};
    d->elements = (o->mib << 20) / d->each;
    d->raw_bytes = d->elements * d->each;
    d->shards = (d->elements + SHARD_ELEMENTS - 1) / SHARD_ELEMENTS;
    const size_t chunk_room = aligned(efs_cascade_bound(SHARD_ELEMENTS)), e_room = aligned(SHARD_ELEMENTS);
    const size_t sm_room = aligned(efs_sm_bytes(format, SHARD_ELEMENTS));
    void *raw;
    CHECK("cuMemHostAlloc", host_alloc(&raw, d->raw_bytes, 0));
    d->raw = raw;
    d->back = bench_memory(d->raw_bytes);
    bench_weights(o->weights, format, d->elements, d->raw);
    uint8_t *coded = bench_memory(d->shards * (chunk_room + sm_room + e_room));
    struct efs_gpu_shard *tables[2];
    uint8_t *scratch = malloc(EFS_CASCADE_SCRATCH_BYTES);
    d->plain = device_memory(d->raw_bytes);
    d->out = device_memory(d->raw_bytes);
    d->coded = device_memory(d->shards * (chunk_room + sm_room + e_room));
    d->launches = calloc(d->shards + 1, sizeof(d->launches[0]));
    for (unsigned t = 0; t < 2; t++)
        tables[t] = calloc(d->shards, sizeof(*tables[t]));
    if (!d->launches || !tables[0] || !tables[1] || !scratch)
        bench_fail("memory", ENOMEM);
    size_t in_launch = 0;
    for (size_t s = 0; s < d->shards; s++) {
        const size_t first = s * SHARD_ELEMENTS, left = d->elements - first;
        const size_t n = left < SHARD_ELEMENTS ? left : SHARD_ELEMENTS;
        uint8_t *chunk = coded + s * chunk_room, *sm = coded + d->shards * chunk_room + s * sm_room;
        uint8_t *e = coded + d->shards * (chunk_room + sm_room) + s * e_room;
        efs_split(format, d->raw + first * d->each, n, e, sm);
        const size_t bytes = efs_cascade_encode(e, n, chunk, scratch);
        tables[0][s] = (struct efs_gpu_shard){.e = (const uint8_t *)(uintptr_t)(d->coded + (size_t)(chunk - coded)),
                                              .sm = (const uint8_t *)(uintptr_t)(d->coded + (size_t)(sm - coded)),
                                              .dst = (uint8_t *)(uintptr_t)(d->out + first * d->each),
                                              .e_bytes = (uint32_t)bytes,
                                              .elements = (uint32_t)n,
                                              .format = (uint32_t)format};
        tables[1][s] = tables[0][s];
        tables[1][s].e = (const uint8_t *)(uintptr_t)(d->coded + (size_t)(e - coded));
        tables[1][s].e_bytes = (uint32_t)n;
        const size_t coded_bytes = bytes + efs_sm_bytes(format, n);
        if (s == 0 || in_launch + coded_bytes > LAUNCH_BYTES) {
            d->launches[d->launch_count++] = (uint32_t)s;
            in_launch = 0;
        }
        in_launch += coded_bytes;
        d->coded_bytes += coded_bytes;
    }
    d->launches[d->launch_count] = (uint32_t)d->shards;
    CHECK("cuMemcpyHtoDAsync", copy_in(d->plain, d->raw, d->raw_bytes, g->stream));
    CHECK("cuMemcpyHtoDAsync", copy_in(d->coded, coded, d->shards * (chunk_room + sm_room + e_room), g->stream));
    for (unsigned t = 0; t < 2; t++) {
        d->tables[t] = device_memory(d->shards * sizeof(*tables[t]));
        CHECK("cuMemcpyHtoDAsync", copy_in(d->tables[t], tables[t], d->shards * sizeof(*tables[t]), g->stream));
    }
    CHECK("cuStreamSynchronize", stream_synchronize(g->stream));
    for (unsigned t = 0; t < 2; t++)
        free(tables[t]);
    free(scratch);
    free(coded);
}

static void data_free(struct gpu_data *d)
{
    const efs_cu_address memory[] = {d->plain, d->out, d->coded, d->tables[0], d->tables[1]};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        CHECK("cuMemFree", memory_free(memory[i]));
    CHECK("cuMemFreeHost", host_free(d->raw));
    free(d->back);
    free(d->launches);
}

static void kernel_launch(struct gpu *g, const struct gpu_data *d, bool decode, uint32_t first, uint32_t end)
{
    gpu_check("cuLaunchKernel", efs_driver_launch_shards(driver, decode ? g->decode : g->recover, decode,
                                                         d->tables[!decode] + first * sizeof(struct efs_gpu_shard),
                                                         end - first, SHARD_ELEMENTS, g->stream));
}

/* GB/s of plain bytes. */
static double gpu_rate(struct gpu *g, const struct gpu_data *d, enum work work)
{
    float ms = 0;
    CHECK("cuEventRecord", event_record(g->begin, g->stream));
    switch (work) {
    case WORK_COPY:
        gpu_check("cuMemcpyDtoDAsync", g->copy(d->out, d->plain, d->raw_bytes, g->stream));
        break;
    case WORK_LINK:
        CHECK("cuMemcpyHtoDAsync", copy_in(d->out, d->raw, d->raw_bytes, g->stream));
        break;
    case WORK_LAUNCHES:
        for (uint32_t l = 0; l < d->launch_count; l++)
            kernel_launch(g, d, true, d->launches[l], d->launches[l + 1]);
        break;
    default:
        kernel_launch(g, d, work == WORK_DECODE, 0, (uint32_t)d->shards);
    }
    CHECK("cuEventRecord", event_record(g->end, g->stream));
    CHECK("cuStreamSynchronize", stream_synchronize(g->stream));
    CHECK("cuEventElapsedTime", event_elapsed(&ms, g->begin, g->end));
    return (double)d->raw_bytes / ((double)ms * 1e-3) * 1e-9;
}

/* Runs one kernel into memory with other contents and compares its output with the weights. */
static void kernel_verify(struct gpu *g, const struct gpu_data *d, enum work work)
{
    memset(d->back, 0xa7, d->raw_bytes);
    CHECK("cuMemcpyHtoDAsync", copy_in(d->out, d->back, d->raw_bytes, g->stream));
    (void)gpu_rate(g, d, work);
    CHECK("cuMemcpyDtoHAsync", copy_out(d->back, d->out, d->raw_bytes, g->stream));
    CHECK("cuStreamSynchronize", stream_synchronize(g->stream));
    if (memcmp(d->back, d->raw, d->raw_bytes) != 0) {
        fprintf(stderr, "bench_kernels: %s: the output differs from the weights\n", work_names[work]);
        exit(1);
    }
}

static void gpu_print(const struct gpu *g, const struct gpu_data *d, const char *format, unsigned rounds,
                      double rates[][ROUNDS_MAX])
{
    double ratio[WORK_COUNT], each[ROUNDS_MAX];
    for (unsigned w = 0; w < WORK_COUNT; w++) {
        for (unsigned r = 0; r < rounds; r++)
            each[r] = rates[w][r] / rates[WORK_COPY][r];
        ratio[w] = tools_median(each, rounds);
    }
    printf("{\"format\": \"%s\", \"device\": \"%s\", \"size\": %.5f", format, g->name,
           (double)d->coded_bytes / (double)d->raw_bytes);
    for (unsigned w = 0; w < WORK_COUNT; w++)
        printf(", \"%s_gbs\": %.1f", work_names[w], tools_median(rates[w], rounds));
    printf(", \"decode_ratio\": %.3f, \"launches_ratio\": %.3f, \"recover_ratio\": %.3f}\n", ratio[WORK_DECODE],
           ratio[WORK_LAUNCHES], ratio[WORK_RECOVER]);
    fflush(stdout);
}

int bench_gpu(const struct bench_options *o)
{
    static double rates[WORK_COUNT][ROUNDS_MAX];
    struct gpu g;
    gpu_open(&g);
    for (size_t f = 0; f < BENCH_FORMATS; f++) {
        struct gpu_data d;
        if (o->format && strcmp(o->format, bench_formats[f].name) != 0)
            continue;
        data_make(&g, &d, bench_formats[f].format, o);
        for (unsigned w = WORK_DECODE; w <= WORK_RECOVER; w++)
            kernel_verify(&g, &d, (enum work)w);
        for (unsigned round = 0; round < o->rounds; round++)
            for (unsigned w = 0; w < WORK_COUNT; w++)
                rates[w][round] = gpu_rate(&g, &d, (enum work)w);
        gpu_print(&g, &d, bench_formats[f].name, o->rounds, rates);
        data_free(&d);
    }
    return 0;
}
