/*
 * unit.c - the chunk pool: which units are in memory, loading and dropping them. See serve.h for what a unit is.
 *
 * States: MISSING -> (STARVED: waits for memory) -> LOADING -> READY -> MISSING. Waiters come only before READY.
 */
#include "serve.h"

#include "hash.h"
#include "kernels.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN;
}

/* ---- what a unit consists of ---- */

static const struct efs_disk_shard *first_shard(const struct efs *fs, const struct efs_unit *u)
{
    return &fs->store->shards[u->shard_first];
}

static const struct efs_disk_shard *last_shard(const struct efs *fs, const struct efs_unit *u)
{
    return &fs->store->shards[u->shard_first + u->shard_count - 1u];
}

static size_t e_span(const struct efs *fs, const struct efs_unit *u)
{
    return page_up(last_shard(fs, u)->e_offset + last_shard(fs, u)->e_bytes - first_shard(fs, u)->e_offset);
}

static size_t sm_span(const struct efs *fs, const struct efs_unit *u)
{
    return page_up(last_shard(fs, u)->sm_offset + last_shard(fs, u)->sm_bytes - first_shard(fs, u)->sm_offset);
}

static size_t coded_bytes(const struct efs *fs, const struct efs_unit *u)
{
    return e_span(fs, u) + sm_span(fs, u);
}

/* Does shard b follow a on disk, E after E and SM after SM? A chunk without bytes follows only its like. */
static bool follows(const struct efs_disk_shard *a, const struct efs_disk_shard *b)
{
    if ((a->e_bytes == 0) != (b->e_bytes == 0) || (a->sm_bytes == 0) != (b->sm_bytes == 0))
        return false;
    return (a->e_bytes == 0 || b->e_offset == page_up(a->e_offset + a->e_bytes)) &&
           (a->sm_bytes == 0 || b->sm_offset == page_up(a->sm_offset + a->sm_bytes));
}

/* How many shards from `first` on make one unit. */
static uint16_t unit_length(const struct efs *fs, uint32_t first, uint32_t end)
{
    const struct efs_disk_shard *s = fs->store->shards;
    uint64_t bytes = page_up(s[first].e_bytes) + page_up(s[first].sm_bytes);
    uint32_t n = 1;
    while (first + n < end && n < EFS_UNIT_SHARDS && follows(&s[first + n - 1], &s[first + n])) {
        bytes += page_up(s[first + n].e_bytes) + page_up(s[first + n].sm_bytes);
        if (bytes > fs->unit_max_bytes)
            break;
        n++;
    }
    return (uint16_t)n;
}

/* One pass to count, one to fill. */
static uint32_t lay_units(struct efs *fs, struct efs_unit *units)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < fs->store->object_count; o++) {
        const struct efs_disk_object *object = &fs->store->objects[o];
        uint32_t end = object->shard_first + object->shard_count;
        if (units)
            fs->object_unit[o] = n;
        for (uint32_t s = object->shard_first; s < end; n++) {
            uint16_t length = unit_length(fs, s, end);
            if (units) {
                units[n].object = o;
                units[n].shard_first = s;
                units[n].shard_count = length;
            }
            s += length;
        }
    }
    if (units)
        fs->object_unit[fs->store->object_count] = n;
    return n;
}

errint_t efs_units_build(struct efs *fs, struct efs_error *err)
{
    fs->unit_count = lay_units(fs, NULL);
    fs->units = efs_sys_calloc(fs->unit_count + 1u, sizeof(*fs->units));
    fs->object_unit = efs_sys_calloc(fs->store->object_count + 1u, sizeof(uint32_t));
    if (!fs->units || !fs->object_unit)
        return efs_fail(err, -ENOMEM, "%s: no memory for the table of units", fs->store->path);
    lay_units(fs, fs->units);
    efs_lru_init(&fs->unit_lru, &fs->units[0].link, sizeof(struct efs_unit));
    fs->starved_tail = &fs->starved;
    return 0;
}

static uint64_t shard_raw_bytes(const struct efs *fs, uint32_t object)
{
    return (uint64_t)fs->store->sb.shard_elements *
           efs_format_bytes((enum efs_format)fs->store->objects[object].format);
}

