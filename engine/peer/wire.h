/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the messages between a program and a peer, a server that computes products with experts.
 *
 * peer/ lets efs_client_ffn() send the inputs of experts that are not in this machine's memory to servers that hold
 * them: two vectors cross the network in place of an expert. Programs call it through expertfs-peer.h; compute/ calls
 * it through a table (client/peer_ops.h). It never reads a store and never takes efs.lock.
 *
 *     wire.c             the messages: checked before anything is taken from them
 *     tls.c              TLS 1.3 with a pre-shared key, by GnuTLS, which is loaded at run time
 *     server.c           answers requests, a thread a connection
 *     server_products.c  requests for products of single matrices
 *     client_peers.c     the caller's peers, from a list of addresses
 *     peers.c            their connections, and one request with its answer
 *     choose.c           which experts are computed where, by measured times
 *     remote.c           the experts of a layer that peers compute: chosen, sent, received
 *     remote_ffn.c       a mixture of which peers compute some experts
 *     remote_products.c  products of single matrices, of which peers compute some
 *
 * A message is a head and its body, little-endian, over a connection that is encrypted and whose both ends know one
 * key. An end with the key is trusted to compute rightly, but not to send lengths or numbers that are in bounds.
 *
 *     HELLO    from the caller first: the store and the order of sums of BF16 products
 *     WELCOME  the server's answer, with its own store and order; the server closes if the stores differ
 *     REQUEST  experts of a layer, the tokens of each, the inputs of these tokens
 *     ANSWER   one vector for each expert and token, in the order of the request; which experts of the layer are in
 *              the server's memory
 */
#ifndef EFS_WIRE_H
#define EFS_WIRE_H

#include "expert_key.h"
#include "expertfs-compute.h"

#define EFS_WIRE_VERSION 3u
#define EFS_WIRE_BYTES (32u << 20) /* most of a body */
#define EFS_WIRE_EXPERTS 512u      /* most of a request */
#define EFS_WIRE_TOKENS 4096u
#define EFS_WIRE_ACT_BYTES 16u /* of the name of an activation, including the terminator */
#define EFS_WIRE_LAYER 4096u   /* most experts of a layer, in the bits of an answer */
#define EFS_WIRE_MATRICES 2u   /* most of a request for products of single matrices */
#define EFS_WIRE_NAME_BYTES 96u

enum efs_wire_kind { EFS_WIRE_HELLO = 1, EFS_WIRE_WELCOME, EFS_WIRE_REQUEST, EFS_WIRE_ANSWER };

struct efs_wire_head {
    uint32_t kind, bytes; /* of the body */
};

struct efs_wire_hello {
    uint32_t version, reserved;
    uint64_t store; /* content hash */
    char order[16]; /* efs_matvec_order(), padded with zeros */
};

struct efs_wire_request {
    uint64_t id;
    char stack[EFS_STACK_NAME_BYTES], hidden_act[EFS_WIRE_ACT_BYTES]; /* of the mixture; terminated; "": NULL */
    uint32_t layer, experts, tokens, hidden, activation, pairs;       /* pairs: sum of the experts' tokens */
    uint32_t layout, rows; /* rows: numbers of a vector of the answer; of a whole expert, hidden */
    /* Names of tensors that each expert has, terminated: a vector of the answer is their products with x, one after the
     * other. [0] "": the output of the whole expert; [1] "": one. */
    char matrix[EFS_WIRE_MATRICES][EFS_WIRE_NAME_BYTES];
    /* then { u32 expert, count } [experts]; u32 token[pairs], those of each expert; x[tokens][hidden], in the type of
     * the activation, for products of single matrices in F32 */
};

struct efs_wire_answer {
    uint64_t id;
    uint32_t error; /* an errno; then nothing follows, after ENODATA held: an expert of the request is not in memory */
    uint32_t layer_experts, pairs, rows;
    /* then u8 held[(layer_experts + 7) / 8], padded to 4 bytes; f32 [pairs][rows] */
};

/* A request as it is in a received body, or as it is to be sent. */
struct efs_wire_work {
    struct efs_wire_request head;
    const struct efs_wire_expert {
        uint32_t expert, count;
    } * expert;            /* [experts] */
    const uint32_t *token; /* [pairs] */
    const void *x;         /* [tokens][hidden] */
};

/* Bytes of a number of x. */
static inline size_t efs_wire_number_bytes(const struct efs_wire_request *r)
{
    return r->activation == EFS_ACTIVATION_F32 || r->matrix[0][0] ? 4 : 2;
}
static inline size_t efs_wire_held_bytes(uint32_t layer_experts)
{
    return ((size_t)layer_experts + 31) / 32 * 4;
}

/* Bytes of the body of such a request, and of its answer; 0: out of the bounds above. */
size_t efs_wire_request_bytes(const struct efs_wire_request *request);
size_t efs_wire_answer_bytes(uint32_t layer_experts, uint32_t pairs, uint32_t rows);
/* Checks a received body and points *work into it. Every number is in bounds afterwards: each expert has 1 to tokens
 * tokens, in any order, and each is below tokens. -EBADMSG. */
errint_t efs_wire_take_request(const void *body, size_t bytes, struct efs_wire_work *work);
/* Checks an answer to a request of `pairs` vectors of `rows` numbers, and that all of them are finite (a number that
 * is not is computed again by the caller). -EBADMSG; or the server's error: with -ENODATA *held and *layer_experts are
 * set. */
errint_t efs_wire_take_answer(const void *body, size_t bytes, uint64_t id, uint32_t pairs, uint32_t rows,
                              const uint8_t **held, uint32_t *layer_experts, const float **vectors);

#endif
