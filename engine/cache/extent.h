/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.h - extents, the unit of reads and of eviction in the chunk pool. Only files of this room write; any code
 * with the lock may read. Each file calls only those above it:
 *
 *     extent.c         layout of extents, their lists
 *     cache_state.c    updates the cache state after losses
 *     reclaim.c        eviction, extents of streams
 *     extent_load.c    memory, waiters and references, loading, requests, read-ahead, prefetch
 */
#ifndef EFS_EXTENT_H
#define EFS_EXTENT_H

#include "efs.h"
#include "lru.h"
#include "streams.h"

/* The two components of coded weights (ZipMoE 3.1). */
enum efs_component { EFS_COMPONENT_E = 1, EFS_COMPONENT_SM = 2 };
#define EFS_BOTH ((unsigned)EFS_COMPONENT_E | (unsigned)EFS_COMPONENT_SM)

/*
 * An extent is the unit of reads: shards of one object whose E-chunks are adjacent in the store and whose SM-chunks are
 * adjacent, too. An expert's tensor is one extent, or several if it is large. Adjacent objects of less than a page each
 * that belong to no expert share an extent, which then has all bytes of each: model files have thousands of scales of 4
 * bytes.
 */
enum efs_extent_state { EFS_EXTENT_IDLE, EFS_EXTENT_QUEUED, EFS_EXTENT_LOADING };
/* What efs_cache_reclaim() takes, in this order, for whom: see reclaim.c. Some ranks are lists of the extents in
 * memory. */
enum efs_reclaim_rank {
    EFS_RANK_USED_UP,        /* extents that were decoded into a memory file, or whose bytes stay in the page cache */
    EFS_RANK_FREE_FILES,     /* memory files without an expert */
    EFS_RANK_SEGMENTS_ABOVE, /* segments above the plan, and above twice the coded experts that clients hold */
    EFS_RANK_FULL,           /* full experts that the policy does not keep full */
    EFS_RANK_DEMOTIONS,      /* the last demotion in the queue ends, which makes its full expert evictable */
    EFS_RANK_FULL_KEPT,      /* full experts that the policy keeps full */
    EFS_RANK_SEGMENTS,       /* segments above the floor */
    EFS_RANK_NEW_SEGMENT,    /* nothing is taken: the chunk pool grows, within budget and plan */
    EFS_RANK_STALE,          /* extents of a scan, of which no stream is expected to read the rest */
    EFS_RANK_MANY_FRAGMENTS, /* fragments above their share */
    EFS_RANK_EVICTABLE,      /* extents, or their components, that the policy does not protect */
    EFS_RANK_PREFETCHED,     /* the same of experts that were predicted, and not requested yet */
    EFS_RANK_SCAN,           /* extents of a scan */
    EFS_RANK_FRAGMENTS,      /* pages of small reads */
    EFS_RANK_PROTECTED,      /* extents that the policy protects, if clients hold all above that is left */
    EFS_RANK_PINNED,         /* the same of experts that a request or lease pins */
    EFS_RANKS
};

#define EFS_EXTENT_SHARDS 64

struct efs_extent {
    uint32_t object; /* the first object of a shared extent */
    uint32_t shard_first;
    uint16_t shard_count;
    uint16_t fragments;                    /* number of them: fragment.h */
    uint8_t state;                         /* enum efs_extent_state */
    uint8_t required, resident, protected; /* components: all; in memory; protected by the policy */
    uint8_t rank;             /* enum efs_reclaim_rank: its list in memory, unless all of it is protected */
    bool discard;             /* damaged: dropped with the last reference */
    uint32_t refs;            /* references; an extent with references is whole and not evicted */
    bool elsewhere;           /* all of its bytes were read, and stay in memory elsewhere */
    uint32_t ahead_bytes;     /* bytes read ahead and not used yet */
    uint32_t elsewhere_bytes; /* raw bytes read that stay in memory elsewhere, until it has all */
    uint64_t scan_clock;      /* efs_streams.clock at the last read or read-ahead by a stream */
    struct efs_block e, sm;
    _Atomic uint64_t checked; /* a bit per shard: its checksums were verified */
    struct efs_link link;     /* in its list */
    struct efs_link waiting;  /* in state EFS_EXTENT_QUEUED */
    struct efs_extent_waiter *waiters;
    struct efs_extent_load *load; /* which reads all missing components; NULL: none is started */
};

/* Reasons for loading an extent: a waiter; read-ahead for a reader; a prediction; idle disk time. A load becomes
 * EFS_LOAD_DEMAND when the extent is requested while it is in flight. */