uint64_t efs_unit_begin(const struct efs *fs, uint32_t unit)
{
    const struct efs_unit *u = &fs->units[unit];
    return (u->shard_first - fs->store->objects[u->object].shard_first) * shard_raw_bytes(fs, u->object);
}

uint32_t efs_unit_at(const struct efs *fs, uint32_t object, uint64_t offset, uint64_t *end)
{
    uint32_t shard = fs->store->objects[object].shard_first + (uint32_t)(offset / shard_raw_bytes(fs, object));
    uint32_t low = fs->object_unit[object], high = fs->object_unit[object + 1];
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (fs->units[mid].shard_first <= shard)
            low = mid;
        else
            high = mid;
    }
    *end = low + 1 < fs->object_unit[object + 1] ? efs_unit_begin(fs, low + 1) : fs->store->objects[object].bytes;
    return low;
}

bool efs_unit_decodes_inline(const struct efs *fs, uint32_t unit)
{
    const struct efs_unit *u = &fs->units[unit];
    for (uint32_t i = 0; i < u->shard_count; i++) {
        uint32_t codec = fs->store->shards[u->shard_first + i].codec;
        if (codec != EFS_CODEC_CASCADE && codec != EFS_CODEC_NONE)
            return false;
    }
    return true;
}

/* ---- dropping READY units; lock held ---- */

static void used_now(struct efs *fs, struct efs_unit *u)
{
    if (u->ahead) {
        u->ahead = false;
        fs->ahead_bytes -= coded_bytes(fs, u);
    }
}

static void drop(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    used_now(fs, u);
    efs_lru_remove(&fs->unit_lru, unit);
    efs_arena_free(&fs->arena, &u->e);
    efs_arena_free(&fs->arena, &u->sm);
    u->state = EFS_UNIT_MISSING;
    u->doomed = u->spare = u->streamed = false;
    fs->unit_ready_count--;
}

/* Drop the oldest unit without users; only_spare: only if it is one of those that go first. false: there is none. */
static bool evict(struct efs *fs, bool only_spare)
{
    for (uint32_t i = fs->unit_lru.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->unit_lru, i)) {
        if (only_spare && !fs->units[i].spare)
            return false;
        if (fs->units[i].refs == 0) {
            drop(fs, i);
            efs_count(&fs->stats, evictions_c, 1);
            return true;
        }
    }
    return false;
}

static bool in_retiring(const struct efs *fs, const struct efs_unit *u)
{
    return (u->e.data && fs->arena.segments[u->e.segment].retiring) ||
           (u->sm.data && fs->arena.segments[u->sm.segment].retiring);
}

/* A READY unit has no users any more. */
static void settle(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    if (u->refs == 0 && u->state == EFS_UNIT_READY && (u->doomed || in_retiring(fs, u)))
        drop(fs, unit);
}

void efs_units_leave_segment(struct efs *fs, uint32_t segment)
{
    for (uint32_t i = fs->unit_lru.oldest, next; i != EFS_NONE; i = next) {
        const struct efs_unit *u = &fs->units[i];
        next = efs_lru_newer(&fs->unit_lru, i);
        if (u->refs == 0 && ((u->e.data && u->e.segment == segment) || (u->sm.data && u->sm.segment == segment)))
            drop(fs, i);
    }
}

void efs_unit_first_to_go(struct efs *fs, uint32_t unit, bool only_streamed)
{
    pthread_mutex_lock(&fs->lock);
    if (fs->units[unit].state == EFS_UNIT_READY && (fs->units[unit].streamed || !only_streamed)) {
        fs->units[unit].spare = true;
        efs_lru_remove(&fs->unit_lru, unit);
        efs_lru_insert(&fs->unit_lru, unit, false);
    }
    pthread_mutex_unlock(&fs->lock);
}

/* ---- loading ---- */

struct load {
    struct efs_disk_request e, sm;
    struct efs *fs;
    uint32_t unit;
    _Atomic int pending;
    _Atomic errint_t error;
};

static void push_waiters(struct efs *fs, struct efs_unit_waiter *list, errint_t error)
{
    while (list) {
        struct efs_unit_waiter *w = list;
        list = w->next;
        w->error = error;
        efs_workers_push(fs->workers, &w->job);
    }
}

