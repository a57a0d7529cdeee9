/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim_journal.c - writes and reads the journal's records. Each record is synced before the next is written: a
 * header of 64 bytes, the payload, and zeros up to the next multiple of 512.
 *
 * A crash can truncate the last record, which is then ignored: no byte was freed because of it. A damaged record with a
 * later one is an error: its bytes may be freed in the sources, so the run cannot continue without it.
 */
#include "reclaim.h"

#include "hash.h"
#include "source.h"
#include "sys.h"
#include "expertfs-packing-private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- serialization of numbers and strings; the first error is kept ---- */

static void efs_bytes_put(struct efs_bytes *b, const void *data, size_t count)
{
    if (b->bad || count == 0)
        return;
    if (b->capacity - b->count < count) {
        size_t capacity = 2 * b->capacity + count;
        uint8_t *grown = efs_sys_realloc(b->data, capacity);
        if (!grown) {
            b->bad = true;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->count, data, count);
    b->count += count;
}

static void efs_bytes_put_u64(struct efs_bytes *b, uint64_t value)
{
    efs_bytes_put(b, &value, sizeof(value));
}

static void efs_bytes_put_string(struct efs_bytes *b, const char *text)
{
    size_t count = strlen(text);
    efs_bytes_put_u64(b, count);
    efs_bytes_put(b, text, count);
}

static void efs_bytes_get(struct efs_bytes *b, void *data, size_t count)
{
    if (b->bad || count > b->count - b->at) {
        b->bad = true;
        memset(data, 0, count);
        return;
    }
    memcpy(data, b->data + b->at, count);
    b->at += count;
}

static uint64_t efs_bytes_get_u64(struct efs_bytes *b)
{
    uint64_t value;
    efs_bytes_get(b, &value, sizeof(value));
    return value;
}

static uint64_t efs_bytes_get_below(struct efs_bytes *b, uint64_t limit)
{
    uint64_t value = efs_bytes_get_u64(b);
    b->bad |= value >= limit;
    return b->bad ? 0 : value;
}

static char *efs_bytes_get_string(struct efs_bytes *b)
{
    uint64_t count = efs_bytes_get_u64(b);
    if (b->bad || count > b->count - b->at) {
        b->bad = true;
        return NULL;
    }
    char *text = efs_sys_malloc(count + 1);
    if (!text) {
        b->bad = true;
        return NULL;
    }
    efs_bytes_get(b, text, count);
    text[count] = '\0';
    return text;
}

/* ---- records ---- */

#define RECORD_ALIGN 512u
#define MAGIC "efsrecl1"

struct header {
    char magic[8];
    uint64_t number; /* from 0 */
    uint64_t type;
    uint64_t bytes, hash; /* size and hash of the payload */
    uint64_t reserved[2];
    uint64_t header_hash; /* of the preceding 56 bytes */
};
static_assert(sizeof(struct header) == 64, "header");

static uint64_t whole_bytes(uint64_t payload)
{
    return (sizeof(struct header) + payload + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

errint_t efs_reclaim_journal_add(struct efs_reclaim *r, enum efs_reclaim_record type, const struct efs_bytes *payload,
                                 struct efs_error *err)
{
    struct header h = {.magic = MAGIC, .number = r->journal_records, .type = type, .bytes = payload->count};
    size_t bytes = (size_t)whole_bytes(payload->count);
    uint8_t *record = payload->bad ? NULL : efs_sys_calloc(1, bytes);
    if (!record)
        return efs_reclaim_fail(r, -ENOMEM, EFS_RECLAIM_JOURNAL, "write", err);
    h.hash = efs_hash(payload->data, payload->count);
    h.header_hash = efs_hash(&h, offsetof(struct header, header_hash));
    memcpy(record, &h, sizeof(h));
    if (payload->count)
        memcpy(record + sizeof(h), payload->data, payload->count);
    int rc = efs_sys_pwrite_all(r->journal, record, bytes, r->journal_bytes);
    free(record);
    if (rc == 0)
        rc = efs_sys_sync(r->journal);
    if (rc < 0) {
        r->journal_unsure = efs_sys_ftruncate(r->journal, r->journal_bytes) < 0 || efs_sys_sync(r->journal) < 0;
        return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "write", err);
    }
    r->journal_bytes += bytes;
    r->journal_records++;
    return 0;
}

/* Whether data, with `left` bytes, starts with a valid header. */
static bool is_header(const uint8_t *data, uint64_t left, struct header *h)
{
    if (left < sizeof(*h))
        return false;
    memcpy(h, data, sizeof(*h));
    return memcmp(h->magic, MAGIC, sizeof(h->magic)) == 0 &&
           h->header_hash == efs_hash(h, offsetof(struct header, header_hash));
}

static bool is_record(const uint8_t *data, uint64_t left, uint64_t number, struct header *h)
{
    return is_header(data, left, h) && h->number == number && h->bytes <= left - sizeof(*h) &&
           h->hash == efs_hash(data + sizeof(*h), h->bytes);
}

static bool later_record(const uint8_t *data, uint64_t bytes, uint64_t number)
{
    struct header h;
    for (uint64_t at = RECORD_ALIGN; at < bytes; at += RECORD_ALIGN)
        if (is_header(data + at, bytes - at, &h) && h.number > number)
            return true;
    return false;
}

static errint_t each_record(struct efs_reclaim *r, const uint8_t *data, uint64_t bytes, efs_reclaim_record_fn *each,
                            struct efs_error *err)
{
    struct header h;
    uint64_t at = 0, number = 0;
    errint_t rc = 0;
    while (rc == 0 && at < bytes && is_record(data + at, bytes - at, number, &h)) {
        struct efs_bytes payload = {0};
        efs_bytes_put(&payload, data + at + sizeof(h), h.bytes);
        rc = payload.bad ? efs_reclaim_fail(r, -ENOMEM, EFS_RECLAIM_JOURNAL, "read", err)
                         : each(r, (enum efs_reclaim_record)h.type, &payload, err);
        free(payload.data);
        at += whole_bytes(h.bytes);
        number++;
    }
    if (rc == 0 && at < bytes && later_record(data + at, bytes - at, number))
        return efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_JOURNAL ": record %llu at offset %llu is damaged", r->folder,
                        (unsigned long long)number, (unsigned long long)at);
    r->journal_bytes = at < bytes ? at : bytes;
    r->journal_records = number;
    return rc;
}

static errint_t efs_reclaim_journal_read(struct efs_reclaim *r, efs_reclaim_record_fn *each, struct efs_error *err)
{
    struct stat st;
    int rc = efs_sys_fstat(r->journal, &st);
    if (rc < 0)
        return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "stat", err);
    uint64_t bytes = (uint64_t)st.st_size;
    uint8_t *data = efs_sys_malloc(bytes + 1);
    if (!data)
        return efs_reclaim_fail(r, -ENOMEM, EFS_RECLAIM_JOURNAL, "read", err);
    rc = efs_sys_pread_all(r->journal, data, bytes, 0);
    rc = rc < 0 ? efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "read", err) : each_record(r, data, bytes, each, err);
    free(data);
    return rc;
}

