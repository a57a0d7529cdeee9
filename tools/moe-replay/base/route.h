/* SPDX-License-Identifier: Apache-2.0 */
/* route.h - reads routing traces (expertfs-route(5)). */
#ifndef MOE_REPLAY_ROUTE_H
#define MOE_REPLAY_ROUTE_H

#include "expertfs-private.h"

/* Which experts a model chose, token by token, layer by layer: a .route file, zstd-compressed or plain, version 1 or 2
 * (expertfs-route(5)). Owned by the caller, who frees it with efs_route_free(). What may be NULL is not in the trace.
 */
struct efs_route {
    uint32_t layers, experts, chosen; /* 1..1024, 1..4096, 1..64 (at most experts) */
    uint32_t width;                   /* of gates, states and embeddings, at most 65536; 0: there are none of them */
    uint64_t tokens;                  /* 1 or more */
    uint32_t *sequence;               /* [tokens]: tokens of one request have the same number, one after the other */
    uint8_t *kind;                    /* [tokens] of enum efs_route_kind; NULL in version 1 */
    uint16_t *ids;                    /* [tokens][layers][chosen], each below experts */
    float *scores;                    /* [tokens][layers][chosen] of the gate, 0 or above; or NULL */
    float *all_scores;                /* [tokens][layers][experts], the same of all experts; or NULL */
    float *gates;                     /* [layers][experts][width]: weights of the routers; or NULL */
    uint16_t *states;                 /* [tokens][layers][width]: what each router read, in halves; or NULL */
    uint16_t *embeddings;             /* [tokens][width]: of the tokens, in halves; or NULL */
    char name[64];                    /* of the model; printable, cut if longer */
};

/* Read and check all of a trace. Blocks. -EUCLEAN: not a trace, or its numbers are out of bounds; -EFBIG: more than
 * 1 GiB; -ENOMEM; what the system says. */
errint_t efs_route_read(const char *path, struct efs_route *route, struct efs_error *err);
void efs_route_free(struct efs_route *route); /* a zeroed one is fine */
/* A number of half precision (IEEE 754 binary16): sign, 5 bits of exponent, 10 of fraction. */
float efs_route_half(uint16_t half);

/* efs_route_read() of the bytes of a file; name is for messages. */
errint_t efs_route_parse(const char *name, const void *data, size_t bytes, struct efs_route *route,
                         struct efs_error *err);

#endif
