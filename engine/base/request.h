/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - what all requests of experts have in common: those of a store in this process (fetch/), of a mount
 * (client/) and of GPU memory (gpu/). The struct of each starts with a struct efs_client_request, and the struct of its
 * items with a struct efs_client_item. request.c has the calls of expertfs.h: waiting, events, tensors, drops.
 */
#ifndef EFS_REQUEST_H
#define EFS_REQUEST_H

#include "expertfs.h"
#include "owner.h"

#include <pthread.h>
#include <stddef.h>

enum efs_item_state { EFS_ITEM_LOADING, EFS_ITEM_READY, EFS_ITEM_FAILED, EFS_ITEM_DROPPED };

struct efs_client_item { /* an expert of a request */
    enum efs_item_state state;
    errint_t error; /* FAILED: why; else 0 */
    bool reported;  /* efs_client_wait_any() has returned it */
};

struct efs_request_ops { /* of a kind of request */
    /* Waits until an item may have changed, or until; NULL: the same by request->changed. Lock held, released
     * meanwhile. -ETIMEDOUT. */
    errint_t (*block)(struct efs_client_request *request, const struct timespec *until);
    /* base.oversize and own_drops may be outdated: resets them, until they were requested again. Lock held, released
     * meanwhile. NULL: they never are. */
    void (*refresh)(struct efs_client_request *request);
    /* blocked was set: looks whether threads that wait for each other hold all memory, which sets stuck. NULL: it does
     * not. Whether the lock was released meanwhile. */
    bool (*blocks)(struct efs_client_request *request);
    /* The request has an event from now on; NULL: does nothing. Lock held. */
    void (*event_opened)(struct efs_client_request *request);
    /* The tensors of a READY item. Lock held. */
    errint_t (*tensors)(struct efs_client_request *request, uint32_t index, const struct efs_tensor **tensors,
                        uint32_t *count);
    /* Drops the items from first to end - 1, except those that are DROPPED. Without lock. */
    void (*drop)(struct efs_client_request *request, uint32_t first, uint32_t end);
    /* The caller uses the request no more, and all items are DROPPED. Without lock. */
    void (*free)(struct efs_client_request *request);
};

/* Which thread waits for a request without a limit, and holds what it holds until then. */
enum efs_blocked { EFS_BLOCKED_NONE, EFS_BLOCKED_MAKER, EFS_BLOCKED_TEAM };

struct efs_client_request {
    const struct efs_request_ops *ops;
    const struct efs_owner *owner; /* of the client or the store */
    pthread_mutex_t *lock;         /* guards the members below, and the items */
    pthread_cond_t *changed;       /* by CLOCK_MONOTONIC; signalled when an item has changed */
    int event;                     /* of efs_client_event(); < 0: not open */
    bool event_readable;
    uint32_t count, loading; /* items; those that are LOADING */
    uint32_t first_item_at, item_bytes;
    bool oversize; /* its items do not fit into memory at once, and some are LOADING */
    /* It waits for memory that other requests of the thread that made it hold, or that of threads which wait for each
     * other. thread: its efs_thread_number(); 0: not known, and stuck is false. any_thread: threads that wait for it do
     * so for that thread, which waits, too; they drop its experts meanwhile. */
    bool stuck, any_thread;
    enum efs_blocked blocked; /* NONE again when an item changes, which wakes the thread */
    uint64_t thread;
    /* Its experts that wait for memory which that thread holds, also by this request; 0: none does. */
    uint32_t own_drops;
};

/* Sets up a request whose struct ends with `count` items of item_bytes, first_item_at its start. The caller sets
 * owner. */
static inline void efs_client_request_init(struct efs_client_request *request, const struct efs_request_ops *ops,
                                           pthread_mutex_t *lock, pthread_cond_t *changed, uint32_t count,
                                           size_t first_item_at, size_t item_bytes)
{
    *request = (struct efs_client_request){.ops = ops,
                                           .lock = lock,
                                           .changed = changed,
                                           .event = -1,
                                           .count = count,
                                           .loading = count,
                                           .first_item_at = (uint32_t)first_item_at,
                                           .item_bytes = (uint32_t)item_bytes};
}

/* The calling thread is about to wait without a limit. Lock held; returns whether it was released meanwhile. */
bool efs_client_blocks(struct efs_client_request *request);
/* Checks 1 to `most` experts, each once and with tokens. 0; -EINVAL. */
errint_t efs_request_check(const struct efs_need *needs, uint32_t count, uint32_t most, struct efs_error *err);
/* Changes the state of an item, with the error of FAILED, and wakes those that wait. Lock held. */
void efs_client_item_set(struct efs_client_request *request, struct efs_client_item *item, enum efs_item_state state,
                         errint_t error);
/* Closes the event and frees the struct; as the op `free`, and in a forked process. */
void efs_client_request_free(struct efs_client_request *request);

#endif
