/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.h - extents: what is read at once, in the chunk pool or on its way there. Fields of struct efs_extents are for
 * the files of extents alone (extent*.c); what struct efs_extent says of one may be read by all who hold the lock.
 */
#ifndef EFS_EXTENT_H
#define EFS_EXTENT_H

#include "efs.h"
#include "lru.h"
#include "record.h"
#include "streams.h"

/* The two components of coded weights (ZipMoE 3.1). */
enum efs_component { EFS_COMPONENT_E = 1, EFS_COMPONENT_SM = 2 };
#define EFS_BOTH ((unsigned)EFS_COMPONENT_E | (unsigned)EFS_COMPONENT_SM)

/*
 * An extent is what is read at once: some shards of one object whose E-chunks are adjacent in the store and whose
 * SM-chunks are too. An expert's tensor is one extent, or several if it is large. Objects of less than a page each that
 * lie side by side and are of no expert share an extent, which then holds all bytes of each: model files have thousands
 * of scales of 4 bytes.
 */
enum efs_extent_state { EFS_EXTENT_REST, EFS_EXTENT_NO_MEMORY, EFS_EXTENT_LOADING };
enum efs_extent_list { EFS_LIST_NONE, EFS_LIST_PROTECTED, EFS_LIST_EVICTABLE, EFS_LIST_PASSING };

#define EFS_EXTENT_SHARDS 64

struct efs_extent {
    uint32_t object; /* the first one, where several share it */
    uint32_t shard_first;
    uint16_t shard_count;
    uint8_t state;             /* enum efs_extent_state */
    uint8_t needs, have, keep; /* components: that it consists of, that are in memory, that the policy keeps */
    uint8_t list;              /* enum efs_extent_list */
    bool discard;              /* damaged: drop when the last reference goes */
    bool evict_first;          /* evictable, and the first to go, before the pool grows */
    bool awaited;              /* came for a guess whose layer is still to ask: goes after all else that is evictable */
    bool unwanted;             /* is being loaded, and nobody waits for it */
    bool streamed;             /* came for a sequential reader, and nobody else has asked for it */
    uint32_t refs;             /* users of the memory; an extent with users is whole and not evicted */
    uint32_t held;             /* of them, those that hold it as long as they like */
    uint32_t ahead_bytes;      /* that were read ahead and not used yet */
    uint32_t passing_bytes;    /* that it counts in what streams have in passing; 0: it is not theirs */
    uint32_t passed_bytes;     /* raw bytes of it that were read since it came */
    uint64_t passing_clock;    /* efs_streams.clock when it was read, or read ahead for a stream */
    struct efs_block e, sm;
    _Atomic uint64_t checked; /* a bit a shard: checksums were right */
    struct efs_link link;     /* of its list */
    struct efs_extent_waiter *waiters;
    union {
        struct efs_extent *next_no_memory; /* EFS_EXTENT_NO_MEMORY */
        struct efs_extent_load *load;      /* unwanted */
    };
};

/* Why an extent is loaded: somebody waits for it, a reader is expected to come to it, its expert is guessed to be asked
 * for soon, or there is nothing else to read. One that somebody asks for while it is being loaded is wanted from then
 * on. */
enum efs_load { EFS_LOAD_WANTED, EFS_LOAD_AHEAD, EFS_LOAD_GUESS, EFS_LOAD_WARM, EFS_LOADS };

/* Someone who needs an extent: its job is pushed to the workers once, with error set, or 0 and the extent referenced.
 */
struct efs_extent_waiter {
    struct efs_extent_waiter *next;
    struct efs_job job;
    /* Lock held, not NULL where the extent being here means jobs of the waiter's own: it defers these, and its job is
     * not pushed. false: the job is, as ever. */
    bool (*loaded)(struct efs *fs, struct efs_extent_waiter *waiter);
    uint32_t extent;
    bool holds;     /* it keeps its reference as long as it likes, and asks for others meanwhile */
    errint_t error; /* -ENOMEM: there is none for the extent, maybe for long; efs_extent_decode_past() needs none */
};

struct efs_extent_load;

struct efs_extent_move { /* the component that moves out of a segment that leaves */
    struct efs_job job;
    struct efs *fs;
    uint32_t extent;
    enum efs_component component;
    struct efs_block to;
    bool busy;
};

struct efs_extents {
    struct efs_extent *at; /* [count] */
    uint32_t count;
    uint32_t *object_first; /* first extent of each object; one more entry at the end */
    size_t max_bytes;       /* coded bytes of an extent at most (one shard at least) */
    uint64_t *expert_bytes; /* by expert: coded */
    struct efs_lru protected, evictable, passing;
    struct efs_streams streams;
    uint64_t passing_bytes; /* of all extents */
    struct efs_extent *no_memory, **no_memory_tail;
    uint64_t ahead_bytes, ahead_max_bytes;      /* read ahead and not used yet; never more than that */
    uint32_t refs, held;                        /* of all extents; of these, by waiters that hold */
    uint32_t loads[EFS_LOADS];                  /* under way */
    struct efs_extent_load *idle_loads;         /* that ended, or are new */
    struct efs_extent_load *ended, *ended_last; /* the I/O thread's: it has not told of them yet */
    unsigned load_count, idle_count;            /* made so far; of them idle */
    struct efs_extent_move move;
    uint32_t ready_count; /* whole ones */
    bool giving_way;      /* somebody goes for memory, or moves of the policy are applied: neither inside the other */
    pthread_mutex_t
        past_lock; /* efs_extent_decode_past(): memory of one shard at a time; nothing else is locked then */
};

