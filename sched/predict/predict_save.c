/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_save.c - what was learned as bytes, and back, every number checked before it is used.
 *
 *     u8[8]  "EFSGUESS"
 *     u32    version (1), kind, layers, experts, chosen, distances, sequences; maps, requests and width of the tuning
 *     u64    memory_bytes, by which rows are as many as they are: another one may load them
 *     u64    checksum of all else: FNV-1a of 64 bits
 *     the tables in the order in which the predictor makes them: u64 numbers, u64 bytes of each, the numbers
 */
#include "predict_core.h"

#include <errno.h>

#define VERSION 1u
#define HEADER_BYTES 64u
#define MEMORY_AT 48u
#define CHECKSUM_AT 56u
#define PIECE_BYTES 4096u

struct writer {
    uint8_t *bytes;
    size_t room, at; /* at goes on beyond room, where nothing is written */
};

/* What is loaded, piece by piece: what is saved may be larger than all that this predictor may hold. */
struct reader {
    efs_predict_read_fn *read;
    void *from;
    uint64_t size, at;
    int error; /* the first one: zeroes follow */
    uint8_t piece[PIECE_BYTES];
};

static void put(struct writer *out, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++, out->at++)
        if (out->at < out->room)
            out->bytes[out->at] = (uint8_t)(value >> 8 * i);
}

/* Not beyond the end: the caller has looked. */
static uint8_t get_byte(struct reader *in)
{
    size_t in_piece = in->at % PIECE_BYTES;
    uint64_t left = in->size - in->at;

    if (in_piece == 0 && !in->error)
        in->error = in->read(in->from, in->at, in->piece, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES);
    in->at++;
    return in->error ? 0 : in->piece[in_piece];
}

static uint64_t get(struct reader *in, size_t size)
{
    uint64_t value = 0;

    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)get_byte(in) << 8 * i;
    return value;
}

static uint64_t checksum_add(uint64_t hash, uint64_t at, uint8_t byte)
{
    return at < CHECKSUM_AT || at >= HEADER_BYTES ? (hash ^ byte) * UINT64_C(0x100000001b3) : hash;
}
#define CHECKSUM_FIRST UINT64_C(0xcbf29ce484222325)

static uint64_t checksum(const uint8_t *bytes, size_t size)
{
    uint64_t hash = CHECKSUM_FIRST;

    for (size_t i = 0; i < size; i++)
        hash = checksum_add(hash, i, bytes[i]);
    return hash;
}

static uint64_t number_at(const struct efs_predict_learned_table *table, size_t i)
{
    const uint8_t *at = (const uint8_t *)table->at + i * table->rows.size;
    uint16_t two;
    uint32_t four;
    uint64_t eight;

    switch (table->rows.size) {
    case 1:
        return *at;
    case 2:
        memcpy(&two, at, 2);
        return two;
    case 4:
        memcpy(&four, at, 4);
        return four;
    default:
        memcpy(&eight, at, 8);
        return eight;
    }
}

static void set_number(const struct efs_predict_learned_table *table, size_t i, uint64_t value)
{
    uint8_t *at = (uint8_t *)table->at + i * table->rows.size;
    uint16_t two = (uint16_t)value;
    uint32_t four = (uint32_t)value;

    switch (table->rows.size) {
    case 1:
        *at = (uint8_t)value;
        break;
    case 2:
        memcpy(at, &two, 2);
        break;
    case 4:
        memcpy(at, &four, 4);
        break;
    default:
        memcpy(at, &value, 8);
    }
}

/* Without its checksum. */
static void put_header(const struct efs_predictor *p, struct writer *out)
{
    const struct efs_predict_config *c = &p->config;
    const struct efs_predict_tuning *t = &c->tuning;
    const uint32_t numbers[] = {VERSION,      (uint32_t)c->kind, c->layers, c->experts,  c->chosen,
                                c->distances, c->sequences,      t->maps,   t->requests, t->width};

    for (size_t i = 0; i < 8; i++)
        put(out, (uint8_t) "EFSGUESS"[i], 1);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        put(out, numbers[i], 4);
    put(out, c->memory_bytes, 8);
    put(out, 0, 8);
}

