/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.c - rows of large tables, such as per-layer embeddings (GET_ROWS). In a mapping each row is a page fault with
 * its read-ahead, one after the other; here the rows of a batch are read from the store or the mount at once.
 */
#include "table_mount.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES_MIN (64u << 20) /* smaller tables are left in memory */
#define ROWS_AT_ONCE 256u           /* reads in flight */

struct table {
    struct table *next;
    const void *data; /* of its tensor */
    uint32_t file;    /* of the store; UINT32_MAX: the store has other bytes, or a mount */
    uint64_t bytes;
    bool readable; /* the store or the mount has its bytes */
    bool whole;    /* other operations read all of it */
};

struct efsg_tables {
    struct efsg_device *device;
    struct efsg_tables *next; /* in the list of the device, whose table_lock guards the list and the lists of tables */
    struct efsg_source *source;
    struct efsg_file file;
    struct efsg_mount_rows *mount; /* NULL: a store, or no table was used yet */
    struct table *tables;
};

struct efsg_tables *efsg_tables_new(struct efsg_device *device, struct efsg_source *source,
                                    const struct efsg_file *file)
{
    struct efsg_tables *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->device = device;
    t->source = source;
    t->file = *file;
    pthread_mutex_lock(&device->table_lock);
    t->next = device->tables;
    device->tables = t;
    pthread_mutex_unlock(&device->table_lock);
    return t;
}

void efsg_tables_free(struct efsg_tables *tables)
{
    if (!tables)
        return;
    pthread_mutex_lock(&tables->device->table_lock);
    for (struct efsg_tables **t = &tables->device->tables; *t; t = &(*t)->next)
        if (*t == tables) {
            *t = tables->next;
            break;
        }
    pthread_mutex_unlock(&tables->device->table_lock);
    for (struct table *t = tables->tables, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    efsg_mount_rows_close(tables->mount);
    free(tables);
}

bool efsg_table_is_large(const struct ggml_tensor *w)
{
    return w->ne[0] > 0 && w->ne[1] > 0 && w->ne[2] == 1 && w->ne[3] == 1 && !w->view_src &&
           w->nb[1] == efsg_host.row_size(w->type, w->ne[0]) && (uint64_t)w->ne[1] <= UINT64_MAX / w->nb[1] &&
           w->nb[1] * (uint64_t)w->ne[1] >= TABLE_BYTES_MIN && w->nb[1] <= EFS_ROW_BYTES_MAX &&
           (w->type == GGML_TYPE_F32 || efsg_host.type_traits(w->type)->to_float);
}

/* Caller holds table_lock. The tables of the mapping that contains the tensor. */
static struct efsg_tables *tables_at(const struct efsg_device *device, const struct ggml_tensor *w)
{
    struct efsg_tables *t = device->tables;
    while (t && ((const uint8_t *)w->data < t->file.base ||
                 (size_t)((const uint8_t *)w->data - t->file.base) >= t->file.mapped))
        t = t->next;
    return t;
}

/* Caller holds table_lock. Finds the table's file in the store, or opens the file of the mount. */
static void table_find(struct efsg_tables *tables, struct table *t, uint64_t begin)
{
    t->file = efsg_source_file(tables->source, &tables->file, begin, t->bytes);
    t->readable = t->file != UINT32_MAX;
    if (!efsg_source_is_mount_of(tables->source, &tables->file))
        return;
    if (!tables->mount)
        tables->mount = efsg_mount_rows_open(&tables->file);
    t->readable = tables->mount != NULL;
}

/* Caller holds table_lock. Finds or adds the table, which may compare it with the store. NULL: no memory. */
static struct table *table_of(struct efsg_tables *tables, const struct ggml_tensor *w)
{
    struct table *t = tables->tables;
    while (t && t->data != w->data)
        t = t->next;
    if (t || !(t = calloc(1, sizeof(*t))))
        return t;
    const uint64_t begin = tables->file.offset + (uint64_t)((const uint8_t *)w->data - tables->file.base);
    t->data = w->data;
    t->bytes = w->nb[1] * (uint64_t)w->ne[1];
    table_find(tables, t, begin);
    t->next = tables->tables;
    tables->tables = t;
    return t;
}

void efsg_table_read_whole(struct efsg_device *device, const struct ggml_tensor *w)
{
    pthread_mutex_lock(&device->table_lock);
    struct efsg_tables *tables = w->data ? tables_at(device, w) : NULL;
    for (struct table *t = tables ? tables->tables : NULL; t; t = t->next)
        t->whole = t->whole || t->data == w->data;
    pthread_mutex_unlock(&device->table_lock);
}

uint64_t efsg_tables_bytes(struct efsg_device *device, const struct efsg_source *source)
{
    uint64_t most = 0;
    pthread_mutex_lock(&device->table_lock);
    for (const struct efsg_tables *tables = device->tables; tables; tables = tables->next) {
        uint64_t bytes = 0; /* the same file may be mapped twice */
        for (const struct table *t = tables->tables; t; t = t->next)
            bytes += t->whole ? 0 : t->bytes;
        most = tables->source == source && bytes > most ? bytes : most;
    }
    pthread_mutex_unlock(&device->table_lock);
    return most;
}

/* A table's place in the store, or in a file of a mount. */
struct place {
    struct efs *fs; /* NULL: a mount */
    struct efsg_mount_rows *mount;
    uint32_t file;
    uint64_t offset;
};

static bool find_place(struct efsg_device *device, const struct ggml_tensor *op, struct place *place)
{
    const struct ggml_tensor *w = op->src[0], *ids = op->src[1];
    if (!w || !ids || !w->data || !efsg_table_is_large(w) || ids->type != GGML_TYPE_I32 || ids->ne[1] != 1 ||
        ids->ne[2] != 1 || ids->ne[3] != 1 || op->type != GGML_TYPE_F32 || op->nb[0] != sizeof(float))
        return false;
    pthread_mutex_lock(&device->table_lock);
    struct efsg_tables *tables = tables_at(device, w);
    const struct table *t = tables ? table_of(tables, w) : NULL;
    const bool found = t && t->readable && !t->whole;
    if (found)
        *place = (struct place){.fs = efsg_source_fs(tables->source),
                                .mount = tables->mount,
                                .file = t->file,
                                .offset = tables->file.offset + (uint64_t)((uint8_t *)w->data - tables->file.base)};
    pthread_mutex_unlock(&device->table_lock);
    return found;
}

bool efsg_table_takes(struct efsg_device *device, const struct ggml_tensor *op)
{
    struct place place;
    return find_place(device, op, &place);
}

/* Reads in flight. */
struct reads {
    _Atomic uint32_t left;
    _Atomic errint_t error;
    size_t row_bytes;
    sem_t done;
};

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct reads *r = arg;
    if (error < 0 || (bytes != r->row_bytes && r->row_bytes))
        atomic_store(&r->error, error < 0 ? error : -EUCLEAN);
    if (atomic_fetch_sub(&r->left, 1) == 1)
        sem_post(&r->done);
}