static void loaded(struct load *load)
{
    struct efs *fs = load->fs;
    struct efs_unit *u = &fs->units[load->unit];
    errint_t error = load->error;
    if (error < 0)
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)(load->e.bytes ? load->e.offset : load->sm.offset), strerror(-error));
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    struct efs_unit_waiter *waiters = u->waiters;
    u->waiters = NULL;
    efs_lru_insert(&fs->unit_lru, load->unit, true);
    u->state = EFS_UNIT_READY;
    fs->unit_ready_count++;
    if (error < 0) {
        drop(fs, load->unit);
    } else {
        for (struct efs_unit_waiter *w = waiters; w; w = w->next)
            u->refs++;
        settle(fs, load->unit);
    }
    efs_units_retry(fs, &submit);
    pthread_mutex_unlock(&fs->lock);
    push_waiters(fs, waiters, error);
    efs_disk_submit_all(fs, submit);
    free(load);
    efs_active_end(fs);
}

static void part_loaded(struct load *load, errint_t error)
{
    if (error < 0)
        load->error = error;
    if (atomic_fetch_sub(&load->pending, 1) == 1)
        loaded(load);
}

static void e_loaded(struct efs_disk_request *r, errint_t error)
{
    part_loaded((struct load *)((char *)r - offsetof(struct load, e)), error);
}

static void sm_loaded(struct efs_disk_request *r, errint_t error)
{
    part_loaded((struct load *)((char *)r - offsetof(struct load, sm)), error);
}

/* 0: the unit has its blocks. -EAGAIN: others hold the memory. -ENOMEM: the system has none and nothing will be freed.
 */
static errint_t place(struct efs *fs, struct efs_unit *u)
{
    size_t e = e_span(fs, u), sm = sm_span(fs, u);
    for (;;) {
        if (e == 0 || u->e.data || efs_arena_alloc(&fs->arena, e, false, &u->e))
            if (sm == 0 || efs_arena_alloc(&fs->arena, sm, true, &u->sm))
                return 0;
        if (evict(fs, true) || (efs_room_for_segment(fs) && efs_arena_grow(&fs->arena) == 0))
            continue;
        if (!evict(fs, false))
            break;
    }
    efs_arena_free(&fs->arena, &u->e);
    return fs->arena.used_bytes ? -EAGAIN : -ENOMEM;
}

static void request(struct efs_disk_request *r, uint64_t offset, size_t bytes, const struct efs_block *block,
                    bool ahead, struct efs_disk_request **submit)
{
    if (bytes == 0)
        return;
    r->offset = offset;
    r->bytes = bytes;
    r->data = block->data;
    r->segment = block->segment;
    r->ahead = ahead;
    r->next = *submit;
    *submit = r;
}

/* Lock held. 0: its reads were put on *submit. -EAGAIN: no room now. -ENOMEM. */
static errint_t start_load(struct efs *fs, uint32_t unit, bool ahead, struct efs_disk_request **submit)
{
    struct efs_unit *u = &fs->units[unit];
    struct load *load = efs_sys_calloc(1, sizeof(*load));
    if (!load)
        return -ENOMEM;
    errint_t rc = place(fs, u);
    if (rc < 0) {
        free(load);
        return rc;
    }
    load->fs = fs;
    load->unit = unit;
    load->pending = (u->e.data != NULL) + (u->sm.data != NULL);
    load->e.complete = e_loaded;
    load->sm.complete = sm_loaded;
    request(&load->sm, first_shard(fs, u)->sm_offset, sm_span(fs, u), &u->sm, ahead, submit);
    request(&load->e, first_shard(fs, u)->e_offset, e_span(fs, u), &u->e, ahead, submit);
    u->state = EFS_UNIT_LOADING;
    atomic_store(&u->checked, 0);
    fs->active++;
    return 0;
}

void efs_disk_submit_all(struct efs *fs, struct efs_disk_request *list)
{
    while (list) {
        struct efs_disk_request *r = list;
        list = r->next;
        efs_disk_submit(fs->disk, r);
    }
}