size_t efs_predict_save(const struct efs_predictor *p, void *bytes, size_t room)
{
    struct writer out = {bytes, room, 0}, sum;

    put_header(p, &out);
    for (unsigned t = 0; t < p->learned_count; t++) {
        put(&out, p->learned[t].count, 8);
        put(&out, p->learned[t].rows.size, 8);
        for (size_t i = 0; i < p->learned[t].count; i++)
            put(&out, number_at(&p->learned[t], i), p->learned[t].rows.size);
    }
    if (out.at <= room) {
        sum = (struct writer){bytes, room, CHECKSUM_AT};
        put(&sum, checksum(bytes, out.at), 8);
    }
    return out.at;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* Which rows of those that were saved are taken: kept ones from first on, around the end. */
struct span {
    uint64_t saved, first, kept;
};

static bool span_of_ring(const struct efs_predict_ring *ring, uint64_t saved, uint64_t rows, struct span *span)
{
    uint64_t count = *ring->count, next = ring->next ? *ring->next : saved > 0 ? count % saved : 0;

    *span = (struct span){saved, 0, rows};
    if (saved == rows)
        return true;
    span->kept = count < rows ? count : rows;
    span->first = saved > 0 ? (next + saved - span->kept) % saved : 0;
    return count <= saved && next < saved;
}

/* A row as it is numbered now; the kept ones' number, and more, if it is not taken. */
static uint64_t span_row(const struct span *span, uint64_t row)
{
    return (row + span->saved - span->first) % span->saved;
}

static uint64_t span_link(const struct span *span, uint64_t link)
{
    uint64_t row;

    if (link == 0 || link > span->saved)
        return link; /* 0, or what is not valid, nor will be */
    row = span_row(span, link - 1);
    return row < span->kept ? row + 1 : 0;
}

static void take_rows(const struct efs_predict_learned_table *table, const struct span *span, struct reader *in)
{
    const struct efs_predict_rows *r = &table->rows;

    for (uint64_t outer = 0; outer < r->outer; outer++)
        for (uint64_t saved = 0; saved < span->saved; saved++) {
            uint64_t row = span_row(span, saved), at = (outer * r->rows + row) * r->inner;

            for (uint64_t i = 0; i < r->inner; i++) {
                uint64_t value = get(in, r->size);

                if (row < span->kept)
                    set_number(table, (size_t)(at + i), r->links ? span_link(span, value) : value);
            }
        }
}

static bool take_table(const struct efs_predict_learned_table *table, struct span *of_ring, struct reader *in)
{
    const struct efs_predict_rows *r = &table->rows;
    uint64_t each = (uint64_t)r->outer * r->inner, left = in->size - in->at, count, size;
    struct span span;

    if (left < 16)
        return false;
    count = get(in, 8);
    size = get(in, 8);
    if (size != r->size || count > (left - 16) / size || (each > 0 ? count % each : count) > 0)
        return false;
    span = (struct span){each > 0 ? count / each : r->rows, 0, r->rows};
    if (r->fixed && span.saved != r->rows)
        return false;
    span.kept = span.saved < r->rows ? span.saved : r->rows;
    if (r->ring && of_ring->saved == 0 && !span_of_ring(r->ring, span.saved, r->rows, of_ring))
        return false;
    if (r->ring && of_ring->saved != span.saved)
        return false;
    take_rows(table, r->ring ? of_ring : &span, in);
    return true;
}

static bool take_tables(struct efs_predictor *p, struct reader *in)
{
    struct span of_ring = {0, 0, 0};
    const struct efs_predict_rows *ring = NULL;

    for (unsigned t = 0; t < p->learned_count; t++) {
        if (!take_table(&p->learned[t], &of_ring, in))
            return false;
        ring = p->learned[t].rows.ring ? &p->learned[t].rows : ring;
    }
    if (ring && of_ring.saved != ring->rows) {
        *ring->ring->count = (uint32_t)of_ring.kept;
        if (ring->ring->next)
            *ring->ring->next = of_ring.kept < ring->rows ? (uint32_t)of_ring.kept : 0;
    }
    return in->at == in->size;
}

static void learned_forget(struct efs_predictor *p)
{
    for (unsigned t = 0; t < p->learned_count; t++)
        memset(p->learned[t].at, 0, p->learned[t].count * p->learned[t].rows.size);
}

/* The header, if all is as it was saved. */
static int load_check(struct reader *in, uint8_t header[HEADER_BYTES])
{
    uint64_t hash = CHECKSUM_FIRST, saved = 0;

    if (in->size < HEADER_BYTES)
        return -EUCLEAN;
    while (in->at < in->size) {
        uint64_t at = in->at;
        uint8_t byte = get_byte(in);

        hash = checksum_add(hash, at, byte);
        if (at < HEADER_BYTES)
            header[at] = byte;
    }
    for (unsigned i = 0; i < 8; i++)
        saved |= (uint64_t)header[CHECKSUM_AT + i] << 8 * i;
    return in->error ? in->error : hash == saved ? 0 : -EUCLEAN;
}

int efs_predict_load_from(struct efs_predictor *p, efs_predict_read_fn *read, void *from, uint64_t size)
{
    uint8_t mine[HEADER_BYTES], header[HEADER_BYTES];
    struct writer out = {mine, sizeof(mine), 0};
    struct reader in = {.read = read, .from = from, .size = size};
    int rc;

    for (unsigned s = 0; s < p->config.sequences; s++)
        if (p->sequences[s].used)
            return -EBUSY;
    learned_forget(p);
    rc = load_check(&in, header);
    if (rc < 0)
        return rc;
    put_header(p, &out);
    if (memcmp(header, mine, MEMORY_AT) != 0)
        return -EINVAL;
    in.at = 0;
    while (in.at < HEADER_BYTES)
        get_byte(&in);
    if (take_tables(p, &in) && !in.error && (!p->ops->valid || p->ops->valid(p)))
        return 0;
    learned_forget(p);
    return in.error ? in.error : -EUCLEAN;
}

static int read_memory(void *from, uint64_t at, void *bytes, size_t size)
{
    memcpy(bytes, (const uint8_t *)from + at, size);
    return 0;
}

int efs_predict_load(struct efs_predictor *p, const void *bytes, size_t size)
{
    return efs_predict_load_from(p, read_memory, (void *)(uintptr_t)bytes, size);
}
