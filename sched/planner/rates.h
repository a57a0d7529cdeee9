/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates.h - what reads and decodes take, kept current from what is measured while a store is served.
 *
 * A profile is measured once, with nothing else running. While a store is served a shared disk may be slower for an
 * hour, and a runtime takes memory bandwidth from decoding. So each burst of reads (from the first that finds the disk
 * idle until it is idle again) and each decode is a sample, and older samples fade:
 *
 * - A burst takes its bytes over the bandwidth, and a latency for each *wave*, the reads begun before any has ended:
 *   fitted by least squares over the bursts. Where a disk serves reads one after the other the first ends early, where
 *   it serves all at once the first ends with the last: *together* is 0 to 1.
 * - A decode right after its read verifies checksums, too, so it is counted apart from decodes of what was in memory.
 *
 * The profile counts as some bursts and bytes, so that few samples change little. A burst counts as at most
 * EFS_RATES_CLIP times what is expected, and no result is further than EFS_RATES_BOUND times from where it started: one
 * bad sample spoils no plan. A start that samples contradict (the profile was measured while others used the disk, or
 * on another) is left for what they say, by efs_rates_believe(). Pure: no clock, no lock. Rates are bytes a second.
 */
#ifndef EFS_RATES_H
#define EFS_RATES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_RATES_CLIP 8.0
#define EFS_RATES_BOUND 16.0
#define EFS_RATES_DOUBT 3.0

/* A decode of chunks that were read for it, or of chunks that were in memory. */
enum efs_rates_decode { EFS_DECODE_FRESH, EFS_DECODE_KEPT, EFS_DECODES };

/* As a profile has them. */
struct efs_rates_start {
    double disk_bytes_per_second, read_latency_ns, decode_bytes_per_second;
};

/* One burst of reads. */
struct efs_rates_burst {
    uint64_t bytes, ns;             /* of all of it */
    uint64_t first_bytes, first_ns; /* of the read that ended first, from the burst's begin */
    uint64_t reads, waves;
};

struct efs_rates {
    struct efs_rates_start start; /* the profile, or what was believed since */
    double ww, wx, wy, xx, xy;    /* sums over the bursts of products; w waves, x bytes, y ns */
    double together, together_weight;
    double decode_ns[EFS_DECODES], decode_bytes[EFS_DECODES];
    uint64_t bursts, decoded_bytes; /* so far, not faded */
};

/* What they are now. */
struct efs_rates_now {
    double disk_bytes_per_second, read_latency_ns;
    double together; /* 0: reads that are under way at once end one after the other, 1: all with the last */
    double decode_bytes_per_second; /* of one worker, over all decodes of late */
    double decode_each[EFS_DECODES];
};

void efs_rates_init(struct efs_rates *rates, const struct efs_rates_start *start);
/* Another profile; samples stay. One that is out of bounds is ignored. */
void efs_rates_from(struct efs_rates *rates, const struct efs_rates_start *start);
/* A burst that has ended. One longer than a request's counts as one of that length. */
void efs_rates_burst(struct efs_rates *rates, const struct efs_rates_burst *burst);
/* One worker has decoded raw bytes in so long. */
void efs_rates_decode(struct efs_rates *rates, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns);
void efs_rates_now(const struct efs_rates *rates, struct efs_rates_now *now);

/* What reading and decoding took of late over what the start says they take; 1 where too little is known. Beyond
 * EFS_RATES_DOUBT times, or below one part in so many, it is not to be trusted. */
struct efs_rates_doubt {
    double disk, decode;
};
void efs_rates_doubt(const struct efs_rates *rates, struct efs_rates_doubt *doubt);
bool efs_rates_doubtful(double part);
/* Start from what the samples say, and forget them: slow ones were clipped by what it said, so that several times may
 * be needed. */
void efs_rates_believe(struct efs_rates *rates, const struct efs_rates_doubt *doubt);

#ifdef __cplusplus
}
#endif
#endif
