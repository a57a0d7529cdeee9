/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counts.c - the history of a store as a file: little-endian, all numbers in their places, a checksum over the lot.
 *
 *     0  "EFSCOUNT"            24  u32 layers, u32 experts
 *     8  u32 version, u32 0    32  u64 sequences
 *    16  u64 content hash      40  u64 XXH3_64 of the file with this field 0
 *    48  u64 passes[layers], u64 ranked[layers], u32 counts[layers][experts], u32 at_rank[layers][experts]
 */
#include "counts.h"

#include "hash.h"
#include "state_file.h"
#include "regular.h"
#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "EFSCOUNT"
#define VERSION 1u
#define HEADER_BYTES 48u
#define HASH_AT 40u

static void counts_put32(uint8_t **p, uint32_t n)
{
    n = htole32(n);
    memcpy(*p, &n, sizeof(n));
    *p += sizeof(n);
}

static void counts_put64(uint8_t **p, uint64_t n)
{
    n = htole64(n);
    memcpy(*p, &n, sizeof(n));
    *p += sizeof(n);
}

static uint32_t counts_get32(const uint8_t **p)
{
    uint32_t n;
    memcpy(&n, *p, sizeof(n));
    *p += sizeof(n);
    return le32toh(n);
}

static uint64_t counts_get64(const uint8_t **p)
{
    uint64_t n;
    memcpy(&n, *p, sizeof(n));
    *p += sizeof(n);
    return le64toh(n);
}

/* Of a history, whose sizes are within its limits: some 34 MB at the most. */
static size_t file_bytes(const struct efs_history *h)
{
    return HEADER_BYTES + 16 * (size_t)h->layers + 8 * (size_t)h->layers * h->experts;
}

errint_t efs_counts_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err)
{
    return efs_state_path("counts", content_hash, "bin", path, room, err);
}

/* ---- out ---------------------------------------------------------------------------------------------------- */

static void counts_put(const struct efs_history *h, uint64_t content_hash, uint8_t *data, size_t bytes)
{
    size_t extents = (size_t)h->layers * h->experts;
    uint8_t *p = data, *hash = data + HASH_AT;
    memcpy(p, MAGIC, 8);
    p += 8;
    counts_put32(&p, VERSION);
    counts_put32(&p, 0);
    counts_put64(&p, content_hash);
    counts_put32(&p, h->layers);
    counts_put32(&p, h->experts);
    counts_put64(&p, h->sequences);
    counts_put64(&p, 0);
    for (unsigned l = 0; l < h->layers; l++)
        counts_put64(&p, h->passes[l]);
    for (unsigned l = 0; l < h->layers; l++)
        counts_put64(&p, h->ranked[l]);
    for (size_t i = 0; i < extents; i++)
        counts_put32(&p, h->counts[i]);
    for (size_t i = 0; i < extents; i++)
        counts_put32(&p, h->at_rank[i]);
    counts_put64(&hash, efs_hash(data, bytes));
}

errint_t efs_counts_save(uint64_t content_hash, const struct efs_history *history, struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    errint_t rc = efs_counts_path(content_hash, path, sizeof(path), err);
    if (rc < 0)
        return rc;
    size_t bytes = file_bytes(history);
    uint8_t *data = efs_sys_malloc(bytes);
    if (!data)
        return efs_fail(err, -ENOMEM, "%s: no memory", path);
    counts_put(history, content_hash, data, bytes);
    rc = efs_state_save(path, data, bytes, err);
    free(data);
    return rc;
}

/* ---- in ----------------------------------------------------------------------------------------------------- */

/* The header against what is expected, before anything else is read; NULL: it fits. */
static const char *check_header(uint8_t *data, size_t bytes, uint64_t content_hash, const struct efs_history *h)
{
    const uint8_t *p = data + 8;
    if (bytes < HEADER_BYTES || memcmp(data, MAGIC, 8) != 0)
        return "not a file of counts";
    if (counts_get32(&p) != VERSION)
        return "counts of a version that is not known";
    if (counts_get32(&p) != 0)
        return "a reserved field is not 0";
    if (counts_get64(&p) != content_hash)
        return "counts of another store";
    uint32_t layers = counts_get32(&p), experts = counts_get32(&p);
    if (layers != h->layers || experts != h->experts)
        return "counts of other layers and experts";
    if (bytes != file_bytes(h))
        return "cut, or too long";
    p = data + HASH_AT;
    uint64_t hash = counts_get64(&p);
    memset(data + HASH_AT, 0, sizeof(hash));
    return efs_hash(data, bytes) == hash ? NULL : "the checksum is wrong";
}

/* The numbers, each within what it is a part of: a checksum can be forged. */
static const char *counts_get(const uint8_t *data, struct efs_history *h)
{
    const uint8_t *p = data + 32;
    h->sequences = counts_get64(&p);
    p = data + HEADER_BYTES;
    for (unsigned l = 0; l < h->layers; l++)
        if ((h->passes[l] = counts_get64(&p)) > EFS_HISTORY_MAX_PASSES)
            return "more passes than there can be";
    for (unsigned l = 0; l < h->layers; l++)
        if ((h->ranked[l] = counts_get64(&p)) > h->passes[l])
            return "more passes with ranks than passes";
    for (unsigned l = 0; l < h->layers; l++)
        for (size_t i = (size_t)l * h->experts; i < (size_t)(l + 1) * h->experts; i++)
            if ((h->counts[i] = counts_get32(&p)) > h->passes[l])
                return "an expert asked for more often than its layer";
    for (unsigned l = 0; l < h->layers; l++)
        for (size_t i = (size_t)l * h->experts; i < (size_t)(l + 1) * h->experts; i++)
            if ((h->at_rank[i] = counts_get32(&p)) > h->ranked[l])
                return "a rank asked for more often than its layer";
    return NULL;
}

/* Into *data, which the caller frees. The file is no longer than it should be: nothing larger is read. */
static errint_t read_file(const char *path, size_t expected, uint8_t **data, size_t *bytes, struct efs_error *err)
{
    struct stat st;
    int fd = efs_regular_open_path(path, &st, err);
    if (fd < 0)
        return fd;
    *bytes = (uint64_t)st.st_size < expected ? (size_t)st.st_size : expected;
    *data = efs_sys_malloc(expected);
    errint_t rc = *data ? 0 : -ENOMEM;
    if (rc == 0)
        rc = efs_sys_pread_all(fd, *data, *bytes, 0);
    if (rc == 0 && (uint64_t)st.st_size > expected)
        ++*bytes; /* too long: seen by check_header() after what says more */
    efs_sys_close(fd);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

errint_t efs_counts_load(uint64_t content_hash, unsigned layers, unsigned experts, struct efs_history *history,
                         struct efs_error *err)
{
    char path[EFS_STATE_PATH_BYTES];
    uint8_t *data = NULL;
    size_t bytes = 0;
    errint_t rc = efs_history_init(history, layers, experts);
    if (rc < 0)
        return efs_fail(err, rc, "a history of %u layers of %u experts: %s", layers, experts, strerror(-rc));
    rc = efs_counts_path(content_hash, path, sizeof(path), err);
    if (rc == 0)
        rc = read_file(path, file_bytes(history), &data, &bytes, err);
    if (rc == 0) {
        const char *wrong = check_header(data, bytes, content_hash, history);
        if (!wrong && (wrong = counts_get(data, history)))
            efs_history_clear(history);
        if (wrong)
            rc = efs_fail(err, -EUCLEAN, "%s: %s", path, wrong);
    }
    free(data);
    return rc;
}