enum efs_load_reason { EFS_LOAD_DEMAND, EFS_LOAD_READAHEAD, EFS_LOAD_PREFETCH, EFS_LOAD_WARM, EFS_LOADS };
/* Called with lock held when a load has completed, also if it became demand; cancelled: -ECANCELED. */
typedef void efs_load_done_fn(struct efs *fs, uint32_t extent, errint_t error);

/* A waiter for an extent: its job is pushed to the workers once, with error set, or with error 0 and the extent
 * referenced. */
struct efs_extent_waiter {
    struct efs_extent_waiter *next;
    struct efs_job job;
    /* If not NULL, called with lock held when the extent is loaded, to defer other jobs instead. true: `job` is not
     * pushed. */
    bool (*loaded)(struct efs *fs, struct efs_extent_waiter *waiter);
    uint32_t extent;
    bool long_term;  /* it keeps its reference for an unbounded time; requested by efs_extent_reserve() only */
    bool referenced; /* by efs_extent_reserve(): the extent is in memory */
    struct efs_extent_load *load; /* of efs_extent_reserve(): not started yet */
    errint_t error;               /* -ENOMEM: no memory for the extent, possibly for long; use efs_uncached_read() */
};

struct efs_extents {
    struct efs_extent *at; /* [count] */
    uint32_t count;
    uint32_t *object_first;          /* first extent of each object; one more entry at the end */
    size_t max_bytes;                /* limit of coded bytes of an extent (at least one shard) */
    uint64_t *expert_bytes;          /* coded bytes by expert */
    uint64_t all_bytes;              /* coded bytes of all extents */
    struct efs_lru lists[EFS_RANKS]; /* of those ranks that are lists */
    struct efs_streams streams;
    uint64_t scan_bytes;                         /* of extents of EFS_RANK_SCAN */
    struct efs_lru waiting;                      /* for memory */
    uint64_t ahead_bytes;                        /* read ahead and not used yet */
    uint32_t refs, long_refs;                    /* references on all extents; those of waiters with `long_term` */
    _Atomic(struct efs_extent_waiter *) used_up; /* whose references efs_extents_put_used_up() drops */
    _Atomic bool wanted;                         /* something waits for memory */
    uint32_t loads[EFS_LOADS];                   /* in flight, by reason */
    struct efs_extent_load *load_structs;        /* [loads_max] */
    struct efs_extent_load *free_loads;          /* of these, used before and free */
    uint32_t loads_used, loads_max;              /* loads_used: were used before */
    EFS_QUEUE(struct efs_extent_load) completed; /* not handled yet; used by the I/O thread only */
    uint32_t ready_count;                        /* whole extents */
};

/* The extents, or one, read-only; lock held for members that change. */
static inline const struct efs_extents *efs_extents(const struct efs *fs)
{
    return fs->extents;
}

static inline const struct efs_extent *efs_extent(const struct efs *fs, uint32_t extent)
{
    return &fs->extents->at[extent];
}

/* Whether an extent waits for memory. */
static inline bool efs_extents_wait(const struct efs *fs)
{
    return efs_lru_oldest(&fs->extents->waiting) != EFS_NONE;
}

/* No load, lease or coded expert waits for disk or memory, and no segment is being released. */
static inline bool efs_extents_idle(const struct efs *fs)
{
    const struct efs_extents *extents = fs->extents;
    return !efs_extents_wait(fs) && extents->loads[EFS_LOAD_DEMAND] + extents->loads[EFS_LOAD_READAHEAD] == 0 &&
           fs->items_waiting == 0 && fs->account.bytes[EFS_ACCOUNT_RETIRING] == 0;
}

static inline struct efs_streams *efs_extents_streams(struct efs *fs)
{
    return &fs->extents->streams;
}

/* Coded bytes of an expert. */
static inline uint64_t efs_expert_coded_bytes(const struct efs *fs, uint32_t expert)
{
    return fs->extents->expert_bytes[expert];
}

/* ---- extent.c ---- */
/* Sets the limit of coded bytes of an extent (at least one shard) and returns the number of extents. Before
 * efs_extents_build(). */
uint32_t efs_extents_size(struct efs *fs, size_t max_bytes);
uint64_t efs_extents_table_bytes(const struct efs *fs);
errint_t efs_extents_build(struct efs *fs, struct efs_error *err);
void efs_extents_destroy(struct efs *fs);
/* Drops the reference of a waiter. used_up: the extent will not be used again soon, and is evicted before other extents
 * and before the pool grows: for _put() when all of its bytes were read that stay in memory elsewhere, of which the
 * waiter has read these. _put() without lock, _unref() with lock held. */
