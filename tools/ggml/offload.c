/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload.c - the calls: which nodes are computed together, slots for the experts, copies of those that are missing.
 * If the device gets more experts than a layer has slots, they are computed in waves: first those in slots, then as
 * many missing ones at once as there are slots.
 */
#include "offload.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the device of a source ---- */

static void offload_free(struct efsg_offload *o)
{
    const struct efs_export_device *c = &o->counts;
    if (o->calls)
        efsg_log(GGML_LOG_LEVEL_INFO,
                 "%s: %llu of %llu chosen experts were in slots; copied %llu in %llu.%03llu s: %llu bytes; "
                 "the processor computed %llu",
                 o->device->iface.get_name(o->device), (unsigned long long)c->hits,
                 (unsigned long long)(c->hits + c->copied + c->computed), (unsigned long long)c->copied,
                 (unsigned long long)(c->wait_ns / 1000000000u), (unsigned long long)(c->wait_ns / 1000000u % 1000u),
                 (unsigned long long)c->copied_bytes, (unsigned long long)c->computed);
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
        offload_choose(o, name);
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
static errint_t fill(struct offload_call *call, const struct chosen *const *chosen, uint32_t count)
{
    struct efsg_offload *o = call->o;
    uint32_t misses = 0;
    efs_device_slots_wave(o->slots);
    for (uint32_t i = 0; i < count; i++)
        if (efs_device_slots_use(o->slots, call->index, chosen[i]->expert) < 0)
            call->missing[misses++] = chosen[i];
    for (uint32_t i = 0; i < misses; i++)
        if (efs_device_slots_take(o->slots, call->index, call->missing[i]->expert) < 0)
            return -EINVAL; /* not possible: at most o->slot_count are passed */
    o->counts.hits += count - misses;
    return misses ? offload_copy(call, call->missing, misses) : 0;
}

/* The device's part, in waves if it has more experts than slots. Errors of the source are before call->computing. */
static errint_t compute_device(struct offload_call *call)
{
    const uint32_t count = call->device, slots = call->o->slot_count;
    errint_t rc = 0;
    for (uint32_t begin = 0, part; begin < count && rc == 0; begin += part) {
        const struct chosen *const *chosen = call->order + begin;
        part = count <= slots ? count : begin < call->found ? call->found - begin : count - begin;
        part = part < slots ? part : slots;
        call->computing = false;
        rc = fill(call, chosen, part);
        call->computing = rc == 0;
        if (rc == 0)
            rc = offload_compute(call, chosen, call->whole ? 0 : part, begin == 0 ? call->hints : NULL);
    }
    return rc;
}

static errint_t compute_parts(struct offload_call *call, struct efsg_buffers *room, int threads)
{
    const uint64_t start = efs_clock_ns(CLOCK_MONOTONIC);
    errint_t rc = offload_assign(call);
    if (rc == 0)
        rc = offload_begin(call, !call->whole);
    if (rc == 0)
        rc = call->device == call->p.chosen_count ? compute_device(call)
                                                  : offload_share(call, compute_device, room, threads);
    if (rc < 0)
        return rc;
    offload_end(call);
    offload_measured(call, efs_clock_ns(CLOCK_MONOTONIC) - start);
    return 0;
}

/* Computes the nodes of a call. *done: whether it has. Caller holds the lock. */
static enum ggml_status compute(struct offload_call *call, struct efsg_buffers *room, int threads, bool *done)
{
    struct efsg_offload *o = call->o;
    errint_t rc = efsg_sort_choices(&call->p, &o->lists);
    if (rc == 0)
        do
            rc = compute_parts(call, room, threads);
        while (rc == -ENOSPC && offload_shrink(o));
    o->calls++;
    *done = rc == 0;
    if (rc == 0 || o->failed)
        return GGML_STATUS_SUCCESS;
    const char *why = call->p.err.text[0] ? call->p.err.text : strerror(-rc);
    if (!call->computing) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "%s: %s", call->nodes[0]->name, why);
        return rc == -ENOMEM ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
    }
    o->failed = true;
    efsg_log(GGML_LOG_LEVEL_WARN, "%s: %s: the processor computes experts from now on",
             o->device->iface.get_name(o->device), why);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status efsg_offload_compute(struct efsg_buffers *room, struct efsg_hints *hints, struct ggml_cgraph *graph,
                                      struct ggml_tensor *const *nodes, unsigned count, int threads, unsigned *done)
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
    struct offload_call call = {.o = o, .graph = graph, .nodes = nodes, .costs = &o->costs[w->first], .hints = hints};
    const bool open = offload_open(o);
    while (call.index < o->layer_count && o->layers[call.index].layer != w->layer)
        call.index++;
    if (open && call.index < o->layer_count) {
        while (call.count < count && joins(&call, nodes, call.count))
            call.count++;
        call.p = (struct products){.nodes = nodes, .weights = {w}, .count = 1};
        if (call.count > 0)
            status = compute(&call, room, threads, &computed);
        if (call.index + 1 == o->layer_count || o->failed) { /* a batch has ended, or the slots have */
            o->counts.slots = o->failed ? 0 : (uint64_t)o->slot_count * o->layer_count;
            efsg_source_report_device(o->source, &o->counts);
        }
    }
    pthread_mutex_unlock(&o->lock);
    *done = computed ? call.count : 0;
    return status;
}
