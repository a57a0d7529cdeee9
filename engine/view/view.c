/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - see view.h: headers of experts' files, tables of virtual files, the segment at an offset. A safetensors
 * header must describe its data without holes, so only the header is padded (with spaces) to 4 KiB. Tensors whose size
 * is a multiple of 4 KiB precede the rest, so that each of them is aligned.
 */
#include "view.h"

#include "sys.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- headers ---- */

static const struct efs_disk_tensor *tensor_of(const struct efs_store *store, uint32_t object)
{
    return &store->tensors[store->objects[object].tensor];
}

static const char *name_of(const struct efs_store *store, const struct efs_disk_tensor *t)
{
    return store->strings + t->name_offset;
}

/* Compares the names of the objects' tensors. */
static int compare_objects(const struct efs_store *store, uint32_t object_a, uint32_t object_b)
{
    const struct efs_disk_tensor *a = tensor_of(store, object_a), *b = tensor_of(store, object_b);
    uint32_t an = a->name_bytes, bn = b->name_bytes;
    int c = memcmp(name_of(store, a), name_of(store, b), an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

/* `"name":{"dtype":"BF16","shape":[...],"data_offsets":[a,b]}`; a slice is shown without the expert dimension. */
static void put_tensor(struct efs_text *text, const struct efs_store *store, const struct efs_disk_tensor *t,
                       bool slice, uint64_t begin, uint64_t bytes)
{
    bool ggml = t->dtype >= EFS_DTYPE_GGML; /* block types have no name in safetensors: bytes */
    size_t type_bytes;
    const char *type = efs_store_tensor_type(store, t, &type_bytes);
    efs_text_json(text, "", name_of(store, t), t->name_bytes);
    efs_text_string(text, type ? ":{" : ":{\"dtype\":\"");
    if (type) {
        efs_text_bytes(text, type, type_bytes);
    } else {
        efs_text_string(text, ggml ? "U8" : efs_dtype_name((enum efs_dtype)t->dtype));
        efs_text_string(text, "\",\"shape\":[");
        if (ggml)
            efs_text_number(text, bytes, 1);
        for (int d = slice ? 1 : 0; !ggml && d < t->dims; d++) {
            efs_text_string(text, d > (slice ? 1 : 0) ? "," : "");
            efs_text_number(text, t->shape[d], 1);
        }
        efs_text_string(text, "]");
    }
    efs_text_string(text, ",\"data_offsets\":[");
    efs_text_number(text, begin, 1);
    efs_text_bytes(text, ",", 1);
    efs_text_number(text, begin + bytes, 1);
    efs_text_bytes(text, "]}", 2);
}

/* Writes what safetensors cannot express as an entry of __metadata__: the ggml type, the shape of the whole tensor and
 * the index of the slice. Nothing for whole tensors of other types. */
static void put_metadata(struct efs_text *text, const struct efs_store *store, const struct efs_disk_tensor *t,
                         bool slice, uint32_t expert)
{
    if (t->dtype < EFS_DTYPE_GGML && !slice)
        return;
    efs_text_bytes(text, ",", 1);
    efs_text_json(text, "expertfs.tensor.", name_of(store, t), t->name_bytes);
    efs_text_string(text, ":\"");
    const char *type = efs_dtype_name((enum efs_dtype)t->dtype);
    if (strcmp(type, "ggml:unknown") != 0) {
        efs_text_string(text, type);
    } else { /* an unknown type: its number in the GGUF file */
        efs_text_string(text, "ggml:");
        efs_text_number(text, t->dtype - EFS_DTYPE_GGML, 1);
    }
    efs_text_string(text, " [");
    for (int d = 0; d < t->dims; d++) {
        efs_text_string(text, d ? ", " : "");
        efs_text_number(text, t->shape[d], 1);
    }
    efs_text_bytes(text, "]", 1);
    if (slice) {
        efs_text_string(text, ", slice ");
        efs_text_number(text, expert, 1);
    }
    efs_text_bytes(text, "\"", 1);
}

/* Pads the header with spaces to a multiple of EFS_ALIGN and writes the length of the JSON to its first 8 bytes, if the
 * buffer is large enough. Returns the padded size in bytes. */
static size_t finish_header(struct efs_text *text)
{
    size_t all = (text->bytes + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN;
    uint64_t json = all - 8;
    if (text->data && text->capacity >= all) {
        memset(text->data + text->bytes, ' ', all - text->bytes);
        memcpy(text->data, &json, sizeof(json));
    }
    return all;
}

/* Writes the header of an expert's file to out; out may be NULL. Returns its size in bytes. */
static size_t header_text(const struct efs_view *view, uint32_t expert, char *out, size_t bytes)
{
    const struct efs_store *store = view->store;
    const struct efs_disk_group *g = &store->groups[expert];
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    struct efs_text text = {.data = out, .capacity = bytes, .bytes = 8};
    efs_text_string(&text, "{\"__metadata__\":{\"format\":\"pt\",\"expertfs.layer\":\"");
    efs_text_number(&text, g->layer, 1);
    efs_text_string(&text, "\",\"expertfs.expert\":\"");
    efs_text_number(&text, g->expert, 1);
    efs_text_bytes(&text, "\"", 1);
    if (g->stack_bytes)
        efs_text_format(&text, ",\"expertfs.stack\":\"%.*s\"", (int)g->stack_bytes, store->strings + g->stack_offset);
    for (uint32_t i = 0; i < n; i++) {
        const struct efs_disk_tensor *t = tensor_of(store, parts[i].object);
        put_metadata(&text, store, t, t->expert_dim, g->expert);
    }
    efs_text_bytes(&text, "}", 1);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct efs_disk_tensor *t = tensor_of(store, parts[i].object);
        efs_text_bytes(&text, ",", 1);
        put_tensor(&text, store, t, t->expert_dim, at, store->objects[parts[i].object].bytes);
        at += store->objects[parts[i].object].bytes;
    }
    efs_text_bytes(&text, "}", 1);
    return finish_header(&text);
}

void efs_view_expert_name(const struct efs_view *view, uint32_t expert, char *text, size_t bytes)
{
    const struct efs_disk_group *g = &view->store->groups[expert];
    struct efs_text name = {.data = text, .capacity = bytes - 1};
    if (g->stack_bytes) {
        efs_text_bytes(&name, view->store->strings + g->stack_offset, g->stack_bytes);
        efs_text_bytes(&name, "-", 1);
    }
    efs_text_bytes(&name, "L", 1);
    efs_text_number(&name, g->layer, 2);
    efs_text_bytes(&name, "/E", 2);
    efs_text_number(&name, g->expert, 3);
    text[name.bytes < bytes ? name.bytes : bytes - 1] = '\0';
}

/* ---- the files ---- */

static bool first_component_is(const struct efs_store *store, const struct efs_disk_file *f, const char *name)
{
    const char *path = store->strings + f->path_offset;
    size_t n = strlen(name);
    return f->path_bytes >= n && memcmp(path, name, n) == 0 && (f->path_bytes == n || path[n] == '/');
}

static int by_name(const void *pa, const void *pb, void *arg)
{
    const struct efs_expert_part *a = pa, *b = pb;
    int c = compare_objects(arg, a->object, b->object);
    return c ? c : (a->object > b->object) - (a->object < b->object);
}

/* Orders tensors whose size is a multiple of EFS_ALIGN first, so that each of them starts at a page boundary. */
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
        if (kept == 0 || compare_objects(store, parts[kept - 1].object, parts[i].object) != 0)
            parts[kept++] = parts[i];
    qsort_r(parts, kept, sizeof(*parts), by_pages, (void *)(uintptr_t)store);
    view->experts[expert].part_count = kept;
    view->experts[expert].header_bytes = (uint32_t)header_text(view, expert, NULL, 0);
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

errint_t efs_view_build(struct efs_view *view, const struct efs_store *store, struct efs_error *err)
{
    *view = (struct efs_view){.store = store, .expert_first = store->file_count};
    for (uint32_t f = 0; f < store->file_count; f++)
        if (first_component_is(store, &store->files[f], "experts") ||
            first_component_is(store, &store->files[f], ".expertfs"))
            view->hidden = true;
    errint_t rc = build_experts(view);
    view->file_count = store->file_count + (view->hidden ? 0 : store->expert_count);
    return rc < 0 ? efs_fail(err, rc, "%s: no memory for the experts' view", store->path) : 0;
}

void efs_view_destroy(struct efs_view *view)
{
    free(view->experts);
    free(view->parts);
    *view = (struct efs_view){0};
}

uint64_t efs_view_bytes(const struct efs_view *view, uint32_t file)
{
    if (file < view->expert_first)
        return view->store->files[file].bytes;
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
    info->bytes = efs_view_bytes(view, file);
    if (file < view->expert_first) {
        const struct efs_disk_file *f = &view->store->files[file];
        info->kind = EFS_FILE_CHECKPOINT;
        info->expert = efs_id(EFS_NONE);
        snprintf(info->path, sizeof(info->path), "%.*s", (int)f->path_bytes, view->store->strings + f->path_offset);
    } else {
        char name[80];
        info->kind = EFS_FILE_EXPERT;
        info->expert = efs_id(file - view->expert_first);
        efs_view_expert_name(view, info->expert.number, name, sizeof(name));
        snprintf(info->path, sizeof(info->path), "experts/%s.safetensors", name);
    }
    return 0;
}

static void locate_in_checkpoint(const struct efs_store *store, uint32_t file, uint64_t offset,
                                 struct efs_view_location *at)
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
    *at =
        (struct efs_view_location){.object = x->object, .object_offset = x->object_offset + in, .bytes = x->bytes - in};
}

static void locate_in_expert(const struct efs_view *view, uint32_t expert, uint64_t offset,
                             struct efs_view_location *at)
{
    uint32_t n, header = efs_view_expert_header_bytes(view, expert);
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    if (offset < header) {
        *at = (struct efs_view_location){.object = EFS_NONE, .expert = expert, .bytes = header - offset};
        return;
    }
    while (n > 1 && parts[n - 1].file_offset > offset)
        n--;
    uint64_t in = offset - parts[n - 1].file_offset;
    *at = (struct efs_view_location){.object = parts[n - 1].object,
                                     .object_offset = in,
                                     .bytes = view->store->objects[parts[n - 1].object].bytes - in};
}

void efs_view_locate(const struct efs_view *view, uint32_t file, uint64_t offset, struct efs_view_location *at)
{
    if (file < view->expert_first)
        locate_in_checkpoint(view->store, file, offset, at);
    else
        locate_in_expert(view, file - view->expert_first, offset, at);
}

bool efs_view_holds_expert(const struct efs_view *view, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct efs_view_location at;
    uint64_t end = efs_view_bytes(view, file);
    if (offset < end && bytes < end - offset)
        end = offset + bytes;
    for (; offset < end; offset += at.bytes) {
        efs_view_locate(view, file, offset, &at);
        if (at.object != EFS_NONE && view->store->objects[at.object].group < view->store->expert_count)
            return true;
    }
    return false;
}

void efs_view_expert_header(const struct efs_view *view, uint32_t expert, char *out)
{
    header_text(view, expert, out, efs_view_expert_header_bytes(view, expert));
}