/* ---- payloads ---- */

/* Incremented when the format of a record changes, or the way in which a plan is made from a catalogue. */
#define RECORD_VERSION 4u

static void put_tensor(struct efs_bytes *b, const struct efs_source_tensor *t)
{
    efs_bytes_put_string(b, t->name);
    efs_bytes_put_string(b, t->type ? t->type : "");
    efs_bytes_put_u64(b, t->dtype);
    efs_bytes_put_u64(b, t->tensor_class);
    efs_bytes_put_u64(b, t->file);
    efs_bytes_put_u64(b, t->dims);
    efs_bytes_put(b, t->shape, t->dims * sizeof(t->shape[0]));
    efs_bytes_put_u64(b, t->offset);
    efs_bytes_put_u64(b, t->bytes);
    efs_bytes_put_u64(b, t->expert_first);
}

static uint64_t record_plan_hash(const struct efs_index *p)
{
    const uint64_t hashes[] = {efs_hash(p->strings, p->string_bytes),
                               efs_hash(p->files, p->file_count * sizeof(*p->files)),
                               efs_hash(p->extents, p->extent_count * sizeof(*p->extents)),
                               efs_hash(p->tensors, p->tensor_count * sizeof(*p->tensors)),
                               efs_hash(p->groups, p->group_count * sizeof(*p->groups)),
                               efs_hash(p->objects, p->object_count * sizeof(*p->objects)),
                               efs_hash(p->order, p->group_count * sizeof(*p->order)),
                               p->shard_count,
                               sizeof(*p->shards)};
    return efs_hash(hashes, sizeof(hashes));
}

