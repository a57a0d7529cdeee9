/* SPDX-License-Identifier: Apache-2.0 */
/*
 * samples.h - weights as a given checkpoint has them: how often each BF16 value occurs in its tensors, and draws that
 * repeat it.
 *
 * Only integers decide what is drawn, so that a seed and a checkpoint give the same bytes on every processor.
 */
#ifndef MKMODEL_SAMPLES_H
#define MKMODEL_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mk_error;

/* Tensors are matched by what their names say that they are for. */
enum mk_kind { MK_KIND_MATRIX, MK_KIND_ATTENTION, MK_KIND_EMBEDDING, MK_KIND_NORM, MK_KIND_BIAS, MK_KINDS };

/* The kind of a tensor of that name and so many dimensions. */
enum mk_kind mk_kind_of(const char *name, uint32_t dims);

/* The values of one tensor and how often each occurs. */
struct mk_distribution;

struct mk_samples {
    struct mk_distribution **list; /* of all tensors that were taken */
    size_t count, room;
};

/* Read a checkpoint (a file or a directory): of each kind at most 64 tensors, spread over the checkpoint, and of each
 * at most some 4 million elements. What is not finite is left out. Blocks. 0 or -errno with the reason: -EUCLEAN for a
 * damaged file and for one without a matrix of floats. mk_samples_free() also after a failure. */
int mk_samples_read(const char *path, struct mk_samples *samples, struct mk_error *error);
void mk_samples_free(struct mk_samples *samples); /* a zeroed one is fine */

/* The distribution for a tensor of that kind and key: one of the kind's, the larger tensors more often. A kind of
 * matrices that the checkpoint has not gets another matrix; NULL: it has no norms, or no biases. */
const struct mk_distribution *mk_samples_choose(const struct mk_samples *samples, enum mk_kind kind, uint64_t key);

/* Elements [2 * first_pair, 2 * (first_pair + pairs)) of the endless row that key names into out (2 * pairs floats):
 * values of BF16, or with spread_out set anywhere in what BF16 rounds to such a value. */
void mk_samples_row(const struct mk_distribution *distribution, uint64_t key, uint64_t first_pair, size_t pairs,
                    bool spread_out, float *out);

#endif
