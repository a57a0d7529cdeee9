/* SPDX-License-Identifier: Apache-2.0 */
/* request_core.h - what request.c and request_tensors.c share. */
#ifndef EFS_REQUEST_CORE_H
#define EFS_REQUEST_CORE_H

#include "event.h"
#include "expertfs-private.h"
#include "fetch.h"

enum efs_item_state { EFS_ITEM_COMING, EFS_ITEM_HERE, EFS_ITEM_FAILED, EFS_ITEM_DROPPED };

/* One expert of a request. It has a lease (full) or a fetch whose extents are referenced (coded). */
struct efs_request_item {
    struct efs_request *request;
    struct efs_request_item *next_waiting; /* coded: for room */
    uint32_t expert, tokens;
    void *arg; /* for arrived of the request */
    enum efs_form form;
    enum efs_item_state state;
    bool for_nobody; /* it is let go of when it is here */
    bool told;
    errint_t error;
    struct efs_lease *lease;
    struct efs_fetch *fetch;
    uint64_t bytes; /* coded: that it holds */
    struct efs_tensor *tensors;
    struct efs_coded_shard *shards;
    char *names;
    uint32_t tensor_count;
};

struct efs_request {
    struct efs *fs;
    pthread_mutex_t lock; /* guards items and refs; taken after efs.lock if both */
    pthread_cond_t changed;
    struct efs_event event; /* for who waits by poll(2) */
    uint32_t refs;          /* items that are coming, and one for the caller */
    bool over;              /* the caller has released it */
    efs_arrived_fn
        *arrived; /* items are for other processes: each is told, and holds a reference until it is dropped */
    bool begun;   /* some of its coded items were given room; guarded by efs.lock */
    uint32_t count;
    struct efs_request_item items[];
};

/* Without lock: all that is still coming waits for room, and does not fit beside what the request holds. */
bool efs_request_is_stuck(struct efs_request *request);
errint_t efs_item_tensors(struct efs_request_item *item);
void efs_item_free_tensors(struct efs_request_item *item);

#endif
