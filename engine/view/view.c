/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - see view.h: the tables of virtual files, and what stands at an offset. */
#include "view.h"

#include "sys.h"
#include "text.h"
#include "view_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DENSE_NAME "dense.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define WEIGHTS_BEGIN "model" /* with such names loaders look for weights; the daemon shows links of such names */
#define WEIGHTS_END ".safetensors"

static bool first_part_is(const struct efs_store *store, const struct efs_disk_file *f, const char *name)
{
    const char *path = store->strings + f->path_offset;
    size_t n = strlen(name);
    return f->path_bytes >= n && memcmp(path, name, n) == 0 && (f->path_bytes == n || path[n] == '/');
}

/* A small file of its own at the top of the checkpoint, as config.json: shown beside the experts too. */
static bool is_alias(const struct efs_store *store, uint32_t file)
{
    const struct efs_disk_file *f = &store->files[file];
    const char *path = store->strings + f->path_offset;
    if (memchr(path, '/', f->path_bytes))
        return false;
    if ((f->path_bytes == strlen(DENSE_NAME) && memcmp(path, DENSE_NAME, f->path_bytes) == 0) ||
        (f->path_bytes >= 11 && memcmp(path + f->path_bytes - 11, ".index.json", 11) == 0))
        return false;
    size_t begin = strlen(WEIGHTS_BEGIN), end = strlen(WEIGHTS_END);
    if (f->path_bytes >= begin + end && memcmp(path, WEIGHTS_BEGIN, begin) == 0 &&
        memcmp(path + f->path_bytes - end, WEIGHTS_END, end) == 0)
        return false;
    for (uint32_t i = f->extent_first; i < f->extent_first + f->extent_count; i++)
        if (store->objects[store->extents[i].object].tensor != EFS_NONE)
            return false;
    return true;
}

static errint_t build_aliases(struct efs_view *view)
{
    const struct efs_store *store = view->store;
    view->aliases = efs_sys_calloc(store->file_count ? store->file_count : 1, sizeof(uint32_t));
    if (!view->aliases)
        return -ENOMEM;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (is_alias(store, f))
            view->aliases[view->alias_count++] = f;
    view->memory_bytes += store->file_count * sizeof(uint32_t);
    return 0;
}

static int by_name(const void *pa, const void *pb, void *arg)
{
    const struct efs_expert_part *a = pa, *b = pb;
    int c = efs_view_compare_names(arg, a->object, b->object);
    return c ? c : (a->object > b->object) - (a->object < b->object);
}

/* Tensors that are whole pages come first: then the data of all of them begins at a page's start. */
static int by_pages(const void *pa, const void *pb, void *arg)
{
    const struct efs_store *store = arg;
    const struct efs_expert_part *a = pa, *b = pb;
    bool pages_a = store->objects[a->object].bytes % EFS_ALIGN == 0,
         pages_b = store->objects[b->object].bytes % EFS_ALIGN == 0;
    if (pages_a != pages_b)
        return pages_a ? -1 : 1;
    return (a->object > b->object) - (a->object < b->object);
}

static void build_expert(struct efs_view *view, uint32_t expert)
{
    const struct efs_store *store = view->store;
    const struct efs_disk_group *g = &store->groups[expert];
    struct efs_expert_part *parts = view->parts + g->object_first;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->object_count; i++)
        parts[i].object = g->object_first + i;
    qsort_r(parts, g->object_count, sizeof(*parts), by_name, (void *)(uintptr_t)store);
    for (uint32_t i = 0; i < g->object_count; i++)
        if (kept == 0 || efs_view_compare_names(store, parts[kept - 1].object, parts[i].object) != 0)
            parts[kept++] = parts[i];
    qsort_r(parts, kept, sizeof(*parts), by_pages, (void *)(uintptr_t)store);
    view->experts[expert].part_count = kept;
    view->experts[expert].header_bytes = (uint32_t)efs_view_header_text(view, expert, NULL, 0);
    uint64_t at = view->experts[expert].header_bytes;
    for (uint32_t i = 0; i < kept; i++) {
        parts[i].file_offset = at;
        at += store->objects[parts[i].object].bytes;
    }
}

