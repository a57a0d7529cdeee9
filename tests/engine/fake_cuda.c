/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.c - see fake_cuda.h. */
#include "fake_cuda.h"

#include "driver.h"

#include "cuda/gpu_decode.h"
#include "cuda/gpu_ffn.h"
#include "cuda/gpu_recover.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The functions have the names of the driver's; the project has no header that declares them. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define SHOWN __attribute__((visibility("default")))
#define FAKE SHOWN int

enum {
    FINE = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600
};

#define ALLOCATIONS 64

static struct {
    pthread_mutex_t lock; /* guards all of fake */
    pthread_cond_t changed;
    bool begun, lost;
    unsigned calls, fail_at, damage_at, slow_us, left;
    int result;
    bool for_ever;
    uint64_t random;
    struct {
        uint8_t *data;
        size_t bytes;
        int device;
    } allocation[ALLOCATIONS];
    size_t used[FAKE_CUDA_DEVICES];
    int lost_device_result[FAKE_CUDA_DEVICES]; /* not FINE: the device is lost */
    struct {
        void *base;
        size_t bytes;
    } registered[ALLOCATIONS];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .random = 7};

#define CONTEXTS 8
static __thread unsigned contexts;    /* number of contexts pushed by this thread */
static __thread int pushed[CONTEXTS]; /* device of each */
static int the_contexts[FAKE_CUDA_DEVICES], the_module;

/* Device of the current context, which must exist. */
static int device_now(void)
{
    return pushed[contexts - 1];
}

/* A forked child may call the control functions: no thread holds the lock at the time of the fork. */
static void fork_lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void fork_unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

__attribute__((constructor)) static void fork_handlers(void)
{
    pthread_atfork(fork_lock, fork_unlock, fork_unlock);
}

/* ---- control ---- */

SHOWN void fake_cuda_fail(unsigned number, int result, bool for_ever)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls = 0;
    fake.fail_at = number;
    fake.result = result;
    fake.for_ever = for_ever;
    fake.lost = false;
    memset(fake.lost_device_result, 0, sizeof(fake.lost_device_result));
    pthread_mutex_unlock(&fake.lock);
}

SHOWN void fake_cuda_lose(int device, int result)
{
    pthread_mutex_lock(&fake.lock);
    fake.lost_device_result[device] = result;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

SHOWN void fake_cuda_slow(unsigned most_us)
{
    pthread_mutex_lock(&fake.lock);
    fake.slow_us = most_us;
    pthread_mutex_unlock(&fake.lock);
}

SHOWN void fake_cuda_damage(unsigned number)
{
    pthread_mutex_lock(&fake.lock);
    fake.damage_at = number;
    pthread_mutex_unlock(&fake.lock);
}

SHOWN unsigned fake_cuda_left(void)
{
    pthread_mutex_lock(&fake.lock);
    unsigned left = fake.left;
    pthread_mutex_unlock(&fake.lock);
    return left;
}

SHOWN int fake_cuda_device_of(const void *address, size_t bytes)
{
    int device = -1;
    const uint8_t *at = address;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS; i++)
        if (fake.allocation[i].data && at >= fake.allocation[i].data &&
            at <= fake.allocation[i].data + fake.allocation[i].bytes &&
            bytes <= (size_t)(fake.allocation[i].data + fake.allocation[i].bytes - at))
            device = fake.allocation[i].device;
    pthread_mutex_unlock(&fake.lock);
    return device;
}

SHOWN bool fake_cuda_owns(const void *address, size_t bytes)
{
    return fake_cuda_device_of(address, bytes) >= 0;
}

/* Called first by every call of the driver: counts it, makes it fail if it is the chosen one, and refuses it without a
 * context. */
static int call_begin(bool needs_context)
{
    int result = FINE;
    pthread_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.lost || (fake.fail_at && fake.calls == fake.fail_at))
        result = fake.result;
    if (result != FINE && fake.for_ever) {
        fake.lost = true;
        pthread_cond_broadcast(&fake.changed);
    }
    if (result == FINE && !fake.begun)
        result = NOT_INITIALIZED;
    if (result == FINE && needs_context && contexts == 0)
        result = INVALID_CONTEXT;
    if (result == FINE && needs_context)
        result = fake.lost_device_result[device_now()];
    pthread_mutex_unlock(&fake.lock);
    return result;
}