void efs_reclaim_put_begin(const struct efs_reclaim *r, struct efs_bytes *b)
{
    const struct efs_catalog *c = &r->catalog;
    efs_bytes_put_u64(b, RECORD_VERSION);
    efs_bytes_put_u64(b, EFS_VERSION);
    efs_bytes_put_u64(b, r->options.codec);
    efs_bytes_put_u64(b, r->plan.shard_elements);
    efs_bytes_put_u64(b, record_plan_hash(&r->plan));
    efs_bytes_put_u64(b, r->whole_directory);
    efs_bytes_put_string(b, r->root);
    efs_bytes_put_string(b, c->family ? c->family : "");
    efs_bytes_put_u64(b, c->file_count);
    for (size_t f = 0; f < c->file_count; f++) {
        efs_bytes_put_string(b, c->files[f].path);
        efs_bytes_put_u64(b, c->files[f].bytes);
        efs_bytes_put_u64(b, c->files[f].has_tensors);
        efs_bytes_put_u64(b, c->files[f].copy ? c->files[f].original : EFS_NONE);
        efs_bytes_put_u64(b, c->files[f].other_model);
        efs_bytes_put_string(b, c->files[f].note ? c->files[f].note : "");
        efs_bytes_put_u64(b, r->files[f].inode);
        efs_bytes_put_u64(b, (uint64_t)r->files[f].mtime.tv_sec);
        efs_bytes_put_u64(b, (uint64_t)r->files[f].mtime.tv_nsec);
        efs_bytes_put_u64(b, r->files[f].whole);
    }
    efs_bytes_put_u64(b, c->expert_count);
    for (size_t e = 0; e < c->expert_count; e++) {
        efs_bytes_put_string(b, c->experts[e].stack);
        efs_bytes_put_u64(b, c->experts[e].layer);
        efs_bytes_put_u64(b, c->experts[e].expert);
    }
    efs_bytes_put_u64(b, c->tensor_count);
    for (size_t t = 0; t < c->tensor_count; t++)
        put_tensor(b, &c->tensors[t]);
}

static void get_tensor(struct efs_bytes *b, struct efs_source_tensor *t)
{
    t->name = efs_bytes_get_string(b);
    t->type = efs_bytes_get_string(b);
    if (t->type && !*t->type) {
        free(t->type);
        t->type = NULL;
    }
    t->dtype = (enum efs_dtype)efs_bytes_get_below(b, UINT16_MAX);
    t->tensor_class = (enum efs_tensor_class)efs_bytes_get_below(b, EFS_CLASS_DENSE + 1);
    t->file = (uint32_t)efs_bytes_get_below(b, UINT32_MAX);
    t->dims = (uint32_t)efs_bytes_get_below(b, EFS_MAX_DIMS + 1);
    efs_bytes_get(b, t->shape, t->dims * sizeof(t->shape[0]));
    t->offset = efs_bytes_get_u64(b);
    t->bytes = efs_bytes_get_u64(b);
    t->expert_first = (uint32_t)efs_bytes_get_u64(b);
}

