/* SPDX-License-Identifier: Apache-2.0 */
/* request_core.h - what the files of requests share. */
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
    uint32_t expert;
    void *arg; /* for arrived of the request */
    enum efs_form form;
    enum efs_item_state state;
    uint8_t again;   /* coded: times that it was begun again */
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

/* An item that came in full, as its lease, or coded (request.c). */
void efs_item_leased(void *item, errint_t error, struct efs_lease *lease);
void efs_item_brought(struct efs_fetch *fetch);
/* One of its references is given back. */
void efs_request_unref(struct efs_request *request);
/* An expert that nobody comes for comes once, however often it is named meanwhile: else who names on and on would have
 * lines without end. false: it does already. */
bool efs_brought_begin(struct efs *fs, uint32_t expert, enum efs_form form);
void efs_brought_end(struct efs *fs, uint32_t expert, enum efs_form form);

/* With efs.lock (coded_line.c): an item waits in line for room, or is the next in it; those that there is room for
 * begin; what an expert that was begun took of the room, so many bytes, is given back. */
void efs_coded_wait(struct efs *fs, struct efs_request_item *item);
void efs_coded_wait_first(struct efs *fs, struct efs_request_item *item);
void efs_coded_take(struct efs *fs, bool from_line);
void efs_coded_unhold(struct efs *fs, uint32_t expert, uint64_t bytes);

/* Without lock: all that is still coming waits for room, and does not fit beside what the request holds. */
bool efs_request_is_stuck(struct efs_request *request);
errint_t efs_item_tensors(struct efs_request_item *item);
void efs_item_free_tensors(struct efs_request_item *item);

#endif
