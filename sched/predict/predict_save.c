/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_save.c - what was learned as bytes, and back, every number checked before it is used.
 *
 *     u8[8]  "EFSGUESS"
 *     u32    version (1), kind, layers, experts, chosen, distances, sequences; maps, requests and width of the tuning
 *     u64    memory_bytes, by which tables are sized
 *     u64    checksum of all else: FNV-1a of 64 bits
 *     the tables in the order in which the predictor makes them: u64 numbers, u64 bytes of each, the numbers
 */
#include "predict_core.h"

#include <errno.h>

#define VERSION 1u
#define HEADER_BYTES 64u
#define CHECKSUM_AT 56u

struct writer {
    uint8_t *bytes;
    size_t room, at; /* at goes on beyond room, where nothing is written */
};

struct reader {
    const uint8_t *bytes;
    size_t size, at;
};

static void put(struct writer *out, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++, out->at++)
        if (out->at < out->room)
            out->bytes[out->at] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(struct reader *in, size_t size)
{
    uint64_t value = 0;

    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)in->bytes[in->at++] << 8 * i;
    return value;
}

static uint64_t checksum(const uint8_t *bytes, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < size; i++)
        if (i < CHECKSUM_AT || i >= HEADER_BYTES)
            hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t number_at(const struct efs_predict_learned_table *table, size_t i)
{
    const uint8_t *at = (const uint8_t *)table->at + i * table->size;
    uint16_t two;
    uint32_t four;
    uint64_t eight;

    switch (table->size) {
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
    uint8_t *at = (uint8_t *)table->at + i * table->size;
    uint16_t two = (uint16_t)value;
    uint32_t four = (uint32_t)value;

    switch (table->size) {
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
        put(&out, p->learned[t].size, 8);
        for (size_t i = 0; i < p->learned[t].count; i++)
            put(&out, number_at(&p->learned[t], i), p->learned[t].size);
    }
    if (out.at <= room) {
        sum = (struct writer){bytes, room, CHECKSUM_AT};
        put(&sum, checksum(bytes, out.at), 8);
    }
    return out.at;
}

static bool take_tables(struct efs_predictor *p, struct reader *in)
{
    for (unsigned t = 0; t < p->learned_count; t++) {
        const struct efs_predict_learned_table *table = &p->learned[t];

        if (in->size - in->at < 16 || get(in, 8) != table->count || get(in, 8) != table->size ||
            in->size - in->at < table->count * table->size)
            return false;
        for (size_t i = 0; i < table->count; i++)
            set_number(table, i, get(in, table->size));
    }
    return in->at == in->size;
}

static void learned_forget(struct efs_predictor *p)
{
    for (unsigned t = 0; t < p->learned_count; t++)
        memset(p->learned[t].at, 0, p->learned[t].count * p->learned[t].size);
}

int efs_predict_load(struct efs_predictor *p, const void *bytes, size_t size)
{
    uint8_t mine[HEADER_BYTES];
    struct writer header = {mine, sizeof(mine), 0};
    struct reader in = {bytes, size, CHECKSUM_AT};

    for (unsigned s = 0; s < p->config.sequences; s++)
        if (p->sequences[s].used)
            return -EBUSY;
    learned_forget(p);
    put_header(p, &header);
    if (size < HEADER_BYTES || get(&in, 8) != checksum(bytes, size))
        return -EUCLEAN;
    if (memcmp(bytes, mine, CHECKSUM_AT) != 0)
        return -EINVAL;
    if (take_tables(p, &in) && (!p->ops->valid || p->ops->valid(p)))
        return 0;
    learned_forget(p);
    return -EUCLEAN;
}
