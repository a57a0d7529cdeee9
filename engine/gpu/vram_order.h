/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vram_order.h - who goes first from pool G.
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
#ifndef EFS_VRAM_ORDER_H
#define EFS_VRAM_ORDER_H

#include "expert_key.h"
#include "expertfs.h"

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

#endif
