/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_graph.c - the graph that a device computes: copies of the nodes of a call, whose matrices are the layer's
 * slots and whose ids are slots. For a part of the experts it has a row for each choice of them, in place of one for
 * each choice of a token.
 */
#include "offload.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <string.h>

#define GRAPH_NODES (4 * PRODUCTS_MAX)

struct graph {
    const struct offload_call *call;
    struct ggml_context *context;
    const struct place *places; /* [rows]; NULL: all choices */
    uint32_t rows;
    struct ggml_tensor *ids;
    const struct ggml_tensor *outside[PRODUCTS_MAX]; /* inputs that are no nodes of the call */
    struct ggml_tensor *input[PRODUCTS_MAX];
    unsigned inputs;
    struct ggml_tensor *made[PRODUCTS_MAX]; /* by node */
};

const struct offload_matrix *offload_matrix(const struct offload_layer *layer, const struct ggml_tensor *product)
{
    const struct efsg_weight *w = efsg_product_weight(product);
    for (uint32_t m = 0; w && m < layer->matrices; m++)
        if (strcmp(layer->matrix[m].name, w->name) == 0)
            return w->layer == layer->layer && w->type == layer->matrix[m].type && w->rows == layer->matrix[m].rows &&
                           w->cols == layer->matrix[m].cols && w->experts == layer->experts
                       ? &layer->matrix[m]
                       : NULL;
    return NULL;
}

/* ---- building ---- */

/* The copy of a node or of a view of one, or a new input. */
static struct ggml_tensor *copy_of(struct graph *g, const struct ggml_tensor *t)
{
    const struct ggml_tensor *base = offload_base(t);
    for (unsigned i = 0; i < g->call->count; i++)
        if (g->call->nodes[i] == base) {
            struct ggml_tensor *made = g->made[i];
            return t == base ? made
                             : efsg_host.view_3d(g->context, made, t->ne[0], made->ne[1], made->ne[2], made->nb[1],
                                                 made->nb[2], t->view_offs);
        }
    for (unsigned i = 0; i < g->inputs; i++)
        if (g->outside[i] == t)
            return g->input[i];
    struct ggml_tensor *input = g->places
                                    ? efsg_host.new_tensor_3d(g->context, GGML_TYPE_F32, t->ne[0], 1, g->rows)
                                    : efsg_host.new_tensor_3d(g->context, GGML_TYPE_F32, t->ne[0], t->ne[1], t->ne[2]);
    input->flags |= GGML_TENSOR_FLAG_INPUT;
    g->outside[g->inputs] = t;
    g->input[g->inputs++] = input;
    return input;
}

static struct ggml_tensor *make(struct graph *g, const struct ggml_tensor *node)
{
    struct ggml_tensor *made;
    if (node->op == GGML_OP_MUL_MAT_ID) {
        const struct offload_layer *layer = &g->call->o->layers[g->call->index];
        made = efsg_host.mul_mat_id(g->context, offload_matrix(layer, node)->slots, copy_of(g, node->src[1]), g->ids);
    } else {
        made = g->places ? efsg_host.new_tensor_3d(g->context, GGML_TYPE_F32, node->ne[0], 1, g->rows)
                         : efsg_host.new_tensor_3d(g->context, GGML_TYPE_F32, node->ne[0], node->ne[1], node->ne[2]);
        made->op = node->op;
        for (unsigned i = 0; i < GGML_MAX_SRC; i++)
            made->src[i] = node->src[i] ? copy_of(g, node->src[i]) : NULL;
    }
    memcpy(made->op_params, node->op_params, sizeof(made->op_params));
    return made;
}

/* Uses of a tensor by the nodes of the call. */
static int uses_inside(const struct offload_call *call, const struct ggml_tensor *t)
{
    int uses = 0;
    for (unsigned i = 0; i < call->count; i++)
        for (unsigned s = 0; s < GGML_MAX_SRC; s++)
            uses += call->nodes[i]->src[s] == t;
    return uses;
}