#define BEGIN(needs_context)                                                                                           \
    do {                                                                                                               \
        int begun = call_begin(needs_context);                                                                         \
        if (begun != FINE)                                                                                             \
            return begun;                                                                                              \
    } while (0)
/* Calls that release a resource do so even if they fail, so that fake_cuda_left() counts only what was never released.
 */
#define END(needs_context) int ended = call_begin(needs_context)

static void count_left(int more)
{
    pthread_mutex_lock(&fake.lock);
    fake.left += (unsigned)more;
    pthread_mutex_unlock(&fake.lock);
}

/* ---- device, context, memory ---- */

FAKE cuInit(unsigned flags)
{
    pthread_mutex_lock(&fake.lock);
    fake.begun = true;
    pthread_mutex_unlock(&fake.lock);
    BEGIN(false);
    return flags ? INVALID_VALUE : FINE;
}

FAKE cuDeviceGetCount(int *count)
{
    BEGIN(false);
    *count = FAKE_CUDA_DEVICES;
    return FINE;
}

FAKE cuDeviceGet(int *device, int ordinal)
{
    BEGIN(false);
    *device = ordinal;
    return ordinal >= 0 && ordinal < FAKE_CUDA_DEVICES ? FINE : INVALID_VALUE;
}

FAKE cuDeviceGetName(char *name, int room, int device)
{
    BEGIN(false);
    snprintf(name, (size_t)room, "a processor that is none");
    return device < FAKE_CUDA_DEVICES ? FINE : INVALID_VALUE;
}

FAKE cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN(false);
    pthread_mutex_lock(&fake.lock);
    fake.left++;
    pthread_mutex_unlock(&fake.lock);
    *context = &the_contexts[device];
    return FINE;
}

FAKE cuDevicePrimaryCtxRelease_v2(int device)
{
    END(false);
    (void)device;
    count_left(-1);
    return ended;
}

FAKE cuCtxPushCurrent_v2(void *context)
{
    BEGIN(false);
    const int *of = context;
    if (of < the_contexts || of >= the_contexts + FAKE_CUDA_DEVICES || contexts == CONTEXTS)
        return INVALID_CONTEXT;
    pushed[contexts++] = (int)(of - the_contexts);
    return FINE;
}

FAKE cuCtxPopCurrent_v2(void **context)
{
    END(false);
    if (contexts == 0)
        return INVALID_CONTEXT;
    *context = &the_contexts[device_now()];
    contexts--;
    return ended;
}

FAKE cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes)
{
    BEGIN(true);
    pthread_mutex_lock(&fake.lock);
    *free_bytes = FAKE_CUDA_BYTES - fake.used[device_now()];
    *bytes = FAKE_CUDA_BYTES;
    pthread_mutex_unlock(&fake.lock);
    return FINE;
}

FAKE cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    BEGIN(true);
    int result = OUT_OF_MEMORY, device = device_now();
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS && result != FINE && bytes <= FAKE_CUDA_BYTES - fake.used[device]; i++)
        if (!fake.allocation[i].data && (fake.allocation[i].data = aligned_alloc(256, (bytes + 255) / 256 * 256))) {
            fake.allocation[i].bytes = bytes;
            fake.allocation[i].device = device;
            fake.used[device] += bytes;
            fake.left++;
            *address = (uintptr_t)fake.allocation[i].data;
            result = FINE;
        }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE cuMemFree_v2(uint64_t address)
{
    END(false);
    int result = INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS; i++)
        if ((uintptr_t)fake.allocation[i].data == address && address) {
            free(fake.allocation[i].data);
            fake.allocation[i].data = NULL;
            fake.used[fake.allocation[i].device] -= fake.allocation[i].bytes;
            fake.left--;
            result = ended;
        }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    BEGIN(true);
    (void)flags;
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    count_left(*memory ? 1 : 0);
    return *memory ? FINE : OUT_OF_MEMORY;
}

FAKE cuMemFreeHost(void *memory)
{
    END(false);
    free(memory);
    count_left(-1);
    return ended;
}

SHOWN size_t fake_cuda_registered(void)
{
    size_t bytes = 0;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS; i++)
        bytes += fake.registered[i].base ? fake.registered[i].bytes : 0;
    pthread_mutex_unlock(&fake.lock);
    return bytes;
}

