/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload.c - which device, which layers, and the calls: chooses slots for the experts of a product, copies those that
 * are missing, and computes. If tokens choose more experts than a layer has slots, they are computed in waves: first
 * those in slots, then as many missing ones at once as there are slots.
 */
#include "offload.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the device ---- */

/* The device of that name, which is not the processor. NULL: none; then `names` lists those that there are. */
static ggml_backend_dev_t find_device(const char *name, char *names, size_t size)
{
    *names = '\0';
    for (size_t i = 0; i < efsg_host.dev_count(); i++) {
        ggml_backend_dev_t device = efsg_host.dev_get(i);
        const enum ggml_backend_dev_type type = device->iface.get_type(device);
        const char *own = device->iface.get_name(device);
        if (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU)
            continue;
        if (strcmp(own, name) == 0)
            return device;
        const size_t length = strlen(names);
        snprintf(names + length, size - length, "%s%s", length ? ", " : "", own);
    }
    return NULL;
}

/* Sets o->device and the budget. Logs why it cannot. */
static void choose(struct efsg_offload *o, const char *name)
{
    const char *budget = getenv("EXPERTFS_DEVICE_BUDGET");
    char names[512];
    uint64_t bytes = 0;
    if (budget && *budget && strcmp(budget, "auto") != 0 && (efs_parse_size(budget, &bytes) < 0 || bytes == 0)) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE_BUDGET=%s is no size; one is written 8G, 512M, auto", budget);
        return;
    }
    if (!efsg_host_has_devices()) {
        efsg_log(GGML_LOG_LEVEL_WARN, "EXPERTFS_DEVICE=%s: this ggml exports no functions for devices", name);
        return;
    }
    o->budget_bytes = bytes;
    o->device = find_device(name, names, sizeof(names));
    if (!o->device)
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE=%s: no such device; ggml has %s", name,
                 *names ? names : "none besides the processor");
}

