/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - see record.h. */
#include "record_core.h"

#include "efs.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t efs_record_bytes(void)
{
    return sizeof(struct efs_record);
}

errint_t efs_record_build(struct efs *fs)
{
    fs->record = efs_sys_calloc(1, sizeof(*fs->record));
    if (!fs->record)
        return -ENOMEM;
    pthread_mutex_init(&fs->record->lock, NULL);
    return 0;
}

void efs_record_destroy(struct efs *fs)
{
    if (fs->record)
        pthread_mutex_destroy(&fs->record->lock);
    free(fs->record);
    fs->record = NULL;
}

void efs_record_layers(struct efs *fs, uint32_t layers, uint32_t width, const uint32_t *layer_first)
{
    struct efs_record *r = fs->record;
    r->layers = layers;
    r->width = width;
    r->layer_first = layer_first;
}

void efs_record(struct efs *fs, enum efs_record_kind kind, uint32_t expert, uint32_t extent, uint32_t shard,
                uint64_t begin_ns, uint64_t end_ns)
{
    struct efs_record *r = fs->record;
    static _Thread_local int32_t thread; /* gettid(2) is a system call */
    if (!thread)
        thread = (int32_t)gettid();
    pthread_mutex_lock(&r->lock);
    r->operation[r->operations++ % EFS_RECORD_OPERATIONS] = (struct efs_recorded_operation){.begin_ns = begin_ns,
                                                                                            .end_ns = end_ns,
                                                                                            .expert = expert,
                                                                                            .extent = extent,
                                                                                            .shard = (uint16_t)shard,
                                                                                            .kind = (uint8_t)kind,
                                                                                            .thread = thread};
    pthread_mutex_unlock(&r->lock);
}

void efs_record_request(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                        bool named)
{
    struct efs_record *r = fs->record;
    if (count > UINT16_MAX || layer > UINT16_MAX || r->width > UINT16_MAX + 1u)
        return; /* of a model that a trace does not take */
    pthread_mutex_lock(&r->lock);
    r->request[r->requests++ % EFS_RECORD_REQUESTS] =
        (struct efs_recorded_request){efs_now_ns(), r->ids, (uint16_t)layer, (uint16_t)count, named};
    for (uint32_t i = 0; i < count; i++, r->ids++) {
        r->id[r->ids % EFS_RECORD_IDS] = (uint16_t)ids[i];
        r->tokens[r->ids % EFS_RECORD_IDS] = tokens ? (uint16_t)(tokens[i] < UINT16_MAX ? tokens[i] : UINT16_MAX) : 1;
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- for people and tools ---- */

static void tell_operations(const struct efs *fs, const struct efs_record *r, FILE *out)
{
    static const char *const kinds[] = {"read_e", "read_sm", "decode"};
    fprintf(out, "%-8s %-24s %6s %6s %16s %16s %8s\n", "kind", "expert", "extent", "shard", "begin_ns", "end_ns",
            "thread");
    uint64_t from = r->operations > EFS_RECORD_OPERATIONS ? r->operations - EFS_RECORD_OPERATIONS : 0;
    for (uint64_t i = from; i < r->operations; i++) {
        const struct efs_recorded_operation *o = &r->operation[i % EFS_RECORD_OPERATIONS];
        char name[64];
        efs_view_expert_name(&fs->view, o->expert, name, sizeof(name));
        fprintf(out, "%-8s %-24s %6u %6u %16llu %16llu %8d\n", kinds[o->kind], name, o->extent, o->shard,
                (unsigned long long)o->begin_ns, (unsigned long long)o->end_ns, o->thread);
    }
}

/* "at_ns layer: expert*tokens ...", the numbers as the checkpoint has them. */
static void tell_requests(const struct efs *fs, const struct efs_record *r, FILE *out)
{
    for (uint64_t i = efs_record_oldest(r); i < r->requests; i++) {
        const struct efs_recorded_request *q = &r->request[i % EFS_RECORD_REQUESTS];
        uint32_t first = r->layer_first[q->layer];
        fprintf(out, "%llu %u %u:", (unsigned long long)q->at_ns, q->layer, fs->store->groups[first].layer);
        for (uint32_t n = 0; n < q->count; n++)
            fprintf(out, " %u*%u", fs->store->groups[first + r->id[(q->first + n) % EFS_RECORD_IDS]].expert,
                    r->tokens[(q->first + n) % EFS_RECORD_IDS]);
        fputc('\n', out);
    }
}

static errint_t record_tell(const struct efs *fs, const struct efs_record *r, const char *what, char **text,
                            size_t *bytes)
{
    FILE *out = open_memstream(text, bytes);
    if (out && strcmp(what, "sched") == 0)
        tell_operations(fs, r, out);
    else if (out)
        tell_requests(fs, r, out);
    if (out && fclose(out) == 0)
        return 0;
    if (out)
        free(*text);
    *text = NULL;
    return -ENOMEM;
}

errint_t efs_record_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    bool trace = strcmp(what, "trace") == 0;
    *text = NULL;
    if (!trace && strcmp(what, "sched") != 0 && strcmp(what, "requests") != 0)
        return -ENODATA;
    struct efs_record *copy = efs_sys_malloc(sizeof(*copy)); /* so that no one waits while it is printed */
    if (!copy)
        return -ENOMEM;
    pthread_mutex_lock(&fs->record->lock);
    memcpy(copy, fs->record, sizeof(*copy));
    pthread_mutex_unlock(&fs->record->lock);
    errint_t rc = trace ? efs_record_trace(fs, copy, text, bytes) : record_tell(fs, copy, what, text, bytes);
    free(copy);
    return rc;
}
