/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_save.c - saves and loads the learned data: a header, then the learned tables in their memory layout.
 *
 *     u8[8]  "EFSGUESS"
 *     u32    version (3), kind, layers, experts, chosen, distances, sequences; maps, requests and width of the tuning
 *     u32    width of states, 0
 *     u64    memory_bytes
 *     u64    checksum of the tables: FNV-1a of 64 bits
 *
 * The header determines the number and lengths of the tables. Numbers are little-endian, as on all processors that
 * expertfs supports.
 */
#include "predict_internal.h"

#include <errno.h>

#define VERSION 3u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are saved as they are in memory");

struct header {
    char magic[8];
    uint32_t numbers[12];
    uint64_t memory_bytes, checksum;
};
_Static_assert(sizeof(struct header) == EFS_PREDICT_HEADER_BYTES, "no padding");

static struct header header_of(const struct efs_predictor *p)
{
    const struct efs_predict_config *c = &p->config;
    const struct efs_predict_tuning *t = &c->tuning;

    return (struct header){"EFSGUESS",
                           {VERSION, c->kind, c->layers, c->experts, c->chosen, c->distances, c->sequences, t->maps,
                            t->requests, t->width, c->state_width, 0},
                           c->memory_bytes,
                           UINT64_C(0xcbf29ce484222325)};
}

static uint64_t checksum_add(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static size_t saved_bytes(const struct efs_predictor *p)
{
    size_t bytes = sizeof(struct header);

    for (unsigned t = 0; t < p->learned_count; t++)
        bytes += p->learned[t].bytes;
    return bytes;
}

size_t efs_predict_save(const struct efs_predictor *p, void *bytes, size_t room)
{
    struct header header = header_of(p);
    uint8_t *at = (uint8_t *)bytes + sizeof(header);

    if (saved_bytes(p) > room)
        return saved_bytes(p);
    for (unsigned t = 0; t < p->learned_count; t++) {
        memcpy(at, p->learned[t].at, p->learned[t].bytes);
        header.checksum = checksum_add(header.checksum, at, p->learned[t].bytes);
        at += p->learned[t].bytes;
    }
    memcpy(bytes, &header, sizeof(header));
    return saved_bytes(p);
}

static void learned_forget(struct efs_predictor *p)
{
    for (unsigned t = 0; t < p->learned_count; t++)
        memset(p->learned[t].at, 0, p->learned[t].bytes);
}

static int load_tables(struct efs_predictor *p, efs_predict_read_fn *read, void *from, uint64_t size)
{
    struct header header, mine = header_of(p);
    uint64_t at = sizeof(header);
    int rc = size < sizeof(header) ? -EUCLEAN : read(from, 0, &header, sizeof(header));

    if (rc < 0)
        return rc;
    if (memcmp(&header, &mine, offsetof(struct header, checksum)) != 0)
        return memcmp(header.magic, mine.magic, sizeof(mine.magic)) != 0 ? -EUCLEAN : -EINVAL;
    if (size != saved_bytes(p))
        return -EUCLEAN;
    for (unsigned t = 0; rc == 0 && t < p->learned_count; t++) {
        rc = read(from, at, p->learned[t].at, p->learned[t].bytes);
        mine.checksum = rc ? 0 : checksum_add(mine.checksum, p->learned[t].at, p->learned[t].bytes);
        at += p->learned[t].bytes;
    }
    if (rc == 0 && (mine.checksum != header.checksum || (p->ops->valid && !p->ops->valid(p))))
        rc = -EUCLEAN;
    return rc;
}

int efs_predict_load_from(struct efs_predictor *p, efs_predict_read_fn *read, void *from, uint64_t size)
{
    int rc;

    for (unsigned s = 0; s < p->config.sequences; s++)
        if (p->sequences[s].used)
            return -EBUSY;
    learned_forget(p);
    rc = load_tables(p, read, from, size);
    if (rc < 0)
        learned_forget(p);
    return rc;
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