static void offload_free(struct efsg_offload *o)
{
    if (o->calls)
        efsg_log(GGML_LOG_LEVEL_INFO,
                 "%s: %llu of %llu chosen experts were in slots; copied %llu in %llu.%03llu s: %llu bytes",
                 o->device->iface.get_name(o->device), (unsigned long long)o->found,
                 (unsigned long long)(o->found + o->copied), (unsigned long long)o->copied,
                 (unsigned long long)(o->wait_ns / 1000000000u), (unsigned long long)(o->wait_ns / 1000000u % 1000u),
                 (unsigned long long)o->copied_bytes);
    if (o->device)
        offload_close(o);
    free(o->layers);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* The device of a source, which is chosen at the first call. NULL: none. */
static struct efsg_offload *offload_get(struct efsg_source *source)
{
    struct efsg_offload *o = efsg_source_offload(source), *set;
    const char *name = o ? NULL : efsg_device_wanted();
    if (name && (o = calloc(1, sizeof(*o)))) {
        pthread_mutex_init(&o->lock, NULL);
        o->source = source;
        choose(o, name);
        set = efsg_source_set_offload(source, o, offload_free);
        if (set != o)
            offload_free(o);
        o = set;
    }
    return o && o->device ? o : NULL;
}

/* ---- the nodes of a call ---- */

/* Operations on single numbers, or on two at the same place. */
static bool is_elementwise(const struct ggml_tensor *op)
{
    return (op->op == GGML_OP_GLU || op->op == GGML_OP_UNARY || op->op == GGML_OP_SQR) && op->src[0];
}

/* Whether rows of t are rows of the tensor that it is a view of, or parts of them. */
static bool is_rows(const struct ggml_tensor *t)
{
    const struct ggml_tensor *base = offload_base(t);
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[1] == base->ne[1] &&
           t->ne[2] == base->ne[2] && t->ne[3] == 1 && t->nb[1] == base->nb[1] && t->nb[2] == base->nb[2] &&
           (t == base || t->view_offs % base->nb[1] + (size_t)t->ne[0] * sizeof(float) <= base->nb[1]) &&
           (t == base || t->view_offs < base->nb[1]);
}

static bool is_compact(const struct ggml_tensor *t)
{
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->nb[1] == (size_t)t->ne[0] * sizeof(float) &&
           t->nb[2] == t->nb[1] * (size_t)t->ne[1] && t->ne[3] == 1;
}

static struct efsg_offload *offload_of(const struct ggml_tensor *product)
{
    const struct efsg_weight *w = efsg_product_weight(product);
    return w ? offload_get(w->source) : NULL;
}

/* The device of the products that an operation's inputs come from, by at most `depth` such operations. NULL: other
 * inputs. */
static struct efsg_offload *inputs_offload(const struct ggml_tensor *op, unsigned depth)
{
    struct efsg_offload *found = NULL;
    for (unsigned i = 0; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor *base = op->src[i] ? offload_base(op->src[i]) : NULL;
        if (!base)
            continue;
        struct efsg_offload *o = base->op == GGML_OP_MUL_MAT_ID      ? offload_of(base)
                                 : depth > 0 && is_elementwise(base) ? inputs_offload(base, depth - 1)
                                                                     : NULL;
        if (!o || (found && o != found) || !is_rows(op->src[i]))
            return NULL;
        found = o;
    }
    return found;
}

bool efsg_offload_takes(const struct ggml_tensor *op)
{
    struct efsg_offload *o = is_elementwise(op) && is_compact(op) ? inputs_offload(op, 2) : NULL;
    return o && o->device->iface.supports_op(o->device, op);
}

static bool is_inside(const struct ggml_tensor *t, struct ggml_tensor *const *nodes, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (nodes[i] == offload_base(t))
            return is_rows(t);
    return false;
}

/* Whether a node can be computed together with the ones before it. */
static bool joins(const struct offload_call *call, struct ggml_tensor *const *nodes, unsigned at)
{
    const struct ggml_tensor *node = nodes[at];
    if (node->op == GGML_OP_MUL_MAT_ID) {
        const struct efsg_weight *w = efsg_product_weight(node);
        return w && w->source == call->o->source && is_compact(node) && node->src[2] == nodes[0]->src[2] &&
               offload_matrix(&call->o->layers[call->index], node);
    }
    for (unsigned i = 0; i < GGML_MAX_SRC; i++)
        if (node->src[i] && !is_inside(node->src[i], nodes, at))
            return false;
    return is_elementwise(node) && is_compact(node);
}

/* ---- computing ---- */

/* Gives each of these experts a slot, and copies those that had none. */
static errint_t fill(struct offload_call *call, const struct chosen *const *chosen, uint32_t count,
                     const struct chosen **missing)
{
    struct efsg_offload *o = call->o;
    uint32_t misses = 0;
    efs_device_slots_wave(o->slots);
    for (uint32_t i = 0; i < count; i++)
        if (efs_device_slots_use(o->slots, call->index, chosen[i]->expert) < 0)
            missing[misses++] = chosen[i];
    for (uint32_t i = 0; i < misses; i++)
        if (efs_device_slots_take(o->slots, call->index, missing[i]->expert) < 0)
            return -EINVAL; /* not possible: at most o->slot_count are passed */
    o->found += count - misses;
    return misses ? offload_copy(call, missing, misses) : 0;
}

/* Sets *computing before the device begins: errors of the source are before it. */
static errint_t compute_waves(struct offload_call *call, struct efsg_hints *hints, bool *computing)
{
    struct efsg_offload *o = call->o;
    const uint32_t count = call->p.chosen_count, slots = o->slot_count;
    const struct chosen **order = malloc(2 * count * sizeof(*order)), **missing = order ? order + count : NULL;
    uint32_t *experts = malloc(count * sizeof(*experts)), found = 0, at = count;
    for (uint32_t i = 0; i < count && order && experts; i++) {
        const bool in_slot = efs_device_slots_find(o->slots, call->index, call->p.chosen[i].expert) >= 0;
        order[in_slot ? found++ : --at] = &call->p.chosen[i];
        experts[i] = call->p.chosen[i].expert;
    }
    errint_t rc = order && experts ? offload_begin(call, count > slots) : -ENOMEM;
    if (rc == 0)
        rc = efs_device_slots_request(o->slots, call->index, experts, count);
    for (uint32_t begin = 0, part; begin < count && rc == 0; begin += part) {
        part = count <= slots ? count : begin < found ? found - begin : count - begin;
        part = part < slots ? part : slots;
        *computing = false;
        rc = fill(call, order + begin, part, missing);
        *computing = rc == 0;
        if (rc == 0)
            rc = count <= slots ? offload_compute(call, NULL, 0, hints)
                                : offload_compute(call, order + begin, part, NULL);
    }
    if (rc == 0)
        offload_end(call);
    free(order);
    free(experts);
    return rc;
}

/* Computes the nodes of a call. *done: whether it has. Caller holds the lock. */
static enum ggml_status compute(struct offload_call *call, struct efsg_buffers *room, struct efsg_hints *hints,
                                bool *done)
{
    struct efsg_offload *o = call->o;
    bool computing = false;
    errint_t rc = efsg_sort_choices(&call->p, room);
    if (rc == 0)
        do
            rc = compute_waves(call, hints, &computing);
        while (rc == -ENOSPC && offload_shrink(o));
    o->calls++;
    *done = rc == 0;
    if (rc == 0 || o->failed)
        return GGML_STATUS_SUCCESS;
    const char *why = call->p.err.text[0] ? call->p.err.text : strerror(-rc);
    if (!computing) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "%s: %s", call->nodes[0]->name, why);
        return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
    }
    o->failed = true;
    efsg_log(GGML_LOG_LEVEL_WARN, "%s: %s: the processor computes experts from now on",
             o->device->iface.get_name(o->device), why);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status efsg_offload_compute(struct efsg_buffers *room, struct efsg_hints *hints, struct ggml_cgraph *graph,
                                      struct ggml_tensor *const *nodes, unsigned count, unsigned *done)
{
    const struct efsg_weight *w = efsg_product_weight(nodes[0]);
    struct efsg_offload *o = w ? offload_get(w->source) : NULL;
    const struct ggml_tensor *ids = nodes[0]->src[2];
    enum ggml_status status = GGML_STATUS_SUCCESS;
    bool computed = false;
    *done = 0;
    if (!o || ids->ne[0] == 0 || ids->ne[1] == 0)
        return GGML_STATUS_SUCCESS;
    efsg_buffers_release(room); /* a thread that waits for the lock holds no experts */
    pthread_mutex_lock(&o->lock);
    struct offload_call call = {.o = o, .graph = graph, .nodes = nodes};
    const bool open = offload_open(o);
    while (call.index < o->layer_count && o->layers[call.index].layer != w->layer)
        call.index++;
    if (open && call.index < o->layer_count) {
        while (call.count < count && joins(&call, nodes, call.count))
            call.count++;
        call.p = (struct products){.nodes = nodes, .weights = {w}, .count = 1};
        if (call.count > 0)
            status = compute(&call, room, hints, &computed);
    }
    pthread_mutex_unlock(&o->lock);
    *done = computed ? call.count : 0;
    return status;
}
