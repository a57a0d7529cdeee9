/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim_journal.c - records one after the other, each synced before the next: a header of 64 bytes, the payload,
 * zeros up to the next multiple of 512.
 *
 * A crash can cut the last record short, and that record then never counted. A record that is damaged with another one
 * behind it is damage: what it told of is freed in the sources, so nothing may go on without it.
 */
#include "hash.h"
#include "reclaim.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_ALIGN 512u
#define MAGIC "efsrecl1"

struct header {
    char magic[8];
    uint64_t number; /* from 0 */
    uint64_t type;
    uint64_t bytes, hash; /* of the payload */
    uint64_t reserved[2];
    uint64_t header_hash; /* of what is before it */
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

/* Whether a record begins at data, of which left bytes are there. */
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

errint_t efs_reclaim_journal_read(struct efs_reclaim *r, efs_reclaim_record_fn *each, struct efs_error *err)
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