/* Whether a node's rows are needed after the call: by other nodes than those of the call, or by the caller. */
static bool needed(const struct offload_call *call, const struct ggml_tensor *node)
{
    int uses = uses_inside(call, node);
    if (node->flags & GGML_TENSOR_FLAG_OUTPUT)
        return true;
    const struct ggml_tensor *views[PRODUCTS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < call->count; i++)
        for (unsigned s = 0; s < GGML_MAX_SRC; s++) {
            const struct ggml_tensor *t = call->nodes[i]->src[s];
            bool known = !t || t->view_src != node;
            for (unsigned v = 0; v < count && !known; v++)
                known = views[v] == t;
            if (known)
                continue;
            if (count == PRODUCTS_MAX || t->src[0] != node || efsg_graph_uses(call->graph, t) != uses_inside(call, t))
                return true;
            views[count++] = t;
            uses++;
        }
    return uses == 0 || efsg_graph_uses(call->graph, node) != uses;
}

/* ---- inputs and results ---- */

static void set(struct efsg_offload *o, struct ggml_tensor *t, const void *data, size_t bytes)
{
    if (o->backend->iface.set_tensor_async && o->backend->iface.synchronize)
        o->backend->iface.set_tensor_async(o->backend, t, data, 0, bytes);
    else
        t->buffer->iface.set_tensor(t->buffer, t, data, 0, bytes);
}

/* Writes the slots of the choices to the device. */
static errint_t set_ids(const struct graph *g)
{
    const struct offload_call *call = g->call;
    const struct ggml_tensor *ids = call->p.nodes[0]->src[2];
    const size_t width = (size_t)ids->ne[0], count = g->places ? g->rows : width * (size_t)ids->ne[1];
    int32_t *at = efsg_memory(&call->o->ids, count * sizeof(*at));
    for (size_t i = 0; at && i < count; i++) {
        const int32_t expert =
            g->places ? efsg_id_at(ids, g->places[i].slot, g->places[i].token) : efsg_id_at(ids, i % width, i / width);
        at[i] = efs_device_slots_find(call->o->slots, call->index, (uint32_t)expert);
    }
    if (at)
        set(call->o, g->ids, at, count * sizeof(*at));
    return at ? 0 : -ENOMEM;
}

static errint_t set_inputs(const struct graph *g)
{
    struct efsg_offload *o = g->call->o;
    size_t bytes = 0;
    for (unsigned i = 0; i < g->inputs; i++)
        bytes += g->input[i]->nb[3];
    uint8_t *at = efsg_memory(&o->inputs, bytes);
    if (!at)
        return -ENOMEM;
    for (unsigned i = 0; i < g->inputs; at += g->input[i++]->nb[3]) {
        const struct ggml_tensor *x = g->outside[i];
        const size_t row_bytes = (size_t)x->ne[0] * sizeof(float);
        const size_t rows = g->places ? g->rows : (size_t)(x->ne[1] * x->ne[2]);
        for (size_t r = 0; r < rows; r++)
            memcpy(at + r * row_bytes, input_at(x, g->places ? input_row(x, g->places[r]) : r), row_bytes);
        set(o, g->input[i], at, rows * row_bytes);
    }
    return 0;
}

/* Offset of the results of a node in o->outputs, in waves: a row for each choice. */
static size_t results_at(const struct offload_call *call, unsigned node)
{
    const struct ggml_tensor *ids = call->p.nodes[0]->src[2];
    size_t at = 0;
    for (unsigned i = 0; i < node; i++)
        at += call->need[i] ? (size_t)(ids->ne[0] * ids->ne[1] * call->nodes[i]->ne[0]) * sizeof(float) : 0;
    return at;
}

/* Begins to read the results of a node: to their place, or behind those of the waves before. */
static void get(const struct graph *g, unsigned i)
{
    struct efsg_offload *o = g->call->o;
    struct ggml_tensor *made = g->made[i], *node = g->call->nodes[i];
    const size_t row_bytes = (size_t)node->ne[0] * sizeof(float);
    void *to = g->places ? (uint8_t *)o->outputs.at + results_at(g->call, i) + g->call->rows * row_bytes : node->data;
    if (o->backend->iface.get_tensor_async && o->backend->iface.synchronize)
        o->backend->iface.get_tensor_async(o->backend, made, to, 0, made->nb[3]);
    else
        made->buffer->iface.get_tensor(made->buffer, made, to, 0, made->nb[3]);
}

/* Computes the graph and reads the results. */
static errint_t run(struct graph *g, struct ggml_cgraph *graph, struct efsg_hints *hints)
{
    struct efsg_offload *o = g->call->o;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    errint_t rc = set_ids(g);
    if (rc == 0)
        rc = set_inputs(g);
    if (rc == 0)
        status = o->backend->iface.graph_compute(o->backend, graph);
    for (unsigned i = 0; i < g->call->count && rc == 0 && status == GGML_STATUS_SUCCESS; i++)
        if (g->call->need[i])
            get(g, i);
    efsg_products_hint(&g->call->p, hints);
    if (o->backend->iface.synchronize)
        o->backend->iface.synchronize(o->backend);
    if (rc == 0 && status != GGML_STATUS_SUCCESS)
        rc = status == GGML_STATUS_ALLOC_FAILED ? -ENOSPC : -EIO;
    return rc;
}