void efs_extent_put(struct efs *fs, const struct efs_extent_waiter *waiter, size_t elsewhere_bytes);
void efs_extent_unref(struct efs *fs, const struct efs_extent_waiter *waiter, bool used_up);
/* Drops the reference on an extent that is used up, without taking the lock while nothing waits for memory: it is
 * dropped by the next efs_extents_put_used_up(), which the caller calls before it frees the waiter. Without lock. */
void efs_extent_put_later(struct efs *fs, struct efs_extent_waiter *waiter);
void efs_extents_put_used_up(struct efs *fs); /* with lock held */
void efs_extents_set_wanted(struct efs *fs);  /* something waits for memory, or nothing does any more; with lock held */
/* Decodes raw bytes [begin, begin + bytes) of an object, all inside the referenced extent, into dst; in a shared extent
 * they may continue in the next objects. Chunks are checked before their first use. 0, -EUCLEAN. */
errint_t efs_extent_decode(struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes, void *dst,
                           bool stream, struct efs_codec_scratch *scratch);
/* Checks the chunks of a shard of the extent (counted from its first) without decoding it; the extent is referenced. */
errint_t efs_extent_check(struct efs *fs, uint32_t extent, uint32_t shard);
bool efs_extent_checked(const struct efs *fs, uint32_t extent); /* all shards were checked */
bool efs_extent_shard_checked(const struct efs *fs, uint32_t extent, uint32_t shard);
/* Whether efs_extent_decode() needs no scratch. */
bool efs_extent_decodes_inline(const struct efs *fs, uint32_t extent);
/* The extent with raw byte `offset` of the object. */
uint32_t efs_extent_at(const struct efs *fs, uint32_t object, uint64_t offset);
uint64_t efs_extent_begin(const struct efs *fs, uint32_t extent); /* offset of its first raw byte in the object */
/* The offset after its last raw byte in this object, which is one of several in a shared extent. */
uint64_t efs_extent_end(const struct efs *fs, uint32_t extent, uint32_t object);
/* With lock held: */
/* Whether no load is in flight, all references are of waiters with `long_term`, and no memory is being freed: no memory
 * becomes available until a client drops an expert. */
bool efs_extents_only_long_refs(const struct efs *fs);
/* Requests an extent, for a reader of this pace: extents loaded for a scan are scan extents, until another reader
 * requests them. true: it is in memory and referenced; false: waiter->job is pushed later. It does not fail for lack of
 * memory after efs_extent_reserve(). */
bool efs_extent_request(struct efs *fs, uint32_t extent, enum efs_pace pace, struct efs_extent_waiter *waiter);
/* Takes all memory that a long-term waiter needs of an extent, without starting a load. In the same critical section
 * efs_extent_request() or efs_extent_unreserve() follows. -EAGAIN: there is no memory now, the extent is being made by
 * a demotion, or its load is being cancelled. */
errint_t efs_extent_reserve(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter);
void efs_extent_unreserve(struct efs *fs, struct efs_extent_waiter *waiter);
/* Evicts what is in retiring segments: components that are referenced or being loaded when that ends. */
void efs_extents_evict_retiring(struct efs *fs);
/* Whether raw bytes [begin, begin + bytes) of the extent's object can be read by efs_uncached_read() instead of loading
 * the extent: it has several shards, one of which has them all, and is neither in memory nor being loaded. */
bool efs_extent_may_read_shard(const struct efs *fs, uint32_t extent, uint64_t begin, size_t bytes);
/* Starts loading the extents of an expert without waiting, within the limit of read-ahead. */
void efs_expert_read_ahead(struct efs *fs, uint32_t expert);
/* Sets the components that the policy keeps of an expert's extents; 0: all become evictable. */
void efs_extents_protect(struct efs *fs, uint32_t expert, unsigned components);
/* The components that all extents of an expert have; *some: whether any extent has any. */
unsigned efs_extents_resident(const struct efs *fs, uint32_t expert, bool *some);
bool efs_extents_loading(const struct efs *fs, uint32_t expert); /* or waiting for memory: any of its extents */
/* For whom memory is reclaimed, besides loads (enum efs_load_reason). */
enum efs_reclaim_for {
    EFS_FOR_SCAN = EFS_LOADS, /* the quota of the streams */
    EFS_FOR_REQUEST,          /* a request, or the end of the store: a demotion may take seconds */
    EFS_FOR_ADMISSION,        /* a request, while nothing is in flight */
    EFS_FOR_SEGMENT,          /* a segment of the chunk pool within its plan */
    EFS_FOR_CODED,            /* one above its plan, for coded experts that clients hold */
    EFS_FOR_FILE,             /* a memory file */
    EFS_FOR_BUDGET            /* a budget that was lowered */
};
/* Takes some memory, as reclaim.c orders; bytes: of free memory files. 0; -EAGAIN: memory is being freed, or segments
 * are being prepared; -ENOMEM: none may be taken. */
