/* SPDX-License-Identifier: Apache-2.0 */
/* device_run.c - see device_run.h; kernels/cuda/gpu_ffn.h has the kernels. */
#include "device_run.h"

#include "device_internal.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 65535u /* limit of a grid in y */
#define PART_ALIGN 256u

struct efs_device_run {
    struct efs_device *device;
    const struct efs_mixture *mixture;
    uint32_t routes, *first;       /* [experts]: index of each expert's first route */
    uint32_t inner;                /* 0: no expert was launched yet */
    uint32_t ran;                  /* number of experts launched */
    uint32_t timed, timed_tokens;  /* number of the launched expert to time; its tokens, 0: not launched yet */
    uint8_t *host;                 /* staging buffer: input of the device, later y */
    struct efs_gpu_expert *expert; /* [experts], in host; count 0: not launched */
    size_t host_bytes, x, token, weight, token_begin, token_route, experts, y, part, h, end; /* offsets in scratch */
    struct efs_gpu_mixture args; /* argument of the kernels */
};

static size_t run_place(size_t *end, uint64_t count, size_t bytes)
{
    size_t at = (*end + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    *end = at + (size_t)count * bytes;
    return at;
}

/* Computes all offsets but that of h. The factors have 32 bits and EFS_SCRATCH_BYTES bounds routes, so no sum overflows
 * 64 bits. */
static void run_places(struct efs_device_run *r)
{
    const struct efs_mixture *m = r->mixture;
    size_t end = 0;
    r->x = run_place(&end, (uint64_t)m->tokens * m->hidden, sizeof(float));
    r->token = run_place(&end, r->routes, sizeof(uint32_t));
    r->weight = run_place(&end, r->routes, sizeof(float));
    r->token_begin = run_place(&end, (uint64_t)m->tokens + 1, sizeof(uint32_t));
    r->token_route = run_place(&end, r->routes, sizeof(uint32_t));
    r->experts = run_place(&end, m->expert_count, sizeof(struct efs_gpu_expert));
    r->host_bytes = end;
    r->y = run_place(&end, (uint64_t)m->tokens * m->hidden, sizeof(float));
    r->part = run_place(&end, (uint64_t)r->routes * m->hidden, sizeof(float));
    r->end = end;
}

/* Lists the routes of each token in the order of experts, of all experts or only of launched ones. */
static void run_fill_routes(struct efs_device_run *r, bool all)
{
    const struct efs_mixture *m = r->mixture;
    uint32_t *begin = (void *)(r->host + r->token_begin), *route = (void *)(r->host + r->token_route);
    memset(begin, 0, ((size_t)m->tokens + 1) * sizeof(*begin));
    for (uint32_t e = 0; e < m->expert_count; e++)
        for (uint32_t i = 0; i < m->experts[e].count && (all || r->expert[e].count); i++)
            begin[m->experts[e].token[i] + 1]++;
    for (uint32_t t = 0; t < m->tokens; t++)
        begin[t + 1] += begin[t];
    for (uint32_t e = 0; e < m->expert_count; e++) /* advances each begin to that of the next token, */
        for (uint32_t i = 0; i < m->experts[e].count && (all || r->expert[e].count); i++)
            route[begin[m->experts[e].token[i]]++] = r->first[e] + i;
    memmove(begin + 1, begin, m->tokens * sizeof(*begin)); /* which is undone here */
    begin[0] = 0;
}

/* Fills the staging buffer: contiguous tokens, the routes of each expert and of each token. */
static void run_fill(struct efs_device_run *r)
{
    const struct efs_mixture *m = r->mixture;
    uint32_t *token = (void *)(r->host + r->token);
    float *weight = (void *)(r->host + r->weight);
    for (uint32_t t = 0; t < m->tokens; t++)
        memcpy(r->host + r->x + (size_t)t * m->hidden * sizeof(float), (const float *)m->x + t * m->x_stride,
               m->hidden * sizeof(float));
    for (uint32_t e = 0; e < m->expert_count; e++)
        for (uint32_t i = 0; i < m->experts[e].count; i++) {
            token[r->first[e] + i] = m->experts[e].token[i];
            weight[r->first[e] + i] = m->experts[e].weight[i];
        }
    run_fill_routes(r, true);
}

static errint_t run_failed(struct efs_device_run *r, const char *call, efs_cu_result result, struct efs_error *err)
{
    efs_device_lose(r->device, call, result);
    (void)efs_driver_fail(&r->device->driver, call, result, err);
    return -EIO;
}

static errint_t run_prepare(struct efs_device_run *r, struct efs_error *err)
{
    const struct efs_mixture *m = r->mixture;
    const efs_cu_address scratch = r->device->scratch;
    r->first = efs_sys_calloc(m->expert_count, sizeof(*r->first));
    uint64_t routes = 0;
    for (uint32_t e = 0; r->first && e < m->expert_count; e++) {
        r->first[e] = (uint32_t)routes;
        routes += m->experts[e].count;
        if (routes > EFS_SCRATCH_BYTES)
            break;
    }
    r->routes = (uint32_t)routes;
    if (m->tokens <= TOKENS_MAX && routes <= EFS_SCRATCH_BYTES)
        run_places(r);
    /* In a shared mixture, fail before experts are loaded if h cannot fit, so that the processor can run them. */
    const uint64_t h = m->form == EFS_FORM_SHARED ? routes * r->device->inner * sizeof(float) : 0;
    if (m->tokens > TOKENS_MAX || routes > EFS_SCRATCH_BYTES || r->end + h > EFS_SCRATCH_BYTES)
        return efs_fail(err, -ENOMEM, "%u tokens are too many for %u MiB of the device: run fewer at once", m->tokens,
                        (unsigned)(EFS_SCRATCH_BYTES >> 20));
    r->host = r->first ? efs_sys_malloc(r->host_bytes) : NULL;
    if (!r->host)
        return efs_fail(err, -ENOMEM, "no memory for a mixture");
    r->expert = (void *)(r->host + r->experts);
    memset(r->expert, 0, m->expert_count * sizeof(r->expert[0])); /* none was launched */
    run_fill(r);
    r->args = (struct efs_gpu_mixture){.hidden = m->hidden,
                                       .x = (const void *)(uintptr_t)(scratch + r->x),
                                       .token = (const void *)(uintptr_t)(scratch + r->token),
                                       .weight = (const void *)(uintptr_t)(scratch + r->weight),
                                       .token_begin = (const void *)(uintptr_t)(scratch + r->token_begin),
                                       .token_route = (const void *)(uintptr_t)(scratch + r->token_route),
                                       .part = (void *)(uintptr_t)(scratch + r->part),
                                       .y = (void *)(uintptr_t)(scratch + r->y)};
    efs_cu_result result = r->device->driver.copy_in(scratch, r->host, r->experts, r->device->running);
    return result == 0 ? 0 : run_failed(r, "cuMemcpyHtoDAsync", result, err);
}

errint_t efs_device_run_begin(struct efs_device *device, const struct efs_mixture *mixture, struct efs_device_run **out,
                              struct efs_error *err)
{
    struct efs_device_run *r = efs_sys_calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory for a mixture");
    r->device = device;
    r->mixture = mixture;
    pthread_mutex_lock(&device->run_lock);
    r->timed = mixture->form == EFS_FORM_SHARED ? device->mixture_count++ % mixture->expert_count : UINT32_MAX;
    efs_cu_result result = efs_device_push_context(device);
    errint_t rc = result == 0 ? run_prepare(r, err) : run_failed(r, "cuCtxPushCurrent", result, err);
    if (result == 0 && rc == 0) {
        *out = r;
        return 0;
    }
    if (result == 0)
        return efs_device_run_end(r, rc, err);
    pthread_mutex_unlock(&device->run_lock);
    free(r);
    return rc;
}

void *efs_device_run_stream(const struct efs_device_run *r)
{
    return r->device->running;
}

void efs_device_run_wait(const struct efs_device_run *r)
{
    (void)r->device->driver.stream_synchronize(r->device->running);
}

/* The first expert sets inner, and thus the size of h; later ones must match. */
static errint_t run_widths(struct efs_device_run *r, const struct efs_device_matrices *matrices, struct efs_error *err)
{
    if (r->inner && (matrices->inner != r->inner || matrices->f16 != r->args.f16))
        return efs_fail(err, -EINVAL, "experts of one layer are not alike");
    if (r->inner)
        return 0;
    size_t end = r->end;
    r->h = run_place(&end, (uint64_t)r->routes * matrices->inner, sizeof(float));
    if (end > EFS_SCRATCH_BYTES)
        return efs_fail(err, -ENOMEM, "%u tokens are too many for %u MiB of the device: run fewer at once",
                        r->mixture->tokens, (unsigned)(EFS_SCRATCH_BYTES >> 20));
    r->inner = r->args.inner = r->device->inner = matrices->inner;
    r->args.f16 = matrices->f16;
    r->args.h = (void *)(uintptr_t)(r->device->scratch + r->h);
    return 0;
}

static efs_cu_result run_launch(struct efs_device_run *r, efs_cu_function function, uint32_t rows, uint32_t block,
                                uint32_t count)
{
    void *arguments[] = {&r->args};
    return r->device->driver.launch(function, (rows + block - 1) / block, count, 1, EFS_GPU_THREADS, 1, 1, 0,
                                    r->device->running, arguments, NULL);
}

errint_t efs_device_run_expert(struct efs_device_run *r, uint32_t index, const struct efs_device_matrices *matrices,
                               struct efs_error *err)
{
    struct efs_device *device = r->device;
    errint_t rc = run_widths(r, matrices, err);
    if (rc < 0)
        return rc;
    const efs_cu_address at = device->scratch + r->experts + index * sizeof(r->expert[0]);
    r->expert[index] = (struct efs_gpu_expert){.gate = matrices->gate,
                                               .up = matrices->up,
                                               .down = matrices->down,
                                               .first = r->first[index],
                                               .count = r->mixture->experts[index].count};
    r->args.experts = (const void *)(uintptr_t)at;
    const char *call = NULL;
    efs_cu_result result = 0;
    const bool timed = r->ran++ == r->timed;
    r->timed_tokens = timed ? r->expert[index].count : r->timed_tokens;
#define RUN_CALL(name, made)                                                                                           \
    if (!call && (result = (made)) != 0)                                                                               \
        call = (name);
    if (timed)
        RUN_CALL("cuEventRecord", device->driver.event_record(device->timed[0], device->running))
    RUN_CALL("cuMemcpyHtoDAsync", device->driver.copy_in(at, &r->expert[index], sizeof(r->expert[0]), device->running))
    RUN_CALL("cuLaunchKernel", run_launch(r, device->up, r->inner, EFS_GPU_ROWS, 1))
    RUN_CALL("cuLaunchKernel", run_launch(r, device->down, r->mixture->hidden, EFS_GPU_ROWS, 1))
    if (timed)
        RUN_CALL("cuEventRecord", device->driver.event_record(device->timed[1], device->running))
#undef RUN_CALL
    return call ? run_failed(r, call, result, err) : 0;
}

/* Excludes experts that were not launched from the sums. */
static errint_t run_exclude_missing(struct efs_device_run *r, struct efs_error *err)
{
    struct efs_device *device = r->device;
    efs_cu_result result = device->driver.stream_synchronize(device->running); /* copies may still read host */
    if (result != 0)
        return run_failed(r, "cuStreamSynchronize", result, err);
    run_fill_routes(r, false);
    result = device->driver.copy_in(device->scratch + r->token_begin, r->host + r->token_begin,
                                    r->experts - r->token_begin, device->running);
    return result == 0 ? 0 : run_failed(r, "cuMemcpyHtoDAsync", result, err);
}

/* After success: counts the experts and records the time of the timed one. */
static errint_t run_measured(struct efs_device_run *r, struct efs_error *err)
{
    struct efs_device *device = r->device;
    float ms = 0;
    efs_cu_result result = r->timed_tokens ? device->driver.event_elapsed(&ms, device->timed[0], device->timed[1]) : 0;
    if (result != 0)
        return run_failed(r, "cuEventElapsedTime", result, err);
    pthread_mutex_lock(&device->lock);
    device->stats.g_ran += r->ran;
    if (r->timed_tokens && ms >= 0 && ms < 1e9f)
        efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_GPU, r->timed_tokens, (uint64_t)((double)ms * 1e6) + 1);
    pthread_mutex_unlock(&device->lock);
    return 0;
}

