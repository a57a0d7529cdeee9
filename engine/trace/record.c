/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - see record.h: the ring of requests, and its conversion to a routing trace. */
#include "record.h"

#include "efs.h"
#include "expertfs-profile-private.h"
#include "expertfs-private.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EFS_RECORD_REQUESTS 32768u
#define EFS_RECORD_IDS (EFS_RECORD_REQUESTS * 4u) /* experts of all recorded requests */

struct efs_recorded_request {
    uint64_t first; /* of its experts in id and tokens, before the modulo EFS_RECORD_IDS */
    uint16_t layer, count;
    bool named;
};

struct efs_record {
    uint32_t layers, width;
    uint64_t requests, ids; /* recorded since the start */
    uint64_t first_request; /* of a copy: the oldest that is whole */
    struct efs_recorded_request request[EFS_RECORD_REQUESTS];
    uint16_t id[EFS_RECORD_IDS], tokens[EFS_RECORD_IDS];
};

/* ---- the requests as a routing trace ---- */

/*
 * Converts the requests of a served store to a routing trace, expertfs-route(5).
 *
 * A trace has one record per token, with the same number of experts for each layer. The ring contains requests in
 * order. The code groups them into *passes* through the layers and writes one record per pass (for a batch, the union
 * of its tokens):
 *
 * - A request starts a new pass if its layer is below the highest layer of the pass; or if it is for that layer and
 *   either named, or for an expert that the pass already has. An unnamed request (lease, read) may be one layer late:
 *   in models of more than 2 layers, one layer below the highest counts as the same layer.
 * - The experts of a layer are sorted by tokens, descending, and at most CHOSEN_MAX are kept.
 * - A layer with fewer experts than the widest repeats its last one, which leaves the set unchanged.
 * - A layer without requests in a pass repeats its experts of the previous pass (before its first request: of the
 *   first). A pass with requests for fewer than half of the layers is dropped.
 * - The kind of a pass is EFS_ROUTE_SEVERAL if an expert has more than one token, else EFS_ROUTE_UNKNOWN.
 */

#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define CHOSEN_MAX 64u
#define HEADER_BYTES 48u
#define NAME_MAX_BYTES 63u
#define TRACE_BYTES_MAX (512u << 10) /* of the records; 48 layers of 8 experts: all requests of the ring */

/* The pass under construction. */
struct pass {
    uint32_t layers, width;
    uint32_t *tokens; /* [layers][width]; 0: not requested */
    uint16_t *ids;    /* [layers][width], in the order of the requests */
    uint16_t *count;  /* [layers] */
    uint32_t asked;   /* layers with a request */
    bool several;     /* an expert has more than one token */
};

/* Complete passes, concatenated: the kind, then for each layer the count and that many ids. */
struct passes {
    uint16_t *data;
    size_t used, room;
    uint64_t count;
    uint32_t chosen; /* largest count of a layer */
};

static errint_t trace_append(struct passes *all, const uint16_t *numbers, size_t count)
{
    if (all->room - all->used < count) {
        size_t room = all->room * 2 + count + 4096;
        uint16_t *data = efs_sys_realloc(all->data, room * sizeof(*data));
        if (!data)
            return -ENOMEM;
        all->data = data;
        all->room = room;
    }
    memcpy(all->data + all->used, numbers, count * sizeof(*numbers));
    all->used += count;
    return 0;
}

/* Sorts by tokens, descending; stable. Returns count, at most CHOSEN_MAX. */
static uint16_t sort_by_tokens(uint16_t *ids, uint16_t count, const uint32_t *tokens)
{
    for (uint16_t i = 1; i < count; i++)
        for (uint16_t n = i; n > 0 && tokens[ids[n]] > tokens[ids[n - 1]]; n--) {
            uint16_t swap = ids[n];
            ids[n] = ids[n - 1];
            ids[n - 1] = swap;
        }
    return count < CHOSEN_MAX ? count : CHOSEN_MAX;
}

static errint_t end_pass(struct pass *p, struct passes *all)
{
    errint_t rc = 0;
    bool keep = p->asked && 2 * p->asked >= p->layers;
    uint16_t kind = p->several ? EFS_ROUTE_SEVERAL : EFS_ROUTE_UNKNOWN;
    if (keep)
        rc = trace_append(all, &kind, 1);
    for (uint32_t l = 0; l < p->layers; l++) {
        uint16_t *ids = p->ids + (size_t)l * p->width;
        uint32_t *tokens = p->tokens + (size_t)l * p->width;
        uint16_t count = keep ? sort_by_tokens(ids, p->count[l], tokens) : 0;
        if (keep && rc == 0)
            rc = trace_append(all, &count, 1);
        if (keep && rc == 0)
            rc = trace_append(all, ids, count);
        if (count > all->chosen)
            all->chosen = count;
        for (uint16_t i = 0; i < p->count[l]; i++)
            tokens[ids[i]] = 0;
        p->count[l] = 0;
    }
    all->count += keep;
    p->asked = 0;
    p->several = false;
    return rc;
}

