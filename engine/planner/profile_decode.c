/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_decode.c - what decoding, copying and coding take. Decoding goes by all workers at once, as then the memory
 * is shared as it is in service; the copy and the coder run alone.
 */
#include "profile_core.h"

#include "clock.h"
#include "codec.h"
#include "parallel.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_BYTES (16u << 20) /* a worker decodes to here, round and round: more than a core's caches */
#define COPY_BYTES (32u << 20)

/* One worker that decodes what was read, from a place of its own on, until the time is over. */
struct decoder {
    const struct efs_measure *m;
    uint64_t end_ns, ran_ns, raw_bytes, shards;
    uint32_t start;
    uint8_t *target;
};

static uint64_t shard_room(const struct efs_store *store)
{
    return efs_page_up((uint64_t)store->sb.shard_elements * 4); /* no format has larger elements */
}

/* Decode the shards of a span; bytes of target go round. */
static errint_t decoder_decode(struct decoder *d, const struct efs_measured_span *span, size_t *at,
                               struct efs_codec_scratch *scratch)
{
    const struct efs_store *store = d->m->store;
    const struct efs_disk_object *object = &store->objects[span->object];
    const struct efs_disk_shard *first = &store->shards[span->first];
    uint64_t room = shard_room(store), target = room > TARGET_BYTES ? room : TARGET_BYTES;
    for (uint32_t i = 0; i < span->count; i++) {
        const struct efs_disk_shard *s = first + i;
        const uint8_t *e = s->e_bytes ? span->e.data + (s->e_offset - efs_page_down(first->e_offset)) : NULL;
        const uint8_t *sm = s->sm_bytes ? span->sm.data + (s->sm_offset - efs_page_down(first->sm_offset)) : NULL;
        const struct efs_shard_view view = {.format = (enum efs_format)object->format,
                                            .codec = s->codec,
                                            .elements = efs_store_shard_elements(store, object, span->first + i),
                                            .e = e,
                                            .sm = sm,
                                            .e_bytes = s->e_bytes,
                                            .sm_bytes = s->sm_bytes};
        if (*at + room > target)
            *at = 0;
        errint_t rc = efs_shard_decode(&view, 0, view.elements, d->target + *at, true, scratch);
        if (rc < 0)
            return rc;
        *at += room;
        d->raw_bytes += (uint64_t)view.elements * efs_format_bytes(view.format);
        d->shards++;
    }
    return 0;
}

static errint_t decoder_run(void *arg, struct efs_error *err)
{
    struct decoder *d = arg;
    struct efs_codec_scratch *scratch;
    size_t at = 0;
    (void)err;
    errint_t rc = efs_codec_scratch_new(d->m->store->sb.shard_elements, &scratch);
    if (rc < 0)
        return rc;
    for (uint32_t i = d->start; rc == 0 && i < d->start + d->m->span_count; i++) /* warm up: touch the target */
        rc = decoder_decode(d, &d->m->spans[i % d->m->span_count], &at, scratch);
    d->raw_bytes = d->shards = 0;
    uint64_t began = efs_now_ns();
    for (uint32_t i = d->start; rc == 0 && (d->shards == 0 || efs_now_ns() < d->end_ns); i++)
        rc = decoder_decode(d, &d->m->spans[i % d->m->span_count], &at, scratch);
    d->ran_ns = efs_now_ns() - began;
    efs_codec_scratch_free(scratch);
    return rc;
}

errint_t efs_measure_decode(struct efs_measure *m, unsigned workers, double seconds)
{
    struct efs_parallel parallel;
    struct decoder *decoders = efs_sys_calloc(workers, sizeof(*decoders));
    uint64_t room = shard_room(m->store), raw = 0, ran = 0, end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    errint_t rc = decoders ? 0 : -ENOMEM;
    for (unsigned i = 0; rc == 0 && i < workers; i++) {
        decoders[i] = (struct decoder){.m = m, .end_ns = end, .start = i * m->span_count / workers};
        decoders[i].target = efs_sys_aligned_alloc(EFS_ALIGN, room > TARGET_BYTES ? room : TARGET_BYTES);
        rc = decoders[i].target ? 0 : -ENOMEM;
    }
    efs_parallel_begin(&parallel, NULL, NULL);
    if (rc == 0)
        rc = efs_parallel_start(&parallel, "efs-profile", decoder_run, decoders, sizeof(*decoders), workers);
    if (rc < 0)
        efs_parallel_fail(&parallel, rc, "");
    rc = efs_parallel_end(&parallel, NULL, NULL, 0, NULL, NULL);
    for (unsigned i = 0; decoders && i < workers; i++) {
        free(decoders[i].target);
        raw += decoders[i].raw_bytes;
        ran += decoders[i].ran_ns;
    }
    free(decoders);
    m->profile->decode_bytes_per_second = (double)raw * 1e9 / (double)(ran + 1);
    return rc;
}

errint_t efs_measure_copy(struct efs_measure *m, double seconds)
{
    uint8_t *from = efs_sys_aligned_alloc(EFS_ALIGN, COPY_BYTES), *to = efs_sys_aligned_alloc(EFS_ALIGN, COPY_BYTES);
    uint64_t bytes = 0, began, end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    if (from && to) {
        memset(from, 1, COPY_BYTES);
        memset(to, 2, COPY_BYTES);
        began = efs_now_ns();
        do {
            memcpy(to, from, COPY_BYTES);
            from[bytes / COPY_BYTES % COPY_BYTES] = to[0]; /* each copy is another: none can be left out */
            bytes += COPY_BYTES;
        } while (efs_now_ns() < end);
        m->profile->copy_bytes_per_second = (double)bytes * 1e9 / (double)(efs_now_ns() - began + 1);
    }
    free(to);
    free(from);
    return bytes ? 0 : -ENOMEM;
}

/* Code the shards of what was read again, one after the other. */
errint_t efs_measure_recode(struct efs_measure *m, double seconds)
{
    const struct efs_store *store = m->store;
    size_t elements = store->sb.shard_elements;
    uint8_t *raw = efs_sys_aligned_alloc(EFS_ALIGN, shard_room(store));
    uint8_t *e = efs_sys_malloc(efs_shard_e_bound(elements)), *sm = efs_sys_malloc(shard_room(store));
    struct efs_codec_scratch *scratch = NULL;
    struct decoder one = {.m = m, .target = raw};
    uint64_t bytes = 0, spent = 0, end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    errint_t rc = raw && e && sm ? efs_codec_scratch_new(store->sb.shard_elements, &scratch) : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && (i == 0 || efs_now_ns() < end); i++) {
        struct efs_measured_span span = m->spans[i % m->span_count];
        const struct efs_disk_object *object = &store->objects[span.object];
        size_t at = 0, n = efs_store_shard_elements(store, object, span.first);
        struct efs_shard_coded coded;
        span.count = 1;
        one.raw_bytes = 0;
        rc = decoder_decode(&one, &span, &at, scratch);
        uint64_t began = efs_now_ns();
        if (rc == 0)
            rc = efs_shard_encode((enum efs_format)object->format, EFS_CHOOSE_AUTO, raw, n, e, sm, &coded, scratch);
        spent += i > 0 || efs_now_ns() >= end ? efs_now_ns() - began : 0; /* the first warms up */
        bytes += i > 0 || efs_now_ns() >= end ? one.raw_bytes : 0;
    }
    efs_codec_scratch_free(scratch);
    free(sm);
    free(e);
    free(raw);
    m->profile->recode_bytes_per_second = (double)bytes * 1e9 / (double)(spent + 1);
    return rc;
}