errint_t efs_device_run_end(struct efs_device_run *r, errint_t error, struct efs_error *err)
{
    struct efs_device *device = r->device;
    const struct efs_mixture *m = r->mixture;
    const size_t bytes = (size_t)m->tokens * m->hidden * sizeof(float);
    if (error == 0 && r->ran < m->expert_count)
        error = run_exclude_missing(r, err);
    if (error == 0) {
        efs_cu_result result = run_launch(r, device->sum, m->hidden, EFS_GPU_THREADS, m->tokens);
        if (result != 0)
            error = run_failed(r, "cuLaunchKernel", result, err);
    }
    if (error == 0) { /* reuses the memory of x */
        efs_cu_result result = device->driver.copy_out(r->host + r->x, device->scratch + r->y, bytes, device->running);
        if (result != 0)
            error = run_failed(r, "cuMemcpyDtoHAsync", result, err);
    }
    efs_cu_result result = device->driver.stream_synchronize(device->running);
    if (result != 0 && error == 0)
        error = run_failed(r, "cuStreamSynchronize", result, err);
    if (error == 0)
        error = run_measured(r, err);
    for (uint32_t t = 0; t < m->tokens && error == 0; t++)
        memcpy(m->y + t * m->y_stride, r->host + r->x + (size_t)t * m->hidden * sizeof(float),
               m->hidden * sizeof(float));
    efs_device_pop_context(device);
    pthread_mutex_unlock(&device->run_lock);
    free(r->first);
    free(r->host);
    free(r);
    return error;
}

