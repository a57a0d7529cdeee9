/* SPDX-License-Identifier: Apache-2.0 */
/* index.c - converts the catalogue to index tables: groups, objects, shards, extents, and their order on disk. */
#include "kernels.h"
#include "index.h"
#include "source.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The limit of store_check.c; a longer path could be packed but not opened. */
#define PATH_BYTES_MAX 1023u
#define SMALL_BYTES_MAX 4095u /* a slice up to this is not split: read with one or two pages in any encoding */
#define NAME_BYTES_MAX 65535u

struct counts {
    uint64_t extents, groups, objects, shards, strings;
};

static uint64_t object_shards(const struct efs_index *plan, enum efs_format format, uint64_t bytes)
{
    uint64_t elements = bytes / efs_format_bytes(format);
    return elements / plan->shard_elements + (elements % plan->shard_elements != 0);
}

/* Small objects are stored as BYTES: one read, nothing to decode. */
static enum efs_format tensor_format(const struct efs_index *plan, const struct efs_source_tensor *t, uint64_t bytes)
{
    enum efs_format format = efs_object_format(t->dtype, plan->codec);
    return bytes > SMALL_BYTES_MAX && bytes % efs_format_bytes(format) == 0 ? format : EFS_FORMAT_BYTES;
}

static uint64_t plan_slices(const struct efs_source_tensor *t)
{
    return t->tensor_class == EFS_CLASS_FUSED ? t->shape[0] : 1;
}

static errint_t check_tensor(const struct efs_catalog *c, const struct efs_source_tensor *t, struct efs_error *err)
{
    const struct efs_source_file *f = &c->files[t->file];
    if (t->offset > f->bytes || t->bytes > f->bytes - t->offset || t->dims > EFS_MAX_DIMS)
        return efs_fail(err, -EUCLEAN, "%s: tensor \"%s\" does not lie in its file", f->path, t->name);
    if (strlen(t->name) > NAME_BYTES_MAX)
        return efs_fail(err, -ENAMETOOLONG, "%s: tensor at offset %llu has a name of more than %u bytes", f->path,
                        (unsigned long long)t->offset, NAME_BYTES_MAX);
    if (t->tensor_class == EFS_CLASS_DENSE || t->bytes == 0)
        return 0;
    uint64_t n = plan_slices(t);
    if (n == 0 || t->bytes % n != 0 || t->expert_first > c->expert_count || n > c->expert_count - t->expert_first)
        return efs_fail(err, -EUCLEAN, "%s: tensor \"%s\" cannot be cut in %llu experts", f->path, t->name,
                        (unsigned long long)n);
    return 0;
}

/* Bytes of a file outside of all tensors: a blob object in its own group. */
static void count_gap(const struct efs_index *plan, uint64_t bytes, struct counts *n)
{
    n->groups++;
    n->objects++;
    n->extents++;
    n->shards += object_shards(plan, EFS_FORMAT_BYTES, bytes);
}

/* A fused tensor becomes one object per expert. */
static void count_tensor(const struct efs_index *plan, const struct efs_source_tensor *t, struct counts *n)
{
    uint64_t parts = plan_slices(t), part = t->bytes / parts;
    n->groups += t->tensor_class == EFS_CLASS_DENSE;
    n->objects += parts;
    n->extents += parts;
    n->shards += parts * object_shards(plan, tensor_format(plan, t, part), part);
}