static void get_files(struct efs_reclaim *r, struct efs_bytes *b)
{
    struct efs_catalog *c = &r->catalog;
    size_t count = efs_bytes_get_below(b, EFS_SOURCE_MAX_FILES + 1);
    c->files = efs_sys_calloc(count + 1, sizeof(*c->files));
    r->files = efs_sys_calloc(count + 1, sizeof(*r->files));
    b->bad |= !c->files || !r->files;
    for (; !b->bad && c->file_count < count; c->file_count++) {
        struct efs_source_file *f = &c->files[c->file_count];
        struct efs_reclaim_file *seen = &r->files[c->file_count];
        f->path = efs_bytes_get_string(b);
        f->bytes = efs_bytes_get_below(b, INT64_MAX);
        f->has_tensors = efs_bytes_get_u64(b) != 0;
        f->original = (uint32_t)efs_bytes_get_u64(b);
        f->copy = f->original < count;
        f->other_model = efs_bytes_get_u64(b) != 0;
        f->note = efs_bytes_get_string(b);
        if (f->note && !*f->note) {
            free(f->note);
            f->note = NULL;
        }
        seen->inode = efs_bytes_get_u64(b);
        seen->mtime.tv_sec = (time_t)efs_bytes_get_u64(b);
        seen->mtime.tv_nsec = (long)efs_bytes_get_below(b, 1000000000);
        seen->whole = efs_bytes_get_u64(b) != 0;
    }
}

static void get_experts_and_tensors(struct efs_catalog *c, struct efs_bytes *b)
{
    size_t count = efs_bytes_get_below(b, EFS_SOURCE_MAX_TENSORS + 1);
    c->experts = efs_sys_calloc(count + 1, sizeof(*c->experts));
    b->bad |= !c->experts;
    for (; !b->bad && c->expert_count < count; c->expert_count++) {
        struct efs_source_expert *e = &c->experts[c->expert_count];
        e->stack = efs_bytes_get_string(b);
        e->layer = (uint32_t)efs_bytes_get_u64(b);
        e->expert = (uint32_t)efs_bytes_get_u64(b);
    }
    count = efs_bytes_get_below(b, EFS_SOURCE_MAX_TENSORS + 1);
    c->tensors = efs_sys_calloc(count + 1, sizeof(*c->tensors));
    b->bad |= !c->tensors;
    for (uint32_t file = 0; !b->bad && c->tensor_count < count; c->tensor_count++) {
        get_tensor(b, &c->tensors[c->tensor_count]);
        b->bad |= c->tensors[c->tensor_count].file < file || c->tensors[c->tensor_count].file >= c->file_count;
        file = c->tensors[c->tensor_count].file;
    }
}

static errint_t record_get_begin(struct efs_reclaim *r, struct efs_bytes *b, uint64_t *plan_hash, struct efs_error *err)
{
    struct efs_catalog *c = &r->catalog;
    uint64_t record_version = efs_bytes_get_u64(b), version = efs_bytes_get_u64(b);
    if (record_version != RECORD_VERSION || version < EFS_VERSION_OLDEST || version > EFS_VERSION)
        return efs_fail(err, -EPROTONOSUPPORT, "%s: was begun by another version of this program: go on with that",
                        r->folder);
    uint64_t choice = efs_bytes_get_u64(b);
    b->bad |= !efs_codec_can_choose(choice);
    r->options.codec = (enum efs_codec_choice)choice;
    r->options.shard_elements = (uint32_t)efs_bytes_get_below(b, EFS_SHARD_ELEMENTS_MAX + 1);
    *plan_hash = efs_bytes_get_u64(b);
    r->whole_directory = efs_bytes_get_u64(b) != 0;
    char *root = efs_bytes_get_string(b);
    if (r->root)
        free(root);
    else
        r->root = root;
    c->family = efs_bytes_get_string(b);
    get_files(r, b);
    get_experts_and_tensors(c, b);
    c->root = r->root ? strdup(r->root) : NULL;
    b->bad |= !c->root || efs_pack_check_options(&r->options, NULL) < 0;
    return b->bad ? efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_JOURNAL ": the catalogue of the source is damaged",
                             r->folder)
                  : 0;
}

static void put_cursor(struct efs_bytes *b, const struct efs_pack_cursor *cursor)
{
    efs_bytes_put_u64(b, cursor->order);
    efs_bytes_put_u64(b, cursor->object);
    efs_bytes_put_u64(b, cursor->shard);
}

