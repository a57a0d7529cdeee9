/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - what the parts of libggml-expertfs.so share: the ggml that loaded it, where experts come from, which
 * weights are theirs, and the products.
 *
 * ggml calls from any thread that loads a model or decodes; one that decodes has a backend of its own. Sources are
 * shared and counted; a weight lives as long as the buffer that it is in.
 */
#ifndef EFS_GGML_PLUGIN_H
#define EFS_GGML_PLUGIN_H

#include "expertfs-compute.h"

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

/* ---- the ggml that loaded us (host.c) ---- */

/* Calls of it, found in the library that called us: nothing of ggml is linked. */
struct efsg_host {
    const char *(*version)(void);
    void (*log)(enum ggml_log_level level, const char *format, ...);
    ggml_backend_buffer_t (*buffer_init)(ggml_backend_buffer_type_t type, struct ggml_backend_buffer_i calls,
                                         void *context, size_t bytes);
    int (*graph_n_nodes)(struct ggml_cgraph *graph);
    struct ggml_tensor *(*graph_node)(struct ggml_cgraph *graph, int i);
    size_t (*tensor_overhead)(void);
    const char *(*op_name)(enum ggml_op op);
    const char *(*type_name)(enum ggml_type type);
    ggml_backend_reg_t (*reg_by_name)(const char *name);
};
extern struct efsg_host efsg_host; /* filled by efsg_host_find(), constant from then on */

/* Who called, by an address in it. False: not a ggml that this was made for; it was told why, and is not to be served.
 */