/* Counts a file that is not a copy: its tensors, of which *at is the next one, and the gaps between them. */
static errint_t count_file(const struct efs_index *plan, size_t file, size_t *at, struct counts *n,
                           struct efs_error *err)
{
    const struct efs_catalog *c = plan->catalog;
    const struct efs_source_file *f = &c->files[file];
    uint64_t end = 0;
    uint64_t before = n->extents;
    for (; *at < c->tensor_count && c->tensors[*at].file == file; ++*at) {
        const struct efs_source_tensor *t = &c->tensors[*at];
        errint_t rc = check_tensor(c, t, err);
        if (rc < 0)
            return rc;
        n->strings += strlen(t->name) + (t->type ? strlen(t->type) + 2 : 0);
        if (t->bytes == 0)
            continue;
        if (t->offset < end)
            return efs_fail(err, -EUCLEAN, "%s: tensor \"%s\" overlaps another", f->path, t->name);
        if (t->offset > end)
            count_gap(plan, t->offset - end, n);
        count_tensor(plan, t, n);
        end = t->offset + t->bytes;
    }
    if (end < f->bytes)
        count_gap(plan, f->bytes - end, n);
    plan->files[file].extent_count = (uint32_t)(n->extents - before);
    return 0;
}

/* Computes the sizes of the tables. Files and tensors are sorted in the same order. */
static errint_t count_all(struct efs_index *plan, struct counts *n, struct efs_error *err)
{
    const struct efs_catalog *c = plan->catalog;
    size_t at = 0;
    plan->files = efs_sys_calloc(c->file_count + 1, sizeof(*plan->files));
    if (!plan->files)
        return efs_fail(err, -ENOMEM, "%s: no memory for the index", c->root);
    n->groups = c->expert_count;
    for (size_t e = 0; e < c->expert_count; e++)
        n->strings += strlen(c->experts[e].stack);
    for (size_t f = 0; f < c->file_count; f++) {
        const struct efs_source_file *file = &c->files[f];
        if (strlen(file->path) > PATH_BYTES_MAX)
            return efs_fail(err, -ENAMETOOLONG, "%s: path of more than %u bytes", file->path, PATH_BYTES_MAX);
        n->strings += strlen(file->path);
        plan->source_bytes += file->bytes;
        errint_t rc = file->copy ? 0 : count_file(plan, f, &at, n, err);
        if (rc < 0)
            return rc;
    }
    for (size_t f = 0; f < c->file_count; f++)
        if (c->files[f].copy) {
            plan->files[f].extent_count = plan->files[c->files[f].original].extent_count;
            n->extents += plan->files[f].extent_count;
            plan->copied_bytes += c->files[f].bytes;
        }
    if (at != c->tensor_count)
        return efs_fail(err, -EUCLEAN, "%s: catalogue is not in order", c->root);
    return 0;
}

#define OBJECT_BYTES (sizeof(struct efs_disk_object) + sizeof(struct efs_index_origin) + 3 * sizeof(void *))
/* EFS_SOURCE_MAX_TENSORS tensors with bytes and names exceed EFS_INDEX_BYTES, so the readers' limit rejects no
 * source that would fit. */
static_assert(EFS_SOURCE_MAX_TENSORS * (1 + sizeof(struct efs_disk_tensor) + sizeof(struct efs_disk_extent) +
                                        sizeof(struct efs_disk_shard) + OBJECT_BYTES) >
                  EFS_INDEX_BYTES,
              "tensors of a source");

static uint64_t index_bytes(const struct efs_catalog *c, const struct counts *n)
{
    return n->strings + c->file_count * sizeof(struct efs_disk_file) + n->extents * sizeof(struct efs_disk_extent) +
           c->tensor_count * sizeof(struct efs_disk_tensor) +
           n->groups * (sizeof(struct efs_disk_group) + sizeof(uint32_t)) + n->objects * OBJECT_BYTES +
           n->shards * sizeof(struct efs_disk_shard);
}

