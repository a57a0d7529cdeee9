/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lru.h - a list of array elements in the order of last use, linked by indexes inside the elements. Allocates nothing;
 * the caller's lock guards it.
 */
#ifndef EFS_LRU_H
#define EFS_LRU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EFS_LRU_END UINT32_MAX

struct efs_link {
    uint32_t newer, older; /* indexes, or EFS_LRU_END */
};

struct efs_lru {
    char *first_link; /* of element 0 */
    size_t stride;    /* bytes from one element to the next */
    uint32_t newest, oldest;
};

static inline struct efs_link *efs_lru_link(const struct efs_lru *lru, uint32_t i)
{
    return (struct efs_link *)(void *)(lru->first_link + i * lru->stride);
}

static inline uint32_t efs_lru_newer(const struct efs_lru *lru, uint32_t i)
{
    return efs_lru_link(lru, i)->newer;
}

/* Initialises an empty list of elements whose links are stride bytes apart. */
static inline void efs_lru_init(struct efs_lru *lru, struct efs_link *first_link, size_t stride)
{
    *lru = (struct efs_lru){(char *)first_link, stride, EFS_LRU_END, EFS_LRU_END};
}

static inline void efs_lru_remove(struct efs_lru *lru, uint32_t i)
{
    struct efs_link link = *efs_lru_link(lru, i);
    *(link.newer != EFS_LRU_END ? &efs_lru_link(lru, link.newer)->older : &lru->newest) = link.older;
    *(link.older != EFS_LRU_END ? &efs_lru_link(lru, link.older)->newer : &lru->oldest) = link.newer;
}

/* Inserts at the newest or the oldest end. */
static inline void efs_lru_insert(struct efs_lru *lru, uint32_t i, bool newest)
{
    struct efs_link link = {newest ? EFS_LRU_END : lru->oldest, newest ? lru->newest : EFS_LRU_END};
    *efs_lru_link(lru, i) = link;
    *(link.newer != EFS_LRU_END ? &efs_lru_link(lru, link.newer)->older : &lru->newest) = i;
    *(link.older != EFS_LRU_END ? &efs_lru_link(lru, link.older)->newer : &lru->oldest) = i;
}

/* Moves i, which is listed, to the newest end. */
static inline void efs_lru_use(struct efs_lru *lru, uint32_t i)
{
    efs_lru_remove(lru, i);
    efs_lru_insert(lru, i, true);
}

#endif
