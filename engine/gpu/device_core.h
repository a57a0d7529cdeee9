/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_core.h - what the parts of engine/gpu/ share: a device, its requests, experts on their way to it.
 *
 * A request takes what is in pool G at once. What is not there the client is asked for in coded form, and the thread
 * `efs-gpu` takes it from there: as much of an expert as goes into a slot is copied by one stream and decoded by the
 * other, which waits for it by an event, while the next slot is copied. When the second stream has told that it is
 * done, and no kernel has found damage, the expert is there. What is brought ahead (device_ahead.c) has a slot and a
 * stream of its own. The thread blocks in poll(2) alone, but for what it asks a mount about experts that are named
 * ahead.
 */
#ifndef EFS_DEVICE_CORE_H
#define EFS_DEVICE_CORE_H

#include "assign_costs.h"
#include "cuda/gpu.h"
#include "device_ops.h"
#include "event.h"
#include "expertfs-gpu.h"
#include "pins.h"
#include "vram.h"

#include <pthread.h>

#define EFS_SLOTS 3u /* one is copied, one decoded, one told of */
#define EFS_SLOT_BYTES ((size_t)8 << 20)
#define EFS_SLOT_SHARDS 1024u
#define EFS_SCRATCH_BYTES ((size_t)8 << 20) /* for running experts */
#define EFS_SLOT_TABLE (64u << 10)          /* at its begin, on the device */

enum efs_device_item_state { EFS_DEVICE_COMING, EFS_DEVICE_HERE, EFS_DEVICE_FAILED, EFS_DEVICE_DROPPED };

struct efs_device_item { /* an expert of a request; the device's lock guards it */
    struct efs_device_request *request;
    struct efs_vram_expert *expert; /* held while COMING or HERE */
    struct efs_device_item *next_waiting;
    enum efs_device_item_state state;
    errint_t error;
    bool told;
};

struct efs_device_request {
    struct efs_device *device;
    pthread_cond_t changed;
    struct efs_event event;
    uint32_t count;
    struct efs_device_item items[];
};

/* What is shared with the device for a slot; in memory of the host that the driver has pinned. */
struct efs_slot_table {
    struct efs_gpu_shard shard[EFS_SLOT_SHARDS];
    uint32_t status[EFS_SLOT_SHARDS];
};
_Static_assert(sizeof(struct efs_slot_table) <= EFS_SLOT_TABLE, "a slot's table");

/* A request of the client for experts that are missing. The thread owns it. */
struct efs_bring_source {
    struct efs_bring_source *next;
    struct efs_client_request *request;
    enum efs_form form;
    bool ahead;                       /* of one that was named ahead */
    uint32_t count, told, left;       /* named; that the client has told of; not over yet */
    struct efs_vram_expert *expert[]; /* [count]; NULL: it is over */
};

/* An expert on its way, from when the client has it. */
struct efs_bring {
    struct efs_bring_source *source;
    uint32_t index;
    struct efs_vram_expert *expert;
    const struct efs_tensor *tensors;
    uint32_t count;
    bool placed, filled;    /* has a place; all of it is in slots, or was */
    uint32_t tensor, shard; /* the next that goes into a slot */
    uint64_t at;            /* bytes of that tensor before it */
    uint32_t slots;         /* under way */
    errint_t error;
};

struct efs_slot {
    efs_cu_address memory;
    efs_cu_stream copying, computing; /* of this slot's work */
    size_t plain_bytes;               /* that are copied as they are beside it, at most */
    struct efs_slot_table *table;
    efs_cu_event copied, done;
    struct efs_bring *bring;
    uint32_t shards;
};

/*
 * Names: experts that are named ahead (efs_hint()), to be brought to pool G before they are asked for.
 *
 * A name stands until its layer is asked for, its sequence ends, or others take its place. What was brought ahead is
 * *used* when it is asked for, *late* when that happens while it is on its way, and else *wasted*. Names are judged
 * also where nothing is brought for them: while more are wrong than right nothing is begun.
 *
 * Not the queue of sched/prefetch/: that wants to know how many layers and experts there are, and one position that
 * rises for all; and its governor weighs reads of a disk. Bookkeeping alone; the device's lock guards it.
 */
#define EFS_AHEAD_NAMES 512u
#define EFS_AHEAD_JUDGED 256u /* names; then both counts are halved */
#define EFS_AHEAD_TRIED 16u   /* so many are judged before they can be found wrong */

struct efs_ahead_name {
    struct efs_expert_key key;
    uint32_t sequence;
    bool missing; /* it was not in pool G when it was named: it is judged */
    bool begun;
};

struct efs_ahead {
    uint32_t count, next; /* next: to be looked at; those before it have been */
    uint32_t right, wrong;
    struct efs_ahead_name name[EFS_AHEAD_NAMES]; /* oldest first */
};

/* A sequence's layer will choose these: in place of what it named for it before. Those that are less likely than not
 * are left out. count 0: the sequence is over. */
void efs_ahead_hint(struct efs_ahead *ahead, struct efs_vram *vram, const struct efs_routing *routing);
/* A layer asks for experts: its names are over. Those that it asks for and that were brought ahead are not so any more
 * (efs_vram_use_ahead()). */
void efs_ahead_asked(struct efs_ahead *ahead, struct efs_vram *vram, const char *stack, uint32_t layer,
                     const struct efs_need *needs, uint32_t count);