static errint_t plan_allocate(struct efs_index *plan, const struct counts *n, struct efs_error *err)
{
    const struct efs_catalog *c = plan->catalog;
    uint64_t bytes = index_bytes(c, n);
    if (bytes > EFS_INDEX_BYTES)
        return efs_fail(
            err, -E2BIG,
            "%s: the index of %zu tensors would take %llu MiB (at most %u)\nhint: a larger --shard-size makes "
            "it smaller if they are large, --any packs a directory's files one by one",
            c->root, c->tensor_count, (unsigned long long)(bytes >> 20), EFS_INDEX_BYTES >> 20);
    plan->string_room = n->strings;
    plan->file_count = (uint32_t)c->file_count;
    plan->tensor_count = (uint32_t)c->tensor_count;
    plan->extent_count = (uint32_t)n->extents;
    plan->group_count = (uint32_t)n->groups;
    plan->object_count = (uint32_t)n->objects;
    plan->shard_count = (uint32_t)n->shards;
    plan->strings = efs_sys_calloc(n->strings + 1, 1);
    plan->extents = efs_sys_calloc(n->extents + 1, sizeof(*plan->extents));
    plan->tensors = efs_sys_calloc(c->tensor_count + 1, sizeof(*plan->tensors));
    plan->groups = efs_sys_calloc(n->groups + 1, sizeof(*plan->groups));
    plan->objects = efs_sys_calloc(n->objects + 1, sizeof(*plan->objects));
    plan->shards = efs_sys_calloc(n->shards + 1, sizeof(*plan->shards));
    plan->origins = efs_sys_calloc(n->objects + 1, sizeof(*plan->origins));
    plan->order = efs_sys_calloc(n->groups + 1, sizeof(*plan->order));
    if (!plan->strings || !plan->extents || !plan->tensors || !plan->groups || !plan->objects || !plan->shards ||
        !plan->origins || !plan->order)
        return efs_fail(err, -ENOMEM, "%s: no memory for the index", c->root);
    return 0;
}

/* Has room: count_all() counted every string. */
static void put_string(struct efs_index *plan, const char *text, uint32_t *offset, uint32_t *bytes)
{
    *bytes = (uint32_t)strlen(text);
    *offset = (uint32_t)plan->string_bytes;
    memcpy(plan->strings + plan->string_bytes, text, *bytes);
    plan->string_bytes += *bytes;
}

/* Appends a type after the name, as described at struct efs_disk_tensor. */
static void put_type(struct efs_index *plan, const char *type)
{
    uint32_t offset, bytes;
    if (!type)
        return;
    plan->strings[plan->string_bytes++] = '\0';
    put_string(plan, type, &offset, &bytes);
    plan->strings[plan->string_bytes++] = '\0';
}

static void put_group(struct efs_disk_group *g, uint32_t kind)
{
    *g = (struct efs_disk_group){.kind = kind, .layer = EFS_NONE, .expert = EFS_NONE};
}

/* Fills the groups: experts in the catalogue's order, then one for each dense tensor, then one for each blob. Sets
 * kinds and object counts first, then object_first. */
static void make_groups(struct efs_index *plan, uint32_t *dense_first, uint32_t *blob_first)
{
    const struct efs_catalog *c = plan->catalog;
    uint32_t g = 0;
    for (; g < c->expert_count; g++) {
        const struct efs_source_expert *x = &c->experts[g];
        const struct efs_disk_group *before = g ? &plan->groups[g - 1] : NULL;
        put_group(&plan->groups[g], EFS_GROUP_EXPERT);
        plan->groups[g].layer = x->layer;
        plan->groups[g].expert = x->expert;
        if (before && strcmp(x->stack, c->experts[g - 1].stack) == 0) {
            plan->groups[g].stack_offset = before->stack_offset;
            plan->groups[g].stack_bytes = before->stack_bytes;
        } else {
            put_string(plan, x->stack, &plan->groups[g].stack_offset, &plan->groups[g].stack_bytes);
        }
    }
    *dense_first = g;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct efs_source_tensor *t = &c->tensors[i];
        if (t->bytes == 0)
            continue;
        if (t->tensor_class == EFS_CLASS_DENSE) {
            put_group(&plan->groups[g], EFS_GROUP_DENSE);
            plan->groups[g++].object_count = 1;
        }
        for (uint64_t s = 0; t->tensor_class != EFS_CLASS_DENSE && s < plan_slices(t); s++)
            plan->groups[t->expert_first + s].object_count++;
    }
    *blob_first = g;
    for (; g < plan->group_count; g++) {
        put_group(&plan->groups[g], EFS_GROUP_BLOB);
        plan->groups[g].object_count = 1;
    }
    uint32_t object = 0;
    for (g = 0; g < plan->group_count; g++) {
        plan->groups[g].object_first = object;
        object += plan->groups[g].object_count;
    }
}