static bool is_last(const struct efs_index *plan, const struct efs_pack_cursor *at)
{
    const struct efs_disk_object *o = &plan->objects[at->object];
    return at->shard + 1 == o->shard_first + o->shard_count;
}

void efs_reclaim_put_step(struct efs_reclaim *r, const struct efs_reclaim_step *step, struct efs_bytes *b)
{
    const struct efs_index *plan = &r->plan;
    uint64_t counts[256] = {0};
    bool counted =
        !efs_pack_cursor_at_end(plan, &step->end) && efs_pack_tally_get(&r->state.tallies, step->end.object, counts);
    put_cursor(b, &step->begin);
    put_cursor(b, &step->end);
    efs_bytes_put_u64(b, step->store_begin);
    efs_bytes_put_u64(b, step->store_end);
    efs_bytes_put_u64(b, counted);
    efs_bytes_put(b, counts, counted ? sizeof(counts) : 0);
    for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(plan, step, &at);
         efs_pack_cursor_step(plan, &at)) {
        efs_bytes_put(b, &plan->shards[at.shard], sizeof(plan->shards[at.shard]));
        if (is_last(plan, &at))
            efs_bytes_put(b, &r->entropy_bits[at.object], sizeof(double));
    }
}

static void get_cursor(struct efs_bytes *b, struct efs_pack_cursor *cursor)
{
    *cursor = (struct efs_pack_cursor){0};
    cursor->order = (uint32_t)efs_bytes_get_u64(b);
    cursor->object = (uint32_t)efs_bytes_get_u64(b);
    cursor->shard = (uint32_t)efs_bytes_get_u64(b);
}

/* Whether the cursor is at a shard of the plan, or at the plan's end. */
static bool in_plan(const struct efs_index *plan, const struct efs_pack_cursor *at)
{
    if (at->order >= plan->group_count)
        return at->order == plan->group_count;
    const struct efs_disk_group *g = &plan->groups[plan->order[at->order]];
    if (at->object < g->object_first || at->object - g->object_first >= g->object_count)
        return false;
    const struct efs_disk_object *o = &plan->objects[at->object];
    return at->shard >= o->shard_first && at->shard - o->shard_first < o->shard_count;
}

static bool same_place(const struct efs_index *plan, const struct efs_pack_cursor *a, const struct efs_pack_cursor *b)
{
    return a->order == b->order &&
           (efs_pack_cursor_at_end(plan, a) || (a->object == b->object && a->shard == b->shard));
}

static bool comes_after(const struct efs_index *plan, const struct efs_pack_cursor *a, const struct efs_pack_cursor *b)
{
    return a->order != b->order ? a->order > b->order : !efs_pack_cursor_at_end(plan, a) && a->shard > b->shard;
}

static void reclaim_apply(struct efs_reclaim *r, struct efs_reclaim_step *step, bool last)
{
    struct efs_bytes *b = &step->record;
    struct efs_index *plan = &r->plan;
    uint64_t counts[256], done_bytes = 0;
    bool counted = efs_bytes_get_u64(b) != 0;
    if (counted)
        efs_bytes_get(b, counts, sizeof(counts));
    for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(plan, step, &at);
         efs_pack_cursor_step(plan, &at)) {
        efs_bytes_get(b, &plan->shards[at.shard], sizeof(plan->shards[at.shard]));
        if (is_last(plan, &at))
            efs_bytes_get(b, &r->entropy_bits[at.object], sizeof(double));
        done_bytes += efs_reclaim_shard_bytes(plan, at.object, at.shard);
    }
    efs_reclaim_add_stored(r, step);
    b->bad |= b->at != b->count;
    if (b->bad)
        return;
    r->state.cursor = step->end;
    r->state.done_bytes += done_bytes;
    if (counted && last) {
        const struct efs_disk_object *o = &plan->objects[step->end.object];
        b->bad = efs_pack_tally_set(&r->state.tallies, step->end.object,
                                    o->shard_count - (step->end.shard - o->shard_first), counts) < 0;
    }
}

