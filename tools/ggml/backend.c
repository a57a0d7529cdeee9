/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.c - the ggml backend, one per context: computes the nodes that device_supports_op() accepted. The CPU backend
 * computes everything between the products: a prototype that computed it here, bit-identically, saved about 1 % of a
 * layer's time.
 */
#include "plugin.h"

#include <stdlib.h>

#define TOGETHER 8 /* most consecutive products with one input that share a request: gate and up */

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

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    struct backend *b = backend->context;
    struct ggml_tensor *nodes[TOGETHER];
    unsigned count = 0;
    int all = efsg_host.graph_n_nodes(graph);
    for (int i = 0; i <= all; i++) {
        struct ggml_tensor *node = i < all ? efsg_host.graph_node(graph, i) : NULL;
        if (node && !is_work(node))
            continue;
        /* The same input as nodes[0], so it does not depend on a product of the group. */
        bool joins =
            node && count > 0 && count < TOGETHER && same_experts(nodes[0], node) && node->src[1] == nodes[0]->src[1];
        if (count > 0 && !joins) {
            enum ggml_status status = efsg_products(&b->room, &b->hints, nodes, count, b->threads);
            if (status != GGML_STATUS_SUCCESS)
                return status;
            count = 0;
        }
        if (!node)
            break;
        if (node->op == GGML_OP_GET_ROWS) {
            enum ggml_status status = efsg_table_rows(b->room.device, &b->room.rows, node);
            if (status != GGML_STATUS_SUCCESS)
                return status;
            continue;
        }
        if (node->op != GGML_OP_MUL_MAT_ID || !efsg_product_weight(node)) {
            efsg_log(GGML_LOG_LEVEL_ERROR, "%s is no product of experts", node->name);
            return GGML_STATUS_FAILED;
        }
        efsg_populate_remaining(node->src[0]->data);
        struct efsg_source *source = efsg_product_weight(node)->source;
        efsg_source_computes(source, efsg_tables_bytes(b->room.device, source));
        nodes[count++] = node;
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
