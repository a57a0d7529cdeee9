/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_memory.c - the device and the memory of its slots. They are allocated before the first product, when ggml has
 * allocated the weights, the KV cache and the compute buffers. An allocation that fails is tried again with fewer
 * slots.
 */
#include "offload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FREE_SHARE 8u /* of an automatic budget 1/8 of the free memory is left, for later allocations of ggml */
#define SHRINK(n) ((n) - ((n) + 3) / 4) /* fewer slots, after an allocation that failed */
#define STAGING_BYTES (16u << 20)       /* of each part; several pieces of a copy */

static uint64_t expert_bytes(const struct offload_layer *l)
{
    uint64_t bytes = 0;
    for (uint32_t m = 0; m < l->matrices; m++)
        bytes += (uint64_t)l->matrix[m].rows * l->matrix[m].row_bytes;
    return bytes;
}

static void layer_free(struct offload_layer *l)
{
    for (uint32_t m = 0; m < l->matrices; m++)
        l->matrix[m].slots = NULL;
    if (l->buffer)
        efsg_host.buffer_free(l->buffer);
    if (l->context)
        efsg_host.free(l->context);
    l->buffer = NULL;
    l->context = NULL;
}

/* Allocates the slots of a layer in one buffer. False: no memory, or larger than a buffer of the device may be. */
static bool layer_alloc(struct efsg_offload *o, struct offload_layer *l, uint32_t slots)
{
    const ggml_backend_buffer_type_t type = o->device->iface.get_buffer_type(o->device);
    const struct ggml_backend_buffer_type_i *calls = &type->iface;
    const size_t align = calls->get_alignment(type);
    size_t offset[OFFLOAD_MATRICES] = {0}, bytes = 0;
    l->context = efsg_host.init(
        (struct ggml_init_params){.mem_size = OFFLOAD_MATRICES * efsg_host.tensor_overhead(), .no_alloc = true});
    for (uint32_t m = 0; l->context && m < l->matrices; m++) {
        struct offload_matrix *matrix = &l->matrix[m];
        matrix->slots = efsg_host.new_tensor_3d(l->context, matrix->type, matrix->cols, matrix->rows, slots);
        const size_t plain = (size_t)slots * matrix->rows * matrix->row_bytes;
        const size_t own = calls->get_alloc_size ? calls->get_alloc_size(type, matrix->slots) : plain;
        offset[m] = (bytes + align - 1) / align * align;
        bytes = offset[m] + (own > plain ? own : plain);
    }
    if (l->context && (!calls->get_max_size || bytes <= calls->get_max_size(type)))
        l->buffer = calls->alloc_buffer(type, bytes);
    if (!l->buffer)
        return false;
    uint8_t *base = l->buffer->iface.get_base(l->buffer);
    for (uint32_t m = 0; m < l->matrices; m++) {
        struct ggml_tensor *t = l->matrix[m].slots;
        t->buffer = l->buffer;
        t->data = base + offset[m];
        if (l->buffer->iface.init_tensor && l->buffer->iface.init_tensor(l->buffer, t) != GGML_STATUS_SUCCESS)
            return false;
    }
    return true;
}

static void slots_free(struct efsg_offload *o)
{
    for (uint32_t i = 0; i < o->layer_count; i++)
        layer_free(&o->layers[i]);
    efs_device_slots_free(o->slots);
    o->slots = NULL;
    o->slot_count = 0;
}

/* Whether the device multiplies with a matrix of the layers. */
static bool supported(struct efsg_offload *o, const struct offload_matrix *matrix)
{
    struct ggml_context *context =
        efsg_host.init((struct ggml_init_params){.mem_size = 8 * efsg_host.tensor_overhead(), .no_alloc = true});
    if (!context)
        return false;
    struct ggml_tensor *x = efsg_host.new_tensor_3d(context, GGML_TYPE_F32, matrix->cols, 1, 1);
    struct ggml_tensor *ids = efsg_host.new_tensor_2d(context, GGML_TYPE_I32, 1, 1);
    struct ggml_tensor *y = efsg_host.mul_mat_id(context, matrix->slots, x, ids);
    const bool good = o->device->iface.supports_op(o->device, y);
    efsg_host.free(context);
    return good;
}

/* Allocates at most `slots` slots of each layer, fewer if memory lacks. False: no memory for one, or the device cannot
 * multiply with a type. */
static bool slots_alloc(struct efsg_offload *o, uint32_t slots, uint32_t experts)
{
    for (; slots > 0; slots = SHRINK(slots)) {
        bool good = true, types = true;
        for (uint32_t i = 0; i < o->layer_count && good; i++)
            good = layer_alloc(o, &o->layers[i], slots);
        for (uint32_t i = 0; i < o->layer_count && good; i++)
            for (uint32_t m = 0; m < o->layers[i].matrices && good; m++)
                good = types = supported(o, &o->layers[i].matrix[m]);
        const struct efs_device_slots_config config = {
            .rule = o->rule, .layers = o->layer_count, .experts = experts, .slots = slots, .chosen = 8};
        if (good && efs_device_slots_new(&config, &o->slots) == 0) {
            o->slot_count = slots;
            return true;
        }
        slots_free(o);
        if (!types)
            return false;
    }
    return false;
}

