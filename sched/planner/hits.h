/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hits.h - probabilities of the number of a layer's chosen experts that are in a pool: Poisson-binomial distributions.
 *
 * ZipMoE 3.4 and Algorithm 2. Experts are drawn independently with selection probabilities q (ipf.h); the number drawn
 * from a range of ranks is a Poisson-binomial variable; given that exactly k are drawn in all, the hits of pools that
 * partition the ranks have the probability  Phi_F(h_F) Phi_C(h_C) ... Phi_M(rest) / Phi_N(k). All terms are positive
 * sums of products, so the relative error is about N roundings.
 *
 * Pure.
 */
#ifndef EFS_HITS_H
#define EFS_HITS_H

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_HITS_MAX_EXPERTS 4096u

/* The transition rule: adds one expert, drawn with probability q. from and to have max_hits + 1 elements and must
 * differ. */
static inline void efs_hits_add(const double *from, double *to, unsigned max_hits, double q)
{
    double stay = 1 - q;

    to[0] = from[0] * stay;
    for (unsigned h = 1; h <= max_hits; h++)
        to[h] = from[h] * stay + from[h - 1] * q;
}

/*
 * The distributions of all ranges of ranks of one layer, each computed at its first use: a row per first rank holds the
 * ranges that start there, because each is one transition from the one before.
 */
struct efs_hits_table;

/* Copies q. NULL: out of memory, no experts, or more than EFS_HITS_MAX_EXPERTS. The caller owns the table. */
struct efs_hits_table *efs_hits_table_new(const double *q, unsigned experts, unsigned max_hits);
void efs_hits_table_free(struct efs_hits_table *table); /* NULL is allowed */

/*
 * Algorithm 2: phi[h] = P(h are drawn), h = 0 .. max_hits (higher numbers are omitted), of the ranks first .. first +
 * count - 1 (first + count <= experts). The table owns the result. A max_hits above experts was reduced to experts.
 * NULL: out of memory.
 */
const double *efs_hits_range(struct efs_hits_table *table, unsigned first, unsigned count);

#ifdef __cplusplus
}
#endif
#endif