FAKE cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    BEGIN(true);
    int result = flags == 1 && (uintptr_t)memory % 4096 == 0 && bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS && result == OUT_OF_MEMORY; i++)
        if (fake.registered[i].base == memory)
            result = INVALID_VALUE;
    for (unsigned i = 0; i < ALLOCATIONS && result == OUT_OF_MEMORY; i++)
        if (!fake.registered[i].base) {
            fake.registered[i].base = memory;
            fake.registered[i].bytes = bytes;
            fake.left++;
            result = FINE;
        }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE cuMemHostUnregister(void *memory)
{
    END(true);
    int result = INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS && memory; i++)
        if (fake.registered[i].base == memory) {
            fake.registered[i].base = NULL;
            fake.left--;
            result = ended;
        }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ---- streams and events ---- */

struct event {
    uint64_t recorded, done; /* number of records queued; the last one that a stream has executed */
    bool timing;
    bool destroyed;     /* freed after the last use */
    unsigned uses;      /* queued records and waits */
    struct timespec at; /* time of the last executed record */
};

enum work_kind { WORK_COPY, WORK_KERNEL, WORK_RECORD, WORK_WAIT, WORK_HOST };

struct work {
    struct work *next;
    enum work_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct event *event;
    uint64_t turn; /* value of event->recorded for this record or wait */
    void (*host)(void *arg);
    void *arg;
    int kernel;
    unsigned grid_x, grid_y;
    const void *first;
    struct efs_gpu_mixture mixture;
};

struct stream {
    pthread_t thread;
    struct work *first, **last;
    bool busy, ended;
    int device;
};

static const char *const kernels[] = {"efs_gpu_decode", "efs_gpu_recover", "efs_gpu_ffn_up", "efs_gpu_ffn_down",
                                      "efs_gpu_ffn_sum"};

static void run_kernel(const struct work *work)
{
    static __thread struct efs_gpu_decode decode;
    static __thread struct efs_gpu_ffn ffn;
    struct efs_gpu_shard *shards = (struct efs_gpu_shard *)(uintptr_t)work->first;
    for (uint32_t y = 0; y < work->grid_y; y++)
        for (uint32_t x = 0; x < work->grid_x; x++) {
            switch (work->kernel) {
            case 0:
                memset(&decode, 0xb7, sizeof(decode));
                efs_gpu_decode_span(&shards[y], x, &decode);
                break;
            case 1:
                efs_gpu_recover_block(&shards[y], x);
                break;
            case 2:
                efs_gpu_ffn_up_block(&work->mixture, y, x, &ffn);
                break;
            case 3:
                efs_gpu_ffn_down_block(&work->mixture, y, x, &ffn);
                break;
            default:
                efs_gpu_ffn_sum_block(&work->mixture, y, x);
            }
        }
}

/* Lock held by the caller. */
static bool is_lost(int device)
{
    return fake.lost || fake.lost_device_result[device] != FINE;
}

/* Lock held by the caller; released during copies, kernels and host functions. */
static void do_work(const struct work *work, int device)
{
    unsigned rest_us = 0;
    if (fake.slow_us) {
        fake.random = fake.random * 6364136223846793005u + 1442695040888963407u;
        rest_us = (unsigned)(fake.random >> 33) % fake.slow_us;
    }
    while (work->kind == WORK_WAIT && work->event->done < work->turn && !is_lost(device))
        pthread_cond_wait(&fake.changed, &fake.lock);
    if (is_lost(device))
        return;
    if (work->kind == WORK_RECORD) {
        work->event->done = work->turn > work->event->done ? work->turn : work->event->done;
        clock_gettime(CLOCK_MONOTONIC, &work->event->at);
        return;
    }
    pthread_mutex_unlock(&fake.lock);
    if (rest_us)
        nanosleep(&(struct timespec){.tv_nsec = rest_us * 1000l}, NULL);
    if (work->kind == WORK_COPY)
        memcpy(work->to, work->from, work->bytes);
    else if (work->kind == WORK_KERNEL)
        run_kernel(work);
    else if (work->kind == WORK_HOST)
        work->host(work->arg);
    pthread_mutex_lock(&fake.lock);
}

