/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_text.c - see view_text.h. A safetensors header must describe its data without holes, so only the header is
 * padded (with spaces) to 4 KiB; tensors that are whole pages come first, then the data of all of them is aligned.
 */
#include "view_text.h"

#include "huge.h"
#include "sys.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct efs_disk_tensor *tensor_of(const struct efs_store *store, uint32_t object)
{
    return &store->tensors[store->objects[object].tensor];
}

static const char *name_of(const struct efs_store *store, const struct efs_disk_tensor *t)
{
    return store->strings + t->name_offset;
}

static int compare_names(const struct efs_store *store, const struct efs_disk_tensor *a,
                         const struct efs_disk_tensor *b)
{
    uint32_t an = a->name_bytes, bn = b->name_bytes;
    int c = memcmp(name_of(store, a), name_of(store, b), an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

int efs_view_compare_names(const struct efs_store *store, uint32_t object_a, uint32_t object_b)
{
    return compare_names(store, tensor_of(store, object_a), tensor_of(store, object_b));
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

/* What safetensors cannot say of a tensor, as an entry of __metadata__: its ggml type and shape, or whose slice it is.
 */
static void put_note(struct efs_text *text, const struct efs_store *store, const struct efs_disk_tensor *t, bool slice,
                     uint32_t expert)
{
    if (t->dtype < EFS_DTYPE_GGML && !slice)
        return;
    efs_text_bytes(text, ",", 1);
    efs_text_json(text, "expertfs.tensor.", name_of(store, t), t->name_bytes);
    efs_text_string(text, ":\"");
    const char *type = efs_dtype_name((enum efs_dtype)t->dtype);
    if (strcmp(type, "ggml:unknown") != 0) {
        efs_text_string(text, type);
    } else { /* by its number, which is all that a GGUF file says */
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

/* Pad to whole pages and put the length in front. Returns the header's bytes. */
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

size_t efs_view_header_text(const struct efs_view *view, uint32_t expert, char *out, size_t bytes)
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
        put_note(&text, store, t, t->expert_dim, g->expert);
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

bool efs_view_expert_is_slice(const struct efs_view *view, uint32_t expert)
{
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &n);
    for (uint32_t i = 0; i < n; i++)
        if (tensor_of(view->store, parts[i].object)->expert_dim)
            return true;
    return false;
}

/* ---- dense.safetensors ---- */

/* A GGUF file may have a tensor of the name that is not one's in safetensors. */
static bool is_reserved(const struct efs_store *store, const struct efs_disk_tensor *t)
{
    return t->name_bytes == strlen(EFS_SAFETENSORS_METADATA) &&
           memcmp(name_of(store, t), EFS_SAFETENSORS_METADATA, t->name_bytes) == 0;
}

struct dense_tensor { /* a tensor that stands whole in dense.safetensors */
    const struct efs_disk_tensor *tensor;
    uint32_t first_object; /* into objects_by_tensor */
    uint32_t object_count;
};

struct dense_plan {
    const struct efs_store *store;
    uint32_t *objects; /* objects of tensors, by (tensor, tensor_offset) */
    uint32_t *first;   /* by tensor, and one more: where its objects begin in objects */
    struct dense_tensor *tensors;
    uint32_t tensor_count;
};

static int by_offset(const void *pa, const void *pb, void *arg)
{
    const struct efs_store *store = arg;
    const struct efs_disk_object *a = &store->objects[*(const uint32_t *)pa],
                                 *b = &store->objects[*(const uint32_t *)pb];
    return (a->tensor_offset > b->tensor_offset) - (a->tensor_offset < b->tensor_offset);
}

static unsigned file_depth(const struct efs_store *store, const struct efs_disk_tensor *t)
{
    const struct efs_disk_file *file = &store->files[t->file];
    unsigned depth = 0;
    for (uint32_t i = 0; i < file->path_bytes; i++)
        depth += store->strings[file->path_offset + i] == '/';
    return depth;
}

/* By name; of one name that nearest to the top first, as the packer chooses among tensors of experts. */
static int by_name(const void *pa, const void *pb, void *arg)
{
    const struct efs_store *store = arg;
    const struct dense_tensor *a = pa, *b = pb;
    int c = compare_names(store, a->tensor, b->tensor);
    if (c)
        return c;
    unsigned a_depth = file_depth(store, a->tensor), b_depth = file_depth(store, b->tensor);
    if (a_depth != b_depth)
        return a_depth < b_depth ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

static int by_pages(const void *pa, const void *pb, void *arg)
{
    (void)arg;
    const struct dense_tensor *a = pa, *b = pb;
    int pages_a = a->tensor->bytes % EFS_ALIGN == 0, pages_b = b->tensor->bytes % EFS_ALIGN == 0;
    if (pages_a != pages_b)
        return pages_b - pages_a;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* Whole in one place: not an expert's own tensor. */
static bool stands_whole(const struct efs_store *store, const struct efs_disk_tensor *t, const uint32_t *objects,
                         uint32_t count)
{
    uint64_t covered = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_disk_object *o = &store->objects[objects[i]];
        if (o->tensor_offset != covered)
            return false;
        covered += o->bytes;
    }
    if (covered != t->bytes)
        return false;
    return count != 1 || store->groups[store->objects[objects[0]].group].kind != EFS_GROUP_EXPERT || t->expert_dim;
}

/* Counted into place: there are as many tensors as objects, nearly, and a sort of them would be most of the work. */
static void sort_objects(struct dense_plan *plan)
{
    const struct efs_store *store = plan->store;
    uint32_t *next =
        plan->first + 1; /* of tensor t at first[t + 1]: behind its objects in the end, where t + 1 begins */
    for (uint32_t o = 0; o < store->object_count; o++)
        if (store->objects[o].tensor != EFS_NONE)
            next[store->objects[o].tensor + 1]++;
    for (uint32_t t = 0; t < store->tensor_count; t++)
        next[t + 1] += next[t];
    for (uint32_t o = 0; o < store->object_count; o++)
        if (store->objects[o].tensor != EFS_NONE)
            plan->objects[next[store->objects[o].tensor]++] = o;
    for (uint32_t t = 0; t < store->tensor_count; t++)
        if (plan->first[t + 1] - plan->first[t] > 1)
            qsort_r(plan->objects + plan->first[t], plan->first[t + 1] - plan->first[t], sizeof(uint32_t), by_offset,
                    (void *)(uintptr_t)store);
}

static errint_t plan_dense(struct dense_plan *plan, const struct efs_store *store)
{
    *plan = (struct dense_plan){.store = store};
    plan->objects = efs_sys_calloc(store->object_count + 1u, sizeof(uint32_t));
    plan->first = efs_sys_calloc(store->tensor_count + 2ul, sizeof(uint32_t));
    plan->tensors = efs_sys_calloc(store->tensor_count + 1u, sizeof(*plan->tensors));
    if (!plan->objects || !plan->first || !plan->tensors)
        return -ENOMEM;
    sort_objects(plan);
    for (uint32_t t = 0; t < store->tensor_count; t++) {
        uint32_t first = plan->first[t], count = plan->first[t + 1] - first;
        if (!efs_store_is_apart(store, store->tensors[t].file) && !is_reserved(store, &store->tensors[t]) &&
            stands_whole(store, &store->tensors[t], plan->objects + first, count))
            plan->tensors[plan->tensor_count++] = (struct dense_tensor){&store->tensors[t], first, count};
    }
    qsort_r(plan->tensors, plan->tensor_count, sizeof(*plan->tensors), by_name, (void *)(uintptr_t)store);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++)
        if (kept == 0 || compare_names(store, plan->tensors[kept - 1].tensor, plan->tensors[i].tensor) != 0)
            plan->tensors[kept++] = plan->tensors[i];
    plan->tensor_count = kept;
    qsort_r(plan->tensors, plan->tensor_count, sizeof(*plan->tensors), by_pages, NULL);
    return 0;
}

static size_t dense_text(const struct dense_plan *plan, char *out, size_t bytes)
{
    struct efs_text text = {.data = out, .capacity = bytes, .bytes = 8};
    efs_text_format(&text, "{\"__metadata__\":{\"format\":\"pt\"");
    for (uint32_t i = 0; i < plan->tensor_count; i++)
        put_note(&text, plan->store, plan->tensors[i].tensor, false, 0);
    efs_text_bytes(&text, "}", 1);
    uint64_t at = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        efs_text_bytes(&text, ",", 1);
        put_tensor(&text, plan->store, plan->tensors[i].tensor, false, at, plan->tensors[i].tensor->bytes);
        at += plan->tensors[i].tensor->bytes;
    }
    efs_text_bytes(&text, "}", 1);
    return finish_header(&text);
}

static errint_t fill_dense(struct efs_view *view, const struct dense_plan *plan)
{
    size_t header = dense_text(plan, NULL, 0);
    view->dense_header = efs_sys_malloc(header);
    view->dense = efs_sys_calloc(plan->first[view->store->tensor_count] + 1u, sizeof(*view->dense));
    view->dense_tensors = efs_sys_calloc(plan->tensor_count + 1u, sizeof(uint32_t));
    if (!view->dense_header || !view->dense || !view->dense_tensors)
        return -ENOMEM;
    view->dense_header_bytes = dense_text(plan, view->dense_header, header);
    uint64_t at = header;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        view->dense_tensors[view->dense_tensor_count++] = (uint32_t)(plan->tensors[i].tensor - view->store->tensors);
        for (uint32_t o = 0; o < plan->tensors[i].object_count; o++) {
            uint32_t object = plan->objects[plan->tensors[i].first_object + o];
            view->dense[view->dense_count++] = (struct efs_dense_part){at, object};
            at += view->store->objects[object].bytes;
        }
    }
    view->dense_bytes = at;
    view->memory_bytes += header + (plan->first[view->store->tensor_count] + 1u) * sizeof(*view->dense) +
                          (plan->tensor_count + 1u) * sizeof(uint32_t);
    return 0;
}

errint_t efs_view_build_dense(struct efs_view *view)
{
    struct dense_plan plan;
    errint_t rc = plan_dense(&plan, view->store);
    if (rc == 0)
        rc = fill_dense(view, &plan);
    free(plan.objects);
    free(plan.first);
    free(plan.tensors);
    return rc;
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

/* ---- the index ---- */

#define INDEX_FRAME 128u /* bytes of what stands around the lines, */
#define INDEX_LINE 48u   /* and of a line without its tensor's name: most files' names have 20 */

static void index_dense(struct efs_text *text, const struct efs_view *view, bool *first)
{
    for (uint32_t i = 0; i < view->dense_tensor_count; i++) {
        const struct efs_disk_tensor *t = &view->store->tensors[view->dense_tensors[i]];
        efs_text_format(text, "%s\n    ", *first ? "" : ",");
        *first = false;
        efs_text_json(text, "", name_of(view->store, t), t->name_bytes);
        efs_text_format(text, ": \"dense.safetensors\"");
    }
}

static void index_experts(struct efs_text *text, const struct efs_view *view, bool *first)
{
    for (uint32_t e = 0; e < view->store->expert_count; e++) {
        uint32_t n;
        const struct efs_expert_part *parts = efs_view_expert_parts(view, e, &n);
        char file[80];
        efs_view_expert_name(view, e, file, sizeof(file));
        size_t file_bytes = strlen(file);
        for (uint32_t i = 0; i < n; i++) {
            const struct efs_disk_tensor *t = tensor_of(view->store, parts[i].object);
            if (t->expert_dim) /* stands whole in dense.safetensors under this name */
                continue;
            efs_text_string(text, *first ? "\n    " : ",\n    ");
            *first = false;
            efs_text_json(text, "", name_of(view->store, t), t->name_bytes);
            efs_text_bytes(text, ": \"", 3);
            efs_text_bytes(text, file, file_bytes);
            efs_text_string(text, ".safetensors\"");
        }
    }
}

static size_t index_text(const struct efs_view *view, char *out, size_t bytes)
{
    struct efs_text text = {.data = out, .capacity = bytes};
    uint64_t total = 0;
    for (uint32_t t = 0; t < view->store->tensor_count; t++)
        total += view->store->tensors[t].bytes;
    bool first = true;
    efs_text_format(&text, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", total);
    index_dense(&text, view, &first);
    index_experts(&text, view, &first);
    efs_text_format(&text, "\n  }\n}\n");
    return text.bytes;
}

/* As much as the index takes where no name needs escapes, and more: what is too much is never touched, and given back.
 * A count of the text would take as long as the text. */
static size_t index_room(const struct efs_view *view)
{
    size_t room = INDEX_FRAME;
    for (uint32_t t = 0; t < view->store->tensor_count; t++)
        room += view->store->tensors[t].name_bytes + INDEX_LINE;
    return room;
}

errint_t efs_view_build_index(struct efs_view *view)
{
    size_t room = index_room(view), bytes;
    for (;; room = bytes) {
        view->index_text = efs_sys_malloc(room);
        if (!view->index_text)
            return -ENOMEM;
        efs_ask_huge(view->index_text, room);
        bytes = index_text(view, view->index_text, room);
        if (bytes <= room)
            break;
        free(view->index_text);
    }
    char *cut = efs_sys_realloc(view->index_text, bytes);
    view->index_text = cut ? cut : view->index_text;
    view->index_bytes = bytes;
    view->memory_bytes += bytes;
    return 0;
}