errint_t offload_begin(struct offload_call *call, bool waves)
{
    const struct ggml_tensor *ids = call->p.nodes[0]->src[2];
    const size_t rows = (size_t)(ids->ne[0] * ids->ne[1]);
    call->rows = 0;
    for (unsigned i = 0; i < call->count; i++)
        call->need[i] = i + 1 == call->count || needed(call, call->nodes[i]);
    if (!waves)
        return 0;
    const size_t bytes = results_at(call, call->count);
    return efsg_memory(&call->o->outputs, bytes) && efsg_memory(&call->o->places, rows * sizeof(struct place))
               ? 0
               : -ENOMEM;
}

void offload_end(struct offload_call *call)
{
    const struct place *places = call->o->places.at;
    for (unsigned i = 0; i < call->count && call->rows > 0; i++) {
        const size_t row_bytes = (size_t)call->nodes[i]->ne[0] * sizeof(float);
        const uint8_t *from = (const uint8_t *)call->o->outputs.at + results_at(call, i);
        for (uint32_t r = 0; r < call->rows && call->need[i]; r++)
            memcpy(output_at(call->nodes[i], places[r]), from + r * row_bytes, row_bytes);
    }
}

uint32_t offload_places(const struct offload_call *call, struct place *at, const struct chosen *const *chosen,
                        uint32_t count)
{
    const struct products *p = &call->p;
    const struct place *begin = at;
    for (uint32_t i = 0; i < count; at += p->needs[chosen[i++]->item].tokens)
        memcpy(at, p->portions[chosen[i]->portion].places, p->needs[chosen[i]->item].tokens * sizeof(*at));
    return (uint32_t)(at - begin);
}

errint_t offload_compute(struct offload_call *call, const struct chosen *const *chosen, uint32_t count,
                         struct efsg_hints *hints)
{
    struct efsg_offload *o = call->o;
    const struct ggml_tensor *ids = call->p.nodes[0]->src[2];
    struct graph g = {.call = call};
    const uint64_t start = efs_clock_ns(CLOCK_MONOTONIC);
    const size_t bytes = 4 * GRAPH_NODES * efsg_host.tensor_overhead();
    if (count > 0) {
        struct place *places = (struct place *)o->places.at + call->rows;
        g.rows = offload_places(call, places, chosen, count);
        g.places = places;
    }
    const struct ggml_init_params memory = {
        .mem_size = bytes, .mem_buffer = efsg_memory(&o->graph, bytes), .no_alloc = true};
    g.context = memory.mem_buffer ? efsg_host.init(memory) : NULL;
    if (!g.context)
        return -ENOMEM;
    g.ids = g.places ? efsg_host.new_tensor_2d(g.context, GGML_TYPE_I32, 1, g.rows)
                     : efsg_host.new_tensor_2d(g.context, GGML_TYPE_I32, ids->ne[0], ids->ne[1]);
    g.ids->flags |= GGML_TENSOR_FLAG_INPUT;
    struct ggml_cgraph *graph = efsg_host.new_graph_custom(g.context, GRAPH_NODES, false);
    for (unsigned i = 0; i < call->count; i++) {
        g.made[i] = make(&g, call->nodes[i]);
        if (call->need[i])
            g.made[i]->flags |= GGML_TENSOR_FLAG_OUTPUT;
        efsg_host.build_forward_expand(graph, g.made[i]);
    }
    errint_t rc = efsg_host.gallocr_alloc_graph(o->allocator, graph) ? run(&g, graph, hints) : -ENOSPC;
    efsg_host.free(g.context);
    call->rows += rc == 0 ? g.rows : 0;
    if (rc == -ENOSPC) { /* after a failure its state is not defined */
        efsg_host.gallocr_free(o->allocator);
        o->allocator = efsg_host.gallocr_new(o->device->iface.get_buffer_type(o->device));
        rc = o->allocator ? -ENOSPC : -EIO;
    }
    call->device_ns += efs_clock_ns(CLOCK_MONOTONIC) - start;
    return rc;
}
