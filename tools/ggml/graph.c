/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - graphs of one operation that a thread has the host's CPU backend compute. */
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
