/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipf.h - computes selection probabilities from inclusion probabilities: iterative proportional fitting.
 *
 * ZipMoE appendix D, Eq. 15 to 24. A layer chooses exactly k of its N experts. Of all distributions over k-subsets that
 * include expert i with probability f_i (constraint C2) the one of maximum entropy draws every expert i independently
 * with a probability q_i and keeps the draws that have k experts. Fitting finds the weights w_i = q_i / (1 - q_i).
 *
 * Accuracy for 512 experts and k = 16. The elementary symmetric polynomials R(n, C) of Eq. 23 are never formed: with w
 * scaled so that the q_i sum to k, R(n, C) * prod(1 - q_i) is the probability that n experts of C are drawn, a
 * Poisson-binomial number of ordinary size. The probabilities for N without i come from tables over prefixes and
 * suffixes, joined by a sum of products. No step divides by a factor or subtracts: every term is positive, and the
 * relative error stays at about N roundings. Experts that are certain (f = 1) or impossible (f = 0) are removed first.
 *
 * Speed. Eq. 24 multiplies w_i by f_i / f_i(t), which converges slowly where f_i is near 1: in thousands of rounds on
 * skewed layers. This code fits the odds instead: it multiplies w_i by [f_i / (1 - f_i)] / [f_i(t) / (1 - f_i(t))], the
 * step that would meet f_i at once if the other weights stayed constant. The fixed point is the same, and tens of
 * rounds suffice. All weights move at once, so two experts that exchange weight overshoot by a factor of up to two:
 * every other round takes half the step (in logarithms), which damps exactly this oscillation.
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
 * Fit. inclusion: experts values in [0, 1] whose sum is chosen; a sum that is off by rounding (1e-6 of chosen) is
 * corrected first by scaling the values between 0 and 1. q: experts values out, which sum to chosen; they reproduce
 * each inclusion probability to 1e-12.
 *
 * -EINVAL: no experts, more than EFS_IPF_MAX_EXPERTS, chosen 0 or above experts; -EDOM: a value outside [0, 1] or a sum
 * that no distribution can have; -ENOMEM; -ELOOP: not converged to 1e-12 after 10,000 iterations.
 */
int efs_ipf_fit(const double *inclusion, unsigned experts, unsigned chosen, double *q);

#ifdef __cplusplus
}
#endif
#endif