static bool ends_pass(const struct pass *p, const struct efs_record *r, const struct efs_recorded_request *q,
                      uint32_t last_layer)
{
    if (!p->asked || q->layer > last_layer)
        return false;
    if (q->layer < last_layer && (q->named || p->layers <= 2 || q->layer + 2u <= last_layer))
        return true;
    if (q->named)
        return p->count[q->layer] > 0;
    for (uint32_t i = 0; i < q->count; i++)
        if (p->tokens[(size_t)q->layer * p->width + r->id[(q->first + i) % EFS_RECORD_IDS]])
            return true;
    return false;
}

static void pass_add_request(struct pass *p, const struct efs_record *r, const struct efs_recorded_request *q)
{
    uint32_t *tokens = p->tokens + (size_t)q->layer * p->width;
    uint16_t *ids = p->ids + (size_t)q->layer * p->width;
    p->asked += p->count[q->layer] == 0 && q->count > 0;
    for (uint32_t i = 0; i < q->count; i++) {
        uint16_t id = r->id[(q->first + i) % EFS_RECORD_IDS];
        if (tokens[id] == 0)
            ids[p->count[q->layer]++] = id;
        tokens[id] += r->tokens[(q->first + i) % EFS_RECORD_IDS];
        p->several |= r->tokens[(q->first + i) % EFS_RECORD_IDS] > 1;
    }
}

static errint_t trace_collect(const struct efs_record *r, struct pass *p, struct passes *all)
{
    uint32_t last_layer = 0;
    errint_t rc = 0;
    for (uint64_t i = r->first_request; i < r->requests && rc == 0; i++) {
        const struct efs_recorded_request *q = &r->request[i % EFS_RECORD_REQUESTS];
        if (ends_pass(p, r, q, last_layer)) {
            rc = end_pass(p, all);
            last_layer = 0;
        }
        pass_add_request(p, r, q);
        last_layer = q->layer > last_layer ? q->layer : last_layer;
    }
    return rc < 0 ? rc : end_pass(p, all);
}

/* ---- the file ---- */

static uint8_t *trace_put16(uint8_t *p, uint32_t n)
{
    p[0] = (uint8_t)n;
    p[1] = (uint8_t)(n >> 8);
    return p + 2;
}

static uint8_t *trace_put32(uint8_t *p, uint32_t n)
{
    return trace_put16(trace_put16(p, n & 0xffff), n >> 16);
}

/* The file name of the store without directories and ".efs", at most NAME_MAX_BYTES, not terminated. Returns its length
 * in bytes. */
static size_t name_of(const char *path, char name[NAME_MAX_BYTES])
{
    const char *slash = strrchr(path, '/');
    path = slash ? slash + 1 : path;
    size_t n = strlen(path);
    if (n > 4 && strcmp(path + n - 4, ".efs") == 0)
        n -= 4;
    n = n < NAME_MAX_BYTES ? n : NAME_MAX_BYTES;
    memcpy(name, path, n);
    return n;
}

/* Sets latest[l], the experts that layer l repeats, to the first nonempty ones in all->data: points to their count. */
static void find_first(const struct passes *all, uint32_t layers, const uint16_t **latest)
{
    const uint16_t *at = all->data;
    for (uint64_t t = 0; t < all->count; t++) {
        at++;
        for (uint32_t l = 0; l < layers; l++) {
            if (!latest[l] && *at)
                latest[l] = at;
            at += 1 + *at;
        }
    }
}

/* Writes the passes from `first` on. */
static uint8_t *write_records(const struct passes *all, uint64_t first, uint32_t layers, const uint16_t **latest,
                              uint8_t *p)
{
    const uint16_t *at = all->data;
    for (uint64_t t = 0; t < all->count; t++) {
        if (t >= first) {
            p = trace_put32(p, 0); /* sequence: the ring does not record which requests belong to one answer */
            p = trace_put32(p, *at);
        }
        at++;
        for (uint32_t l = 0; l < layers; l++) {
            if (*at)
                latest[l] = at;
            at += 1 + *at;
            for (uint32_t i = 0; t >= first && i < all->chosen; i++) {
                const uint16_t *ids = latest[l];
                p = trace_put16(p, !ids ? 0 : ids[i < *ids ? 1 + i : *ids]);
            }
        }
    }
    return p;
}