errint_t efs_cache_reclaim(struct efs *fs, unsigned whom, uint64_t bytes);
/* Segments that full experts may not take: the planned ones, or twice the bytes of pinned coded experts. */
uint64_t efs_segments_needed(const struct efs *fs);
/* Bytes to read for the missing components of an expert; 0: it is in memory, or being loaded. */
uint64_t efs_extents_missing(const struct efs *fs, uint32_t expert);
/* Starts prefetching the missing components of an expert, in free memory or memory of evictable components. Does not
 * count as a use. Until the expert is requested or efs_extents_prefetch_drop() is called, its extents are evicted after
 * all other evictable ones. Returns the number of started loads, each of which ends with done(); 0: no memory. */
uint32_t efs_extents_prefetch(struct efs *fs, uint32_t expert, efs_load_done_fn *done);
/* Makes loads without waiters demand reads, or cancels those of efs_extents_prefetch(), as far as they are queued. */
void efs_extents_prefetch_raise(struct efs *fs, uint32_t expert);
void efs_extents_prefetch_cancel(struct efs *fs, uint32_t expert);
/* The prediction has failed: prefetched extents that are not kept are evicted first. */
void efs_extents_prefetch_drop(struct efs *fs, uint32_t expert);
/* Starts loading an extent for a stream. false: the streams' quota is used up. */
bool efs_extent_read_ahead_scan(struct efs *fs, uint32_t extent);
/* ---- extent_load.c ---- */
/* Handles all completed loads, in one critical section with the lock. On the I/O thread; arg is the struct efs. */
void efs_extents_completed(void *arg);
void efs_extents_retry(struct efs *fs); /* loads extents that wait for memory */

/* ---- places and sizes; with lock held for members that change ---- */

static inline const struct efs_disk_shard *efs_extent_first_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first];
}

static inline const struct efs_disk_shard *efs_extent_last_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first + x->shard_count - 1u];
}

/* Bytes of the pages that contain a component in the store, and of its copy in memory, which starts at the same offset
 * in a page; for both bits the sum. */
static inline size_t efs_extent_span(const struct efs *fs, const struct efs_extent *x, unsigned components)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x), *last = efs_extent_last_shard(fs, x);
    size_t bytes = 0;
    if (components & EFS_COMPONENT_E)
        bytes += efs_page_span(first->e_offset, last->e_offset + last->e_bytes);
    if (components & EFS_COMPONENT_SM)
        bytes += efs_page_span(first->sm_offset, last->sm_offset + last->sm_bytes);
    return bytes;
}

/* Offset of a shard's chunk in its component of the extent, for shards that have a chunk of this kind. */
static inline size_t efs_extent_offset(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s,
                                       unsigned component)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x);
    return component == EFS_COMPONENT_E ? s->e_offset - efs_page_down(first->e_offset)
                                        : s->sm_offset - efs_page_down(first->sm_offset);
}

/* Address of a shard's chunk in the extent, which is in memory; NULL: the shard has no chunk of this kind. */
static inline uint8_t *efs_extent_e(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->e_bytes ? x->e.data + efs_extent_offset(fs, x, s, EFS_COMPONENT_E) : NULL;
}

static inline uint8_t *efs_extent_sm(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->sm_bytes ? x->sm.data + efs_extent_offset(fs, x, s, EFS_COMPONENT_SM) : NULL;
}

/*
 * Bytes allocated for a component: its size rounded up by up to 1/32, and a granule, so that the hole left by one
 * component fits the next. E-chunks of equal tensors differ by a few pages, and the offset of a component in its first
 * page can add a page; without rounding, an eviction would rarely make room for another component. Components below 64
 * granules get only their pages.
 */
static inline size_t efs_extent_alloc_bytes(const struct efs *fs, const struct efs_extent *x, unsigned component)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x), *last = efs_extent_last_shard(fs, x);
    size_t step = EFS_GRANULE, bytes = component == EFS_COMPONENT_E
                                           ? last->e_offset + last->e_bytes - first->e_offset
                                           : last->sm_offset + last->sm_bytes - first->sm_offset;
    if (bytes < 64 * step)
        return efs_extent_span(fs, x, component);
    while (step * 64 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step + EFS_GRANULE;
}

