/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_slots.h - which experts are in the slots of a device: each layer has the same number of slots, each holds one
 * expert.
 *
 * A device multiplies with experts that are in a slot, so every expert that it computes gets one, also if its next use
 * is far away; a policy that accepts only some experts (policy.h) does not fit. A rule chooses the victim. Requests
 * with more experts than slots are computed in waves: the slots of a wave are in use until the next one begins.
 *
 * Pure; only efs_device_slots_new allocates. Not thread-safe.
 */
#ifndef EFS_DEVICE_SLOTS_H
#define EFS_DEVICE_SLOTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct efs_device_slots;

enum efs_device_rule {
    EFS_DEVICE_ZIPMOE, /* the expert with the longest expected time until its next use (policy.h) */
    EFS_DEVICE_LRU,    /* the least recently used one */
    EFS_DEVICE_LFU,    /* the least often used one */
    EFS_DEVICE_DALI,   /* one outside the layer's busy experts: DALI 4.3 (gpu_cache.h); of several by LRU */
    EFS_DEVICE_RULES
};
#define EFS_DEVICE_RULE_NAMES "zipmoe, lru, lfu, dali"
/* NULL or "": EFS_DEVICE_ZIPMOE. EFS_DEVICE_RULES: no rule has that name. */
enum efs_device_rule efs_device_rule_by_name(const char *name);

struct efs_device_slots_config {
    enum efs_device_rule rule;
    unsigned layers, experts; /* experts of the widest layer */
    unsigned slots;           /* of each layer, at least 1 */
    double chosen;            /* mean number of experts of a request */
};

/* 0; -EINVAL: a size is 0 or too large, or no such rule; -ENOMEM. The caller owns *slots. */
int efs_device_slots_new(const struct efs_device_slots_config *config, struct efs_device_slots **slots);
void efs_device_slots_free(struct efs_device_slots *slots); /* NULL is allowed */

/* A layer requests `count` distinct experts, 1 or more; tokens: of each, NULL: 1. -EINVAL: a number out of range, or
 * with ranks a duplicate; nothing has changed. */
int efs_device_slots_request(struct efs_device_slots *slots, unsigned layer, const uint32_t *expert,
                             const uint32_t *tokens, unsigned count);
/* Begins the first or the next wave of the request: no slot of the layer is in use. */
void efs_device_slots_wave(struct efs_device_slots *slots);
/* The expert's slot; -1: it has none. */
int32_t efs_device_slots_find(const struct efs_device_slots *slots, unsigned layer, uint32_t expert);
/* Returns the expert's slot, which is in use until the next wave; -1: it has none. */
int32_t efs_device_slots_use(struct efs_device_slots *slots, unsigned layer, uint32_t expert);
/* Returns an empty slot, or that of the victim, for an expert that has none. It is in use until the next wave. -1: all
 * slots are in use. */
int32_t efs_device_slots_take(struct efs_device_slots *slots, unsigned layer, uint32_t expert);
/* The number of slots of a layer that hold no expert. */
unsigned efs_device_slots_empty(const struct efs_device_slots *slots, unsigned layer);
/* Empties the expert's slot: the copy failed. */
void efs_device_slots_drop(struct efs_device_slots *slots, unsigned layer, uint32_t expert);

#ifdef __cplusplus
}
#endif
#endif
