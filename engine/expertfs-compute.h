/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-compute.h - run the experts of a layer, from a store, a mount or the caller's memory. See expertfs.h.
 */
#ifndef EXPERTFS_COMPUTE_H
#define EXPERTFS_COMPUTE_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Threads for products, the caller's among them. Several layers may be run with it, one after the other: not by two
 * threads at once. */
struct efs_team;
EFS_API errint_t efs_team_new(unsigned threads, struct efs_team **team); /* 0: all cores; -ENOMEM, -EINVAL */
EFS_API void efs_team_free(struct efs_team *team);                       /* NULL is fine */

/*
 * In what the vectors are that meet the matrices. F32: products as they are, the same to the bit on every processor.
 * BF16: x is BF16, and h, which is F32, is rounded to BF16 before down (to nearest, ties to
 * even; a NaN stays one), as runtimes do whose products are of BF16. Each product is then the same to the bit as that
 * of ggml_vec_dot_bf16() of ggml (llama.cpp), as gcc compiles its variant for AVX-512 with BF16 where the processor
 * has that, or for AVX2; other processors add up as with F32. F16, for matrices of F16, as BF16 is for those of BF16: x
 * is F16, h is rounded to F16; products are as F32 would have them, the same on every processor.
 */
enum efs_activation { EFS_ACTIVATION_F32, EFS_ACTIVATION_BF16, EFS_ACTIVATION_F16 };

/* An expert of a mixture, and the tokens that it gets. */
struct efs_route_to {
    struct efs_expert_id expert;
    uint32_t count;        /* 1 or more */
    const uint32_t *token; /* [count]: rows of x and y, each once */
    const float *weight;   /* [count] */
};

/*
 * What a layer computes: y[t] = the sum over its experts of weight * f(x[t]). The names of an expert's tensors say
 * which of three functions f is. Matrices are [rows][columns], BF16 or F16, all of an expert alike; biases are F32,
 * BF16 or F16.
 *
 * - gate, up, down: f = down h, h = silu(gate x) * (up x).
 * - gate, up, down, each with a bias (gpt-oss as converters write it, with gate and up apart): f = down h + bias,
 *   g = gate x + bias, at most 7; u = up x + bias, from -7 to 7; h = g / (1 + exp(-1.702 g)) * (u + 1).
 * - wi, wo (Switch): f = wo h, h = max(wi x, 0).
 */
struct efs_mixture {
    uint32_t expert_count; /* each expert once, all of one layer */
    const struct efs_route_to *experts;
    enum efs_activation activation;
    const void *x;             /* [tokens][x_stride], in the activation's type */
    uint32_t tokens, hidden;   /* hidden: columns of gate and up, rows of down */
    size_t x_stride, y_stride; /* elements from one token to the next */
    float *y;                  /* [tokens][y_stride], overwritten; tokens of no expert get zeros */
    enum efs_form form;
};

/*
 * Run it: names the experts, computes each as it arrives, on all threads of the team, and adds up in the order of
 * experts, so that the result is the same to the bit for every form, number of threads and order of arrival. Blocks.
 * -EINVAL; -EOPNOTSUPP: the experts are of no such kind (err names the tensor), or coded in a
 * way that only the full form serves; what efs_client_begin() and _wait_any() tell.
 */
EFS_API errint_t efs_expert_ffn(struct efs *fs, struct efs_team *team, const struct efs_mixture *mixture,
                                struct efs_error *err);

/*
 * The same by a client, of a mount or of a store: of this layer of a stack, as efs_client_begin() has it, and
 * route.expert.number is the number in the layer. The result is the same to the bit as that of a store in this process.
 * Of a mount in EFS_FORM_CODED its chunks are read where they lie in the mount's memory; in EFS_FORM_ANY each expert is
 * run as the mount has it.
 *
 * In EFS_FORM_DEVICE (expertfs-gpu.h) experts of gate, up and down are run on the client's device, in its stream, team
 * is not used: activations are F32, and so are sums, in another order than a processor's. -EOPNOTSUPP: another kind or
 * activation; -ENOMEM: more tokens than fit into 8 MiB there (x, y, and a row of h and y for each expert of a token),
 * or no room in pool G for an expert.
 *
 * In EFS_FORM_SHARED both compute: some experts run on the device as in EFS_FORM_DEVICE, the others meanwhile on the
 * team as in EFS_FORM_ANY, so that both are done at about the same time. Who runs what goes by what is in pool G and by
 * what running and bringing experts has taken so far with this client; the first mixtures go to both. What finds no
 * room on the device, or comes in a codec that it does not decode, is the team's: with -ENOMEM there is no memory of
 * the processor. The last bits of the sums depend on who ran what, so they may differ from call to call. -EIO: the
 * device is lost, and the caller may go on in another form. At most EFS_ROUTING_EXPERTS experts. Of two mixtures of a
 * client the second begins when the first has ended.
 */
EFS_API errint_t efs_client_ffn(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                                const struct efs_mixture *mixture, struct efs_error *err);

/* The same for experts that lie in the caller's memory as plain BF16, row-major: gate and up [inner][hidden], down
 * [hidden][inner]. experts stand beside those of the mixture, whose form and numbers of experts are not looked at. */
struct efs_plain_expert {
    const void *gate, *up, *down;
    uint32_t inner;
};
EFS_API errint_t efs_plain_ffn(struct efs_team *team, const struct efs_mixture *mixture,
                               const struct efs_plain_expert *experts, struct efs_error *err);

/*
 * One product by itself, on the caller's own threads: for runtimes that do the rest of a layer themselves. Nothing here
 * blocks, starts a thread or keeps memory; threads share a product by its rows.
 */
#define EFS_VECTORS_MAX 256 /* that a product takes at once */
/* Bytes of memory for count vectors of cols numbers as products want them; 0: out of range. */
EFS_API size_t efs_vectors_bytes(uint32_t cols, uint32_t count);
/*
 * Lay them out: vector t begins at x + t * x_stride, F32 numbers. EFS_ACTIVATION_BF16 rounds them to BF16 (to nearest,
 * ties to even), EFS_ACTIVATION_F16 to F16, for matrices of F16, which take no others. memory is the caller's, aligned
 * to 64 bytes; all threads may read it from then on, until it is freed or laid out anew. -EINVAL.
 */
EFS_API errint_t efs_vectors_prepare(enum efs_activation activation, const float *x, size_t x_stride, uint32_t cols,
                                     uint32_t count, void *memory);
/* Bytes of memory, aligned to 64, that each thread brings for efs_product(); 0: not such a matrix. */
EFS_API size_t efs_product_scratch_bytes(const struct efs_tensor *matrix);
/*
 * Rows [row_begin, row_end) of a matrix of an expert (efs_client_tensors(), full or coded, BF16 or F16, [rows][cols])
 * times the vectors: y[t * y_stride + row] of these rows, and nothing else of y. Sums are F32, the same to the bit for
 * every form, split of the rows and number of vectors. -EOPNOTSUPP: not such a matrix, or coded in a way that only the
 * full form serves; -EINVAL: rows or vectors do not fit it; -EUCLEAN: damage, y then holds anything in these rows;
 * -ENOMEM.
 */
EFS_API errint_t efs_product(const struct efs_tensor *matrix, const void *vectors, uint32_t row_begin, uint32_t row_end,
                             float *y, size_t y_stride, void *scratch, struct efs_error *err);

#ifdef __cplusplus
}
#endif
#endif
