/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_slots.c - models offloading libraries: raw experts in slots of user memory, read with O_DIRECT.
 *
 *     read-lru      the slots are an LRU cache of experts
 *     read-lfu      the same, but evicts the expert that was requested least often, also before it was read the last
 *                   time; of equals the least recently used
 *     accelerate    whole layers: the first ones stay once read; the others share the slots of one layer and are read
 *                   at each use (the disk offload of Accelerate)
 *     zero-3        whole layers in two buffers: when a layer is in memory, the next one is read into the other
 *                   (DeepSpeed ZeRO-3 offload)
 *
 * slots_request() queues all reads. slots_next() returns cached experts first, then each expert as its reads complete,
 * so that the caller computes while reads are in flight; a whole layer is complete before its first expert is returned.
 */
#include "reader.h"

#include "expertfs-clock-private.h"
#include "tables.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN UINT64_C(4096)
#define READ_BYTES (UINT64_C(1) << 20)
#define DEPTH 256u /* reads in flight */
#define NONE UINT32_MAX
#define HUGE_BYTES (UINT64_C(2) << 20)

/* A range of a file that is read into a slot; adjacent tensors share one range. */
struct range {
    uint32_t file;
    uint64_t at, bytes, in_slot; /* multiples of ALIGN */
};

struct slot {
    uint32_t unit, newer, older; /* unit: layer * experts + expert, or NONE; neighbours in the LRU list */
    uint32_t unread;             /* reads in flight */
    uint64_t request;            /* the last one that used it */
};

struct slots_reader {
    struct replay_reader reader;
    struct efs_tables tables;
    const struct replay_raw *raw;
    enum replay_runner runner;
    uint32_t resident; /* accelerate: number of layers that stay in memory */
    uint32_t buffer;   /* zero-3: 0 or 1, with the current layer */
    struct io_uring ring;
    bool ring_made;
    int *fds;
    uint64_t *file_bytes;
    uint8_t *memory;
    uint64_t slot_bytes, memory_bytes;
    uint32_t slot_count, newest, oldest;
    struct slot *slots;
    uint32_t *where; /* [units]: slot of the unit, or NONE */
    uint32_t *uses;  /* [units]: requests, since the start */
    uint64_t request;
    /* The ranges of a unit are first_range[unit] to first_range[unit + 1] - 1. */
    struct range *ranges;
    uint32_t *first_range;
    uint64_t *in_slot;          /* parallel to raw->tensors: offset of the tensor in the slot */
    struct efs_tensor *tensors; /* [raw->most_tensors], of the expert in view */
    /* the current request: */
    uint32_t layer, count, units[REPLAY_REQUEST_MAX];
    bool complete;                    /* the whole layer is in memory */
    const uint32_t *experts, *tokens; /* the caller's */
    bool handed[REPLAY_REQUEST_MAX];
    uint32_t in_flight; /* reads in flight, at most DEPTH */
    uint64_t flight_began_ns;
    errint_t failed;
    uint64_t hits[REPLAY_STATES], read_bytes, io_ns;
};

/* ---- layout of a slot --------------------------------------------------------------------------------------- */

/* Appends the ranges of a unit to r->ranges; its tensors are sorted by file and offset. Returns the bytes of its slot.
 */
