/* SPDX-License-Identifier: Apache-2.0 */
/*
 * estimator.h - measured read and decode rates of a served store: sched/planner/rates.h with a lock. The lock is
 * innermost, and is taken once per burst of reads and once per decode.
 */
#ifndef EFS_ESTIMATOR_H
#define EFS_ESTIMATOR_H

#include "expertfs-private.h"
#include "rates.h"

struct efs_estimator;
struct efs_profile;

errint_t efs_estimator_new(struct efs_estimator **out);   /* -ENOMEM */
void efs_estimator_free(struct efs_estimator *estimator); /* NULL is allowed */

/* Replaces the assumed profile. */
void efs_estimator_profile(struct efs_estimator *estimator, const struct efs_profile *profile);
/* efs_rates_burst() and efs_rates_decode() with the lock. Any thread. */
void efs_estimator_burst(struct efs_estimator *estimator, const struct efs_rates_burst *burst);
void efs_estimator_decode(struct efs_estimator *estimator, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns);
/* Current rates. bursts, decoded_bytes: the number of bursts and of decoded bytes that they are based on; may be
 * NULL. */
void efs_estimator_now(struct efs_estimator *estimator, struct efs_rates_now *now, uint64_t *bursts,
                       uint64_t *decoded_bytes);

#endif
