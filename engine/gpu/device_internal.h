/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_internal.h - private to engine/gpu/: a device, its requests, experts being copied to it.
 *
 * gpu/ keeps experts in device memory (pool G) and runs them there. compute/ calls it, client/ through the table of
 * device_ops.h, runtimes through expertfs-gpu.h, and tools/bench_kernels uses its driver.h. It never reads a store
 * (client/ delivers the experts) and never links to CUDA: driver.c loads libcuda.so.1 at run time.
 *
 * For experts in pool G a request is complete at once. It requests the missing ones from the client in coded form, and
 * the thread `efs-gpu` copies them to the device: a stream copies as much of an expert as fits in a slot; another one
 * waits for that copy (an event) and decodes it, while the next slot is copied. An expert is complete when the
 * second stream has finished its last slot and no kernel has reported damage. The thread waits only in poll(2), in
 * requests of the client to a mount, and, once the device is lost or closed, for its streams.
 */
#ifndef EFS_DEVICE_INTERNAL_H
#define EFS_DEVICE_INTERNAL_H

#include "assign_costs.h"
#include "cuda/gpu.h"
#include "device_ops.h"
#include "expertfs-gpu.h"
#include "request.h"
#include "segment_registry.h"
#include "vram.h"

#include <pthread.h>

#define EFS_SLOTS 3u /* one being copied, one being decoded, one being completed */
#define EFS_SLOT_BYTES ((size_t)8 << 20)
#define EFS_SLOT_SHARDS 1024u
#define EFS_SCRATCH_BYTES ((size_t)8 << 20) /* for mixtures: device_run.c */
#define EFS_SLOT_TABLE (64u << 10)          /* at the slot's start, on the device */

struct efs_device_item { /* an expert of a request; guarded by the device's lock */
    struct efs_client_item base;
    struct efs_device_request *request;
    struct efs_vram_expert *expert; /* pinned while LOADING or READY, else NULL */
    struct efs_device_item *next_waiting;
};

struct efs_device_request {
    struct efs_client_request base;
    struct efs_device *device;
    struct efs_device_item items[];
};

_Static_assert(EFS_SLOT_SHARDS * sizeof(struct efs_gpu_shard) <= EFS_SLOT_TABLE, "a slot's table");

/* A request to the client for missing experts. Owned by efs-gpu. */
struct efs_load_source {
    struct efs_load_source *next;
    struct efs_client_request *request;
    enum efs_form form;
    uint32_t count, reported, left;   /* requested; reported by the client; not finished yet */
    struct efs_vram_expert *expert[]; /* [count]; NULL: finished */
};

/* An expert being copied to the device, from the time that the client reports it. */
struct efs_device_load {
    struct efs_load_source *source;
    uint32_t index;
    struct efs_vram_expert *expert;
    const struct efs_tensor *tensors;
    uint32_t count;
    bool allocated, filled; /* has memory in pool G; all of it was put into slots */
    uint32_t tensor, shard; /* the next to be put into a slot */
    uint64_t at;            /* bytes of that tensor that precede it */
    uint32_t slots;         /* its slots in flight */
    errint_t error;
};

struct efs_slot {
    efs_cu_address memory;
    struct efs_gpu_shard *table; /* [EFS_SLOT_SHARDS] in host memory of the driver; copied to and from the device */
    efs_cu_event copied, done;
    struct efs_device_load *load;
    uint32_t shards;
};

struct efs_device {
    struct efs_client *client;
    struct efs_driver driver;
    efs_cu_device device;
    efs_cu_context context;
    efs_cu_module module;
    efs_cu_function decode, up, down, sum;
    efs_cu_stream copying, computing, running; /* running: for mixtures */
    efs_cu_address memory, scratch;            /* one allocation: pool G, scratch, slots */
    uint64_t budget_bytes;
    char name[128];

    pthread_cond_t changed; /* of all requests */
    pthread_mutex_t lock;   /* guards the fields below; innermost: no lock is taken while it is held */
    struct efs_vram vram;
    struct efs_vram_reader *free_readers; /* free list of events */
    struct efs_load_source *submitted;    /* submitted by requests, not yet taken by efs-gpu */
    struct efs_gpu_stats stats;
    struct efs_assign_costs costs; /* measured costs, for EFS_FORM_SHARED */
    uint64_t measured_loads;       /* value of stats.g_brought at the last update of costs */
    uint64_t load_ns;              /* time with slots in flight since then */
    bool closing;
    errint_t lost; /* -EIO after a driver call failed: all requests fail */
    struct efs_error lost_error;
    _Atomic enum efs_form form; /* form of the requests to the client */