/* Lock held: units that waited for memory, in order, as far as there is room. */
void efs_units_retry(struct efs *fs, struct efs_disk_request **submit)
{
    struct efs_disk_request *late = NULL, **tail = &late; /* keep the order of units */
    while (fs->starved) {
        struct efs_unit *u = fs->starved;
        struct efs_disk_request *mine = NULL;
        errint_t rc = fs->closing ? -ECANCELED : start_load(fs, (uint32_t)(u - fs->units), false, &mine);
        if (rc == -EAGAIN)
            break;
        fs->starved = u->next_starved;
        if (!fs->starved)
            fs->starved_tail = &fs->starved;
        if (rc < 0) {
            struct efs_unit_waiter *waiters = u->waiters;
            u->waiters = NULL;
            u->state = EFS_UNIT_MISSING;
            push_waiters(fs, waiters, rc);
        }
        *tail = mine;
        while (*tail)
            tail = &(*tail)->next;
    }
    *tail = *submit;
    *submit = late;
}

bool efs_unit_get(struct efs *fs, uint32_t unit, struct efs_unit_waiter *waiter)
{
    struct efs_unit *u = &fs->units[unit];
    struct efs_disk_request *submit = NULL;
    errint_t rc = 0;
    pthread_mutex_lock(&fs->lock);
    if (u->state == EFS_UNIT_READY) {
        u->refs++;
        used_now(fs, u);
        u->spare = false;
        efs_lru_use(&fs->unit_lru, unit);
        pthread_mutex_unlock(&fs->lock);
        return true;
    }
    waiter->unit = unit;
    waiter->next = u->waiters;
    u->waiters = waiter;
    used_now(fs, u);
    if (u->state == EFS_UNIT_MISSING) {
        rc = fs->closing ? -ECANCELED : fs->starved ? -EAGAIN : start_load(fs, unit, false, &submit);
        if (rc == -EAGAIN) {
            u->state = EFS_UNIT_STARVED;
            u->next_starved = NULL;
            *fs->starved_tail = u;
            fs->starved_tail = &u->next_starved;
        } else if (rc < 0) {
            u->waiters = NULL;
        }
    }
    pthread_mutex_unlock(&fs->lock);
    if (rc < 0 && rc != -EAGAIN) {
        waiter->next = NULL;
        push_waiters(fs, waiter, rc);
    }
    efs_disk_submit_all(fs, submit);
    return false;
}

