/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - the experts of a store, from the headers of the files that a mount would show. */
#include "model.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX (1u << 20)

/* ---- reading, and waiting for it ---------------------------------------------------------------------------- */

struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool done;
    errint_t error;
    size_t bytes;
};

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct waiter *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->done = true;
    w->error = error;
    w->bytes = bytes;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

/* Exactly bytes of a file; -EUCLEAN: it is shorter. */
static errint_t read_part(struct efs *fs, uint32_t file, uint64_t at, void *out, size_t bytes)
{
    struct waiter w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    efs_read(fs, file, NULL, at, out, bytes, read_done, &w);
    pthread_mutex_lock(&w.mutex);
    while (!w.done)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    pthread_cond_destroy(&w.cond);
    pthread_mutex_destroy(&w.mutex);
    return w.error ? w.error : w.bytes == bytes ? 0 : -EUCLEAN;
}

/* ---- one expert --------------------------------------------------------------------------------------------- */

static errint_t model_take_tensor(const char *name, const json_t *entry, uint64_t base, struct replay_expert *expert)
{
    struct replay_tensor *t = &expert->tensors[expert->count];
    json_int_t begin, end;
    const char *dtype;
    json_t *shape;
    if (json_unpack((json_t *)(uintptr_t)entry, "{s:s, s:o, s:[I,I]}", "dtype", &dtype, "shape", &shape, "data_offsets",
                    &begin, &end) != 0 ||
        begin < 0 || end < begin || (uint64_t)end > expert->file_bytes - base)
        return -EUCLEAN;
    *t = (struct replay_tensor){.name = strdup(name),
                                .at = base + (uint64_t)begin,
                                .bytes = (uint64_t)(end - begin),
                                .raw_file = REPLAY_NOWHERE};
    if (!t->name)
        return -ENOMEM;
    expert->count++;
    expert->bytes += t->bytes;
    uint64_t bytes;
    if (strcmp(dtype, "BF16") == 0 && json_array_size(shape) == 2) {
        json_int_t rows = json_integer_value(json_array_get(shape, 0)),
                   columns = json_integer_value(json_array_get(shape, 1));
        if (rows > 0 && columns > 0 && !__builtin_mul_overflow((uint64_t)rows, 2 * (uint64_t)columns, &bytes) &&
            bytes == t->bytes) {
            t->rows = (uint64_t)rows;
            t->columns = (uint64_t)columns;
        }
    }
    return 0;
}

static errint_t model_take_header(json_t *header, uint64_t base, struct replay_expert *expert)
{
    const char *name;
    json_t *entry;
    errint_t rc = 0;
    if (!json_is_object(header) || json_object_size(header) > REPLAY_TENSORS_MAX + 1)
        return -EUCLEAN;
    expert->tensors = calloc(REPLAY_TENSORS_MAX, sizeof(*expert->tensors));
    if (!expert->tensors)
        return -ENOMEM;
    json_object_foreach(header, name, entry)
    {
        if (rc == 0 && strcmp(name, "__metadata__") != 0)
            rc = expert->count < REPLAY_TENSORS_MAX ? model_take_tensor(name, entry, base, expert) : -EUCLEAN;
    }
    return rc;
}

static errint_t model_take_expert(struct efs *fs, uint32_t file, struct replay_expert *expert)
{
    uint8_t word[8];
    uint64_t length = 0;
    errint_t rc = read_part(fs, file, 0, word, sizeof(word));
    for (unsigned i = 0; i < 8; i++)
        length |= (uint64_t)word[i] << (8 * i);
    if (rc < 0)
        return rc;
    if (length > HEADER_MAX || length > expert->file_bytes - 8)
        return -EUCLEAN;
    char *text = malloc(length + 1);
    rc = text ? read_part(fs, file, 8, text, length) : -ENOMEM;
    json_t *header = rc == 0 ? json_loadb(text, length, 0, NULL) : NULL;
    if (rc == 0)
        rc = model_take_header(header, 8 + length, expert);
    json_decref(header);
    free(text);
    return rc;
}

/* ---- all of them -------------------------------------------------------------------------------------------- */

struct place {
    uint32_t file, id, expert, order; /* order: of its layer, as they come */
    struct replay_layer layer;
};

static int compare_places(const void *pa, const void *pb)
{
    const struct place *a = pa, *b = pb;
    uint64_t x = (uint64_t)a->order << 32 | a->expert, y = (uint64_t)b->order << 32 | b->expert;
    return (x > y) - (x < y);
}