static void *stream_run(void *arg)
{
    struct stream *stream = arg;
    pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (!stream->first && !stream->ended)
            pthread_cond_wait(&fake.changed, &fake.lock);
        struct work *work = stream->first;
        if (!work)
            break;
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->busy = true;
        do_work(work, stream->device);
        stream->busy = false;
        if (work->event && --work->event->uses == 0 && work->event->destroyed)
            free(work->event);
        free(work);
        pthread_cond_broadcast(&fake.changed);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

/* Queues a copy of *what. The default stream (NULL) executes it before the return. */
static int stream_add(struct stream *stream, const struct work *what)
{
    if (stream && stream->device != device_now())
        return INVALID_HANDLE;
    struct work *work = malloc(sizeof(*work));
    if (!work)
        return OUT_OF_MEMORY;
    *work = *what;
    work->next = NULL;
    pthread_mutex_lock(&fake.lock);
    if (stream) {
        if (work->event)
            work->event->uses++;
        *stream->last = work;
        stream->last = &work->next;
    } else {
        do_work(work, device_now());
        free(work);
    }
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return FINE;
}

FAKE cuStreamCreate(struct stream **out, unsigned flags)
{
    BEGIN(true);
    (void)flags;
    struct stream *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return OUT_OF_MEMORY;
    stream->last = &stream->first;
    stream->device = device_now();
    if (pthread_create(&stream->thread, NULL, stream_run, stream) != 0) {
        free(stream);
        return OUT_OF_MEMORY;
    }
    count_left(1);
    *out = stream;
    return FINE;
}

FAKE cuStreamSynchronize(struct stream *stream)
{
    END(true);
    pthread_mutex_lock(&fake.lock);
    while (stream && (stream->first || stream->busy))
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    return ended;
}

FAKE cuStreamDestroy_v2(struct stream *stream)
{
    END(false);
    pthread_mutex_lock(&fake.lock);
    stream->ended = true;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    pthread_join(stream->thread, NULL);
    free(stream);
    count_left(-1);
    return ended;
}

FAKE cuEventCreate(struct event **event, unsigned flags)
{
    BEGIN(true);
    *event = calloc(1, sizeof(**event));
    count_left(*event ? 1 : 0);
    if (*event)
        (*event)->timing = !(flags & 2);
    return *event ? FINE : OUT_OF_MEMORY;
}

FAKE cuEventDestroy_v2(struct event *event)
{
    END(false);
    pthread_mutex_lock(&fake.lock);
    event->destroyed = true;
    bool unused = event->uses == 0;
    pthread_mutex_unlock(&fake.lock);
    if (unused)
        free(event);
    count_left(-1);
    return ended;
}

FAKE cuEventRecord(struct event *event, struct stream *stream)
{
    BEGIN(true);
    pthread_mutex_lock(&fake.lock);
    struct work work = {.kind = WORK_RECORD, .event = event, .turn = ++event->recorded};
    pthread_mutex_unlock(&fake.lock);
    return stream_add(stream, &work);
}

FAKE cuEventQuery(struct event *event)
{
    BEGIN(true);
    pthread_mutex_lock(&fake.lock);
    int result = event->done >= event->recorded ? FINE : NOT_READY;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

FAKE cuEventElapsedTime(float *ms, struct event *begin, struct event *end)
{
    BEGIN(true);
    if (!begin->timing || !end->timing || !begin->recorded || !end->recorded)
        return INVALID_HANDLE;
    pthread_mutex_lock(&fake.lock);
    int result = begin->done >= begin->recorded && end->done >= end->recorded ? FINE : NOT_READY;
    const struct timespec a = begin->at, b = end->at;
    pthread_mutex_unlock(&fake.lock);
    *ms = (float)(b.tv_sec - a.tv_sec) * 1e3f + (float)(b.tv_nsec - a.tv_nsec) * 1e-6f;
    return result;
}

FAKE cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    BEGIN(true);
    pthread_mutex_lock(&fake.lock);
    struct work work = {.kind = WORK_WAIT, .event = event, .turn = event->recorded};
    pthread_mutex_unlock(&fake.lock);
    return flags ? INVALID_VALUE : stream_add(stream, &work);
}

FAKE cuLaunchHostFunc(struct stream *stream, void (*function)(void *), void *arg)
{
    BEGIN(true);
    struct work work = {.kind = WORK_HOST, .host = function, .arg = arg};
    return stream_add(stream, &work);
}

/* true: the whole range is memory of the current context's device. */
static bool here(const void *address, size_t bytes)
{
    return fake_cuda_device_of(address, bytes) == device_now();
}

/* true: the range is inside one registered range or overlaps none. The driver refuses other copies. */
static bool is_of_one(const uint8_t *from, size_t bytes)
{
    bool good = true;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < ALLOCATIONS; i++) {
        const uint8_t *base = fake.registered[i].base, *end = base + fake.registered[i].bytes;
        if (base && from < end && from + bytes > base && (from < base || from + bytes > end))
            good = false;
    }
    pthread_mutex_unlock(&fake.lock);
    return good;
}

