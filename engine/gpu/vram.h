/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vram.h - pool G: the experts in device memory and their addresses. Experts are plain (decoded); each has one
 * contiguous run of granules.
 *
 * Bookkeeping only: nothing is copied, the driver is not called. The device's lock guards it.
 */
#ifndef EFS_VRAM_H
#define EFS_VRAM_H

#include "expertfs.h"
#include "expert_key.h"
#include "driver.h"

/*
 * Eviction order of pool G.
 *
 *     lru     least recently used first
 *     value   furthest expected next use first, learned from the requests (sched/policy/policy_reuse.h)
 *     dali    experts outside their layer's busy set first: DALI 4.3, Algorithm 2 (sched/policy/gpu_cache.h)
 *
 * Ties: least recently used first. DALI: at the end of a window the busiest experts outside the set replace the idlest
 * in it; they are loaded when they are next requested. The size of the set is the number of experts that the pool
 * holds, divided by the layers.
 *
 * Layers and experts are unknown until they are requested. When their number exceeds the tables, the tables are
 * reallocated with at least twice the size and lose what was learned; this ends with the first pass through the layers.
 * The device's lock guards the order.
 */
enum efs_vram_order_kind { EFS_VRAM_LRU, EFS_VRAM_VALUE, EFS_VRAM_DALI, EFS_VRAM_ORDERS };

struct efs_vram_layer {
    uint32_t layer;
    char stack[EFS_STACK_NAME_BYTES];
};

struct efs_reuse;
struct efs_gpu_cache;
struct efs_vram_order {
    enum efs_vram_order_kind kind;
    uint32_t layers, experts;     /* size of the tables; 0: not allocated */
    uint32_t known;               /* layers seen */
    struct efs_vram_layer *layer; /* [layers] */
    struct efs_reuse *value;
    struct efs_gpu_cache *window; /* [layers] */
    bool *busy;                   /* [layers][experts]: cached[] of each window */
    uint64_t *score;              /* [layers][experts]: score[] of each window */
    uint32_t *tokens, *expert;    /* [experts]: scratch of a pass */
};

/* By name; EFS_VRAM_ORDERS: no such name. NULL: the default, value. */
enum efs_vram_order_kind efs_vram_order_by_name(const char *name);
/* Frees the tables; kind stays set. An order with only kind set needs no call. */
void efs_vram_order_free(struct efs_vram_order *order);
/* Records a request of a layer. share: experts per layer that fit in the pool, the size of DALI's busy set. Without
 * memory for the tables the request is ignored. */
void efs_vram_order_record(struct efs_vram_order *order, const char *stack, uint32_t layer,
                           const struct efs_need *needs, uint32_t count, uint32_t share);
/* The expert with the smallest priority is evicted first. used_at: time of its last use, below 2^52. */
double efs_vram_order_priority(struct efs_vram_order *order, const struct efs_expert_key *key, uint64_t used_at);

#define EFS_VRAM_GRANULE (64u << 10)
#define EFS_VRAM_ALIGN 256u /* alignment of a tensor, bytes */
#define EFS_VRAM_BUCKETS 4096u

enum efs_vram_state { EFS_VRAM_LOADING, EFS_VRAM_RESIDENT };

/* An event after the work of a caller's stream that may still read an expert. */
struct efs_vram_reader {
    struct efs_vram_reader *next;
    efs_cu_stream stream;
    efs_cu_event event;
};

struct efs_device_item;
struct efs_vram_expert {
    struct efs_vram_expert *next; /* in its bucket */
    struct efs_expert_key key;
    enum efs_vram_state state;
    uint32_t pins;                   /* number of request items that pin it */
    uint32_t first, granules;        /* granules 0: no memory allocated */
    uint64_t used_at;                /* value of vram.clock at its last use */
    struct efs_device_item *waiting; /* items that wait for it while it is LOADING */
    struct efs_vram_reader *readers;
    struct efs_tensor *tensors; /* followed by their names, in one allocation */
    uint32_t tensor_count;
};

struct efs_vram {
    efs_cu_address base;
    uint32_t granules, used_granules, experts, pinned;
    uint64_t clock, evicted;
    uint64_t *used_map; /* one bit per granule */
    uint32_t allocated; /* experts with memory */
    struct efs_vram_order order;
    struct efs_vram_expert *bucket[EFS_VRAM_BUCKETS];
};

/* Manages bytes from base, rounded down to granules. -ENOMEM, -EFBIG. */
errint_t efs_vram_init(struct efs_vram *vram, efs_cu_address base, uint64_t bytes, enum efs_vram_order_kind kind);
/* Frees all experts and tables. The caller has destroyed the events. */
void efs_vram_destroy(struct efs_vram *vram);

struct efs_vram_expert *efs_vram_find(const struct efs_vram *vram, const struct efs_expert_key *key);
/* Adds an expert, LOADING, without memory. NULL: no host memory. */
struct efs_vram_expert *efs_vram_add(struct efs_vram *vram, const struct efs_expert_key *key);
/* Removes and frees an expert that no request pins or waits for. Adds to *readers the events that its memory's next
 * user must wait for. */
void efs_vram_remove(struct efs_vram *vram, struct efs_vram_expert *expert, struct efs_vram_reader **readers);
/* A request item pins or unpins an expert. Pinned experts are not evicted. */
void efs_vram_pin(struct efs_vram *vram, struct efs_vram_expert *expert);
void efs_vram_unpin(struct efs_vram *vram, struct efs_vram_expert *expert);

/* Records a request of a layer in the order, after its missing experts were added. */
void efs_vram_requested(struct efs_vram *vram, const char *stack, uint32_t layer, const struct efs_need *needs,
                        uint32_t count);

/*
 * Allocates memory for an expert and sets expert->tensors to copies of tensors with device addresses. Evicts experts
 * that are not pinned, in the eviction order, and adds to *readers the events that must pass before the memory is
 * overwritten; *readers is set also on failure. -EFBIG: larger than the pool; -EAGAIN: no expert can be evicted;
 * -ENOMEM: no host memory.
 */
errint_t efs_vram_alloc(struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *tensors,
                        uint32_t count, struct efs_vram_reader **readers);

#endif