static errint_t build_experts(struct efs_view *view)
{
    uint32_t count = view->store->expert_count;
    const struct efs_disk_group *last = count ? &view->store->groups[count - 1] : NULL;
    size_t objects = last ? (size_t)last->object_first + last->object_count : 0;
    view->experts = efs_sys_calloc(count + 1u, sizeof(*view->experts));
    view->parts = efs_sys_calloc(objects + 1, sizeof(*view->parts));
    if (!view->experts || !view->parts)
        return -ENOMEM;
    for (uint32_t e = 0; e < count; e++)
        build_expert(view, e);
    view->memory_bytes += (count + 1u) * sizeof(*view->experts) + (objects + 1) * sizeof(*view->parts);
    return 0;
}

static errint_t build_files(struct efs_view *view)
{
    errint_t rc = efs_view_build_dense(view);
    if (rc == 0)
        rc = efs_view_build_index(view);
    if (rc == 0)
        rc = build_aliases(view);
    view->dense_file = view->expert_first + view->store->expert_count;
    view->index_file = view->dense_file + 1;
    view->alias_first = view->index_file + 1;
    view->file_count = view->alias_first + view->alias_count;
    return rc;
}

errint_t efs_view_build(struct efs_view *view, const struct efs_store *store, struct efs_error *err)
{
    const uint32_t end = store->file_count; /* hidden: the view's ranges of file numbers are empty */
    *view = (struct efs_view){.store = store,
                              .expert_first = end,
                              .dense_file = end,
                              .index_file = end,
                              .alias_first = end,
                              .file_count = end};
    for (uint32_t f = 0; f < store->file_count; f++)
        if (first_part_is(store, &store->files[f], "experts") || first_part_is(store, &store->files[f], ".expertfs"))
            view->hidden = true;
    errint_t rc = build_experts(view);
    if (rc == 0 && !view->hidden)
        rc = build_files(view);
    return rc < 0 ? efs_fail(err, rc, "%s: no memory for the experts' view", store->path) : 0;
}

void efs_view_destroy(struct efs_view *view)
{
    free(view->experts);
    free(view->parts);
    free(view->aliases);
    free(view->dense_header);
    free(view->dense);
    free(view->dense_tensors);
    free(view->index_text);
    *view = (struct efs_view){0};
}

static bool is_expert(const struct efs_view *view, uint32_t file)
{
    return file >= view->expert_first && file < view->dense_file;
}

uint64_t efs_view_bytes(const struct efs_view *view, uint32_t file)
{
    if (file < view->expert_first)
        return view->store->files[file].bytes;
    if (file == view->dense_file)
        return view->dense_bytes;
    if (file == view->index_file)
        return view->index_bytes;
    if (file >= view->alias_first)
        return view->store->files[view->aliases[file - view->alias_first]].bytes;
    return efs_view_expert_bytes(view, file - view->expert_first);
}

uint32_t efs_view_expert_file(const struct efs_view *view, uint32_t expert)
{
    return view->hidden ? EFS_NONE : view->expert_first + expert;
}

uint64_t efs_view_expert_offset(const struct efs_view *view, uint32_t expert, uint32_t object)
{
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    for (uint32_t i = 0; i < n; i++)
        if (parts[i].object == object)
            return parts[i].file_offset;
    return UINT64_MAX;
}

uint32_t efs_view_expert_header_bytes(const struct efs_view *view, uint32_t expert)
{
    return view->experts[expert].header_bytes;
}

uint64_t efs_view_expert_bytes(const struct efs_view *view, uint32_t expert)
{
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    return n ? parts[n - 1].file_offset + view->store->objects[parts[n - 1].object].bytes
             : view->experts[expert].header_bytes;
}

