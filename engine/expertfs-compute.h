/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-compute.h - runs the experts of a layer, from a store, a mount or the caller's memory. See expertfs.h.
 */
#ifndef EXPERTFS_COMPUTE_H
#define EXPERTFS_COMPUTE_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compute threads, the calling thread included. A team runs one mixture at a time. */
struct efs_team;
EFS_API errint_t efs_team_new(unsigned threads, struct efs_team **team); /* 0: all cores; -ENOMEM, -EINVAL */
EFS_API void efs_team_free(struct efs_team *team);                       /* NULL is fine */

/*
 * Type of the vectors that are multiplied with the matrices.
 *
 * F32: the same bits on every processor.
 *
 * BF16: x is BF16, and h is rounded to BF16 before down (to nearest, ties to even; a NaN stays one). Products have the
 * bits of ggml_vec_dot_bf16() of ggml (llama.cpp), as gcc compiles it for AVX-512 with BF16, or AVX2 without; other
 * processors sum as with F32.
 *
 * F16, for matrices of F16: x is F16, h is rounded to F16. Sums as with F32, the same bits on every processor.
 */
enum efs_activation { EFS_ACTIVATION_F32, EFS_ACTIVATION_BF16, EFS_ACTIVATION_F16 };

/* An expert of a mixture, and the tokens that are routed to it. */
struct efs_route_to {
    uint32_t expert;       /* number in the layer */
    uint32_t count;        /* 1 or more */
    const uint32_t *token; /* [count]: rows of x and y, each once */
    const float *weight;   /* [count] */
};

/* The experts of each token as a router gives them: idx and w of topk(). */
struct efs_router_output {
    uint32_t experts;              /* of the layer; each number is smaller */
    uint32_t per_token;            /* K, 1 or more; a token chooses an expert once */
    enum efs_dtype index_type;     /* EFS_DTYPE_I64 or EFS_DTYPE_I32 */
    enum efs_dtype weight_type;    /* EFS_DTYPE_F32 or EFS_DTYPE_BF16 */
    const void *indices, *weights; /* [tokens][K], aligned to their types */
};

/*
 * y[t] = the sum over the experts of token t of weight * f(x[t]). The names of an expert's tensors select one of three
 * f. Matrices are [rows][columns], BF16 or F16, with one type for all of an expert; biases are F32, BF16 or F16.
 *
 * - gate, up, down: f = down h, h = silu(gate x) * (up x). gate_up in place of the first two: by layout.
 * - gate, up, down, each with a bias (gpt-oss): f = down h + bias,
 *   g = gate x + bias, at most 7; u = up x + bias, from -7 to 7; h = g / (1 + exp(-1.702 g)) * (u + 1).
 * - wi, wo (Switch): f = wo h, h = max(wi x, 0).
 */

/* How a checkpoint has gate_up and down, which neither their names nor their shapes say: bits. None: [rows][columns],
 * the rows of gate, then those of up (Qwen3.5 MoE). Known, of experts with gate_up, are also TRANSPOSED (Llama 4,
 * Qwen3-VL-MoE), and both with biases (gpt-oss in BF16); other layouts are refused with -EOPNOTSUPP. */
enum efs_layout {
    EFS_LAYOUT_TRANSPOSED = 1, /* [columns][rows] */
    EFS_LAYOUT_INTERLEAVED = 2 /* gate and up in turns */
};

struct efs_mixture {
    uint32_t expert_count; /* each once, all of one layer */
    const struct efs_route_to *experts;
    /* In place of the two above, which are then 0 and NULL. The sums are in the order of the experts' numbers. */
    const struct efs_router_output *routing;
    /* The function that config.json names: "silu" (or "swish"), "relu". NULL: that of the tensors' names. Names alone
     * do not distinguish a model with "gelu", which is refused: -EOPNOTSUPP. */
    const char *hidden_act;
    unsigned layout; /* bits of enum efs_layout; transposed matrices are run in full form */
    enum efs_activation activation;
    const void *x;             /* [tokens][x_stride], in the activation's type */
    uint32_t tokens, hidden;   /* hidden: columns of gate and up, rows of down */
    size_t x_stride, y_stride; /* elements from one token to the next */
    float *y;                  /* [tokens][y_stride], overwritten; zeros for tokens without an expert */
    uint16_t *y_bf16;          /* in place of y, which is then NULL: the sums, rounded to BF16 once */
    enum efs_form form;
    /* Called by the thread that runs the mixture, every 100 ms while it waits for an expert: whether to end it with
     * -EINTR. Not of EFS_FORM_DEVICE and EFS_FORM_SHARED. May be NULL. */
    bool (*interrupted)(void *arg);
    void *interrupted_arg;
};