/* Reads a step into plan, state and stored. */
static errint_t record_get_step(struct efs_reclaim *r, struct efs_reclaim_step *step, bool last, struct efs_error *err)
{
    struct efs_bytes *b = &step->record;
    const struct efs_reclaim_step *before = step > r->steps ? step - 1 : NULL;
    get_cursor(b, &step->begin);
    get_cursor(b, &step->end);
    step->store_begin = efs_bytes_get_u64(b);
    step->store_end = efs_bytes_get_u64(b);
    bool follows = same_place(&r->plan, &step->begin, &r->state.cursor) && in_plan(&r->plan, &step->end) &&
                   comes_after(&r->plan, &step->end, &step->begin) && step->store_end >= step->store_begin &&
                   step->store_begin == (before ? before->store_end : EFS_ALIGN);
    if (!b->bad && follows)
        reclaim_apply(r, step, last);
    if (b->bad || !follows)
        return efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_JOURNAL ": step %zu does not fit the others", r->folder,
                        (size_t)(step - r->steps));
    return 0;
}

static errint_t take_begin(struct efs_reclaim *r, struct efs_bytes *payload, struct efs_error *err)
{
    uint64_t plan_hash = 0;
    errint_t rc = record_get_begin(r, payload, &plan_hash, err);
    if (rc == 0)
        rc = efs_reclaim_plan(r, err);
    if (rc == 0 && record_plan_hash(&r->plan) != plan_hash)
        rc = efs_fail(err, -EPROTONOSUPPORT, "%s: was begun by a program that plans otherwise: go on with that",
                      r->folder);
    return rc;
}

static errint_t take_record(struct efs_reclaim *r, enum efs_reclaim_record type, struct efs_bytes *payload,
                            struct efs_error *err)
{
    bool begun = r->has_state;
    if (type == EFS_RECLAIM_BEGIN && !begun)
        return take_begin(r, payload, err);
    if (type == EFS_RECLAIM_STEP && begun) {
        errint_t rc = efs_source_grow((void **)&r->steps, r->step_count, &r->step_capacity, sizeof(*r->steps));
        if (rc < 0)
            return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "read", err);
        r->steps[r->step_count++] = (struct efs_reclaim_step){.record = *payload};
        *payload = (struct efs_bytes){0};
        return 0;
    }
    if (type == EFS_RECLAIM_UNDONE && r->step_count > 0) {
        free(r->steps[--r->step_count].record.data);
        return 0;
    }
    return efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_JOURNAL ": a record of type %d out of place", r->folder,
                    (int)type);
}

errint_t efs_reclaim_plan(struct efs_reclaim *r, struct efs_error *err)
{
    uint32_t shard_elements = r->options.shard_elements ? r->options.shard_elements : EFS_SHARD_ELEMENTS_DEFAULT;
    errint_t rc = efs_index_plan(&r->plan, &r->catalog, r->options.codec, shard_elements, err);
    if (rc < 0)
        return rc;
    r->entropy_bits = efs_sys_calloc((size_t)r->plan.object_count + 1, sizeof(double));
    r->stored = efs_sys_calloc((size_t)r->plan.object_count + 1, sizeof(uint64_t));
    r->freed = efs_sys_calloc((size_t)r->plan.object_count + 1, sizeof(uint64_t));
    r->has_state = true;
    rc = efs_pack_state_begin(&r->plan, r->entropy_bits, &r->state);
    if (rc < 0 || !r->entropy_bits || !r->stored || !r->freed)
        return efs_fail(err, -ENOMEM, "%s: no memory", r->out);
    return 0;
}

errint_t efs_reclaim_load(struct efs_reclaim *r, struct efs_error *err)
{
    errint_t rc = efs_reclaim_journal_read(r, take_record, err);
    if (rc == 0 && !r->has_state)
        return efs_fail(err, -ENODATA, "%s: was interrupted before anything was done", r->folder);
    for (size_t i = 0; i < r->step_count; i++) {
        if (rc == 0)
            rc = record_get_step(r, &r->steps[i], i + 1 == r->step_count, err);
        free(r->steps[i].record.data);
        r->steps[i].record = (struct efs_bytes){0};
    }
    return rc;
}
