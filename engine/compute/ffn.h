/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn.h - private to compute/: a mixture that is being run. A mixture is a batch of tokens at one layer, with the
 * experts that each token is routed to and their weights (struct efs_mixture).
 *
 * compute/ runs the experts of a layer on threads or by gpu/, and computes single products. Only runtimes call it,
 * through expertfs-compute.h: ggml/, runmoe/ and moe-replay/ of tools/. It never does I/O, and is never called by
 * another room of the engine.
 */
#ifndef EFS_FFN_H
#define EFS_FFN_H

#include "codec.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "matvec.h"

/* The rows of a product: the size of a block, the next row to take, the number of rows that are done. */
struct efs_ffn_phase {
    uint32_t rows, block, next, done;
};

/* How h follows from the products of gate and up with x. The output of an expert is down h. */
enum efs_ffn_kind {
    EFS_FFN_SWIGLU,  /* h = silu(gate x) * (up x) */
    EFS_FFN_FUSED,   /* the same; gate has both */
    EFS_FFN_CLAMPED, /* gpt-oss: with biases, and efs_swiglu_clamped(); transposed: gate has both */
    EFS_FFN_RELU     /* Switch: h = max(gate x, 0); without up */
};

/* An expert of a mixture: its matrices and its current tokens, at most EFS_TOKENS_MAX. */
struct efs_ffn_expert {
    const struct efs_route_to *route;
    uint32_t index; /* in the request */
    enum efs_ffn_kind kind;
    unsigned layout;                        /* enum efs_layout */
    struct efs_matrix gate, up, down;       /* as they are stored */
    float *bias[3];                         /* of gate, up and down; NULL: none */
    struct efs_matrix_shard *shards;        /* of the three matrices */
    const struct efs_coded_shard *coded[3]; /* of gate, up and down, from the client; NULL: full */
    uint32_t inner, first_token, tokens;    /* first_token, tokens: part of the route that is computed now */
    void *input, *middle;                   /* inputs of the kernels: x of these tokens, h of these tokens */
    float *h, *out;                         /* [tokens][inner]; [count][hidden], all tokens of the route */
    float *u; /* [tokens][inner]: product of up; NULL: not needed, or the kernel merges it into h */
    struct efs_ffn_phase up_phase, down_phase;
    uint32_t shard_elements; /* of its coded matrices, the largest */
    bool needs_exponents;    /* some shard, maybe not a tensor's first, has exponents that the kernels do not decode */
    uint64_t busy_ns;        /* sum over the threads */
    bool ready, finished;    /* arrived, so that threads may take blocks; finished */
};

/* Source of the experts: a client's layer, or plain matrices. */
struct efs_ffn_source {
    struct efs_client *client; /* with stack and layer; NULL: plain */
    const char *stack;
    uint32_t layer;
    bool counted;                         /* EFS_FORM_COUNTED */
    const struct efs_plain_expert *plain; /* [experts], in the caller's memory */
    /* The caller's thread calls this before each of its blocks, without a lock held. May be NULL. */
    void (*before_block)(void *arg);
    void *arg;
    /* [experts]: receives the vectors of an expert's tokens, [count][hidden], without their weights, in place of the
     * sums: y and the weights are not used. May be NULL. */
    float *const *rows;
    uint64_t *ns; /* [experts]: receives each expert's time, as if all threads ran it together. May be NULL. */
};

/* Runs the mixture on the team. The caller has checked it; its form is neither EFS_FORM_DEVICE nor EFS_FORM_SHARED. */
errint_t efs_ffn_run(const struct efs_ffn_source *from, struct efs_team *team, const struct efs_mixture *mixture,
                     struct efs_error *err);

/* Copies rows of a plain matrix that is stored transposed, every step-th from the first on, to memory of
 * rows * w->rows * 2 bytes, and returns them as a matrix. */
struct efs_matrix efs_ffn_transposed_rows(const struct efs_matrix *w, uint32_t first, uint32_t step, uint32_t rows,
                                          void *to);

/* Clears the sums of a mixture; adds an expert's vectors, [count][hidden], to them. Their bits are those of adding in
 * the order of the experts. */
void efs_ffn_sums_clear(const struct efs_mixture *mixture);
void efs_ffn_sums_add(const struct efs_mixture *mixture, uint32_t expert, const float *vectors);

/* Finds the matrices and biases of an expert of e->layout among its tensors. The caller frees e->shards and e->bias,
 * also after an error. -EOPNOTSUPP (unknown kind, layout or coding), -EINVAL (shapes do not fit), -EUCLEAN or -ENOMEM,
 * with err. */
errint_t efs_ffn_matrices(struct efs_ffn_expert *e, const struct efs_tensor *tensors, uint32_t count, uint32_t hidden,
                          struct efs_error *err);

/* Why an expert could not be run, for a message; a hint may follow. */
const char *efs_ffn_reason(errint_t error);
/* Whether experts of this kind compute what config.json calls hidden_act; NULL: not named. name: of a tensor, for the
 * message. -EOPNOTSUPP, with err. */
errint_t efs_ffn_check_act(const char *hidden_act, enum efs_ffn_kind kind, const char *name, struct efs_error *err);

/* A mixture in the form that the rest of compute/ takes: with experts, and sums in F32. */
struct efs_ffn_input {
    struct efs_mixture mixture;
    void *routes; /* memory of experts; NULL: the caller's */
    float *sums;  /* memory of y; NULL: the caller's */
};
/* Takes a checked mixture. -EINVAL: an index out of range, an expert twice; -ENOMEM. efs_ffn_input_end() frees it; if
 * rc is 0 it writes y_bf16 first. */
errint_t efs_ffn_input_begin(const struct efs_mixture *m, struct efs_ffn_input *in, struct efs_error *err);
void efs_ffn_input_end(const struct efs_mixture *m, struct efs_ffn_input *in, errint_t rc);

/* efs_client_ffn() in EFS_FORM_DEVICE and in EFS_FORM_SHARED. The caller has checked the mixture. */
errint_t efs_ffn_device(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_mixture *m,
                        struct efs_error *err);
errint_t efs_ffn_share(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                       const struct efs_mixture *m, struct efs_error *err);

/* Describes a tensor as a matrix for the kernels, which points to the tensor's memory. shards: room for the tensor's
 * shard_count. -EOPNOTSUPP or -EUCLEAN, with err. */
errint_t efs_ffn_matrix(struct efs_matrix *w, struct efs_matrix_shard *shards, const struct efs_tensor *t,
                        struct efs_error *err);

/* A shard of a coded tensor, as input of its codec. */
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

/* Decoder of exponents of codecs without a kernel. efs_ffn_exponents() is the exponents() of a matrix, with this struct
 * as its user; one per thread. */
struct efs_ffn_exponents {
    const struct efs_coded_shard *shards; /* of the tensor */
    enum efs_format format;
    struct efs_codec_scratch *scratch;
    uint8_t *e; /* room for the exponents of a shard */
};
int efs_ffn_exponents(void *user, size_t shard, const uint8_t **e);

#endif
