/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c - the tensors as transformers saves them: cut into shards in the model's order; inside a file larger
 * element types first, then by name; the header padded with spaces to 8 bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

static int compare_places(const void *a, const void *b)
{
    const struct mk_tensor *x = *(const struct mk_tensor *const *)a, *y = *(const struct mk_tensor *const *)b;
    uint32_t size_x = mk_dtype_bytes(x->dtype), size_y = mk_dtype_bytes(y->dtype);
    if (size_x != size_y)
        return size_x < size_y ? 1 : -1;
    return strcmp(x->name, y->name);
}

static json_t *tensor_describe(const struct mk_tensor *tensor, uint64_t offset)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d]));
    return json_pack("{s:s, s:o, s:[II]}", "dtype", mk_dtype_name(tensor->dtype), "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)(offset + tensor->bytes));
}

/* The header's text after its length, *bytes long; NULL: no memory. */
static char *make_header(const struct mk_tensor *const *tensors, uint32_t count, uint64_t *bytes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t offset = 0;
    for (uint32_t i = 0; i < count && header; i++) {
        if (json_object_set_new(header, tensors[i]->name, tensor_describe(tensors[i], offset))) {
            json_decref(header);
            return NULL;
        }
        offset += tensors[i]->bytes;
    }
    char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return NULL;
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8;
    char *whole = malloc(8 + padded);
    if (whole) {
        for (int i = 0; i < 8; i++)
            whole[i] = (char)(padded >> (8 * i));
        memset(whole + 8, ' ', padded);
        memcpy(whole + 8, text, length);
        *bytes = 8 + padded;
    }
    free(text);
    return whole;
}

static int add_shard(struct mk_files *files, const char *name, const struct mk_tensor *tensors, uint32_t count)
{
    const struct mk_tensor **sorted = calloc(count, sizeof(*sorted));
    struct mk_file *file = mk_files_add(files, name);
    int rc = sorted && file ? 0 : -ENOMEM;
    if (!rc) {
        for (uint32_t i = 0; i < count; i++)
            sorted[i] = &tensors[i];
        qsort(sorted, count, sizeof(*sorted), compare_places);
        uint64_t bytes = 0;
        char *header = make_header(sorted, count, &bytes);
        rc = mk_file_literal(file, header, bytes);
        for (uint32_t i = 0; i < count && !rc; i++)
            rc = mk_file_tensor(file, sorted[i]);
    }
    free(sorted);
    return rc;
}

static int add_index(const struct mk_plan *plan, json_t *map, struct mk_files *files)
{
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)mk_plan_bytes(plan), "weight_map", map);
    char *dump = index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL, *text = NULL;
    json_decref(index);
    if (dump && asprintf(&text, "%s\n", dump) < 0)
        text = NULL;
    free(dump);
    return mk_files_text(files, "model.safetensors.index.json", text);
}

int mk_safetensors_files(const struct mk_model *model, const struct mk_plan *plan, struct mk_files *files)
{
    uint32_t shards = mk_plan_shards(plan, model->shard_bytes);
    if (shards == 1)
        return add_shard(files, "model.safetensors", plan->tensors, plan->count);
    json_t *map = json_object();
    int rc = map ? 0 : -ENOMEM;
    for (uint32_t first = 0, shard = 1; first < plan->count && !rc; shard++) {
        char name[64];
        snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", shard, shards);
        uint32_t end = mk_plan_shard_end(plan, first, model->shard_bytes);
        rc = add_shard(files, name, plan->tensors + first, end - first);
        for (; first < end && !rc; first++)
            rc = json_object_set_new(map, plan->tensors[first].name, json_string(name)) ? -ENOMEM : 0;
    }
    if (rc) {
        json_decref(map);
        return rc;
    }
    return add_index(plan, map, files);
}
