/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_text.c - see view_text.h. A safetensors header must describe its data without holes, so only the header is
 * padded (with spaces) to 4 KiB; tensors that are whole pages come first, then the data of all of them is aligned.
 */
#include "view_text.h"

#include "text.h"

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
