/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vram.h - pool G: which experts are in memory of the device, and where. Plain, one run of granules an expert.
 *
 * What is here is bookkeeping, nothing is copied and no call of the driver made; the device's lock guards it.
 */
#ifndef EFS_VRAM_H
#define EFS_VRAM_H

#include "expertfs.h"
#include "expert_key.h"
#include "driver.h"

/*
 * Who goes first from pool G.
 *
 *     lru     who was used longest ago
 *     value   who is expected latest, by what sched/policy/policy_value.h has learnt of the layers' requests
 *     dali    who is not of the busy ones of its layer: DALI 4.3, Algorithm 2 (sched/assign/gpu_cache.h). At the end of
 *             a window the busiest of the others take the places of the idlest of these, once they are asked for again.
 *             A layer's share is that of its experts in the pool. Among equals, who was used longest ago.
 *
 * Layers and experts are not told of before they are asked for. Where that is more than there was room for, tables are
 * made anew, twice as large, and what was learnt is lost: this ends with the first pass through the layers. The
 * device's lock guards it.
 */
enum efs_vram_order_kind { EFS_VRAM_LRU, EFS_VRAM_VALUE, EFS_VRAM_DALI, EFS_VRAM_ORDERS };

struct efs_vram_layer {
    uint32_t layer;
    char stack[EFS_STACK_NAME_BYTES];
};

struct efs_value;
struct efs_gpu_cache;
struct efs_vram_order {
    enum efs_vram_order_kind kind;
    uint32_t layers, experts;     /* room of the tables; 0: there are none */
    uint32_t known;               /* layers */
    struct efs_vram_layer *layer; /* [layers] */
    struct efs_value *value;
    struct efs_gpu_cache *window; /* [layers] */
    bool *busy;                   /* [layers][experts]: cached of each window */
    uint64_t *score;              /* [layers][experts], the same */
    uint32_t *tokens, *expert;    /* [experts]: of a pass */
};

/* By its name, EFS_VRAM_ORDERS: there is no such. NULL: the default, value. */
enum efs_vram_order_kind efs_vram_order_by_name(const char *name);
/* One with nothing but its kind needs no more. */
void efs_vram_order_free(struct efs_vram_order *order);
/* A layer asks for experts. share: how many of a layer the pool has room for, those of DALI's cache. Without memory for
 * it nothing is learnt of it. */
void efs_vram_order_pass(struct efs_vram_order *order, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, uint32_t share);
/* The larger, the later an expert goes; used_at, when it was used, is below 2^52. */
double efs_vram_order_worth(struct efs_vram_order *order, const struct efs_expert_key *key, uint64_t used_at);

#define EFS_VRAM_GRANULE (64u << 10)
#define EFS_VRAM_ALIGN 256u /* of a tensor */
#define EFS_VRAM_BUCKETS 4096u

enum efs_vram_state { EFS_VRAM_COMING, EFS_VRAM_HERE };

/* Work of a user's stream that still reads an expert; the driver's event tells of it. */
struct efs_vram_after {
    struct efs_vram_after *next;
    efs_cu_stream stream;
    efs_cu_event event;
};

struct efs_device_item;
struct efs_vram_expert {
    struct efs_vram_expert *next; /* of its bucket */
    struct efs_expert_key key;
    enum efs_vram_state state;
    uint32_t holders;                /* items of requests */
    uint32_t first, granules;        /* none while nothing is placed */
    uint64_t used_at;                /* by the clock of the pool */
    struct efs_device_item *waiting; /* while it is COMING */
    struct efs_vram_after *after;
    struct efs_tensor *tensors; /* names are behind them */
    uint32_t tensor_count;
    bool named; /* device.c: its layer will ask for it */
    bool ahead; /* it was begun because of that, and nobody has asked for it yet */
};

struct efs_vram {
    efs_cu_address base;
    uint32_t granules, used_granules, experts, held;
    uint64_t clock, evicted;
    uint64_t *taken;                     /* a bit a granule */
    uint32_t placed;                     /* experts that have a place */
    uint32_t ahead_most, ahead_granules; /* of experts that are ahead: at most, now */
    uint64_t ahead_used, ahead_late, ahead_wasted;
    struct efs_vram_order order;
    struct efs_vram_expert *bucket[EFS_VRAM_BUCKETS];
};

/* bytes from base on, a multiple of granules. -ENOMEM. */
errint_t efs_vram_init(struct efs_vram *vram, efs_cu_address base, uint64_t bytes, enum efs_vram_order_kind kind);
/* All experts go; events are no more. */
void efs_vram_destroy(struct efs_vram *vram);

struct efs_vram_expert *efs_vram_find(const struct efs_vram *vram, const struct efs_expert_key *key);
/* A new one, COMING, without a place. NULL: no memory. */
struct efs_vram_expert *efs_vram_add(struct efs_vram *vram, const struct efs_expert_key *key);
/* Nobody holds it or waits for it. What its memory has to wait for goes to *after. */
void efs_vram_remove(struct efs_vram *vram, struct efs_vram_expert *expert, struct efs_vram_after **after);
void efs_vram_hold(struct efs_vram *vram, struct efs_vram_expert *expert);
void efs_vram_let_go(struct efs_vram *vram, struct efs_vram_expert *expert);

/* A layer asks for experts, which are. */
void efs_vram_asked(struct efs_vram *vram, const char *stack, uint32_t layer, const struct efs_need *needs,
                    uint32_t count);

/*
 * A place for an expert of these tensors, which are copied, and get their addresses. Others that nobody holds go for
 * it, in this order; what their memory has to wait for goes to *after. -EFBIG: larger than the
 * pool; -EAGAIN: all is held; -ENOMEM: of the host; it has no place then.
 */
errint_t efs_vram_place(struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *tensors,
                        uint32_t count, struct efs_vram_after **after);
/*
 * The same for an expert that is ahead. None goes for it by itself: -EAGAIN, and *victim may, which is neither held nor
 * named, or there is none (NULL), or no room in the part of the pool that such experts may take.
 */
errint_t efs_vram_place_ahead(struct efs_vram *vram, struct efs_vram_expert *expert, const struct efs_tensor *tensors,
                              uint32_t count, struct efs_vram_expert **victim);
/* What is ahead is asked for, or was brought in vain; of others nothing changes. */
void efs_vram_use_ahead(struct efs_vram *vram, struct efs_vram_expert *expert);
void efs_vram_waste(struct efs_vram *vram, struct efs_vram_expert *expert);

#endif