static uint64_t slots_lay_out(struct slots_reader *r, uint32_t unit)
{
    const struct replay_raw *raw = r->raw;
    uint32_t first = r->first_range[unit], count = first;
    uint64_t bytes = 0;
    for (uint32_t t = raw->first[unit]; t < raw->first[unit + 1]; t++) {
        const struct replay_raw_place *place = &raw->places[t];
        struct range *last = count > first ? &r->ranges[count - 1] : NULL;
        uint64_t begin = place->at / ALIGN * ALIGN,
                 end = (place->at + raw->tensors[t].bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (last && last->file == place->file && begin <= last->at + last->bytes) {
            uint64_t more = end > last->at + last->bytes ? end - last->at - last->bytes : 0;
            last->bytes += more;
            bytes += more;
        } else {
            last = &r->ranges[count++];
            *last = (struct range){place->file, begin, end - begin, bytes};
            bytes += end - begin;
        }
        r->in_slot[t] = last->in_slot + place->at - last->at;
    }
    r->first_range[unit + 1] = count;
    return bytes;
}

/* ---- the LRU list ------------------------------------------------------------------------------------------- */

static void lru_take_out(struct slots_reader *r, uint32_t s)
{
    struct slot *slot = &r->slots[s];
    *(slot->newer == NONE ? &r->newest : &r->slots[slot->newer].older) = slot->older;
    *(slot->older == NONE ? &r->oldest : &r->slots[slot->older].newer) = slot->newer;
}

static void lru_put_first(struct slots_reader *r, uint32_t s)
{
    struct slot *slot = &r->slots[s];
    slot->newer = NONE;
    slot->older = r->newest;
    *(r->newest == NONE ? &r->oldest : &r->slots[r->newest].newer) = s;
    r->newest = s;
}

static bool reads_layers(const struct slots_reader *r)
{
    return r->runner == REPLAY_ACCELERATE || r->runner == REPLAY_ZERO;
}

/* The slot whose expert is evicted: not one of the current request. */
static uint32_t victim(const struct slots_reader *r)
{
    uint32_t best = r->oldest;
    if (r->runner == REPLAY_READ_LRU)
        return best;
    for (uint32_t s = best, least = NONE; s != NONE; s = r->slots[s].newer) {
        const uint32_t unit = r->slots[s].unit, uses = unit == NONE ? 0 : r->uses[unit];
        if (r->slots[s].request != r->request && uses < least) {
            best = s;
            least = uses;
        }
    }
    return best;
}

/* ---- reads -------------------------------------------------------------------------------------------------- */

static void slots_submit(struct slots_reader *r)
{
    int rc = io_uring_submit(&r->ring);
    if (rc < 0 && !r->failed)
        r->failed = rc;
}

/* Blocks until one read completes and processes the completion. */
static void slots_reap(struct slots_reader *r)
{
    struct io_uring_cqe *cqe;
    int rc = io_uring_wait_cqe(&r->ring, &cqe);
    if (rc < 0) {
        if (rc != -EINTR)
            r->failed = rc;
        return;
    }
    uint32_t slot = (uint32_t)(cqe->user_data >> 32), wanted = (uint32_t)cqe->user_data;
    if (cqe->res < 0 || (uint32_t)cqe->res < wanted)
        r->failed = cqe->res < 0 ? cqe->res : -EIO;
    else
        r->read_bytes += (uint32_t)cqe->res;
    r->slots[slot].unread--;
    io_uring_cqe_seen(&r->ring, cqe);
    if (--r->in_flight == 0)
        r->io_ns += efs_now_ns() - r->flight_began_ns;
}

/* Queues the reads of an expert into a slot; blocks while DEPTH reads are in flight. */
static void slots_read(struct slots_reader *r, uint32_t unit, uint32_t s)
{
    for (uint32_t i = r->first_range[unit]; i < r->first_range[unit + 1]; i++)
        for (uint64_t done = 0; done < r->ranges[i].bytes && !r->failed; done += READ_BYTES) {
            const struct range *range = &r->ranges[i];
            uint64_t left = range->bytes - done, length = left < READ_BYTES ? left : READ_BYTES;
            uint64_t there = r->file_bytes[range->file] - range->at - done;
            while (r->in_flight == DEPTH && !r->failed) {
                slots_submit(r);
                slots_reap(r);
            }
            struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* not NULL: at most DEPTH reads are in flight */
            io_uring_prep_read(sqe, r->fds[range->file], r->memory + s * r->slot_bytes + range->in_slot + done,
                               (unsigned)length, range->at + done);
            sqe->user_data = (uint64_t)s << 32 | (there < length ? there : length);
            r->slots[s].unread++;
            if (r->in_flight++ == 0)
                r->flight_began_ns = efs_now_ns();
        }
}

/* ---- whole layers ------------------------------------------------------------------------------------------- */

/* The first slot of a layer's experts. ahead: of the layer after the current one. */
static uint32_t layer_slot(const struct slots_reader *r, uint32_t layer, bool ahead)
{
    uint32_t experts = r->raw->model.experts;
    if (r->runner == REPLAY_ZERO)
        return (r->buffer ^ ahead) * experts;
    return (layer < r->resident ? layer : r->resident) * experts;
}

/* Queues the reads of the layer's experts that are not in its slots. */
static void layer_read(struct slots_reader *r, uint32_t layer, bool ahead)
{
    uint32_t experts = r->raw->model.experts, first = layer_slot(r, layer, ahead);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t unit = layer * experts + e, s = first + e;
        if (r->where[unit] == s)
            continue;
        if (r->slots[s].unit != NONE)
            r->where[r->slots[s].unit] = NONE;
        r->slots[s].unit = unit;
        r->where[unit] = s;
        slots_read(r, unit, s);
    }
    slots_submit(r);
}