/* Where each expert is, sorted by layer and number; layers with the same name belong together. */
static errint_t model_find_places(struct efs *fs, uint32_t count, struct place *places, uint32_t *layers)
{
    char before[64] = "";
    uint32_t order = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct efs_expert_info info;
        errint_t rc = efs_expert_info(fs, efs_id(i), &info, sizeof(info));
        if (rc < 0)
            return rc;
        const char *slash = strchr(info.name, '/');
        size_t bytes = slash ? (size_t)(slash - info.name) : strlen(info.name);
        if (i > 0 && (strlen(before) != bytes || memcmp(before, info.name, bytes) != 0))
            order++;
        memcpy(before, info.name, bytes);
        before[bytes] = '\0';
        places[i] = (struct place){.file = info.file, .id = i, .expert = info.expert, .order = order};
        const char *stack_end = strrchr(before, '-'); /* "L03", with several stacks "encoder-L03" */
        snprintf(places[i].layer.stack, sizeof(places[i].layer.stack), "%.*s",
                 stack_end ? (int)(stack_end - before) : 0, before);
        places[i].layer.number = info.layer;
    }
    *layers = order + 1;
    qsort(places, count, sizeof(*places), compare_places);
    return 0;
}

static errint_t model_take_all(struct efs *fs, const char *store, const struct place *places, struct replay_model *m,
                               struct efs_error *err)
{
    for (uint32_t i = 0; i < m->layers * m->experts; i++) {
        struct efs_file_info file;
        struct replay_expert *expert = &m->all[i];
        if (places[i].order != i / m->experts)
            return efs_fail(err, -EOPNOTSUPP, "%s: its layers have different numbers of experts", store);
        errint_t rc = efs_file_info(fs, places[i].file, &file, sizeof(file));
        if (rc == 0 && (strlen(file.path) >= sizeof(expert->path) || file.bytes < 8))
            rc = -EUCLEAN;
        if (rc == 0) {
            memcpy(expert->path, file.path, strlen(file.path) + 1);
            expert->number = places[i].expert;
            expert->id = places[i].id;
            expert->file_bytes = file.bytes;
            m->layer[i / m->experts] = places[i].layer;
            rc = model_take_expert(fs, places[i].file, expert);
        }
        if (rc < 0)
            return efs_fail(err, rc, "%s: the header of %s cannot be read: %s", store, file.path, strerror(-rc));
        if (expert->bytes > m->most_bytes)
            m->most_bytes = expert->bytes;
    }
    return 0;
}

errint_t replay_model_load(const char *store, struct replay_model *m, struct efs_error *err)
{
    const struct efs_options options = {.size = sizeof(struct efs_options)};
    struct efs *fs;
    *m = (struct replay_model){0};
    errint_t rc = efs_open(store, &options, &fs, err);
    if (rc < 0)
        return rc;
    uint32_t count = efs_expert_count(fs);
    struct place *places = calloc(count + 1u, sizeof(*places));
    if (!places)
        rc = efs_fail(err, -ENOMEM, "no memory");
    else if (count == 0)
        rc = efs_fail(err, -ENOENT, "%s: no experts", store);
    else if (efs_view_hidden(fs))
        rc = efs_fail(err, -EOPNOTSUPP, "%s: its experts are not shown as files", store);
    else
        rc = model_find_places(fs, count, places, &m->layers);
    if (rc == 0) {
        m->experts = count / m->layers;
        m->all = calloc(count, sizeof(*m->all));
        m->layer = calloc(m->layers, sizeof(*m->layer));
        if (!m->all || !m->layer)
            rc = efs_fail(err, -ENOMEM, "no memory");
        else if (count % m->layers != 0)
            rc = efs_fail(err, -EOPNOTSUPP, "%s: its layers have different numbers of experts", store);
        else
            rc = model_take_all(fs, store, places, m, err);
    }
    free(places);
    efs_close(fs);
    if (rc < 0)
        replay_model_free(m);
    return rc;
}

void replay_model_free(struct replay_model *m)
{
    for (uint32_t i = 0; m->all && i < m->layers * m->experts; i++) {
        for (uint32_t t = 0; t < m->all[i].count; t++)
            free(m->all[i].tensors[t].name);
        free(m->all[i].tensors);
    }
    for (uint32_t i = 0; i < m->raw_count; i++)
        free(m->raw_paths[i]);
    free(m->raw_paths);
    free(m->all);
    free(m->layer);
    *m = (struct replay_model){0};
}
