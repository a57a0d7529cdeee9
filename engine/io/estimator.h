/* SPDX-License-Identifier: Apache-2.0 */
/*
 * estimator.h - what reads and decodes of a served store take, as they take it: sched/planner/rates.h with a lock,
 * which is taken last, once for a burst of reads and once for a decode.
 */
#ifndef EFS_ESTIMATOR_H
#define EFS_ESTIMATOR_H

#include "expertfs-private.h"
#include "rates.h"

struct efs_estimator;

errint_t efs_estimator_new(struct efs_estimator **out);   /* -ENOMEM */
void efs_estimator_free(struct efs_estimator *estimator); /* NULL is fine */

/* Another profile than the assumed one. */
void efs_estimator_profile(struct efs_estimator *estimator, const struct efs_profile *profile);
/* As efs_rates_burst() and efs_rates_decode(), from any thread. */
void efs_estimator_burst(struct efs_estimator *estimator, const struct efs_rates_burst *burst);
void efs_estimator_decode(struct efs_estimator *estimator, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns);
/* bursts, decoded_bytes: how much that is known from; may be NULL. */
void efs_estimator_now(struct efs_estimator *estimator, struct efs_rates_now *now, uint64_t *bursts,
                       uint64_t *decoded_bytes);

#endif