bool efsg_host_find(const void *caller);
/* One line to the log of the program, after our name. */
void efsg_log(enum ggml_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- where experts come from (source.c) ---- */

struct efsg_source; /* a mount, or a store that is open in this process; counted */

/* What a mapping is of. */
struct efsg_file {
    char path[4096];
    const uint8_t *base; /* where the mapping begins in memory */
    uint64_t offset;     /* and in the file */
    size_t mapped;       /* bytes of the mapping */
    uint64_t bytes;      /* of the file */
};
/* -ENOENT: nothing is mapped there, or no file. */
errint_t efsg_file_at(const void *address, struct efsg_file *file);

/*
 * Experts of a mapped file: of the store that EXPERTFS_STORE names, or of the mount that the file is on. NULL: there is
 * none, or it cannot be opened, which was told.
 */
bool efsg_source_is_mounted(const char *path); /* a file on a mount of ours */
struct efsg_source *efsg_source_get(const struct efsg_file *file);
/* A file of that size fits into memory with a quarter to spare, and nobody named a budget: its experts are left to the
 * processor, for plain matrices that are in memory are as fast as coded ones or faster. Only with EXPERTFS_STORE: a
 * mount has its memory already. */
bool efsg_source_is_spared(uint64_t file_bytes);
void efsg_source_put(struct efsg_source *source); /* NULL is fine */
/* Coded where the source has them so, else full. Errors as efs_client_begin(). */
errint_t efsg_source_begin(struct efsg_source *source, uint32_t layer, const struct efs_need *needs, uint32_t count,
                           struct efs_client_request **request, struct efs_error *err);

/*
 * All memory is taken now: a store that is open here and whose budget nobody named gets what the machine, or the memory
 * cgroup, has left, but for the rest of the model's file, which is read for each token, and a share for others.
 */
void efsg_source_settle(struct efsg_source *source);

/* Its client, if experts are to be read before they are asked for; else NULL. */
struct efs_client *efsg_source_hinted(struct efsg_source *source);

/* ---- weights (weight.c) ---- */

/* The experts' matrices of one layer and one name: a tensor of the model that we multiply with. */
struct efsg_weight {
    struct efsg_weight *next;
    struct efsg_source *source;   /* of the buffer */
    struct efsg_routers *routers; /* of its file; NULL: no memory */
    uint32_t layer, experts, rows, cols;
    enum efs_activation activation; /* by the type of the tensor */
    bool first;                     /* a layer begins with it: gate or up, not down */
    char name[GGML_MAX_NAME];
};
/*
 * A tensor of a mapped file as such a weight. NULL: it is none of ours, or not as the source has it, which was told:
 * shapes are compared, and some of the bytes, unless the file is on the mount itself. Blocks: an expert of the layer
 * is read.
 */
struct efsg_weight *efsg_weight_new(struct efsg_source *source, const struct efsg_file *file,
                                    const struct ggml_tensor *tensor);
/* Of such numbers the library has products. */
bool efsg_weight_type(enum ggml_type type);
/* The matrix of that name among an expert's; NULL: it has no such, or of another shape. */
const struct efs_tensor *efsg_weight_matrix(const struct efsg_weight *weight, const struct efs_tensor *tensors,
                                            uint32_t count);

/* Is [offset, offset + bytes) of a store's file what is mapped there? For stores opened in this process; a mount's file
 * always is. False also when it cannot be read. */
bool efsg_source_agrees(struct efsg_source *source, const struct efsg_file *file, uint64_t offset, size_t bytes);

/* ---- what a loader reads ahead (loading.c) ---- */

/* From now on, mappings of model files are not read as a whole when they are made: a GGUF file on a mount of ours, or
 * any where EXPERTFS_STORE names a store. Works only where this library is preloaded. */
void efsg_loading_begin(void);
/* What lies there in such a mapping is ours to bring. */
void efsg_loading_expert(const void *begin, size_t bytes);
/* A model is loaded: what else it has in such mappings is read ahead now. used: something in its mapping, a product is
 * to be made of it; NULL: a context is made, by the thread that loaded the model or by another, then nothing happens
 * yet: a model of somebody else may be half loaded. */
void efsg_loading_end(const void *used);

/* ---- buffers (buffer.c) ---- */

ggml_backend_buffer_type_t efsg_buffer_type(void);
void efsg_buffer_type_set(ggml_backend_dev_t device);
ggml_backend_buffer_t efsg_buffer_mapped(ggml_backend_dev_t device, void *memory, size_t bytes, size_t largest);
bool efsg_buffer_is_ours(const struct ggml_backend_buffer *buffer);

/* ---- hints (router.c) ---- */

/* Routers of the model that is mapped there; in no use any more when they are freed, NULL is fine. NULL: no memory. */
struct efsg_routers *efsg_routers_new(const void *memory, size_t bytes);
void efsg_routers_free(struct efsg_routers *routers);
/* A matrix that the processor multiplies with: if it is a router of these, it is noted. Any thread. */
void efsg_router_seen(const struct ggml_tensor *weight);
/* Of one sequence; zero is a new one. */
struct efsg_hints {
    uint32_t sequence;                                   /* its number */
    uint32_t layer, count, experts[EFS_ROUTING_EXPERTS]; /* what was told last */
    uint64_t told, right;                                /* so far */
};
/* A token's layer has chosen these, by input x [cols]: tells so, and what the next layer will choose. */
void efsg_hints_tell(struct efsg_hints *hints, const struct efsg_weight *weight, const float *x, const uint32_t *chosen,
                     uint32_t count);

/* ---- products (backend.c, product.c) ---- */

ggml_backend_t efsg_backend_new(ggml_backend_dev_t device, const char *parameters);
void efsg_backend_set_threads(ggml_backend_t backend, int threads);

/* Memory of a backend for products, which grows and stays. */
struct efsg_memory {
    void *at;
    size_t bytes;
};
struct efsg_room {
    struct efsg_memory lists, vectors;
    struct efsg_own {
        struct efsg_memory scratch, out;
    } * own; /* of each thread */
    unsigned threads;
};
void efsg_room_free(struct efsg_room *room);
/* The weight that a product is of; NULL: it is not one that we take. */
const struct efsg_weight *efsg_product_weight(const struct ggml_tensor *op);
/*
 * Products of one layer with the same routing: MUL_MAT_ID nodes, each a weight of ours, with the same ids. Its experts
 * are asked for at once, and multiplied in the order in which they come, on that many threads of OpenMP, the caller's
 * among them. Where a layer begins for one token, hints are told meanwhile. Blocks. What went wrong was told; outputs
 * hold anything then.
 */
enum ggml_status efsg_products(struct efsg_room *room, struct efsg_hints *hints, struct ggml_tensor *const *nodes,
                               unsigned count, int threads);

#endif