    int wake; /* eventfd: a source was submitted, a slot is done, or the device is closing */
    unsigned long thread;
    bool started;

    struct efs_segment_registry registry; /* efs-gpu registers segments */
    pthread_mutex_t run_lock;             /* guards scratch, running and the fields below; taken before device.lock */
    efs_cu_event timed[2];                /* recorded before and after one expert of a mixture */
    uint32_t mixture_count;               /* counter; selects that expert */
    uint32_t inner;                       /* of the experts of the last mixture; 0: none yet */

    /* Used only by efs-gpu: */
    struct efs_slot slot[EFS_SLOTS];
    uint32_t oldest, busy; /* ring of slots in flight: index of the first, and number */
    uint64_t counted_at;   /* ns; load_ns is counted up to here */
    struct efs_load_source *sources;
    struct efs_device_load *load; /* the expert being put into slots */
};

/* Pushes the device's context on the calling thread, and pops it. Any thread. 0 or the driver's result. */
efs_cu_result efs_device_push_context(struct efs_device *device);
void efs_device_pop_context(struct efs_device *device);
/* Wakes efs-gpu from poll(2). Any thread. */
void efs_device_wake(struct efs_device *device);
/* Marks the device as lost after a driver call failed; the first call becomes the error message. Lock not held. */
void efs_device_lose(struct efs_device *device, const char *call, efs_cu_result result);

/* device_request.c */
/* As struct efs_device_ops. */
errint_t efs_device_begin(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_need *needs,
                          uint32_t count, struct efs_client_request **request, struct efs_error *err);
/* Completes a load: sets the expert RESIDENT (error 0), or fails it and frees the expert, and wakes all requests that
 * wait for it. Events of the freed memory are added to *readers. Lock held. */
void efs_device_complete(struct efs_device *device, struct efs_vram_expert *expert, errint_t error,
                         struct efs_vram_reader **readers);
/* Requests source->count experts from the client; source->expert[] has the same order as needs. Sets source->request.
 * On error the caller frees source. */
errint_t efs_load_source_submit(struct efs_device *device, const char *stack, uint32_t layer,
                                const struct efs_need *needs, struct efs_load_source *source, struct efs_error *err);

/* device_thread.c */
void *efs_device_run(void *device);

/* device_load.c; called by efs-gpu, lock not held */
/* Completes an expert with error or 0, drops it at the client and frees load. No slot may be in flight for it. */
void efs_device_load_end(struct efs_device *device, struct efs_device_load *load, errint_t error);
/* Frees load without completing the expert. */
void efs_device_load_free(struct efs_device *device, struct efs_device_load *load);
/* Marks one expert of a source as finished; frees the source after the last one. */
void efs_load_source_finish_one(struct efs_device *device, struct efs_load_source *source, uint32_t index);
/* Completes an expert for all requests that wait for it, and counts it. */
void efs_device_load_complete(struct efs_device *device, struct efs_vram_expert *expert, errint_t error);
/* Starts the copy of an expert that the client reported with status: sets device->load. On an error completes it, or
 * requests it in full form if no kernel decodes it. */
void efs_device_load_begin(struct efs_device *device, struct efs_load_source *source, uint32_t index, errint_t status);
/* Allocates memory in pool G for a demanded expert; evicts other experts. -EAGAIN: retry when a slot is done; -ENOMEM:
 * no room. */
errint_t efs_device_load_alloc(struct efs_device *device, struct efs_device_load *load);
/* Whether the slot's work has ended; then takes it off its load, whose error becomes -EUCLEAN if a kernel found
 * damage. With ended it does not query the device. */
bool efs_slot_done(struct efs_device *device, struct efs_slot *slot, bool ended);
/* Fills the slot with the next part of the expert and launches the copy and the decoding. The slot is in flight
 * afterwards also if a driver call fails: false, with *call and *result. */
bool efs_device_load_fill_slot(struct efs_device *device, struct efs_slot *slot, struct efs_device_load *load,
                               const char **call, efs_cu_result *result);

#endif