void efs_unit_put(struct efs *fs, uint32_t unit)
{
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    if (--fs->units[unit].refs == 0) {
        settle(fs, unit);
        efs_units_retry(fs, &submit);
        efs_room_retire(fs, &submit);
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
}

void efs_unit_ahead(struct efs *fs, uint32_t unit, bool streamed)
{
    struct efs_unit *u = &fs->units[unit];
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    size_t bytes = coded_bytes(fs, u);
    /* never more than half of the pool's first segments ahead: what was read ahead must not push itself out */
    if (u->state == EFS_UNIT_MISSING && !fs->starved && !fs->closing &&
        fs->ahead_bytes + bytes <= fs->ahead_max_bytes && start_load(fs, unit, true, &submit) == 0) {
        u->ahead = true;
        u->streamed = streamed;
        fs->ahead_bytes += bytes;
        efs_count(&fs->stats, readahead_units, 1);
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
}

void efs_group_ahead(struct efs *fs, uint32_t group)
{
    const struct efs_disk_group *g = &fs->store->groups[group];
    for (uint32_t o = g->object_first; o < g->object_first + g->object_count; o++)
        for (uint32_t u = fs->object_unit[o]; u < fs->object_unit[o + 1]; u++)
            efs_unit_ahead(fs, u, false);
}

/* ---- decoding ---- */

static errint_t damaged(struct efs *fs, struct efs_unit *u, uint32_t shard, bool sm, const char *how)
{
    char place_text[1500];
    efs_store_name_chunk(fs->store, u->object, shard, sm, place_text, sizeof(place_text));
    efs_log(fs, EFS_LOG_ERROR, "%s: %s; restore the store from a copy", place_text, how);
    efs_count(&fs->stats, chunks_damaged, 1);
    pthread_mutex_lock(&fs->lock);
    u->doomed = true; /* read it again next time: the damage may be of memory or of the bus */
    pthread_mutex_unlock(&fs->lock);
    return -EUCLEAN;
}

static struct efs_shard_view view_of(const struct efs *fs, const struct efs_unit *u, uint32_t shard)
{
    const struct efs_disk_shard *s = &fs->store->shards[shard], *first = first_shard(fs, u);
    const struct efs_disk_object *object = &fs->store->objects[u->object];
    return (struct efs_shard_view){
        .format = (enum efs_format)object->format,
        .codec = s->codec,
        .elements = efs_store_shard_elements(fs->store, object, shard),
        .e = s->e_bytes ? u->e.data + (s->e_offset - first->e_offset) : NULL,
        .sm = s->sm_bytes ? u->sm.data + (s->sm_offset - first->sm_offset) : NULL,
        .e_bytes = s->e_bytes,
        .sm_bytes = s->sm_bytes,
    };
}

static errint_t check_shard(struct efs *fs, struct efs_unit *u, uint32_t shard, const struct efs_shard_view *v)
{
    uint64_t bit = 1ull << (shard - u->shard_first);
    if (atomic_load_explicit(&u->checked, memory_order_acquire) & bit)
        return 0;
    const struct efs_disk_shard *s = &fs->store->shards[shard];
    if (v->e && efs_hash(v->e, v->e_bytes) != s->e_hash)
        return damaged(fs, u, shard, false, "checksum differs");
    if (v->sm && efs_hash(v->sm, v->sm_bytes) != s->sm_hash)
        return damaged(fs, u, shard, true, "checksum differs");
    atomic_fetch_or_explicit(&u->checked, bit, memory_order_release);
    efs_count(&fs->stats, chunks_checked, (v->e != NULL) + (v->sm != NULL));
    return 0;
}

/* Bytes [begin, begin + bytes) of a shard. Readers may begin inside an element: such ends go through a small copy. */
static errint_t decode_bytes(const struct efs_shard_view *v, uint64_t begin, size_t bytes, uint8_t *dst, bool stream,
                             struct efs_codec_scratch *scratch)
{
    size_t size = efs_format_bytes(v->format);
    while (bytes > 0) {
        size_t in = (size_t)(begin % size), n = bytes / size * size;
        uint64_t element = begin / size;
        errint_t rc;
        if (in == 0 && n > 0) {
            rc = efs_shard_decode(v, (size_t)element, n / size, dst, stream, scratch);
        } else {
            uint8_t one[8];
            n = size - in < bytes ? size - in : bytes;
            rc = efs_shard_decode(v, (size_t)element, 1, one, false, scratch);
            memcpy(dst, one + in, n);
        }
        if (rc < 0)
            return rc;
        begin += n;
        dst += n;
        bytes -= n;
    }
    return 0;
}

errint_t efs_unit_decode(struct efs *fs, uint32_t unit, uint64_t begin, size_t bytes, void *dst, bool stream,
                         struct efs_codec_scratch *scratch)
{
    struct efs_unit *u = &fs->units[unit];
    uint64_t shard_bytes = shard_raw_bytes(fs, u->object), start_ns = efs_now_ns();
    errint_t rc = 0;
    for (size_t done = 0; done < bytes && rc == 0;) {
        uint64_t at = begin + done, in = at % shard_bytes;
        uint32_t shard = fs->store->objects[u->object].shard_first + (uint32_t)(at / shard_bytes);
        size_t n = bytes - done < shard_bytes - in ? bytes - done : (size_t)(shard_bytes - in);
        struct efs_shard_view v = view_of(fs, u, shard);
        rc = check_shard(fs, u, shard, &v);
        if (rc == 0) {
            rc = decode_bytes(&v, in, n, (uint8_t *)dst + done, stream, scratch);
            if (rc == -EUCLEAN)
                rc = damaged(fs, u, shard, false, "code is not well formed");
        }
        done += n;
    }
    efs_count(&fs->stats, decode_ns, efs_now_ns() - start_ns);
    efs_count(&fs->stats, decoded_bytes, rc == 0 ? bytes : 0);
    return rc;
}
