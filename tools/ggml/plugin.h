/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - declarations shared by the files of libggml-expertfs.so.
 *
 * ggml/ is a backend of ggml by which llama.cpp takes experts from a mount or a store. ggml calls it, which loads it as
 * a backend or finds it in LD_PRELOAD; with LD_PRELOAD the program's calls of mmap(), munmap() and posix_madvise()
 * reach it, too (mmap_populate.c). It never links to ggml: host.c looks up the functions of the ggml that loaded it.
 *
 * ggml calls from any thread that loads a model or decodes; each context that decodes has its own backend. Sources are
 * shared and have a reference count; a weight is freed with the buffer that contains its tensor.
 */
#ifndef EFS_GGML_PLUGIN_H
#define EFS_GGML_PLUGIN_H

#include "expertfs-compute.h"

#include <ggml-alloc.h>
#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* ---- the host ggml (host.c) ---- */

/* Functions of the host ggml, looked up at run time: this library is not linked with ggml. */
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
    size_t (*row_size)(enum ggml_type type, int64_t elements);
    const struct ggml_type_traits *(*type_traits)(enum ggml_type type);
    struct ggml_context *(*init)(struct ggml_init_params params);
    void (*free)(struct ggml_context *context);
    struct ggml_tensor *(*new_tensor_2d)(struct ggml_context *context, enum ggml_type type, int64_t ne0, int64_t ne1);
    struct ggml_tensor *(*new_tensor_3d)(struct ggml_context *context, enum ggml_type type, int64_t ne0, int64_t ne1,
                                         int64_t ne2);
    struct ggml_tensor *(*mul_mat_id)(struct ggml_context *context, struct ggml_tensor *matrices, struct ggml_tensor *x,
                                      struct ggml_tensor *ids);
    struct ggml_cgraph *(*new_graph_custom)(struct ggml_context *context, size_t size, bool grads);
    void (*build_forward_expand)(struct ggml_cgraph *graph, struct ggml_tensor *tensor);
    /* all or none of the functions below: efsg_host_has_devices() */
    size_t (*dev_count)(void);
    ggml_backend_dev_t (*dev_get)(size_t index);
    void (*buffer_free)(ggml_backend_buffer_t buffer);
    ggml_gallocr_t (*gallocr_new)(ggml_backend_buffer_type_t type);
    void (*gallocr_free)(ggml_gallocr_t allocator);
    bool (*gallocr_alloc_graph)(ggml_gallocr_t allocator, struct ggml_cgraph *graph);
    struct ggml_tensor *(*view_3d)(struct ggml_context *context, struct ggml_tensor *of, int64_t ne0, int64_t ne1,
                                   int64_t ne2, size_t nb1, size_t nb2, size_t offset);
};
extern struct efsg_host efsg_host; /* set by efsg_host_find(), constant from then on */

