/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipf.h - from inclusion probabilities to selection probabilities: iterative proportional fitting.
 *
 * ZipMoE appendix D, Eq. 15 to 24. A layer chooses exactly k of its N experts. Of all distributions over k-subsets that
 * include expert i with probability f_i (constraint C2) the one of maximum entropy draws every expert i independently
 * with a probability q_i and keeps the draws that have k experts. Fitting finds the weights w_i = q_i / (1 - q_i).
 *
 * How it stays exact for 512 experts and k = 16. The elementary symmetric polynomials R(n, C) of Eq. 23 are never
 * formed: with w scaled so that the q_i sum to k, R(n, C) * prod(1 - q_i) is the probability that n experts of C are
 * drawn, a Poisson-binomial number of ordinary size. Those of N without i come from tables over prefixes and suffixes,
 * joined by a sum of products, so nothing is divided out and nothing subtracted: every term is positive, and the
 * relative error stays at about N roundings. Experts that are certain (f = 1) or impossible (f = 0) are taken out
 * first.
 *
 * How it stays fast. Eq. 24 moves w_i by f_i / f_i(t), which crawls where f_i is near 1: thousands of rounds on skewed
 * layers. So the odds are fitted, w_i by [f_i / (1 - f_i)] / [f_i(t) / (1 - f_i(t))], the step that would meet
 * f_i at once if the other weights stood still; the fixed point is the same and tens of rounds are enough. As all move
 * at once, a pair that trades places with each other overshoots by up to two: every other round takes half the step (in
 * logarithms), which ends just that.
 *
 * Pure. Allocates scratch of about 16 (k + 4) N bytes and frees it.
 */
#ifndef EFS_IPF_H
#define EFS_IPF_H

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_IPF_MAX_EXPERTS 4096u

/*
 * Fit. inclusion: experts values in [0, 1] whose sum is chosen; a sum that is off by rounding (1e-6 of chosen) is made
 * right first by scaling the values between 0 and 1. q: experts values out, which sum to chosen; they give each
 * inclusion probability to 1e-12.
 *
 * -EINVAL: no experts, more than EFS_IPF_MAX_EXPERTS, chosen 0 or above experts; -EDOM: a value outside [0, 1] or a sum
 * that no distribution can have; -ENOMEM; -ELOOP: not within that after 10,000 iterations.
 */
int efs_ipf_fit(const double *inclusion, unsigned experts, unsigned chosen, double *q);

#ifdef __cplusplus
}
#endif
#endif
