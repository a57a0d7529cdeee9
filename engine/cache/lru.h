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
    uint32_t newer, older; /* indexes; newer: EFS_LRU_END: in no list */
};

struct efs_lru {
    char *first_link; /* of element 0 */
    size_t stride;    /* bytes from one element to the next */
    uint32_t head;    /* index of an element that closes the circle: older than the oldest, newer than the newest */
};

static inline struct efs_link *efs_lru_link(const struct efs_lru *lru, uint32_t i)
{
    return (struct efs_link *)(void *)(lru->first_link + i * lru->stride);
}

/* The next newer element; of `head`: the oldest. EFS_LRU_END: none. */
static inline uint32_t efs_lru_newer(const struct efs_lru *lru, uint32_t i)
{
    uint32_t newer = efs_lru_link(lru, i)->newer;
    return newer == lru->head ? EFS_LRU_END : newer;
}

static inline uint32_t efs_lru_oldest(const struct efs_lru *lru)
{
    return efs_lru_newer(lru, lru->head);
}

/* Initialises an empty list of elements whose links are stride bytes apart. */
static inline void efs_lru_init(struct efs_lru *lru, struct efs_link *first_link, size_t stride, uint32_t head)
{
    *lru = (struct efs_lru){(char *)first_link, stride, head};
    *efs_lru_link(lru, head) = (struct efs_link){head, head};
}

/* Removes an element that is in this list, or in another one of the same elements. */
static inline void efs_lru_remove(struct efs_lru *lru, uint32_t i)
{
    struct efs_link *link = efs_lru_link(lru, i);
    efs_lru_link(lru, link->newer)->older = link->older;
    efs_lru_link(lru, link->older)->newer = link->newer;
    link->newer = EFS_LRU_END;
}

/* Inserts at the newest or the oldest end. */
static inline void efs_lru_insert(struct efs_lru *lru, uint32_t i, bool newest)
{
    const struct efs_link head = *efs_lru_link(lru, lru->head);
    const struct efs_link link =
        newest ? (struct efs_link){lru->head, head.older} : (struct efs_link){head.newer, lru->head};
    *efs_lru_link(lru, i) = link;
    efs_lru_link(lru, link.newer)->older = i;
    efs_lru_link(lru, link.older)->newer = i;
}

/* Moves i, which is listed, to the newest end. */
static inline void efs_lru_use(struct efs_lru *lru, uint32_t i)
{
    efs_lru_remove(lru, i);
    efs_lru_insert(lru, i, true);
}

#endif