/* The next that is worth to be brought; NULL: none. It is not looked at again until efs_ahead_again(). */
struct efs_ahead_name *efs_ahead_next(struct efs_ahead *ahead, const struct efs_vram *vram);
void efs_ahead_again(struct efs_ahead *ahead);
struct efs_ahead_name *efs_ahead_find(struct efs_ahead *ahead, const struct efs_expert_key *key);

struct efs_device {
    struct efs_client *client;
    struct efs_driver driver;
    efs_cu_device device;
    efs_cu_context context;
    efs_cu_module module;
    efs_cu_function decode, up, down, sum;
    efs_cu_stream copying, computing, running; /* running: of mixtures */
    efs_cu_stream ahead;                       /* of what is brought ahead; NULL: nothing is */
    efs_cu_address memory, scratch;            /* pool G, then scratch, then the slots */
    uint64_t budget_bytes;
    char name[128];

    pthread_mutex_t lock; /* guards what follows. Left of no other lock. */
    struct efs_vram vram;
    struct efs_ahead names;
    struct efs_vram_after *free_after; /* events that nobody uses */
    struct efs_bring_source *fresh;    /* to be taken by the thread */
    struct efs_gpu_stats stats;
    struct efs_assign_costs costs; /* of mixtures that are shared */
    uint64_t learnt_brought;       /* of stats.g_brought, what costs have */
    uint64_t bring_ns;             /* in which slots were under way since then */
    bool closing;
    errint_t lost; /* a call of the driver has failed: nothing works any more */
    struct efs_error lost_error;
    _Atomic enum efs_form form; /* in which the client is asked */

    int wake; /* an eventfd: something is fresh, a slot is done, or it is closing */
    unsigned long thread;
    bool started;

    struct efs_pins pins;     /* taken by the thread */
    pthread_mutex_t run_lock; /* scratch, the stream of mixtures and what follows; device.lock may be taken inside */
    efs_cu_event timed[2];    /* before and after an expert */
    uint32_t turn;            /* which of a mixture that is */
    uint32_t inner;           /* of the last mixture's experts; 0: there was none */

    /* The thread's own: */
    struct efs_slot slot[EFS_SLOTS + 1]; /* the last one is for what is brought ahead */
    uint32_t oldest, busy;               /* slots under way, but for that one */
    uint64_t counted_at;                 /* as far as their time was counted */
    bool ahead_busy;
    struct efs_bring *ahead_bring; /* what goes into it now */
    struct efs_bring_source *sources;
    struct efs_bring *bring; /* what goes into slots now */
};

/* Any thread. Make the device's context this thread's, and undo it. 0 or the driver's result. */
efs_cu_result efs_device_enter(struct efs_device *device);
void efs_device_leave(struct efs_device *device);
void efs_device_wake(struct efs_device *device);
/* Lock not held: a call has failed, or did not end well. */
void efs_device_lose(struct efs_device *device, const char *call, efs_cu_result result);

/* device_request.c */
extern const struct efs_device_ops efs_device_ops;
/* Lock held: an expert is here (0), or failed, for all who wait for it. One that failed and that nobody holds is no
 * more; what its memory has to wait for goes to *after. */
void efs_device_told(struct efs_device *device, struct efs_vram_expert *expert, errint_t error,
                     struct efs_vram_after **after);
/* What is not in pool G, asked for. The experts of source are in it in this order; on error it is freed. */
errint_t efs_device_ask(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_need *needs,
                        struct efs_bring_source *source, struct efs_error *err);

/* device_thread.c */
void *efs_device_run(void *device);

/* device_bring.c; the thread, lock not held */
/* It is told of, and no more; no slot has anything of it. */
void efs_bring_end(struct efs_device *device, struct efs_bring *bring, errint_t error);
/* The same but for being told of. */
void efs_bring_free(struct efs_device *device, struct efs_bring *bring);
/* One of a source is over; with the last one, the source. */
void efs_source_end_one(struct efs_device *device, struct efs_bring_source *source, uint32_t index);
/* It is here, or has failed, for all who wait for it. */
void efs_bring_tell(struct efs_device *device, const struct efs_bring_source *source, struct efs_vram_expert *expert,
                    errint_t error);
/* An expert that the client has is next. */
void efs_device_take(struct efs_device *device, struct efs_bring_source *source, uint32_t index, errint_t status);
/* Give an expert that was asked for its place. -EAGAIN: when some slot is done there may be one. */
errint_t efs_device_place(struct efs_device *device, struct efs_bring *bring);
/* Has this slot's work ended? gone: whatever the device says, it has. Its expert has what became of it then. */
bool efs_slot_done(struct efs_device *device, struct efs_slot *slot, bool gone);
/* Fill the slot with what is next of this expert, and begin: it is under way then, also when a call of the driver has
 * failed, of which there is a result: false. */
bool efs_bring_slot(struct efs_device *device, struct efs_slot *slot, struct efs_bring *bring, const char **call,
                    efs_cu_result *result);

/* device_ahead.c; the thread */
/* What is brought ahead goes on. false: it waits for something. */
bool efs_device_go_ahead(struct efs_device *device);
/* Would it take an expert of this source now, if there were one? */
bool efs_device_ahead_waits(struct efs_device *device, const struct efs_bring_source *source);

#endif