struct filler {
    struct efs_index *plan;
    uint32_t *filled; /* objects added to each group */
    uint32_t extent, dense, blob;
    uint32_t file;
};

/* Adds an object to a group, and the extent of its file. */
static void put_object(struct filler *fill, uint32_t group, uint32_t tensor, uint64_t tensor_offset, uint64_t offset,
                       uint64_t bytes, enum efs_format format)
{
    struct efs_index *plan = fill->plan;
    uint32_t o = plan->groups[group].object_first + fill->filled[group]++;
    plan->objects[o] = (struct efs_disk_object){.tensor = tensor,
                                                .group = group,
                                                .tensor_offset = tensor_offset,
                                                .bytes = bytes,
                                                .shard_count = (uint32_t)object_shards(plan, format, bytes),
                                                .format = (uint32_t)format};
    plan->origins[o] = (struct efs_index_origin){fill->file, offset};
    plan->extents[fill->extent++] = (struct efs_disk_extent){.file_offset = offset, .bytes = bytes, .object = o};
}

static void put_tensor(struct filler *fill, uint32_t index)
{
    struct efs_index *plan = fill->plan;
    const struct efs_source_tensor *t = &plan->catalog->tensors[index];
    struct efs_disk_tensor *d = &plan->tensors[index];
    put_string(plan, t->name, &d->name_offset, &d->name_bytes);
    put_type(plan, t->type);
    d->dtype = (uint16_t)t->dtype;
    d->dims = (uint8_t)t->dims;
    d->expert_dim = t->tensor_class == EFS_CLASS_FUSED && t->bytes > 0;
    d->file = t->file;
    d->file_offset = t->offset;
    d->bytes = t->bytes;
    memcpy(d->shape, t->shape, t->dims * sizeof(t->shape[0]));
    if (t->bytes == 0)
        return;
    uint64_t parts = plan_slices(t), part = t->bytes / parts;
    for (uint64_t s = 0; s < parts; s++) {
        uint32_t group = t->tensor_class == EFS_CLASS_DENSE ? fill->dense++ : t->expert_first + (uint32_t)s;
        put_object(fill, group, index, s * part, t->offset + s * part, part, tensor_format(plan, t, part));
    }
}

/* Copies the extents of originals to their copies, after those of all originals are set. */
static void fill_copies(struct efs_index *plan)
{
    for (uint32_t f = 0; f < plan->file_count; f++)
        if (plan->catalog->files[f].copy) {
            const struct efs_disk_file *from = &plan->files[plan->catalog->files[f].original];
            memcpy(plan->extents + plan->files[f].extent_first, plan->extents + from->extent_first,
                   from->extent_count * sizeof(*plan->extents));
        }
}

static void fill_files(struct filler *fill)
{
    struct efs_index *plan = fill->plan;
    const struct efs_catalog *c = plan->catalog;
    uint32_t at = 0;
    for (uint32_t f = 0; f < plan->file_count; f++) {
        struct efs_disk_file *d = &plan->files[f];
        uint64_t end = 0;
        fill->file = f;
        put_string(plan, c->files[f].path, &d->path_offset, &d->path_bytes);
        d->bytes = c->files[f].bytes;
        d->flags = c->files[f].other_model ? EFS_FILE_OTHER_MODEL : 0;
        d->extent_first = fill->extent;
        if (c->files[f].copy) {
            fill->extent += d->extent_count;
            continue;
        }
        for (; at < c->tensor_count && c->tensors[at].file == f; at++) {
            const struct efs_source_tensor *t = &c->tensors[at];
            if (t->bytes > 0 && t->offset > end)
                put_object(fill, fill->blob++, EFS_NONE, 0, end, t->offset - end, EFS_FORMAT_BYTES);
            put_tensor(fill, at);
            if (t->bytes > 0)
                end = t->offset + t->bytes;
        }
        if (end < d->bytes)
            put_object(fill, fill->blob++, EFS_NONE, 0, end, d->bytes - end, EFS_FORMAT_BYTES);
    }
    fill_copies(plan);
}