/* Memory that the device copies from asynchronously; else ordinary memory. */
static void staging_alloc(struct efsg_offload *o)
{
    const struct ggml_backend_device_i *calls = &o->device->iface;
    ggml_backend_buffer_type_t type =
        calls->get_host_buffer_type && o->backend->iface.set_tensor_async && o->backend->iface.synchronize
            ? calls->get_host_buffer_type(o->device)
            : NULL;
    if (type && (o->staging_buffer = type->iface.alloc_buffer(type, OFFLOAD_STAGES * STAGING_BYTES)))
        o->staging = o->staging_buffer->iface.get_base(o->staging_buffer);
    for (unsigned i = 0; i < OFFLOAD_STAGES && o->staging_buffer && calls->event_new && o->backend->iface.event_record;
         i++)
        o->event[i] = calls->event_new(o->device);
    if (!o->staging)
        o->staging = efsg_memory(&o->memory_staging, OFFLOAD_STAGES * STAGING_BYTES);
}

static void log_slots(const struct efsg_offload *o, uint32_t experts, uint64_t round)
{
    efsg_log(GGML_LOG_LEVEL_INFO, "%s: %u slots of %u experts in each of %u layers, %llu MiB",
             o->device->iface.get_name(o->device), o->slot_count, experts, o->layer_count,
             (unsigned long long)((uint64_t)o->slot_count * round >> 20));
}

/* Experts of the widest layer, and bytes of one slot in each layer. */
static uint32_t widest(const struct efsg_offload *o, uint64_t *round)
{
    uint32_t experts = 0;
    *round = 0;
    for (uint32_t i = 0; i < o->layer_count; i++) {
        experts = o->layers[i].experts > experts ? o->layers[i].experts : experts;
        *round += expert_bytes(&o->layers[i]);
    }
    return experts;
}

static bool failed(struct efsg_offload *o, const char *why)
{
    o->failed = true;
    efsg_log(GGML_LOG_LEVEL_WARN, "%s: %s: the processor computes experts", o->device->iface.get_name(o->device), why);
    return false;
}

/* Adds a matrix to the layer of its number. */
static void add_weight(struct efsg_offload *o, const struct efsg_weight *w)
{
    uint32_t i = 0;
    while (i < o->layer_count && o->layers[i].layer != w->layer)
        i++;
    struct offload_layer *l = &o->layers[i];
    if (i == o->layer_count)
        o->layers[o->layer_count++] = (struct offload_layer){.layer = w->layer, .experts = w->experts};
    for (uint32_t m = 0; m < l->matrices; m++)
        if (strcmp(l->matrix[m].name, w->name) == 0) /* of another model of the same file */
            return;
    if (l->matrices == OFFLOAD_MATRICES || l->experts != w->experts)
        return;
    struct offload_matrix *matrix = &l->matrix[l->matrices++];
    *matrix = (struct offload_matrix){.type = w->type, .rows = w->rows, .cols = w->cols, .row_bytes = w->row_bytes};
    snprintf(matrix->name, sizeof(matrix->name), "%s", w->name);
}

/* The layers of the source's weights. False: no memory, or none. */
static bool find_layers(struct efsg_offload *o)
{
    uint32_t count;
    struct efsg_weight *weights = efsg_source_weights(o->source, &count);
    o->layers = weights ? calloc(count + 1, sizeof(*o->layers)) : NULL;
    for (uint32_t i = 0; i < count && o->layers; i++)
        add_weight(o, &weights[i]);
    free(weights);
    return o->layer_count > 0;
}

bool offload_open(struct efsg_offload *o)
{
    if (o->opened)
        return !o->failed;
    o->opened = true;
    if (!find_layers(o))
        return failed(o, "no memory");
    uint64_t round;
    const uint32_t experts = widest(o, &round);
    size_t left = 0, total = 0;
    o->device->iface.get_memory(o->device, &left, &total);
    const uint64_t budget = o->budget_bytes ? o->budget_bytes : left - left / FREE_SHARE;
    uint64_t slots = round ? budget / round : 0;
    if (slots == 0)
        return failed(o, o->budget_bytes ? "EXPERTFS_DEVICE_BUDGET is less than one expert of each layer"
                                         : "no memory for one expert of each layer is free");
    o->backend = o->device->iface.init_backend(o->device, NULL);
    o->allocator = o->backend ? efsg_host.gallocr_new(o->device->iface.get_buffer_type(o->device)) : NULL;
    if (!o->allocator)
        return failed(o, "cannot be opened");
    staging_alloc(o);
    if (!o->staging || !slots_alloc(o, (uint32_t)(slots < experts ? slots : experts), experts))
        return failed(o, "no memory for slots, or no products of this type");
    o->shares = o->shares && offload_thread_start(&o->thread);
    log_slots(o, experts, round);
    return true;
}

/* Waits for copies to slots, so that their memory can be freed. */
static void wait_for_device(struct efsg_offload *o)
{
    if (o->backend && o->backend->iface.synchronize)
        o->backend->iface.synchronize(o->backend);
}

bool offload_shrink(struct efsg_offload *o)
{
    uint64_t round;
    const uint32_t experts = widest(o, &round), fewer = SHRINK(o->slot_count);
    wait_for_device(o);
    slots_free(o);
    if (!slots_alloc(o, fewer, experts))
        return failed(o, "its memory is full");
    log_slots(o, experts, round);
    return true;
}

void offload_close(struct efsg_offload *o)
{
    offload_thread_stop(&o->thread);
    wait_for_device(o);
    slots_free(o);
    if (o->allocator)
        efsg_host.gallocr_free(o->allocator);
    for (unsigned i = 0; i < OFFLOAD_STAGES; i++)
        if (o->event[i])
            o->device->iface.event_free(o->device, o->event[i]);
    if (o->staging_buffer)
        efsg_host.buffer_free(o->staging_buffer);
    if (o->backend)
        o->backend->iface.free(o->backend);
    struct efsg_memory *const memory[] = {&o->memory_staging, &o->graph, &o->inputs, &o->ids,        &o->outputs,
                                          &o->places,         &o->split, &o->host,   &o->lists.lists};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        free(memory[i]->at);
}