/* What there is to know of one; with lock held what changes. */
static inline const struct efs_extent *efs_extent(const struct efs *fs, uint32_t extent)
{
    return &fs->extents->at[extent];
}

/* Several objects share it: it is not of an expert. */
static inline bool efs_extent_is_shared(const struct efs *fs, const struct efs_extent *x)
{
    return x->shard_count > fs->store->objects[x->object].shard_count;
}

/* The extents of an expert's object: the first, and the one after its last. */
static inline uint32_t efs_object_extent_first(const struct efs *fs, uint32_t object)
{
    return fs->extents->object_first[object];
}

static inline uint32_t efs_object_extent_end(const struct efs *fs, uint32_t object)
{
    return fs->extents->object_first[object + 1];
}

/* Coded bytes of an expert. */
static inline uint64_t efs_expert_coded_bytes(const struct efs *fs, uint32_t expert)
{
    return fs->extents->expert_bytes[expert];
}

/* ---- extent.c ---- */
/* Extents of at most so many coded bytes (one shard at least); their count. Before efs_extents_build(). */
uint32_t efs_extents_size(struct efs *fs, size_t max_bytes);
uint64_t efs_extents_table_bytes(const struct efs *fs);
errint_t efs_extents_build(struct efs *fs, struct efs_error *err);
void efs_extents_destroy(struct efs *fs);
/* What loads need beside memory: how many more should be made; make them, without lock (a list, NULL: no memory, or
 * none); they are there. */
unsigned efs_extent_loads_wanted(const struct efs *fs);
struct efs_extent_load *efs_extent_loads_new(unsigned count);
void efs_extent_loads_add(struct efs *fs, struct efs_extent_load *loads);
/* How far each stream is read ahead, and how much at most at once for others. */
void efs_extents_set_window(struct efs *fs, uint64_t bytes);
/* A reference goes. used_up: nobody will come back for it soon, so that it goes before others do and before the pool
 * grows. _put() without lock, _unref() with lock held. */
void efs_extent_put(struct efs *fs, uint32_t extent, bool used_up);
void efs_extent_unref(struct efs *fs, uint32_t extent, bool used_up);
void efs_extent_unhold(struct efs *fs, uint32_t extent); /* with lock held: the reference of a waiter that holds goes */
/* Raw bytes [begin, begin + bytes) of an object, all inside the extent, into dst; in a shared extent they may go on in
 * the next objects. The extent is referenced. Chunks are checked before their first use. 0, -EUCLEAN. */
errint_t efs_extent_decode(struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes, void *dst,
                           bool stream, struct efs_codec_scratch *scratch);
/* The same without a reference, for an extent that there is no memory for: each shard is read by this thread into
 * memory of its own. Slow, but it waits for nobody. 0, -EUCLEAN, -ENOMEM, the read's error. */
errint_t efs_extent_decode_past(struct efs *fs, uint32_t object, uint64_t begin, size_t bytes, void *dst,
                                struct efs_codec_scratch *scratch);
/* Check the chunks of a shard of the extent (counted from its first) without decoding it; the extent is referenced. */
errint_t efs_extent_check(struct efs *fs, uint32_t extent, uint32_t shard);
bool efs_extent_checked(const struct efs *fs, uint32_t extent); /* all of them */
bool efs_extent_shard_checked(const struct efs *fs, uint32_t extent, uint32_t shard);
/* Can efs_extent_decode() do without scratch? */
bool efs_extent_decodes_inline(const struct efs *fs, uint32_t extent);
/* The extent that holds raw byte `offset` of the object, and the byte after its last. */
uint32_t efs_extent_at(const struct efs *fs, uint32_t object, uint64_t offset, uint64_t *end);
uint64_t efs_extent_begin(const struct efs *fs, uint32_t extent); /* its first raw byte in the object */
/* efs_record() of an extent, if it is of an expert. */
void efs_extent_record(struct efs *fs, enum efs_record_kind kind, uint32_t extent, uint32_t shard, uint64_t begin_ns,
                       uint64_t end_ns);