/* Waits until the current layer is complete; zero-3 then starts to read the next one. */
static void layer_complete(struct slots_reader *r)
{
    uint32_t experts = r->raw->model.experts, first = layer_slot(r, r->layer, false);
    for (uint32_t e = 0; e < experts && !r->failed;)
        if (r->slots[first + e].unread == 0)
            e++;
        else
            slots_reap(r);
    if (r->runner == REPLAY_ZERO && !r->failed)
        layer_read(r, (r->layer + 1) % r->raw->model.layers, true);
    r->complete = true;
}

static errint_t layer_request(struct slots_reader *r, uint32_t layer)
{
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t s = r->where[r->units[i]];
        r->hits[s == NONE || r->slots[s].unread > 0 ? REPLAY_STATES - 1 : 0]++;
    }
    r->layer = layer;
    r->complete = false;
    if (r->runner == REPLAY_ZERO)
        r->buffer ^= 1; /* read ahead into it */
    layer_read(r, layer, false);
    return 0;
}

/* ---- a request ---------------------------------------------------------------------------------------------- */

static errint_t slots_request(struct replay_reader *reader, uint32_t layer, const uint32_t *experts,
                              const uint32_t *tokens, uint32_t count, struct efs_error *err)
{
    struct slots_reader *r = (struct slots_reader *)reader;
    if (count > r->slot_count)
        return efs_fail(err, -ENOMEM, "%s: the budget has room for %u experts, a request has %u",
                        replay_runner_name(r->runner), r->slot_count, count);
    r->count = count;
    r->experts = experts;
    r->tokens = tokens;
    for (uint32_t i = 0; i < count; i++) {
        r->units[i] = layer * r->raw->model.experts + experts[i];
        r->handed[i] = false;
    }
    if (reads_layers(r))
        return layer_request(r, layer);
    r->request++;
    for (uint32_t i = 0; i < count; i++) { /* first the cached ones, so that the misses do not evict them */
        uint32_t s = r->where[r->units[i]];
        r->hits[s == NONE ? REPLAY_STATES - 1 : 0]++;
        r->uses[r->units[i]]++;
        if (s != NONE) {
            r->slots[s].request = r->request;
            lru_take_out(r, s);
            lru_put_first(r, s);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t unit = r->units[i], s = r->where[unit];
        if (s != NONE)
            continue;
        s = victim(r);
        r->slots[s].request = r->request;
        if (r->slots[s].unit != NONE)
            r->where[r->slots[s].unit] = NONE;
        lru_take_out(r, s);
        lru_put_first(r, s);
        r->slots[s].unit = unit;
        r->where[unit] = s;
        slots_read(r, unit, s);
    }
    slots_submit(r);
    return 0;
}

static void slots_show(const struct slots_reader *r, uint32_t i, struct replay_view *view)
{
    uint32_t unit = r->units[i];
    *view = (struct replay_view){r->experts[i], r->tokens[i], r->tensors, 0};
    for (uint32_t t = r->raw->first[unit]; t < r->raw->first[unit + 1]; t++) {
        r->tensors[view->count] = r->raw->tensors[t];
        r->tensors[view->count++].data = r->memory + r->where[unit] * r->slot_bytes + r->in_slot[t];
    }
}

static errint_t slots_next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct slots_reader *r = (struct slots_reader *)reader;
    if (reads_layers(r) && !r->complete)
        layer_complete(r);
    for (;;) {
        for (uint32_t i = 0; i < r->count && !r->failed; i++)
            if (!r->handed[i] && r->slots[r->where[r->units[i]]].unread == 0) {
                r->handed[i] = true;
                slots_show(r, i, view);
                return 0;
            }
        if (r->failed)
            return efs_fail(err, r->failed, "a read of a raw file failed: %s", strerror(-r->failed));
        slots_reap(r);
    }
}

static errint_t slots_count(struct replay_reader *reader, struct replay_counters *counters, struct efs_error *err)
{
    const struct slots_reader *r = (const struct slots_reader *)reader;
    (void)err;
    *counters = (struct replay_counters){.read_bytes = r->read_bytes, .io_ns = r->io_ns};
    memcpy(counters->hits, r->hits, sizeof(counters->hits));
    return 0;
}

/* ---- open and close ----------------------------------------------------------------------------------------- */

