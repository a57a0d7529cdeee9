/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - graphs of one operation that a thread has the host's CPU backend compute; uses of tensors in ggml's graphs.
 */
#include "plugin.h"

#include <errno.h>
#include <string.h>

#define GRAPH_BYTES (16u << 10) /* four tensors and a graph of one node */
#define GRAPH_NODES 8

/* The thread's CPU backend. NULL: no memory. */
static ggml_backend_t thread_backend(struct efsg_thread_buffers *own)
{
    ggml_backend_reg_t cpu = own->cpu ? NULL : efsg_host.reg_by_name("CPU");
    ggml_backend_dev_t device = cpu ? cpu->iface.get_device(cpu, 0) : NULL;
    if (!device)
        return own->cpu;
    void (*set_threads)(ggml_backend_t backend, int threads);
    void *call = cpu->iface.get_proc_address(cpu, "ggml_backend_set_n_threads");
    memcpy(&set_threads, &call, sizeof(call));
    own->cpu = device->iface.init_backend(device, NULL);
    if (own->cpu && set_threads)
        set_threads(own->cpu, 1);
    return own->cpu;
}

bool efsg_graph_begin(struct efsg_graph *graph, struct efsg_thread_buffers *own)
{
    graph->cpu = thread_backend(own);
    const struct ggml_init_params memory = {
        .mem_size = GRAPH_BYTES, .mem_buffer = efsg_memory(&own->graph, GRAPH_BYTES), .no_alloc = true};
    graph->context = graph->cpu && memory.mem_buffer ? efsg_host.init(memory) : NULL;
    return graph->context != NULL;
}

errint_t efsg_graph_compute(struct efsg_graph *graph, struct ggml_tensor *out)
{
    struct ggml_cgraph *nodes = efsg_host.new_graph_custom(graph->context, GRAPH_NODES, false);
    efsg_host.build_forward_expand(nodes, out);
    enum ggml_status status = graph->cpu->iface.graph_compute(graph->cpu, nodes);
    efsg_host.free(graph->context);
    return status == GGML_STATUS_SUCCESS ? 0 : status == GGML_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO;
}

errint_t efsg_graph_node(struct efsg_buffers *room, struct ggml_tensor *node)
{
    struct efsg_graph graph;
    errint_t rc = efsg_buffers_threads(room, 1);
    if (rc < 0 || !efsg_graph_begin(&graph, &room->own[0]))
        return -ENOMEM;
    struct ggml_tensor *out = efsg_host.new_tensor_2d(graph.context, node->type, 1, 1);
    struct ggml_tensor own = *node;
    for (unsigned i = 0; i < 2; i++) { /* leaves, so that what they were computed from is not computed again */
        struct ggml_tensor *leaf =
            node->src[i] ? efsg_host.new_tensor_2d(graph.context, node->src[i]->type, 1, 1) : NULL;
        if (leaf) {
            *leaf = *node->src[i];
            leaf->op = GGML_OP_NONE;
            leaf->view_src = NULL;
            memset(leaf->src, 0, sizeof(leaf->src));
        }
        own.src[i] = leaf;
    }
    own.view_src = NULL;
    *out = own;
    return efsg_graph_compute(&graph, out);
}

/* The first members of struct ggml_cgraph, which no public header has, in the versions of host.c. */
struct graph_head {
    int size, nodes, leafs;
    struct ggml_tensor **members[4];
    int32_t *uses; /* by index in the hash table */
    struct {
        size_t size;
        uint32_t *used;
        struct ggml_tensor **keys;
    } table;
};

int efsg_graph_uses(const struct ggml_cgraph *graph, const struct ggml_tensor *tensor)
{
    const struct graph_head *head = (const void *)graph;
    if (!head->uses || head->table.size == 0 || !head->table.used || !head->table.keys)
        return -1;
    size_t at = ((size_t)(uintptr_t)tensor >> 4) % head->table.size;
    for (size_t i = 0; i < head->table.size && (head->table.used[at / 32] >> at % 32 & 1); i++) {
        if (head->table.keys[at] == tensor)
            return head->uses[at];
        at = (at + 1) % head->table.size;
    }
    return -1;
}
