/* SPDX-License-Identifier: Apache-2.0 */
/* request_internal.h - shared by the files of requests. */
#ifndef EFS_REQUEST_INTERNAL_H
#define EFS_REQUEST_INTERNAL_H

#include "event.h"
#include "expertfs-private.h"
#include "fetch.h"

enum efs_item_state { EFS_ITEM_LOADING, EFS_ITEM_READY, EFS_ITEM_FAILED, EFS_ITEM_DROPPED };

/* An expert of a request. When loaded it has a lease (full), or a fetch whose extents are referenced (coded). */
struct efs_request_item {
    struct efs_request *request;
    struct efs_request_item *next_waiting; /* coded: in the queue for room */
    uint32_t expert;
    void *arg; /* argument of request->arrived */
    enum efs_form form;
    enum efs_item_state state;
    uint8_t retries; /* coded: retries after -ENOMEM */
    bool preload;    /* without a holder: released when it is loaded */
    bool reported;
    errint_t error;
    struct efs_lease *lease;
    struct efs_fetch *fetch;
    uint64_t bytes; /* coded: bytes of its chunks */
    struct efs_tensor *tensors;
    struct efs_coded_shard *shards;
    char *names;
    uint32_t tensor_count;
};

struct efs_request {
    struct efs *fs;
    pthread_mutex_t lock; /* guards items and refs; taken after efs.lock */
    pthread_cond_t changed;
    struct efs_event event;  /* for efs_request_event() */
    uint32_t refs;           /* items that are being loaded, and one for the caller */
    bool released;           /* the caller has released it */
    efs_arrived_fn *arrived; /* the request is for other processes: each item holds a reference until dropped */
    bool begun;              /* loads of its coded items have started; guarded by efs.lock */
    uint32_t count;
    struct efs_request_item items[];
};

/* Completions of an item: its lease (full), or its fetch (coded) (request.c). */
void efs_item_leased(void *item, errint_t error, struct efs_lease *lease);
void efs_item_loaded(struct efs_fetch *fetch);
/* Drops a reference. */
void efs_request_unref(struct efs_request *request);
/* Marks an expert as being loaded without a holder. false: it is already, and must not be loaded again, which bounds
 * the queues. */
bool efs_preload_begin(struct efs *fs, uint32_t expert, enum efs_form form);
void efs_preload_end(struct efs *fs, uint32_t expert, enum efs_form form);

/* With efs.lock (coded_admission.c): appends an item to the queue for room, or puts it at the head; starts the items
 * that have room; releases the room of a started expert. */
void efs_coded_enqueue(struct efs *fs, struct efs_request_item *item);
void efs_coded_requeue(struct efs *fs, struct efs_request_item *item);
void efs_coded_admit(struct efs *fs, bool from_queue);
void efs_coded_unpin(struct efs *fs, uint32_t expert, uint64_t bytes);
/* Takes the items with a cancelled argument off the queue; they end with -ECANCELED when the lock is released. */
void efs_coded_cancel(struct efs *fs, efs_cancelled_fn *cancelled);

/* Whether all experts that are not loaded wait for room, and do not fit while the request holds the loaded ones.
 * Without lock. */
bool efs_request_is_deadlocked(struct efs_request *request);
errint_t efs_item_tensors(struct efs_request_item *item);
void efs_item_free_tensors(struct efs_request_item *item);

#endif