/* ---- processor or device ---- */

/* Lock held. Records the mean time of the experts loaded since the last call. They share the link, so that it is the
 * time with slots in flight, divided by their number. */
static void assign_measure_link(struct efs_device *device)
{
    const uint64_t loads = device->stats.g_brought - device->measured_loads;
    if (loads == 0)
        return;
    efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_LINK, 1, device->load_ns / loads);
    device->measured_loads = device->stats.g_brought;
    device->load_ns = 0;
}

/* Lock held. Sets tokens, cached and bytes (in granules) of experts, and whether the missing ones fit in pool G without
 * an eviction. Returns the granules of pool G that the rest may use; all experts are assumed to have the mean size of
 * those in the pool. */
static uint64_t assign_collect(struct efs_device *device, const char *stack, uint32_t layer,
                               const struct efs_mixture *m, struct efs_assign_expert *experts, bool *fill)
{
    const struct efs_vram *vram = &device->vram;
    const uint64_t each = vram->allocated ? vram->used_granules / vram->allocated : 0;
    uint64_t kept = vram->pinned, missing = 0;
    for (uint32_t i = 0; i < m->expert_count; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, m->experts[i].expert);
        const struct efs_vram_expert *expert = efs_vram_find(vram, &key);
        experts[i].tokens = m->experts[i].count;
        experts[i].cached = expert && expert->state == EFS_VRAM_RESIDENT;
        experts[i].bytes = each;
        kept += experts[i].cached && !expert->pins;
        missing += !experts[i].cached;
    }
    *fill = each > 0 && vram->used_granules + missing * each <= vram->granules;
    return kept * each < vram->granules ? vram->granules - kept * each : 0;
}

