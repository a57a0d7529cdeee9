/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_sample.h - one look at a mount's .expertfs: stat and config by name, the tables of pools and experts by column,
 * so that columns and names which later versions add do no harm.
 */
#ifndef EXPERTCTL_TOP_SAMPLE_H
#define EXPERTCTL_TOP_SAMPLE_H

#include "expertfs.h"

#define TOP_POOLS "FCSEM"

struct top_pool {
    uint64_t capacity_bytes, used_bytes, experts, hits, partial, misses, demoted, evicted, saved_bytes;
};

struct top_expert {
    char name[64], state[8], kept[8], pin[8];
    uint64_t leases, rank, count, resident_bytes, touches;
    uint64_t asked; /* since the sample before */
};

struct top_sample {
    double seconds;      /* when, on a clock that only goes forward */
    char *stat, *config; /* `name: value` lines */
    struct top_pool pools[sizeof(TOP_POOLS) - 1];
    struct top_expert *experts;
    size_t expert_count;
};

/* Look. before (may be NULL) is for `asked` of the experts, which are then sorted: the most asked for come first.
 * -EPROTO: a file is not as expertfs-proc(5) has it; what the system says. */
errint_t top_sample_take(const char *root, const struct top_sample *before, struct top_sample *sample,
                         struct efs_error *err);
/* The same without the experts, which are many. */
errint_t top_sample_glance(const char *root, struct top_sample *sample, struct efs_error *err);
void top_sample_free(struct top_sample *sample); /* a zeroed one is fine */

/* The number of a name in lines as of stat, 0 when it is not there; "" likewise. text has room of at least 2. */
uint64_t top_number(const char *lines, const char *name);
const char *top_text(const char *lines, const char *name, char *text, size_t room);

#endif