static int copy_in(uint64_t to, const void *from, size_t bytes, struct stream *stream)
{
    static const uint8_t wrong[4] = {0xff, 0xff, 0xff, 0x7f};
    struct work work = {.kind = WORK_COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes};
    bool owned = here(work.to, bytes) && is_of_one(from, bytes);
    int result = owned ? stream_add(stream, &work) : INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    bool damaged = bytes >= 1024 && fake.damage_at && --fake.damage_at == 0;
    pthread_mutex_unlock(&fake.lock);
    if (result == FINE && damaged) {
        struct work more = {.kind = WORK_COPY, .to = work.to, .from = wrong, .bytes = sizeof(wrong)};
        result = stream_add(stream, &more);
    }
    return result;
}

FAKE cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *stream)
{
    BEGIN(true);
    return copy_in(to, from, bytes, stream);
}

#ifndef FAKE_CUDA_OLD
FAKE cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t count, struct efs_cu_copy_attributes *how,
                        size_t *first, size_t attributes, size_t *failed, struct stream *stream)
{
    BEGIN(true);
    int result = attributes == 1 && *first == 0 && how->source_order == EFS_CU_SOURCE_ANY_ORDER ? FINE : INVALID_VALUE;
    for (size_t i = 0; i < count && result == FINE; i++) {
        *failed = i;
        result = copy_in(to[i], (const void *)(uintptr_t)from[i], bytes[i], stream);
    }
    return result;
}
#endif

FAKE cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *stream)
{
    BEGIN(true);
    struct work work = {.kind = WORK_COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
    return here(work.from, bytes) ? stream_add(stream, &work) : INVALID_VALUE;
}

FAKE cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct stream *stream)
{
    BEGIN(true);
    struct work work = {
        .kind = WORK_COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
    return here(work.to, bytes) && here(work.from, bytes) ? stream_add(stream, &work) : INVALID_VALUE;
}

/* ---- modules and kernels ---- */

FAKE cuModuleLoadData(void **module, const void *image)
{
    static const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba};
    BEGIN(true);
    if (memcmp(image, fatbin, sizeof(fatbin)) != 0)
        return INVALID_IMAGE;
    *module = &the_module;
    count_left(1);
    return FINE;
}

FAKE cuModuleUnload(void *module)
{
    END(false);
    count_left(-1);
    return module == &the_module ? ended : INVALID_HANDLE;
}

FAKE cuModuleGetFunction(void **function, void *module, const char *name)
{
    BEGIN(true);
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (strcmp(kernels[i], name) == 0 && module == &the_module) {
            *function = (void *)(uintptr_t)&kernels[i];
            return FINE;
        }
    return NOT_FOUND;
}

FAKE cuFuncSetAttribute(void *function, int attribute, int value)
{
    BEGIN(true);
    bool known = function == &kernels[0] && attribute == EFS_CU_FUNCTION_SHARED_BYTES;
    return known && value > 0 && value <= 99 << 10 ? FINE : INVALID_VALUE; /* 99 KiB: the least of sm_80 and later */
}

FAKE cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared_bytes, struct stream *stream, void **arguments,
                    void **extra)
{
    BEGIN(true);
    struct work work = {.kind = WORK_KERNEL,
                        .kernel = (int)((const char *const *)function - kernels),
                        .grid_x = grid_x,
                        .grid_y = grid_y};
    const unsigned threads = work.kernel == 0 ? EFS_GPU_DECODE_THREADS : EFS_GPU_THREADS;
    const unsigned shared = work.kernel == 0 ? EFS_GPU_DECODE_SHARED : 0;
    if (grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1 || block_x != threads || block_y != 1 ||
        block_z != 1 || shared_bytes != shared || extra)
        return INVALID_VALUE;
    if (work.kernel < 2) {
        memcpy(&work.first, arguments[0], sizeof(work.first));
        if (!here(work.first, grid_y * sizeof(struct efs_gpu_shard)))
            return INVALID_VALUE;
    } else {
        memcpy(&work.mixture, arguments[0], sizeof(work.mixture));
    }
    return stream_add(stream, &work);
}

FAKE cuGetErrorName(int error, const char **name)
{
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 700         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                   : "CUDA_ERROR_UNKNOWN";
    return FINE;
}