/* Compares the first bytes of groups by position in the files. The objects of a group are in file order, so the
 * first object is compared. Groups without objects are last. */
static int compare_first_bytes(const void *a, const void *b, void *arg)
{
    const struct efs_index *plan = arg;
    uint32_t g = *(const uint32_t *)a, h = *(const uint32_t *)b;
    bool g_empty = plan->groups[g].object_count == 0, h_empty = plan->groups[h].object_count == 0;
    if (g_empty || h_empty)
        return g_empty != h_empty ? (g_empty ? 1 : -1) : (g > h) - (g < h);
    const struct efs_index_origin *p = &plan->origins[plan->groups[g].object_first];
    const struct efs_index_origin *q = &plan->origins[plan->groups[h].object_first];
    if (p->file != q->file)
        return p->file < q->file ? -1 : 1;
    return (p->offset > q->offset) - (p->offset < q->offset);
}

errint_t efs_index_plan(struct efs_index *plan, const struct efs_catalog *catalog, enum efs_codec_choice codec,
                        uint32_t shard_elements, struct efs_error *err)
{
    *plan = (struct efs_index){.catalog = catalog,
                               .codec = codec,
                               .shard_elements = shard_elements,
                               .small_reads_bytes = EFS_SMALL_READS_BYTES};
    struct counts n = {0};
    struct filler fill = {.plan = plan};
    errint_t rc = count_all(plan, &n, err);
    if (rc == 0)
        rc = plan_allocate(plan, &n, err);
    if (rc < 0)
        return rc;
    make_groups(plan, &fill.dense, &fill.blob);
    fill.filled = efs_sys_calloc((size_t)plan->group_count + 1, sizeof(*fill.filled));
    if (!fill.filled)
        return efs_fail(err, -ENOMEM, "%s: no memory for the index", catalog->root);
    fill_files(&fill);
    free(fill.filled);
    uint32_t shard = 0;
    for (uint32_t o = 0; o < plan->object_count; o++) {
        plan->objects[o].shard_first = shard;
        shard += plan->objects[o].shard_count;
    }
    for (uint32_t g = 0; g < plan->group_count; g++)
        plan->order[g] = g;
    qsort_r(plan->order, plan->group_count, sizeof(*plan->order), compare_first_bytes, plan);
    return 0;
}

void efs_index_free(struct efs_index *plan)
{
    free(plan->strings);
    free(plan->files);
    free(plan->extents);
    free(plan->tensors);
    free(plan->groups);
    free(plan->objects);
    free(plan->shards);
    free(plan->origins);
    free(plan->order);
    *plan = (struct efs_index){0};
}

bool efs_index_for_small_reads(const struct efs_index *plan, uint32_t object)
{
    const struct efs_disk_object *o = &plan->objects[object];
    return plan->groups[o->group].kind != EFS_GROUP_EXPERT && o->bytes >= plan->small_reads_bytes;
}

size_t efs_index_shard_elements(const struct efs_index *plan, uint32_t object, uint32_t shard)
{
    const struct efs_disk_object *o = &plan->objects[object];
    uint64_t elements = o->bytes / efs_format_bytes((enum efs_format)o->format);
    uint64_t left = elements - (uint64_t)(shard - o->shard_first) * plan->shard_elements;
    return left < plan->shard_elements ? (size_t)left : plan->shard_elements;
}