/* With lock held: */
void efs_extents_set_ahead(struct efs *fs, uint64_t max_bytes);
struct efs_streams *efs_extents_streams(struct efs *fs);
uint32_t efs_extents_ready(const struct efs *fs); /* whole ones */
/* No load is under way, and all that is in use is held: nothing comes free until a client drops something. */
bool efs_extents_only_held(const struct efs *fs);
/* Nobody waits for memory or for a read, and nothing is read ahead for a reader. */
bool efs_extents_are_quiet(const struct efs *fs);
uint32_t efs_extents_loads(const struct efs *fs, enum efs_load why); /* under way */
/* The oldest of the evictable goes before the pool grows. */
bool efs_extents_one_goes_first(const struct efs *fs);
/* It is evictable, and goes behind those that go before the pool grows, and before all others. */
void efs_extent_evict_early(struct efs *fs, uint32_t extent);
/* true: the extent is in memory and referenced; false: waiter->job comes later. */
bool efs_extent_ask(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter);
/* The same for bytes of it and a reader of that pace: what a scan brings is in passing, what others ask for is not any
 * more. */
bool efs_extent_ask_paced(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes,
                          struct efs_extent_waiter *waiter);
/* Start loading the extents of a group without waiting, as far as there is room for read-ahead. */
void efs_group_ahead(struct efs *fs, uint32_t group);
/* The components that the policy keeps of an expert's extents; 0: all of them become evictable. */
void efs_extents_keep(struct efs *fs, uint32_t expert, unsigned components);
/* The components that all extents of an expert have; *some: any extent has any. */
unsigned efs_extents_have(const struct efs *fs, uint32_t expert, bool *some);
bool efs_extents_loading(const struct efs *fs, uint32_t expert); /* or waiting for memory: any of them */
/* Drop the oldest evictable components without users; only_evict_first: only of those that go first. NONE: there are
 * none, IN_USE: all there are have users. */
enum efs_evicted { EFS_EVICTED_NONE, EFS_EVICTED_ONE, EFS_EVICTED_IN_USE };
enum efs_evicted efs_extents_evict(struct efs *fs, bool only_evict_first);
/* What there is of an expert and nobody uses goes, kept or not: where it lies may be in the way of the rest. */
void efs_extents_give_up(struct efs *fs, uint32_t expert);
/* Bytes that lack of an expert, as they are read; 0: it is here, or on its way. */
uint64_t efs_extents_missing(const struct efs *fs, uint32_t expert);
/* An expert is guessed to be asked for: begin to load what is missing, in memory that is free or that nobody keeps. It
 * is no use of it. Until somebody asks for it, or efs_extents_guess_drop(), it goes after all else that is evictable.
 * Returns how many loads were begun, each ends with efs_hooks.guessed; 0: there is no such memory. */
uint32_t efs_extents_guess(struct efs *fs, uint32_t expert);
/* Of its loads by efs_extents_guess(), those that are not begun are wanted now, or are cancelled. */
void efs_extents_guess_raise(struct efs *fs, uint32_t expert);
void efs_extents_guess_cancel(struct efs *fs, uint32_t expert);
/* Nobody will come for it soon: what came for the guess and is not kept goes before all else. */
void efs_extents_guess_drop(struct efs *fs, uint32_t expert);
/* Start loading it for a stream. false: it has all the memory that streams may take. */
bool efs_extent_ahead_passing(struct efs *fs, uint32_t extent);
/* It came for a stream, which has turned out to be a scan: it is in passing. */
void efs_extent_pass(struct efs *fs, uint32_t extent);
/* Drop the oldest kept extent without users, and tell the cache state. false: none. */
bool efs_extents_evict_protected(struct efs *fs);
/* ---- extent_edge.c: a few bytes at the edge of an extent, without the extent ---- */
struct efs_edge;
struct efs_edge *efs_edge_new(void); /* NULL: no memory */
void efs_edge_free(struct efs_edge *edge);
/* With lock held. true: the shard that holds raw bytes [begin, begin + bytes) of the extent's object is being read, and
 * job is pushed to the workers once that has ended, well or not; it calls efs_edge_decode(). false: the extent is in
 * memory or on its way, the bytes are not of one shard of several, or there is no memory: ask for the extent. */
bool efs_edge_ask(struct efs *fs, struct efs_edge *edge, uint32_t extent, uint64_t begin, size_t bytes,
                  struct efs_job *job);
/* Those bytes into dst; the chunks' memory goes. 0, -EUCLEAN, the read's error. */
errint_t efs_edge_decode(struct efs_edge *edge, uint64_t begin, size_t bytes, void *dst,
                         struct efs_codec_scratch *scratch);
/* ---- extent_load.c ---- */
/* On the I/O thread (arg is the struct efs): all loads that have ended are told of, in one turn with the lock. */
void efs_extents_ended(void *arg);
void efs_extent_wait_for_memory(struct efs *fs, uint32_t extent); /* it waits for memory, in line (extent_wait.c) */
void efs_extents_retry(struct efs *fs);                           /* EFS_AGAIN_EXTENTS (extent_ask.c) */
/* EFS_AGAIN_MOVE: what nobody uses leaves the segments that leave: to others, if it is kept. */
void efs_extents_move(struct efs *fs);

#endif
