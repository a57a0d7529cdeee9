/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product.h - private to product*.c: the products of a layer that are being computed, and the two ways of computing
 * them.
 */
#ifndef EFS_GGML_PRODUCT_H
#define EFS_GGML_PRODUCT_H

#include "plugin.h"

#include <pthread.h>

#define PRODUCTS_MAX 8 /* most nodes of a call */

/* A row of the output: of token `token`, for its choice `slot`. */
struct place {
    uint32_t slot, token;
};

/* Up to EFS_VECTORS_MAX vectors that are multiplied with a matrix in one call. */
struct portion {
    const struct place *places;
    uint32_t count;
    uint8_t *vectors; /* prepared by efs_vectors_prepare(); NULL: by the host */
};

/* An expert that tokens chose. */
struct chosen {
    uint32_t expert, item;      /* item: its index in the request */
    uint32_t portion, portions; /* index of its first portion; number of portions */
    const struct efs_tensor *matrix[PRODUCTS_MAX];
    uint32_t left; /* blocks not done */
};

/* product_peers.c: the experts of a call that are sent to peers. */
struct products_away {
    struct efs_peer_call *call; /* NULL: no peers */
    bool counted;               /* there is or was a call, which has counted all experts */
    struct chosen *chosen;      /* [count] */
    uint32_t *number;           /* [count]: index in the call */
    uint32_t count;
};

struct products {
    struct ggml_tensor *const *nodes;
    const struct efsg_weight *weights[PRODUCTS_MAX];
    unsigned count; /* nodes */
    const struct kernel *kernel;
    uint32_t block; /* rows per block */
    uint32_t *counts;
    struct place *places;
    struct portion *portions;
    uint32_t portion_count;
    struct chosen *chosen;
    struct efs_need *needs;
    uint32_t chosen_count;     /* of chosen and needs: those that this process computes now */
    uint32_t all;              /* experts that tokens chose */
    struct products_away away; /* those that peers compute */
    uint8_t *vectors;          /* host: the input rows, converted */
    size_t vector_bytes;       /* host: from one to the next */
    size_t row_bytes;          /* host: of one */
    struct efs_client_request *request;
    struct efsg_buffers *room; /* of the backend */
    bool hold; /* experts are released together: all were in memory, and no other expert is read meanwhile */

    pthread_mutex_t lock;       /* guards the fields below, and chosen[].left */
    bool keep;                  /* no expert is released: the request is kept for down */
    pthread_cond_t fetched;     /* signals that fetching is false or error is set */
    bool fetching;              /* a thread waits for the next expert, without the lock, so that experts are released */
    uint32_t *arrived;          /* indices in chosen, in the order of arrival */
    uint32_t arrived_count, at; /* at: index in arrived of the expert whose blocks are being taken */
    uint32_t node, portion, row; /* its next block */
    errint_t error;              /* the first error; no block is taken after it */
    struct efs_error err;
};

/* A block of rows of an expert's matrix, for one portion of its vectors. */
struct block {
    struct chosen *chosen;
    const struct portion *portion;
    unsigned node;
    uint32_t begin, end;
};

/* A way of computing products. Errors are returned, with a message in err or p->err. */
struct kernel {
    /* Allocates the memory of the inputs. Returns the number of pieces in which they are prepared; -errno. */
    int (*alloc)(struct products *p, struct efsg_buffers *room);
    errint_t (*prepare)(struct products *p, uint32_t piece, struct efsg_thread_buffers *own); /* any thread */
    errint_t (*multiply)(struct products *p, const struct block *block, struct efsg_thread_buffers *own,
                         struct efs_error *err);
};
extern const struct kernel efsg_kernel_coded; /* product_coded.c: efs_product(), BF16 and F16 */
extern const struct kernel efsg_kernel_host;  /* product_host.c: the host's vec_dot, any type */

/* product_batch.c: products with several inputs. gather copies the inputs of the block's portion side by side; then
 * rows multiplies `count` rows of the matrix with them, of which the first is row `row`. -ENOMEM, -EIO. */
errint_t efsg_batch_gather(const struct products *p, const struct block *b, struct efsg_thread_buffers *own);
errint_t efsg_batch_rows(const struct products *p, const struct block *b, struct efsg_thread_buffers *own,
                         const void *rows, uint32_t row, uint32_t count);

/* Reports the routing of a single token and submits hints; NULL: none. One thread calls it while other threads, or a
 * device, multiply. */
void efsg_products_hint(const struct products *p, struct efsg_hints *hints);

/* product_sort.c: sorts the choices by expert into places, portions, chosen and needs. -EINVAL: an id out of range;
 * -ENOMEM. */
errint_t efsg_sort_choices(struct products *p, struct efsg_buffers *room);
/* product_keep.c. Keeps the request of products, which is complete. */
void efsg_kept_put(struct efsg_kept *kept, const struct products *p);
/* Returns the kept request if it is for the same experts, and sets their `item`; else releases it and returns NULL. */
struct efs_client_request *efsg_kept_take(struct efsg_kept *kept, struct products *p);
/* Requests at most `count` experts of the layer after the weight's. Whether it has. Not for a mount, and not for the
 * last layer, which llama.cpp computes only for the last token of a prompt. Does not block. */
bool efsg_kept_read_ahead(struct efsg_kept *ahead, const struct efsg_weight *w, uint32_t count);

/* product_peers.c. Sends inputs of some experts to the source's peers, and removes these experts from chosen. A failure
 * means that none were sent. */
void efsg_peers_begin(struct products *p, struct efsg_buffers *room);
/* Waits for the answers and writes their results; then chosen has the experts that no peer has computed. rc: of the
 * products here. Blocks. */
void efsg_peers_end(struct products *p, errint_t rc);

/* The expert that a token chose in a slot. */
int32_t efsg_id_at(const struct ggml_tensor *ids, size_t slot, size_t token);
/* Whether all portions share one vector: a single token with one input whose choices are all different experts. */
bool efsg_one_vector(const struct products *p);

/* The input row of a place: x has one per token (ne[1] is 1) or one per slot. */
static inline size_t input_row(const struct ggml_tensor *x, struct place place)
{
    return (size_t)(place.slot % (uint64_t)x->ne[1] + place.token * (uint64_t)x->ne[1]);
}

static inline const float *input_at(const struct ggml_tensor *x, size_t row)
{
    const size_t slots = (size_t)x->ne[1];
    return (const float *)((const char *)x->data + row % slots * x->nb[1] + row / slots * x->nb[2]);
}

static inline float *output_at(const struct ggml_tensor *y, struct place place)
{
    return (float *)((char *)y->data + place.slot * y->nb[1] + place.token * y->nb[2]);
}

#endif