errint_t efs_device_assign(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_mixture *m,
                           bool *on_device, struct efs_assign_choice *choice, struct efs_error *err)
{
    uint8_t side[EFS_ROUTING_EXPERTS];
    if (strlen(stack) >= EFS_STACK_NAME_BYTES)
        return efs_fail(err, -ENOENT, "there is no stack %.40s", stack);
    if (m->expert_count > EFS_ROUTING_EXPERTS)
        return efs_fail(err, -EINVAL, "a mixture of %u experts: %u at most go to a device", m->expert_count,
                        EFS_ROUTING_EXPERTS);
    struct efs_assign_expert *experts = efs_sys_calloc(m->expert_count, sizeof(*experts));
    if (!experts)
        return efs_fail(err, -ENOMEM, "no memory for a mixture");
    pthread_mutex_lock(&device->lock);
    errint_t rc = device->lost ? efs_fail(err, device->lost, "%s", device->lost_error.text) : 0;
    if (rc == 0) {
        assign_measure_link(device);
        bool fill;
        const uint64_t room = assign_collect(device, stack, layer, m, experts, &fill);
        rc = efs_assign_by_costs(&device->costs, experts, m->expert_count, room, fill, m->tokens, side, choice);
        if (rc < 0)
            efs_fail(err, rc, "a mixture cannot be assigned: %s", strerror(-rc));
    }
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < m->expert_count && rc == 0; i++)
        on_device[i] = side[i] == EFS_ASSIGN_GPU;
    free(experts);
    return rc;
}

void efs_device_report_layer(struct efs_device *device, const struct efs_assign_choice *choice, uint64_t ns)
{
    pthread_mutex_lock(&device->lock);
    efs_assign_costs_record_layer(&device->costs, choice, ns);
    pthread_mutex_unlock(&device->lock);
}

void efs_device_report_cpu(struct efs_device *device, uint32_t tokens, uint64_t ns)
{
    pthread_mutex_lock(&device->lock);
    device->stats.g_shared++;
    efs_assign_costs_record(&device->costs, EFS_ASSIGN_COST_CPU, tokens, ns);
    pthread_mutex_unlock(&device->lock);
}