errint_t efs_view_info(const struct efs_view *view, uint32_t file, struct efs_file_info *info)
{
    if (file >= view->file_count)
        return -ENOENT;
    info->kind = EFS_FILE_VIEW;
    info->expert = efs_id(EFS_NONE);
    info->bytes = efs_view_bytes(view, file);
    bool alias = file >= view->alias_first;
    if (file < view->expert_first || alias) {
        const struct efs_disk_file *f = &view->store->files[alias ? view->aliases[file - view->alias_first] : file];
        info->kind = alias ? EFS_FILE_VIEW : EFS_FILE_CHECKPOINT;
        snprintf(info->path, sizeof(info->path), "%s%.*s", alias ? "experts/" : "", (int)f->path_bytes,
                 view->store->strings + f->path_offset);
    } else if (is_expert(view, file)) {
        char name[80];
        info->kind = EFS_FILE_EXPERT;
        info->expert = efs_id(file - view->expert_first);
        efs_view_expert_name(view, info->expert.number, name, sizeof(name));
        snprintf(info->path, sizeof(info->path), "experts/%s.safetensors", name);
    } else {
        snprintf(info->path, sizeof(info->path), "experts/%s", file == view->dense_file ? DENSE_NAME : INDEX_NAME);
    }
    return 0;
}

static void at_checkpoint(const struct efs_store *store, uint32_t file, uint64_t offset, struct efs_segment_at *at)
{
    const struct efs_disk_file *f = &store->files[file];
    uint32_t low = f->extent_first, high = f->extent_first + f->extent_count;
    while (high - low > 1) { /* the last extent that begins at or before offset */
        uint32_t mid = low + (high - low) / 2;
        if (store->extents[mid].file_offset <= offset)
            low = mid;
        else
            high = mid;
    }
    const struct efs_disk_extent *x = &store->extents[low];
    uint64_t in = offset - x->file_offset;
    *at = (struct efs_segment_at){.object = x->object, .object_offset = x->object_offset + in, .bytes = x->bytes - in};
}

static void at_object(const struct efs_store *store, uint32_t object, uint64_t begin, uint64_t offset,
                      struct efs_segment_at *at)
{
    uint64_t in = offset - begin;
    *at = (struct efs_segment_at){.object = object, .object_offset = in, .bytes = store->objects[object].bytes - in};
}

static void at_text(const char *text, size_t bytes, uint64_t offset, struct efs_segment_at *at)
{
    *at = (struct efs_segment_at){.text = text + offset, .object = EFS_NONE, .bytes = bytes - offset};
}

static void at_expert(const struct efs_view *view, uint32_t expert, uint64_t offset, struct efs_segment_at *at)
{
    uint32_t n, header = efs_view_expert_header_bytes(view, expert);
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    if (offset < header) {
        *at = (struct efs_segment_at){.object = EFS_NONE, .expert = expert, .bytes = header - offset};
        return;
    }
    while (n > 1 && parts[n - 1].file_offset > offset)
        n--;
    at_object(view->store, parts[n - 1].object, parts[n - 1].file_offset, offset, at);
}

static void at_dense(const struct efs_view *view, uint64_t offset, struct efs_segment_at *at)
{
    if (offset < view->dense_header_bytes) {
        at_text(view->dense_header, view->dense_header_bytes, offset, at);
        return;
    }
    uint32_t low = 0, high = view->dense_count;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (view->dense[mid].file_offset <= offset)
            low = mid;
        else
            high = mid;
    }
    at_object(view->store, view->dense[low].object, view->dense[low].file_offset, offset, at);
}

void efs_view_at(const struct efs_view *view, uint32_t file, uint64_t offset, struct efs_segment_at *at)
{
    if (file < view->expert_first)
        at_checkpoint(view->store, file, offset, at);
    else if (file >= view->alias_first)
        at_checkpoint(view->store, view->aliases[file - view->alias_first], offset, at);
    else if (file == view->dense_file)
        at_dense(view, offset, at);
    else if (file == view->index_file)
        at_text(view->index_text, view->index_bytes, offset, at);
    else
        at_expert(view, file - view->expert_first, offset, at);
}

bool efs_view_holds_expert(const struct efs_view *view, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct efs_segment_at at;
    uint64_t end = efs_view_bytes(view, file);
    if (offset < end && bytes < end - offset)
        end = offset + bytes;
    for (; offset < end; offset += at.bytes) {
        efs_view_at(view, file, offset, &at);
        if (!at.text && at.object != EFS_NONE && view->store->objects[at.object].group < view->store->expert_count)
            return true;
    }
    return false;
}

void efs_view_expert_header(const struct efs_view *view, uint32_t expert, char *out)
{
    efs_view_header_text(view, expert, out, efs_view_expert_header_bytes(view, expert));
}