/*
 * Run the experts of a layer: requests them as efs_client_begin() does, computes each as it arrives on all threads of
 * the team, and sums in the order of experts, so that the result has the same bits for every form, number of threads
 * and order of arrival, from a store or a mount. Blocks. -EINVAL, also for an index out of range and for an expert that
 * a token has twice; -EOPNOTSUPP: experts with other tensors (err names the tensor) or another hidden_act, or a codec
 * that only the full form supports; the errors of efs_client_begin() and efs_client_wait_any().
 *
 * EFS_FORM_CODED reads the chunks in place, in the memory of the mount or store; EFS_FORM_ANY runs each expert in the
 * form that it has in memory. Transposed experts are run in EFS_FORM_FULL, also if EFS_FORM_ANY is given; other forms
 * are refused with -EOPNOTSUPP.
 *
 * EFS_FORM_DEVICE (expertfs-gpu.h) runs experts of gate, up and down on the client's device, in its stream, without the
 * team. Activations are F32 and so are sums, in another order than on the CPU. -EOPNOTSUPP: other tensors or another
 * activation; -ENOMEM: the tokens take more than 8 MiB there (x, y, and a row of h and y for each expert of a token),
 * or pool G has no room for an expert.
 *
 * EFS_FORM_SHARED runs some experts as EFS_FORM_DEVICE and the rest concurrently as EFS_FORM_ANY, so that both finish
 * at about the same time. The split depends on the content of pool G and on the measured times of running and loading
 * experts with this client; the first mixtures use both. Experts without room on the device, or with a codec that it
 * does not decode, are run by the team; -ENOMEM then means host memory. The last bits of the sums depend on the split
 * and may differ from call to call. -EIO: the device is lost, other forms work. At most EFS_ROUTING_EXPERTS experts.
 * Mixtures of one client run one after the other.
 */
EFS_API errint_t efs_client_ffn(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                                const struct efs_mixture *mixture, struct efs_error *err);

/*
 * Single products on the caller's threads, for runtimes that compute the rest of a layer themselves. These functions do
 * not block, start threads or keep memory; threads share a product by rows.
 */
#define EFS_VECTORS_MAX 256 /* per product */
/* Bytes for count vectors of cols numbers in the layout of products; 0: out of range. */
EFS_API size_t efs_vectors_bytes(uint32_t cols, uint32_t count);
/*
 * Lay out vectors: vector t is the F32 numbers from x + t * x_stride. EFS_ACTIVATION_BF16 rounds them to BF16 (to
 * nearest, ties to even), EFS_ACTIVATION_F16 to F16; matrices of F16 take F16 or F32. memory is the caller's, aligned
 * to 64 bytes; afterwards all threads may read it. -EINVAL.
 */
EFS_API errint_t efs_vectors_prepare(enum efs_activation activation, const float *x, size_t x_stride, uint32_t cols,
                                     uint32_t count, void *memory);
/* Bytes of scratch memory that each thread needs for efs_product(), aligned to 64; 0: efs_product() does not support
 * the matrix. */
EFS_API size_t efs_product_scratch_bytes(const struct efs_tensor *matrix, bool transposed);
/*
 * Multiply rows [row_begin, row_end) of an expert's matrix (efs_client_tensors(), full or coded, BF16 or F16,
 * [rows][cols]; transposed: [cols][rows], full) with the vectors: writes y[t * y_stride + row] of these rows only. Sums
 * are F32, with the same bits for every form, split of the rows and number of vectors. -EOPNOTSUPP: another kind of
 * tensor, or a codec that only the full form supports, or transposed and coded; -EINVAL: rows or vectors do not fit;
 * -EUCLEAN: damage, these rows of y are undefined; -ENOMEM.
 */
EFS_API errint_t efs_product(const struct efs_tensor *matrix, bool transposed, const void *vectors, uint32_t row_begin,
                             uint32_t row_end, float *y, size_t y_stride, void *scratch, struct efs_error *err);

#ifdef __cplusplus
}
#endif
#endif
