/* SPDX-License-Identifier: Apache-2.0 */
/* ffn.h - what ffn.c and its parts share: an expert of a mixture under way. */
#ifndef EFS_FFN_H
#define EFS_FFN_H

#include "codec.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "matvec.h"

/* Rows of a product that threads take block by block. */
struct efs_ffn_phase {
    uint32_t rows, block, next, done;
};

/* What an expert computes: h from the products of gate and up with x, and down h. */
enum efs_ffn_kind {
    EFS_FFN_SWIGLU,  /* h = silu(gate x) * (up x) */
    EFS_FFN_CLAMPED, /* gpt-oss: with biases, and efs_swiglu_clamped() */
    EFS_FFN_RELU     /* Switch: h = max(gate x, 0); there is no up */
};

/* An expert that is here: its matrices and its tokens, at most EFS_TOKENS_MAX of them at a time. */
struct efs_ffn_expert {
    const struct efs_route_to *route;
    uint32_t index; /* in the request */
    enum efs_ffn_kind kind;
    struct efs_matrix gate, up, down;
    float *bias[3];                         /* of gate, up and down; NULL: none */
    struct efs_matrix_shard *shards;        /* of the three */
    const struct efs_coded_shard *coded[3]; /* the same as the library has them; NULL: full */
    uint32_t inner, first_token, tokens;    /* of the route: those that are computed now */
    void *input, *middle;                   /* prepared: x of these tokens, h of these tokens */
    float *h, *out;                         /* [tokens][inner]; [count][hidden], all tokens of the route */
    float *u;                               /* [tokens][inner]: up's product; NULL: h takes it at once */
    struct efs_ffn_phase up_phase, down_phase;
    uint32_t shard_elements; /* of its shards, at most */
    bool asks;               /* some shard, not always a tensor's first, has exponents that the kernels do not decode */
    uint64_t busy_ns;        /* of all threads */
    bool here, over;
};

/* Where the experts are: one of these. */
struct efs_ffn_source {
    struct efs_client *client; /* of this stack and layer */
    const char *stack;
    uint32_t layer;
    const struct efs_plain_expert *plain; /* in the caller's memory */
    /* What the caller's thread does between two blocks; NULL: nothing. No lock is held. */
    void (*between)(void *arg);
    void *arg;
    uint64_t *ns; /* [experts]: gets what each took, on all threads at once; NULL: not wanted */
};

/* Run the mixture, which was checked, on the team. Not in forms of a device. */
errint_t efs_ffn_run(const struct efs_ffn_source *from, struct efs_team *team, const struct efs_mixture *mixture,
                     struct efs_error *err);

/* Take the matrices out of the tensors of an expert. -EOPNOTSUPP with err, -EINVAL (shapes do not fit), -ENOMEM. */
errint_t efs_ffn_matrices(struct efs_ffn_expert *e, const struct efs_tensor *tensors, uint32_t count, uint32_t hidden,
                          struct efs_error *err);

/* efs_client_ffn() in EFS_FORM_DEVICE and in EFS_FORM_SHARED; the mixture was checked. */
errint_t efs_ffn_device(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_mixture *m,
                        struct efs_error *err);
errint_t efs_ffn_share(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                       const struct efs_mixture *m, struct efs_error *err);

/* A tensor as the matrix that the kernels know; shards has room for those of the tensor. -EOPNOTSUPP with err. */
errint_t efs_ffn_matrix(struct efs_matrix *w, struct efs_matrix_shard *shards, const struct efs_tensor *t,
                        struct efs_error *err);

/* A shard of a coded tensor as its codec takes it. */
static inline struct efs_shard_view efs_ffn_shard_view(const struct efs_coded_shard *s, enum efs_format format)
{
    return (struct efs_shard_view){.format = format,
                                   .codec = s->codec,
                                   .elements = s->elements,
                                   .e = s->e,
                                   .sm = s->sm,
                                   .e_bytes = s->e_bytes,
                                   .sm_bytes = s->sm_bytes};
}

/* Exponents of codecs that the kernels do not know: exponents() of a matrix whose user is this, one for each thread. */
struct efs_ffn_exponents {
    const struct efs_coded_shard *shards; /* of the tensor */
    enum efs_format format;
    struct efs_codec_scratch *scratch;
    uint8_t *e; /* room for a shard's */
};
int efs_ffn_exponents(void *user, size_t shard, const uint8_t **e);

#endif
