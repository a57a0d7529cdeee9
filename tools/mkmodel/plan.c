/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

void mk_plan_init(struct mk_plan *plan, const struct mk_model *model)
{
    memset(plan, 0, sizeof(*plan));
    plan->model = model;
}

void mk_plan_free(struct mk_plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        free(plan->tensors[i].name);
        free(plan->tensors[i].keys);
    }
    free(plan->tensors);
    memset(plan, 0, sizeof(*plan));
}

uint64_t mk_plan_bytes(const struct mk_plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->count; i++)
        bytes += plan->tensors[i].bytes;
    return bytes;
}

uint32_t mk_plan_shard_end(const struct mk_plan *plan, uint32_t first, uint64_t limit)
{
    uint64_t bytes = 0;
    uint32_t end = first;
    while (end < plan->count && (end == first || bytes + plan->tensors[end].bytes <= limit))
        bytes += plan->tensors[end++].bytes;
    return end;
}

uint32_t mk_plan_shards(const struct mk_plan *plan, uint64_t limit)
{
    uint32_t shards = 0;
    for (uint32_t first = 0; first < plan->count; first = mk_plan_shard_end(plan, first, limit))
        shards++;
    return shards;
}

struct mk_tensor *mk_plan_new(struct mk_plan *plan, const char *name, uint32_t parts)
{
    if (plan->failed)
        return NULL;
    if (plan->count == plan->room) {
        uint32_t room = plan->room ? 2 * plan->room : 256;
        struct mk_tensor *more = reallocarray(plan->tensors, room, sizeof(*more));
        if (!more) {
            plan->failed = true;
            return NULL;
        }
        plan->tensors = more;
        plan->room = room;
    }
    struct mk_tensor *tensor = &plan->tensors[plan->count];
    memset(tensor, 0, sizeof(*tensor));
    tensor->name = strdup(name);
    tensor->keys = calloc(parts, sizeof(*tensor->keys));
    if (!tensor->name || !tensor->keys) {
        free(tensor->name);
        free(tensor->keys);
        plan->failed = true;
        return NULL;
    }
    tensor->parts = parts;
    plan->count++;
    return tensor;
}

/* A part's key: the tensor's name, and the part's number if there are several. */
static void tensor_set_keys(const struct mk_plan *plan, struct mk_tensor *tensor, const char *name)
{
    tensor->keys[0] = mk_key(plan->model->seed, name);
    for (uint32_t p = 1; p < tensor->parts; p++)
        tensor->keys[p] = mk_mix(tensor->keys[0] + p);
}

static struct mk_tensor *plan_add(struct mk_plan *plan, enum mk_role role, enum mk_fill fill, uint32_t layer,
                                  uint32_t parts, uint64_t rows, uint64_t columns, const char *format, va_list names)
{
    char name[256];
    vsnprintf(name, sizeof(name), format, names);
    struct mk_tensor *tensor = mk_plan_new(plan, name, parts);
    if (!tensor)
        return NULL;
    tensor->role = role;
    tensor->fill = fill;
    tensor->kind = fill == MK_FILL_NORM ? MK_KIND_NORM : fill == MK_FILL_BIAS ? MK_KIND_BIAS : mk_kind_of(name, 2);
    tensor->layer = layer;
    tensor->rows = rows;
    tensor->columns = columns;
    /* what is not a linear layer stays in BF16 where those are in FP8 */
    tensor->dtype = plan->model->dtype == MK_FP8 ? MK_BF16 : plan->model->dtype;
    tensor->precision = tensor->dtype;
    tensor->bytes = parts * rows * columns * mk_dtype_bytes(tensor->dtype);
    tensor_set_keys(plan, tensor, name);
    return tensor;
}

static void tensor_set_matrix(struct mk_tensor *tensor, float scale)
{
    tensor->dims = 2;
    tensor->shape[0] = tensor->rows;
    tensor->shape[1] = tensor->columns;
    tensor->scale = scale;
}

static void add_block_scales(struct mk_plan *plan, uint32_t scaled)
{
    char name[256];
    snprintf(name, sizeof(name), "%s_scale_inv", plan->tensors[scaled].name);
    struct mk_tensor *scales = mk_plan_new(plan, name, 1);
    if (!scales)
        return;
    const struct mk_tensor *tensor = &plan->tensors[scaled]; /* mk_plan_new() may have moved it */
    scales->fill = MK_FILL_SCALE;
    scales->kind = tensor->kind;
    scales->dtype = MK_F32;
    scales->layer = tensor->layer;
    scales->expert = tensor->expert;
    scales->rows = tensor->rows;
    scales->columns = tensor->columns;
    scales->scale = tensor->scale;
    scales->keys[0] = tensor->keys[0];
    scales->dims = 2;
    scales->shape[0] = (tensor->rows + 127) / 128;
    scales->shape[1] = (tensor->columns + 127) / 128;
    scales->bytes = scales->shape[0] * scales->shape[1] * 4;
}

void mk_plan_linear(struct mk_plan *plan, enum mk_role role, uint32_t layer, uint32_t expert, uint64_t rows,
                    uint64_t columns, const char *format, ...)
{
    va_list names;
    va_start(names, format);
    struct mk_tensor *tensor = plan_add(plan, role, MK_FILL_WEIGHT, layer, 1, rows, columns, format, names);
    va_end(names);
    if (!tensor)
        return;
    tensor_set_matrix(tensor, (float)(1 / sqrt((double)columns)));
    tensor->expert = expert;
    if (plan->model->dtype == MK_FP8) {
        tensor->dtype = MK_FP8;
        tensor->bytes = rows * columns;
        add_block_scales(plan, plan->count - 1);
    }
}

void mk_plan_matrix(struct mk_plan *plan, enum mk_role role, uint32_t layer, uint64_t rows, uint64_t columns,
                    float scale, const char *format, ...)
{
    va_list names;
    va_start(names, format);
    struct mk_tensor *tensor = plan_add(plan, role, MK_FILL_WEIGHT, layer, 1, rows, columns, format, names);
    va_end(names);
    if (tensor)
        tensor_set_matrix(tensor, scale);
}

void mk_plan_vector(struct mk_plan *plan, enum mk_role role, enum mk_fill fill, uint32_t layer, uint32_t parts,
                    uint64_t columns, const char *format, ...)
{
    va_list names;
    va_start(names, format);
    struct mk_tensor *tensor = plan_add(plan, role, fill, layer, parts ? parts : 1, 1, columns, format, names);
    va_end(names);
    if (!tensor)
        return;
    tensor->dims = parts ? 2 : 1;
    tensor->shape[0] = parts ? parts : columns;
    tensor->shape[1] = parts ? columns : 0;
    tensor->scale = fill == MK_FILL_NORM ? 0.1f : 0.02f;
}

void mk_plan_fused(struct mk_plan *plan, uint32_t layer, uint32_t parts, uint64_t rows, uint64_t columns,
                   uint64_t fan_in, const char *format, ...)
{
    va_list names;
    va_start(names, format);
    struct mk_tensor *tensor = plan_add(plan, MK_OTHER, MK_FILL_WEIGHT, layer, parts, rows, columns, format, names);
    va_end(names);
    if (!tensor)
        return;
    tensor->dims = 3;
    tensor->shape[0] = parts;
    tensor->shape[1] = rows;
    tensor->shape[2] = columns;
    tensor->scale = (float)(1 / sqrt((double)fan_in));
}
