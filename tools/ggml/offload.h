/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload.h - private to offload*.c: slots for experts in the memory of a device of ggml, and the products there. An
 * expert without a slot is copied, or computed by the processor at the same time, as measured costs say.
 *
 * The experts of a layer have N slots on the device: a tensor of N matrices for each of gate, up and down. A product's
 * expert ids are replaced by slots, and the host ggml's own backend of the device computes the products and what lies
 * between them in one graph. No kernel of ours runs there.
 *
 * All contexts of a source share the slots. A call holds the lock from its choice of slots to its last result. A thread
 * that waits for the lock holds no experts, so the one that has it never waits for memory that the other holds.
 */
#ifndef EFS_GGML_OFFLOAD_H
#define EFS_GGML_OFFLOAD_H

#include "product.h"

#include "assign_costs.h"
#include "device_slots.h"
#include "expertfs-protocol.h"

#include <semaphore.h>

#define OFFLOAD_MATRICES 3
#define OFFLOAD_STAGES 2

struct offload_matrix {
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    uint32_t rows, cols;
    size_t row_bytes;
    struct ggml_tensor *slots; /* [cols, rows, slots] on the device; NULL: no memory yet */
};

struct offload_layer {
    uint32_t layer, experts, matrices;
    struct offload_matrix matrix[OFFLOAD_MATRICES];
    struct ggml_context *context; /* of the tensors */
    ggml_backend_buffer_t buffer; /* on the device */
};

/* A thread that computes the device's part of a call while its caller computes the processor's (offload_host.c). */
struct offload_call;
struct offload_thread {
    bool started;
    pthread_t id;
    sem_t begin, end;
    struct offload_call *call; /* NULL at begin: the thread ends */
    errint_t (*compute)(struct offload_call *call);
    errint_t rc;
};

struct efsg_offload {
    pthread_mutex_t lock;       /* guards all below */
    struct efsg_source *source; /* that has it */
    ggml_backend_dev_t device;  /* NULL: EXPERTFS_DEVICE names none, or the budget is no size */
    uint64_t budget_bytes;      /* 0: most of the free memory */
    bool shares;                /* the processor may compute a part of a call */
    enum efs_device_rule rule;
    struct efs_assign_costs costs[2]; /* of calls that begin with down; of all else */
    struct offload_thread thread;
    struct efsg_buffers lists; /* only its lists are used: the choices of a call */
    struct offload_layer *layers;
    uint32_t layer_count;
    bool opened, failed; /* opened: memory was allocated, or could not be; failed: the processor computes all */
    struct efs_device_slots *slots; /* by index in layers; NULL: no memory */
    uint32_t slot_count;            /* of each layer */
    ggml_backend_t backend;
    ggml_gallocr_t allocator; /* of inputs and outputs on the device */

    ggml_backend_buffer_t staging_buffer; /* memory that the device copies from; NULL: it offers none */
    uint8_t *staging;                     /* OFFLOAD_STAGES parts of it, or of memory_staging */
    ggml_backend_event_t event[OFFLOAD_STAGES];
    bool recorded[OFFLOAD_STAGES]; /* a copy from the part may be in progress */
    unsigned stage;                /* the next part */
    struct efsg_memory memory_staging, graph, inputs, ids, outputs, places, split, host;

    uint64_t calls;
    struct efs_export_device counts; /* head, slots: set when they are reported */
};

/* A call: products of a layer with the same ids, and what lies between them. */
struct offload_call {
    struct efsg_offload *o;
    unsigned index;    /* of the layer in o->layers */
    struct products p; /* the sorted choices of the first product */
    struct ggml_cgraph *graph;
    struct ggml_tensor *const *nodes;
    unsigned count;
    bool need[PRODUCTS_MAX]; /* by node: its rows are needed after the call */
    uint32_t rows;           /* that the waves before have computed: places[rows] of o; results in o->outputs */
    struct efsg_hints *hints;
    const struct chosen **order;   /* those of the device in slots; those of the device to be copied; the processor's */
    const struct chosen **missing; /* scratch */
    uint32_t found, device;        /* found: in slots; device: these and those to be copied */
    bool whole;                    /* the device computes all at once */
    bool computing;                /* an error is the device's, not the source's */
    struct efs_assign_costs *costs; /* of o */
    struct efs_assign_choice choice;
    uint64_t copied, copy_ns, device_ns, host_ns; /* times of the parts */
};

/* offload_device.c: sets o->device, its budget, o->shares and o->rule, or logs why it cannot. */
void offload_choose(struct efsg_offload *o, const char *name);

/* offload_memory.c: opens the device and allocates slots within the budget. False: there are none, which has been
 * logged. */
bool offload_open(struct efsg_offload *o);
/* Replaces the slots by fewer, empty ones. False: none are left; the processor computes from then on. Logged. */
bool offload_shrink(struct efsg_offload *o);
void offload_close(struct efsg_offload *o);

/* offload_copy.c: copies the experts chosen[0..count) of the call to slots. Errors have a message in call->p.err. Slots
 * of experts that were not copied are empty. */
errint_t offload_copy(struct offload_call *call, const struct chosen *const *chosen, uint32_t count);

/* offload_assign.c: sets order, found, device and whole of the call, and records its request in the slots. -ENOMEM. */
errint_t offload_assign(struct offload_call *call);
/* Records the times of a call that took ns. */
void offload_measured(struct offload_call *call, uint64_t ns);

/* offload_host.c: computes the processor's part of a call, and the device's by `device` on the thread. Blocks. Errors
 * of either; of both, the processor's. */
errint_t offload_share(struct offload_call *call, errint_t (*device)(struct offload_call *call),
                       struct efsg_buffers *room, int threads);
bool offload_thread_start(struct offload_thread *thread);
void offload_thread_stop(struct offload_thread *thread);

/* offload_graph.c. Sets call->need and call->rows; memory for all waves. -ENOMEM. */
errint_t offload_begin(struct offload_call *call, bool waves);
/*
 * Computes the nodes for all choices if count is 0, else for those of chosen[0..count), a wave. All have slots. The
 * results of waves are kept until offload_end(): the host may have given the memory of an input to a result, and later
 * waves need the input. hints: submitted while the device computes; NULL: none. -ENOSPC: no memory on the device;
 * -ENOMEM: none here; -EIO: the device failed. After an error no result has been written.
 */
errint_t offload_compute(struct offload_call *call, const struct chosen *const *chosen, uint32_t count,
                         struct efsg_hints *hints);
void offload_end(struct offload_call *call); /* after the last wave */
/* Writes the places of the choices of some experts, by expert. Returns their number. */
uint32_t offload_places(const struct offload_call *call, struct place *at, const struct chosen *const *chosen,
                        uint32_t count);
/* The matrix of a product in a layer; NULL: none. */
const struct offload_matrix *offload_matrix(const struct offload_layer *layer, const struct ggml_tensor *product);
/* The node whose rows t has: itself, or the one that it is a view of. */
static inline const struct ggml_tensor *offload_base(const struct ggml_tensor *t)
{
    return t->view_src ? t->view_src : t;
}

#endif
