/*
 * gauge.h - what reads and decodes of a served store take, as they take it: sched/rates.h with a lock, which is taken
 * last, once for a burst of reads and once for a decode.
 */
#ifndef EFS_GAUGE_H
#define EFS_GAUGE_H

#include "expertfs-private.h"
#include "rates.h"

struct efs;
struct efs_gauge;

errint_t efs_gauge_build(struct efs *fs); /* -ENOMEM */
void efs_gauge_destroy(struct efs *fs);

/* Another profile than the assumed one. */
void efs_gauge_profile(struct efs_gauge *gauge, const struct efs_profile *profile);
/* As efs_rates_burst() and efs_rates_decode(), from any thread. */
void efs_gauge_burst(struct efs_gauge *gauge, const struct efs_rates_burst *burst);
void efs_gauge_decode(struct efs_gauge *gauge, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns);
/* bursts, decoded_bytes: how much that is known from; may be NULL. */
void efs_gauge_now(struct efs_gauge *gauge, struct efs_rates_now *now, uint64_t *bursts, uint64_t *decoded_bytes);

#endif
