/* SPDX-License-Identifier: Apache-2.0 */
/* route.h - reads routing traces (expertfs-route(5)). */
#ifndef MOE_REPLAY_ROUTE_H
#define MOE_REPLAY_ROUTE_H

#include "expertfs-private.h"
#include "expertfs-profile-private.h"

/* The experts that a model chose for each token in each layer: a .route file, zstd-compressed or plain, version 1 or 2.
 * The caller frees it with efs_route_free(). A NULL array is not in the trace. */
struct efs_route {
    uint32_t layers, experts, chosen; /* 1..1024, 1..4096, 1..64 (at most experts) */
    uint32_t width;                   /* of gates, states and embeddings, at most 65536; 0: none of them */
    uint64_t tokens;                  /* 1 or more */
    uint32_t *sequence;               /* [tokens]: number of the sequence, whose tokens are contiguous */
    uint8_t *kind;                    /* [tokens] of enum efs_route_kind; NULL in version 1 */
    uint16_t *ids;                    /* [tokens][layers][chosen], each below experts */
    float *scores;                    /* [tokens][layers][chosen], probabilities of the router, 0 or above; or NULL */
    float *all_scores;                /* [tokens][layers][experts], the same for all experts; or NULL */
    float *gates;                     /* [layers][experts][width], weights of the routers; or NULL */
    uint16_t *states;                 /* [tokens][layers][width], inputs of the routers, half precision; or NULL */
    uint16_t *embeddings;             /* [tokens][width], half precision; or NULL */
    char name[64];                    /* of the model; printable, truncated if longer */
};

/* Reads and checks a whole trace. Blocks. -EUCLEAN: not a trace, or a number is out of bounds; -EFBIG: more than 1 GiB;
 * -ENOMEM; -errno of open() or read(). */
errint_t efs_route_read(const char *path, struct efs_route *route, struct efs_error *err);
void efs_route_free(struct efs_route *route); /* a zeroed struct is allowed */
/* Converts from half precision (IEEE 754 binary16). */
float efs_route_half(uint16_t half);

/* efs_route_read() for the bytes of a file in memory; name is for messages. */
errint_t efs_route_parse(const char *name, const void *data, size_t bytes, struct efs_route *route,
                         struct efs_error *err);

#endif