/* Sets efsg_host. caller: an address in the calling library. False: not a supported ggml, which has been logged. */
bool efsg_host_find(const void *caller);
bool efsg_host_has_devices(void); /* whether the host exports what slots in device memory need */
/* Logs a ggml version that is not supported, if the program is linked with a ggml. */
void efsg_host_warn(void);
/* Kernels of the host's CPU backend for a type. */
struct efsg_kernels {
    ggml_vec_dot_t vec_dot;
    ggml_from_float_t from_float; /* converts inputs to vector_type */
    enum ggml_type vector_type;
};
/* False: the CPU backend has none for the type, or does not export them, which has been logged. Any thread. */
bool efsg_host_kernels(enum ggml_type type, struct efsg_kernels *kernels);
/* Logs one line by ggml's logger, with the prefix "expertfs: "; on stderr before the logger is found. */
void efsg_log(enum ggml_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- files of models (model_files.c) ---- */

/* The file of a mapping. */
struct efsg_file {
    char path[4096];
    const uint8_t *base; /* start address of the mapping */
    uint64_t offset;     /* of base in the file */
    size_t mapped;       /* bytes of the mapping */
    uint64_t bytes;      /* of the file */
    struct stat st;
};
/* The file that is mapped at address, from /proc/self/maps. -ENOENT: none, or its path leads to another file by now. */
errint_t efsg_file_at(const void *address, struct efsg_file *file);
/* Opens that file for reading. Returns a descriptor; -ESTALE: its path leads to another file by now; -errno. */
int efsg_file_open(const struct efsg_file *file, int flags, struct stat *st);
/* Replaces the path of a file by that of the expertfs mount that contains it. False: it is on no such mount. */
bool efsg_mount_of(char *path);
bool efsg_is_gguf(int fd);    /* whether the file begins as a GGUF file */
bool efsg_is_mounted(int fd); /* whether the file is on a mount of expertfs */
/* The GGUF files that the process has open. */
struct efsg_open_models {
    uint64_t bytes; /* of all of them: of the parts of a split model */
    bool mounted;   /* one is on a mount of expertfs */
};
void efsg_open_models(struct efsg_open_models *models);

/* ---- the device (plugin.c) ---- */

/* State that the models and contexts of a device share: the context of ggml's device. Each lock guards a list and what
 * the file of the list says. */
struct efsg_device {
    struct ggml_backend_buffer_type type;
    pthread_mutex_t source_lock, router_lock, table_lock;
    struct efsg_source *sources;
    struct efsg_routers *routers;
    struct efsg_tables *tables;
    _Atomic uint32_t backends;  /* that exist */
    _Atomic uint32_t sequences; /* backends that were made */
};
static inline struct efsg_device *efsg_device_of(ggml_backend_dev_t device)
{
    return device->context;
}

/* ---- sources of experts (source.c) ---- */

struct efsg_source; /* a mount, or a store that is open in this process; has a reference count */

/*
 * efsg_source_get() returns the source of a mapped file, with a reference: what efsg_source_name() says, or the mount
 * that the file is on. NULL: neither, or it cannot be opened, which has been logged.
 */
struct efsg_source *efsg_source_get(struct efsg_device *device, const struct efsg_file *file);
/* What the environment names as the source of all files: EXPERTFS_STORE; else EXPERTFS_MOUNT, if EXPERTFS_MOUNT_STORE
 * names the store that it serves. NULL: nothing, so that a file's source is the mount that it is on. */
const char *efsg_source_name(void);
bool efsg_source_is_named(const struct efsg_file *file); /* whether it has one, which may fail to open */
/* Whether the CPU backend computes the experts of a file of that size, or of the open models if these are larger: they
 * fit into memory (efs_fits_memory()), and neither EXPERTFS_BUDGET nor a device by its name is set. Plain matrices in
 * memory are at least as fast as coded ones, and the page cache keeps them for the next program. */
bool efsg_source_fits_memory(uint64_t file_bytes);
/* Whether experts of the model that is being loaded may come from a source, by the environment and the open files. */
bool efsg_source_expected(void);
void efsg_source_ref(struct efsg_source *source); /* adds a reference */
void efsg_source_put(struct efsg_source *source); /* drops a reference; NULL is allowed */
/* efs_client_begin() with EFS_FORM_CODED; counted: and EFS_FORM_COUNTED. */
errint_t efsg_source_begin(struct efsg_source *source, uint32_t layer, const struct efs_need *needs, uint32_t count,
                           bool counted, struct efs_client_request **request, struct efs_error *err);

/* Number of experts of the mean size that take a part of the pools, as they were at most 0.2 s ago; at most
 * EFS_ROUTING_EXPERTS; 0 for a mount. Any thread. */
uint32_t efsg_source_room(struct efsg_source *source, uint32_t part, uint32_t of);
bool efsg_source_has_layer(struct efsg_source *source, uint32_t layer); /* false for a mount */

/*
 * Called before products. From now on budget=auto of the mount, or of the store in this process, leaves memory to the
 * part of the model that is not experts (efs_client_leave()). disk_bytes: of that part, tables that are left on disk.
 * Any thread.
 */
void efsg_source_computes(struct efsg_source *source, uint64_t disk_bytes);

/* The source's client if it has peers; else NULL. */
struct efs_client *efsg_source_peers(struct efsg_source *source);
/* The source's client if prefetch is on; else NULL. */
struct efs_client *efsg_source_prefetch_client(struct efsg_source *source);

/* ---- weights (weight.c) ---- */

/* A tensor of the model with the matrices of all experts of a layer, whose products this backend computes: by
 * efs_product(), or by the host's kernels. */
struct efsg_weight {
    struct efsg_weight *next;
    struct efsg_source *source;   /* of the buffer, which holds the reference */
    struct efsg_routers *routers; /* of the buffer; NULL: no memory */
    uint32_t layer, experts, rows, cols;
    enum ggml_type type;
    enum efs_dtype dtype;
    size_t row_bytes;               /* of the matrix, uncoded */
    enum efs_activation activation; /* of efs_product(), by the type of the tensor */
    struct efsg_kernels host;       /* the host's kernels; vec_dot is NULL: efs_product() */
    bool first;                     /* gate or up, the first products of a layer; not down */
    char name[GGML_MAX_NAME];
};
/*
 * The weight of a tensor of a mapped file; the caller frees it. NULL: not a tensor of experts, or it differs from the
 * source's in shape, type or bytes, which has been logged. Blocks: reads an expert of the layer; efsg_same_experts().
 */
struct efsg_weight *efsg_weight_new(struct efsg_source *source, const struct efsg_file *file,
                                    const struct ggml_tensor *tensor);
/* Whether there are products with matrices of this type: by the library, or by the host. */
bool efsg_weight_type(enum ggml_type type);
/* Whether the products of two weights take inputs in the same format. */
bool efsg_weight_same_input(const struct efsg_weight *a, const struct efsg_weight *b);
/* The weight's matrix among the tensors of an expert; NULL: none of that name, or of another type or shape. */
const struct efs_tensor *efsg_weight_matrix(const struct efsg_weight *weight, const struct efs_tensor *tensors,
                                            uint32_t count);

/* The store that is open in this process; NULL: a mount. */
struct efs *efsg_source_fs(struct efsg_source *source);
/* The number of the store's file that has [offset, offset + bytes) of the mapped file at the same place. Blocks.
 * UINT32_MAX: none, a read error, or a mount. */
uint32_t efsg_source_file(struct efsg_source *source, const struct efsg_file *file, uint64_t offset, uint64_t bytes);
bool efsg_source_is_mount_of(const struct efsg_source *source, const struct efsg_file *file);
/* Whether the source's experts of a layer are those of the tensor, as efsg_same_experts(). Blocks. */
errint_t efsg_source_same_experts(struct efsg_source *source, const struct efsg_file *file,
                                  const struct ggml_tensor *tensor, uint32_t layer, struct efs_error *err);

/* ---- which bytes are the source's (identity.c) ---- */

/* Where the tensors that hold all experts of a layer are in the source's files. */
struct efsg_places {
    struct efsg_place *place;
    uint32_t count;
};
struct efs_store;
struct efsg_places *efsg_places_of_store(const struct efs_store *store); /* NULL: no memory */
/* By .expertfs/tensors of a mount. NULL: it has no such file, it is on another device, or no memory. */
struct efsg_places *efsg_places_of_mount(const char *mount, uint64_t device);
void efsg_places_free(struct efsg_places *places); /* NULL is allowed */
/*
 * Whether the experts of a layer in places are the matrices of a tensor of the mapped file. store: NULL for a mount,
 * which the file must be on: it is the same file and offset. Else the mapped file must be the one that the store serves
 * in place, or have all bytes of the tensor, by efs_same_bytes(); the result is remembered. Blocks: may read the
 * tensor. 0; -ENOENT: no such tensor; -ESTALE: other weights; -ENODATA, -errno: not known. err has the reason.
 */
errint_t efsg_same_experts(const struct efsg_places *places, const struct efs_store *store,
                           const struct efsg_file *file, const struct ggml_tensor *tensor, uint32_t layer,
                           struct efs_error *err);
/* As efsg_source_file(), for a store. */
uint32_t efsg_same_file(struct efs *fs, const struct efsg_file *file, uint64_t offset, uint64_t bytes);

/* ---- read-ahead of mapped models (mmap_populate.c) ---- */

/* From now on mmap() of a model file does not read the whole file: a GGUF file on a mount of expertfs, or any GGUF file
 * if the environment names a source. Has an effect only if this library is preloaded. */
void efsg_populate_defer(void);
/* Excludes the range of a weight in such a mapping from read-ahead. */
void efsg_populate_exclude(const void *begin, size_t bytes);
/* A model is loaded: reads ahead the rest of its mappings. used: an address in a mapping of the model, before a product
 * with it; NULL: a context is created, and all mappings made by the calling thread are read ahead. Mappings of other
 * threads are left alone then, because their models may be only partly loaded. */
void efsg_populate_remaining(const void *used);

/* ---- buffers (buffer.c) ---- */

void efsg_buffer_type_set(ggml_backend_dev_t device); /* makes the type of the device's buffers */
ggml_backend_buffer_t efsg_buffer_mapped(ggml_backend_dev_t device, void *memory, size_t bytes, size_t largest);
bool efsg_buffer_is_ours(const struct ggml_backend_buffer *buffer);

/* ---- tables (tables.c) ---- */

struct efsg_memory;

/* Rows of large tables of the mapped file, which the source's store has too, or which is on a mount. Freed before the
 * source is put; no other thread may use the tables then. NULL: no memory, and is allowed for efsg_tables_free(). */
struct efsg_tables *efsg_tables_new(struct efsg_device *device, struct efsg_source *source,
                                    const struct efsg_file *file);
void efsg_tables_free(struct efsg_tables *tables);
/* Whether the tensor is large enough to be left on disk, of a type that can be converted. */
bool efsg_table_is_large(const struct ggml_tensor *w);
/* Records that an operation reads all of a tensor: a table that is also the output matrix stays in memory. */
void efsg_table_read_whole(struct efsg_device *device, const struct ggml_tensor *w);
/* Whether the backend computes a GET_ROWS node. The first time for a table blocks: it may compare it with the store. */
bool efsg_table_takes(struct efsg_device *device, const struct ggml_tensor *op);
/* Bytes of the tables of a model of the source that are left on disk. */
uint64_t efsg_tables_bytes(struct efsg_device *device, const struct efsg_source *source);
/* Computes it: reads all rows at once. Blocks. An error has been logged. */
enum ggml_status efsg_table_rows(struct efsg_device *device, struct efsg_memory *room, struct ggml_tensor *op);

/* ---- hints (router.c) ---- */

/* Collects the routers of the model mapped in [memory, memory + bytes). NULL: no memory. No other thread may use the
 * routers when they are freed; efsg_routers_free(NULL) is allowed. */
struct efsg_routers *efsg_routers_new(struct efsg_device *device, const void *memory, size_t bytes);
void efsg_routers_free(struct efsg_routers *routers);
/* Records weight, the matrix of a MUL_MAT node, if its name and address are those of a router of a model. Any thread.
 */
void efsg_router_record(struct efsg_device *device, const struct ggml_tensor *weight);
/* State of the hints of one backend; zeroed at the start. */
struct efsg_hints {
    uint32_t sequence;                                   /* number of the sequence */
    uint32_t layer, count, experts[EFS_ROUTING_EXPERTS]; /* the last hint */
    uint64_t hinted, right;                              /* experts hinted; of them, chosen */
};
/* Reports to the library the experts that a token chose in a layer with input x [cols], and submits a hint with the
 * experts predicted for the next layer. */
void efsg_hints_submit(struct efsg_hints *hints, const struct efsg_weight *weight, const float *x,
                       const uint32_t *chosen, uint32_t count);

/* ---- products (backend.c, product.c) ---- */

ggml_backend_t efsg_backend_new(ggml_backend_dev_t device, const char *parameters);
void efsg_backend_set_threads(ggml_backend_t backend, int threads);

/* Memory of a backend for products. It grows and is freed with the backend. */
struct efsg_memory {
    void *at;
    size_t bytes;
};
/* A request whose experts stay in memory after a call of efsg_products(). */
struct efsg_kept {
    struct efs_client_request *request; /* NULL: none; the fields below are undefined then */
    struct efsg_source *source;         /* a reference */
    uint32_t layer, count, experts[EFS_ROUTING_EXPERTS];
};
struct efsg_buffers {
    struct efsg_device *device;
    struct efsg_memory lists, vectors, rows, away;
    struct efsg_kept kept, ahead; /* of gate and up, for down; of the next layer */
    struct efsg_thread_buffers {
        struct efsg_memory scratch, out, inputs, graph;
        ggml_backend_t cpu; /* of the host, for one thread; NULL: not used yet */
    } * own;                /* [threads] */
    unsigned threads;
};
void efsg_buffers_init(struct efsg_buffers *room,
                       struct efsg_device *device); /* also counts the backends; any thread */
void efsg_buffers_free(struct efsg_buffers *room);
/* Allocates room->own for that many threads. -ENOMEM. */
errint_t efsg_buffers_threads(struct efsg_buffers *room, unsigned threads);
/* Whether the device has one backend. Then it may keep requests: one that stops in the middle of a graph holds up no
 * other. Any thread. */
bool efsg_buffers_alone(const struct efsg_buffers *room);
void efsg_kept_release(struct efsg_kept *kept);       /* releases its request, if there is one */
void efsg_buffers_release(struct efsg_buffers *room); /* both requests */
/* Grows to at least `bytes`, aligned to 64; the content is lost. NULL: no memory. */
void *efsg_memory(struct efsg_memory *memory, size_t bytes);

/* graph.c: a graph of one operation, for the host's CPU backend on the calling thread. */
struct efsg_graph {
    struct ggml_context *context; /* for up to four tensors, without memory for their data */
    ggml_backend_t cpu;
};
/* False: no memory. */
bool efsg_graph_begin(struct efsg_graph *graph, struct efsg_thread_buffers *own);
/* Computes the tensor, and frees the graph also on failure. -ENOMEM, -EIO. */
errint_t efsg_graph_compute(struct efsg_graph *graph, struct ggml_tensor *out);
/* Computes a node of the host's graph, in host memory, by the CPU backend on the calling thread. -ENOMEM, -EIO. */
errint_t efsg_graph_node(struct efsg_buffers *room, struct ggml_tensor *node);
/* Number of uses of a tensor in the whole graph of which this is a part; -1: not known. */
int efsg_graph_uses(const struct ggml_cgraph *graph, const struct ggml_tensor *tensor);

/* ---- experts in the memory of a device (source.c, offload*.c) ---- */

/* EXPERTFS_DEVICE if it names a device, which may not exist, or is auto and ggml has one; else NULL. */
const char *efsg_device_wanted(void);
/* The device of a source; NULL: none yet. */
struct efsg_offload;
struct efsg_offload *efsg_source_offload(struct efsg_source *source);
/* Sets it, if it is not set yet: then it is released with the source. Returns the one that is set. */
struct efsg_offload *efsg_source_set_offload(struct efsg_source *source, struct efsg_offload *offload,
                                             void (*release)(struct efsg_offload *offload));
/* Adds a weight to those that get slots on the device, if one is wanted, until the first product is computed. */
void efsg_source_add_weight(struct efsg_source *source, const struct efsg_weight *weight);
/* Copies of these weights, which the caller frees. NULL: no memory. */
struct efsg_weight *efsg_source_weights(struct efsg_source *source, uint32_t *count);
/* Reports the counts to the mount of the source, if it has one, for its clients. Sets their head. Does not wait. */
struct efs_export_device;
void efsg_source_report_device(struct efsg_source *source, struct efs_export_device *counts);

/* Whether a node that is no product lies between products of a layer whose experts get slots. */
bool efsg_offload_takes(const struct ggml_tensor *op);
/*
 * Computes nodes[0], a product, on the device, or some of its experts on `threads` threads, and further ones of `count`
 * that are products of the same experts or lie between these. Sets *done to their number; 0: the processor has to
 * compute nodes[0]. Blocks. Errors have been logged.
 */
enum ggml_status efsg_offload_compute(struct efsg_buffers *room, struct efsg_hints *hints, struct ggml_cgraph *graph,
                                      struct ggml_tensor *const *nodes, unsigned count, int threads, unsigned *done);

/* The weight of a product; NULL: not a product that this backend computes. */
const struct efsg_weight *efsg_product_weight(const struct ggml_tensor *op);
/*
 * Computes products of one layer: MUL_MAT_ID nodes with an efsg_weight each and the same input and ids. One request
 * reads all experts; they are multiplied in the order of arrival on `threads` OpenMP threads, including the caller's.
 * The experts of gate and up may stay in memory until the next call, those of the next layer until its first one.
 * For a single token, gate and up products also submit hints, on one of the threads; hints: NULL: none. Blocks. Errors
 * have been logged; the outputs are undefined then.
 */
enum ggml_status efsg_products(struct efsg_buffers *room, struct efsg_hints *hints, struct ggml_tensor *const *nodes,
                               unsigned count, int threads);

#endif