/* The extents of an expert: the first, and the one after its last. */
static inline uint32_t efs_expert_extent_first(const struct efs *fs, uint32_t expert)
{
    return fs->extents->object_first[fs->store->groups[expert].object_first];
}

static inline uint32_t efs_expert_extent_end(const struct efs *fs, uint32_t expert)
{
    const struct efs_disk_group *g = &fs->store->groups[expert];
    return fs->extents->object_first[g->object_first + g->object_count];
}

/* The components to be read; 0 while it is loaded or waits for memory. */
static inline unsigned efs_extent_missing(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE ? x->required & ~(unsigned)x->resident : 0;
}

/* Raw bytes of a whole shard of the object. */
uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object);

struct efs_extent_load {
    struct efs_extent_load *next; /* free, or completed */
    struct efs_io e, sm;
    struct efs_job failed;
    struct efs *fs;
    uint32_t extent;
    uint8_t components, why; /* why: enum efs_load_reason */
    efs_load_done_fn *done;
    uint8_t was; /* enum efs_extent_state: before it was LOADING */
    _Atomic int pending;
    _Atomic errint_t error;
};

/* ---- extent.c ---- */
/* The components that are in memory and not kept by the policy. */
static inline unsigned efs_extent_evictable(const struct efs_extent *x)
{
    return x->resident & ~(unsigned)x->protected;
}

/* Puts the extent into the list for its components, or into none while it is being loaded or empty; removes it from its
 * list. */
void efs_extent_enlist(struct efs *fs, uint32_t extent);
void efs_extent_delist(struct efs *fs, uint32_t extent);
/* Frees the memory of components of an extent without references. */
void efs_extent_free(struct efs *fs, struct efs_extent *x, unsigned components);
/* The extent was used: its bytes no longer count as read ahead. */
void efs_extent_used(struct efs *fs, struct efs_extent *x);
/* Sets its list while some of it is not protected; the caller enlists it. A protected extent is not of a scan, nor is
 * any while the pool has room for the whole store. */
void efs_extent_set_rank(struct efs *fs, struct efs_extent *x, enum efs_reclaim_rank rank);

/* ---- reclaim.c ---- */
/* The last reference was dropped, or a load has ended: evicts a damaged extent, and components in retiring segments. */
void efs_extent_released(struct efs *fs, uint32_t extent);
/* An extent that is not protected moves to EFS_RANK_USED_UP: it will not be used soon. */
void efs_extent_evict_first(struct efs *fs, uint32_t extent);

/* A reader of this pace requests bytes of the extent. */
void efs_extent_accessed(struct efs *fs, uint32_t extent, enum efs_pace pace);
/* Drops stale scan extents, oldest first, until `bytes` more fit into the streams' quota. false: they do not fit. */
bool efs_extents_scan_reserve(struct efs *fs, uint64_t bytes);

/* ---- extent_decode.c ---- */
/* A range of bytes inside one shard. efs_piece_at() returns the longest one that starts at offset `at` of the object;
 * if `at` is not in the object, it continues in the next ones. */
struct efs_piece {
    uint32_t object, shard;
    uint64_t at, in; /* in the object, in the shard */
    size_t bytes;
};
struct efs_piece efs_piece_at(const struct efs *fs, uint32_t object, uint64_t at, size_t bytes);
/* Decodes the bytes from chunks that are in no extent; NULL: the shard has no such chunk. check: checks the chunks
 * first; else the parts of them that are decoded were compared with page checksums. Without lock. 0, -EUCLEAN; -EIO in
 * a plain store. */
errint_t efs_shard_decode_from(struct efs *fs, const struct efs_piece *piece, const uint8_t *e, const uint8_t *sm,
                               bool check, void *dst, struct efs_codec_scratch *scratch);

/* ---- extent_load.c ---- */
static inline bool efs_extent_is_complete(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE && x->resident == x->required;
}

/* Allocates these components, which the extent lacks, and sets it to LOADING; evicts for it, except for EFS_LOAD_WARM.
 * false: the memory is in use or being freed, or there is none. */
bool efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why);
/* A load of these components has completed or failed: adds them to the extent, or frees them after an error. Completes
 * the waiters or, if the extent is not whole, queues it again. -EAGAIN: the components could not be made from memory
 * and must be read. -ECANCELED: the load had no waiters; waiters that came later are queued again. */
void efs_extent_loaded(struct efs *fs, uint32_t extent, unsigned components, errint_t error);
/* Starts loading the missing components of an extent that is not LOADING. true: its reads are deferred, and done (may
 * be NULL) is called at the end; false: no memory now. */
bool efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load_reason why, efs_load_done_fn *done);

#endif