static int32_t row_at(const struct ggml_tensor *ids, uint32_t i)
{
    int32_t row;
    memcpy(&row, (const char *)ids->data + i * ids->nb[0], sizeof(row));
    return row;
}

/* Reads rows of a packed store, each by a read of its own. */
static errint_t read_packed(const struct place *place, const struct efs_row *rows, uint32_t count, size_t bytes)
{
    struct reads r = {.left = count, .row_bytes = bytes};
    if (sem_init(&r.done, 0, 0) < 0)
        return -errno;
    for (uint32_t i = 0; i < count; i++)
        efs_read(place->fs, place->file, NULL, rows[i].offset, rows[i].dst, bytes, read_done, &r);
    while (sem_wait(&r.done) < 0) {
    }
    sem_destroy(&r.done);
    return atomic_load(&r.error);
}

/* Memory for reading `count` rows: the rows, where they are, and the scratch of efs_read_rows(). */
static size_t room_bytes(size_t row_bytes, uint32_t count)
{
    return count * (row_bytes + sizeof(struct efs_row)) + efs_rows_scratch_bytes(count, row_bytes);
}

/* Reads rows [begin, begin + count) of the result to raw, which has room_bytes(). */
static errint_t read_rows(const struct ggml_tensor *op, const struct place *place, uint32_t begin, uint32_t count,
                          uint8_t *raw)
{
    const struct ggml_tensor *w = op->src[0];
    const size_t bytes = w->nb[1];
    struct efs_row *rows = (struct efs_row *)(void *)raw;
    raw += count * sizeof(*rows);
    for (uint32_t i = 0; i < count; i++) {
        const int32_t row = row_at(op->src[1], begin + i);
        if (row < 0 || row >= w->ne[1])
            return -EINVAL;
        rows[i] = (struct efs_row){place->offset + (uint64_t)row * bytes, raw + i * bytes};
    }
    if (!place->fs)
        return efsg_mount_rows_read(place->mount, rows, count, bytes, raw + count * bytes);
    errint_t rc = efs_read_rows(place->fs, place->file, rows, count, bytes, raw + count * bytes);
    return rc == -EOPNOTSUPP ? read_packed(place, rows, count, bytes) : rc;
}

enum ggml_status efsg_table_rows(struct efsg_device *device, struct efsg_memory *room, struct ggml_tensor *op)
{
    const struct ggml_tensor *w = op->src[0];
    const uint32_t rows = (uint32_t)op->src[1]->ne[0];
    const ggml_to_float_t to_float = efsg_host.type_traits(w->type)->to_float;
    struct place place;
    errint_t rc = find_place(device, op, &place) ? 0 : -EINVAL;
    for (uint32_t begin = 0, count; rc == 0 && begin < rows; begin += count) {
        count = rows - begin < ROWS_AT_ONCE ? rows - begin : ROWS_AT_ONCE;
        uint8_t *raw = efsg_memory(room, room_bytes(w->nb[1], count));
        rc = raw ? read_rows(op, &place, begin, count, raw) : -ENOMEM;
        raw = rc == 0 ? raw + count * sizeof(struct efs_row) : raw;
        for (uint32_t i = 0; rc == 0 && i < count; i++) {
            float *out = (float *)((char *)op->data + (begin + i) * op->nb[1]);
            if (w->type == GGML_TYPE_F32)
                memcpy(out, raw + i * w->nb[1], w->nb[1]);
            else
                to_float(raw + i * w->nb[1], out, w->ne[0]);
        }
    }
    if (rc == 0)
        return GGML_STATUS_SUCCESS;
    efsg_log(GGML_LOG_LEVEL_ERROR, "%s: rows of %s cannot be had: %s", op->name, w->name, strerror(-rc));
    return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
}