static errint_t write_trace(const struct efs *fs, const struct passes *all, char **data, size_t *bytes)
{
    const struct efs_record *state = fs->record;
    char name[NAME_MAX_BYTES];
    size_t name_bytes = name_of(fs->store->path, name);
    size_t record = 8 + 2 * (size_t)state->layers * all->chosen;
    const uint64_t most = TRACE_BYTES_MAX / record + 1, count = all->count < most ? all->count : most;
    const uint16_t **latest = efs_sys_calloc(state->layers, sizeof(*latest));
    uint8_t *out = efs_sys_malloc(HEADER_BYTES + name_bytes + record * count);
    if (!latest || !out) {
        free(latest);
        free(out);
        return -ENOMEM;
    }
    const uint32_t header[] = {
        2, state->layers, state->width, all->chosen, 0, (uint32_t)name_bytes, (uint32_t)count, 0, 0, 0};
    memcpy(out, "MOETRACE", 8);
    uint8_t *p = out + 8;
    for (size_t i = 0; i < sizeof(header) / sizeof(header[0]); i++)
        p = trace_put32(p, header[i]);
    memcpy(p, name, name_bytes);
    find_first(all, state->layers, latest);
    p = write_records(all, all->count - count, state->layers, latest, p + name_bytes);
    free(latest);
    *data = (char *)out;
    *bytes = (size_t)(p - out);
    return 0;
}

static errint_t record_trace(const struct efs *fs, const struct efs_record *record, char **data, size_t *bytes)
{
    const struct efs_record *state = fs->record;
    size_t cells = (size_t)state->layers * state->width;
    struct passes all = {.used = 0};
    errint_t rc = 0;
    *data = NULL;
    *bytes = 0;
    if (cells && state->layers <= LAYERS_MAX && state->width <= EXPERTS_MAX) {
        struct pass pass = {.layers = state->layers,
                            .width = state->width,
                            .tokens = efs_sys_calloc(cells, sizeof(*pass.tokens)),
                            .ids = efs_sys_calloc(cells, sizeof(*pass.ids)),
                            .count = efs_sys_calloc(state->layers, sizeof(*pass.count))};
        rc = pass.tokens && pass.ids && pass.count ? trace_collect(record, &pass, &all) : -ENOMEM;
        free(pass.tokens);
        free(pass.ids);
        free(pass.count);
    }
    if (rc == 0 && all.count)
        rc = write_trace(fs, &all, data, bytes);
    else if (rc == 0 && !(*data = efs_sys_calloc(1, 1))) /* no pass yet: an empty text */
        rc = -ENOMEM;
    free(all.data);
    return rc;
}

/* ---- the ring ---- */

uint64_t efs_record_bytes(void)
{
    return sizeof(struct efs_record);
}

errint_t efs_record_build(struct efs *fs)
{
    fs->record = efs_sys_calloc(1, sizeof(*fs->record));
    return fs->record ? 0 : -ENOMEM;
}

void efs_record_destroy(struct efs *fs)
{
    free(fs->record);
    fs->record = NULL;
}

void efs_record_layers(struct efs *fs, uint32_t layers, uint32_t width)
{
    struct efs_record *r = fs->record;
    r->layers = layers;
    r->width = width;
}

void efs_record_request(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                        bool named)
{
    struct efs_record *r = fs->record;
    if (count > UINT16_MAX || layer > UINT16_MAX || r->width > UINT16_MAX + 1u)
        return; /* the model is too large for a trace */
    assert(efs_is_locked(fs));
    r->request[r->requests++ % EFS_RECORD_REQUESTS] =
        (struct efs_recorded_request){r->ids, (uint16_t)layer, (uint16_t)count, named};
    for (uint32_t i = 0; i < count; i++, r->ids++) {
        r->id[r->ids % EFS_RECORD_IDS] = (uint16_t)ids[i];
        r->tokens[r->ids % EFS_RECORD_IDS] = tokens ? (uint16_t)(tokens[i] < UINT16_MAX ? tokens[i] : UINT16_MAX) : 1;
    }
}

/* ---- output ---- */

/* Copies the ring, to convert it without the lock, which is released after EFS_LOCKED_COPY_MAX bytes: what is recorded
 * meanwhile overwrites the oldest entries. NULL: no memory. */
static struct efs_record *record_copy(struct efs *fs)
{
    const struct efs_record *r = fs->record;
    struct efs_record *copy = efs_sys_malloc(sizeof(*copy));
    if (!copy)
        return NULL;
    efs_lock(fs);
    for (size_t at = 0, n; at < sizeof(*copy); at += n) {
        n = sizeof(*copy) - at < EFS_LOCKED_COPY_MAX ? sizeof(*copy) - at : EFS_LOCKED_COPY_MAX;
        efs_copy_begin(fs, n);
        efs_copy_locked(fs, (uint8_t *)copy + at, (const uint8_t *)r + at, n);
    }
    const uint64_t requests = r->requests, ids = r->ids;
    efs_unlock(fs);
    uint64_t at = requests > EFS_RECORD_REQUESTS ? requests - EFS_RECORD_REQUESTS : 0;
    while (at < copy->requests && copy->request[at % EFS_RECORD_REQUESTS].first + EFS_RECORD_IDS < ids)
        at++; /* an expert of it was overwritten */
    copy->first_request = at;
    return copy;
}

errint_t efs_record_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    *text = NULL;
    if (strcmp(what, "trace") != 0)
        return -ENODATA;
    struct efs_record *copy = record_copy(fs);
    if (!copy)
        return -ENOMEM;
    errint_t rc = record_trace(fs, copy, text, bytes);
    free(copy);
    return rc;
}
