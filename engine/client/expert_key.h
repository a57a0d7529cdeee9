/* SPDX-License-Identifier: Apache-2.0 */
/* expert_key.h - the key of an expert of a mount: stack, layer and number. */
#ifndef EFS_EXPERT_KEY_H
#define EFS_EXPERT_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EFS_EXPERT_PATH 80u      /* of an expert's path, including the terminator */
#define EFS_STACK_NAME_BYTES 32u /* of a stack's name, including the terminator */

struct efs_expert_key {
    uint32_t layer, expert;
    char stack[EFS_STACK_NAME_BYTES]; /* "" for models with one; padded with zeros */
};

/* stack is shorter than EFS_STACK_NAME_BYTES. */
static inline struct efs_expert_key efs_expert_key(const char *stack, uint32_t layer, uint32_t expert)
{
    struct efs_expert_key key = {.layer = layer, .expert = expert};
    memcpy(key.stack, stack, strnlen(stack, EFS_STACK_NAME_BYTES - 1));
    return key;
}

static inline bool efs_expert_key_is(const struct efs_expert_key *a, const struct efs_expert_key *b)
{
    return a->layer == b->layer && a->expert == b->expert && strcmp(a->stack, b->stack) == 0;
}

static inline uint32_t efs_expert_key_hash(const struct efs_expert_key *key)
{
    uint32_t hash = 2166136261u; /* FNV-1a over numbers and name */
    hash = (hash ^ key->layer) * 16777619u;
    hash = (hash ^ key->expert) * 16777619u;
    for (const char *p = key->stack; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619u;
    return hash ^ hash >> 15; /* the low bits select the bucket */
}

#endif
