/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.c - the ggml backend, one per context: computes the nodes that device_supports_op() accepted. The CPU backend
 * computes everything between the products: a prototype that computed it here, bit-identically, saved about 1 % of a
 * layer's time.
 */
#include "plugin.h"

#include <stdlib.h>

#define TOGETHER 8 /* most nodes that are computed together: gate, up, what lies between, and down */

struct backend {
    struct ggml_backend base;
    int threads;
    struct efsg_hints hints;
    struct efsg_buffers room;
};

static const char *backend_name(ggml_backend_t backend)
{
    (void)backend;
    return "expertfs";
}

static void backend_free(ggml_backend_t backend)
{
    struct backend *b = backend->context;
    efsg_buffers_free(&b->room);
    free(b);
}

void efsg_backend_set_threads(ggml_backend_t backend, int threads)
{
    ((struct backend *)backend->context)->threads = threads > 0 ? threads : 1;
}

static bool is_work(const struct ggml_tensor *node)
{
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return false;
    default:
        return (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
    }
}

/* Whether two products need the same experts for the same tokens. */
static bool same_experts(const struct ggml_tensor *a, const struct ggml_tensor *b)
{
    const struct efsg_weight *v = efsg_product_weight(a), *w = efsg_product_weight(b);
    return v && w && v->source == w->source && v->layer == w->layer && v->experts == w->experts &&
           efsg_weight_same_input(v, w) && a->src[2] == b->src[2];
}

/* The nodes of a graph that have to be computed, from node *at on. Returns their number, at most `most`. index: of each
 * in the graph. */
static unsigned next_nodes(struct ggml_cgraph *graph, int at, struct ggml_tensor **nodes, int *index, unsigned most)
{
    const int all = efsg_host.graph_n_nodes(graph);
    unsigned count = 0;
    for (; at < all && count < most; at++) {
        struct ggml_tensor *node = efsg_host.graph_node(graph, at);
        if (!is_work(node))
            continue;
        nodes[count] = node;
        index[count++] = at;
    }
    return count;
}

/* Computes nodes[0], and as many of the next ones as can be computed together with it. *done: their number. */
static enum ggml_status compute_next(struct backend *b, struct ggml_cgraph *graph, struct ggml_tensor *const *nodes,
                                     unsigned count, unsigned *done)
{
    struct ggml_tensor *node = nodes[0];
    const struct efsg_weight *w = node->op == GGML_OP_MUL_MAT_ID ? efsg_product_weight(node) : NULL;
    *done = 1;
    if (node->op == GGML_OP_GET_ROWS)
        return efsg_table_rows(b->room.device, &b->room.rows, node);
    if (!w && efsg_offload_takes(node)) /* its products were computed by the processor */
        return efsg_graph_node(&b->room, node) == 0 ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (!w) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "%s is no product of experts", node->name);
        return GGML_STATUS_FAILED;
    }
    efsg_populate_remaining(node->src[0]->data);
    efsg_source_computes(w->source, efsg_tables_bytes(b->room.device, w->source));
    enum ggml_status status = efsg_offload_compute(&b->room, &b->hints, graph, nodes, count, b->threads, done);
    if (status != GGML_STATUS_SUCCESS || *done > 0)
        return status;
    /* The same input as nodes[0], so none depends on a product of the group. */
    for (*done = 1; *done < count && same_experts(node, nodes[*done]) && nodes[*done]->src[1] == node->src[1];)
        ++*done;
    return efsg_products(&b->room, &b->hints, nodes, *done, b->threads);
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    struct ggml_tensor *nodes[TOGETHER];
    int index[TOGETHER], at = 0;
    unsigned count, done;
    while ((count = next_nodes(graph, at, nodes, index, TOGETHER)) > 0) {
        enum ggml_status status = compute_next(backend->context, graph, nodes, count, &done);
        if (status != GGML_STATUS_SUCCESS)
            return status;
        at = index[done - 1] + 1;
    }
    return GGML_STATUS_SUCCESS;
}

ggml_backend_t efsg_backend_new(ggml_backend_dev_t device, const char *parameters)
{
    static ggml_guid guid = {0x65, 0x78, 0x70, 0x65, 0x72, 0x74, 0x66, 0x73,
                             0x9d, 0x1c, 0x4e, 0x0a, 0xb2, 0x77, 0x31, 0x58};
    (void)parameters;
    efsg_populate_remaining(NULL);
    struct backend *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    efsg_buffers_init(&b->room, efsg_device_of(device));
    b->threads = 1;
    b->hints.sequence = atomic_fetch_add(&efsg_device_of(device)->sequences, 1);
    b->base = (struct ggml_backend){
        .guid = &guid,
        .iface = {.get_name = backend_name, .free = backend_free, .graph_compute = backend_compute},
        .device = device,
        .context = b};
    return &b->base;
}