static void slots_close(struct replay_reader *reader)
{
    struct slots_reader *r = (struct slots_reader *)reader;
    while (r->ring_made && r->in_flight > 0 && !r->failed)
        slots_reap(r);
    if (r->ring_made)
        io_uring_queue_exit(&r->ring);
    for (uint32_t i = 0; r->fds && i < r->raw->file_count; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    if (r->memory)
        munmap(r->memory, r->memory_bytes);
    free(r->fds);
    efs_tables_free(&r->tables);
    free(r);
}

/* Accelerate needs the slots of one layer more than those that stay, unless all stay; zero-3 has two layers. */
static errint_t layers_fit(struct slots_reader *r, struct efs_error *err)
{
    uint32_t experts = r->raw->model.experts, layers = r->slot_count / experts;
    uint32_t least = r->runner == REPLAY_ZERO ? 2 : 1;
    if (layers < least)
        return efs_fail(err, -ENOMEM, "%s: the budget has room for %u experts, %u layer%s of %u are needed",
                        replay_runner_name(r->runner), r->slot_count, least, least > 1 ? "s" : "", experts);
    r->resident = layers == r->raw->model.layers ? layers : layers - 1;
    if (r->runner == REPLAY_ZERO)
        r->slot_count = 2 * experts;
    return 0;
}

static errint_t slots_allocate(struct slots_reader *r, uint64_t budget_bytes, struct efs_error *err)
{
    uint32_t units = r->raw->model.layers * r->raw->model.experts;
    for (uint32_t u = 0; u < units; u++) {
        uint64_t bytes = slots_lay_out(r, u);
        r->slot_bytes = bytes > r->slot_bytes ? bytes : r->slot_bytes;
    }
    uint64_t slots = budget_bytes / r->slot_bytes;
    r->slot_count = slots < units ? (uint32_t)slots : units;
    if (r->slot_count == 0)
        return efs_fail(err, -ENOMEM, "%s: the budget has room for no expert", replay_runner_name(r->runner));
    errint_t rc = reads_layers(r) ? layers_fit(r, err) : 0;
    if (rc < 0)
        return rc;
    r->memory_bytes = r->slot_count * r->slot_bytes;
    void *memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EFS_TABLE(&r->tables, r->slots, r->slot_count);
    EFS_TABLE(&r->tables, r->where, units);
    EFS_TABLE(&r->tables, r->uses, units);
    if (memory == MAP_FAILED || efs_tables_error(&r->tables) < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    r->memory = memory;
    if (r->memory_bytes >= HUGE_BYTES)
        (void)madvise(memory, r->memory_bytes, MADV_HUGEPAGE);
    (void)madvise(memory, r->memory_bytes, MADV_POPULATE_WRITE); /* on failure pages are allocated at first touch */
    r->newest = r->oldest = NONE;
    for (uint32_t s = 0; s < r->slot_count; s++) {
        r->slots[s].unit = NONE;
        lru_put_first(r, s);
    }
    for (uint32_t u = 0; u < units; u++)
        r->where[u] = NONE;
    return 0;
}

static errint_t slots_open_files(struct slots_reader *r, struct efs_error *err)
{
    for (uint32_t i = 0; i < r->raw->file_count; i++) {
        struct stat st;
        if (!r->raw->paths[i])
            continue;
        r->fds[i] = open(r->raw->paths[i], O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (r->fds[i] < 0 || fstat(r->fds[i], &st) != 0)
            return efs_fail(err, -errno, "%s: O_DIRECT: %s", r->raw->paths[i], strerror(errno));
        r->file_bytes[i] = (uint64_t)st.st_size;
    }
    return 0;
}

errint_t replay_reader_slots(const struct replay_raw *raw, enum replay_runner runner, uint64_t budget_bytes,
                             struct replay_reader **reader, struct efs_error *err)
{
    size_t units = (size_t)raw->model.layers * raw->model.experts, tensors = raw->first[units];
    struct slots_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct slots_reader){
        .reader = {slots_request, slots_next, NULL, NULL, slots_count, slots_close, 0}, .raw = raw, .runner = runner};
    r->fds = malloc((raw->file_count + 1) * sizeof(*r->fds));
    for (uint32_t i = 0; r->fds && i < raw->file_count; i++)
        r->fds[i] = -1;
    EFS_TABLE(&r->tables, r->file_bytes, raw->file_count + 1);
    EFS_TABLE(&r->tables, r->ranges, tensors);
    EFS_TABLE(&r->tables, r->first_range, units + 1);
    EFS_TABLE(&r->tables, r->in_slot, tensors);
    EFS_TABLE(&r->tables, r->tensors, raw->most_tensors);
    errint_t rc = r->fds && efs_tables_error(&r->tables) == 0 ? 0 : efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = slots_allocate(r, budget_bytes, err);
    if (rc == 0)
        rc = slots_open_files(r, err);
    if (rc == 0) {
        rc = io_uring_queue_init(DEPTH, &r->ring, 0);
        r->ring_made = rc == 0;
        if (rc < 0)
            efs_fail(err, rc, "io_uring: %s", strerror(-rc));
    }
    if (rc < 0)
        slots_close(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
