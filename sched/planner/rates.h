/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rates.h - rates of reads and decodes, updated from measurements while a store is served.
 *
 * A profile is measured once, on an idle machine. While a store is served a shared disk may be slower for an hour, and
 * a runtime takes memory bandwidth from decoding. So each burst of reads (from the first that finds the disk idle until
 * it is idle again) and each decode is a sample, and older samples fade:
 *
 * - A burst takes its bytes over the bandwidth, plus a latency for each *wave*, the reads started before any has
 *   completed: a least-squares fit over the bursts. On a disk that serves reads one after the other the first completes
 *   early; on one that serves all at once the first completes with the last: *together* is 0 to 1.
 * - A decode right after its read also verifies checksums, so it is counted separately from decodes of data that was in
 *   memory.
 *
 * The profile counts as several bursts and bytes, so that a few samples change little. A burst counts as at most
 * EFS_RATES_CLIP times its expected time, and every result stays within a factor of EFS_RATES_BOUND of the start: one
 * bad sample cannot spoil a plan. If samples contradict the start (the profile was measured on a busy disk, or on
 * another one), efs_rates_recalibrate() replaces it by the samples. Pure: no clock, no lock. Rates are bytes per
 * second.
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

/* A decode of chunks just read for it, or of chunks that were in memory. */
enum efs_rates_decode { EFS_DECODE_READ, EFS_DECODE_CACHED, EFS_DECODES };

/* Taken from a profile. */
struct efs_rates_start {
    double disk_bytes_per_second, read_latency_ns, decode_bytes_per_second;
};

/* One burst of reads. */
struct efs_rates_burst {
    uint64_t bytes, ns;             /* of the whole burst */
    uint64_t first_bytes, first_ns; /* of the read that completed first, from the start of the burst */
    uint64_t reads, waves;
};

struct efs_rates {
    struct efs_rates_start start; /* the profile, or the last result of efs_rates_recalibrate() */
    double ww, wx, wy, xx, xy;    /* decayed sums of products over the bursts; w waves, x bytes, y ns */
    double together, together_weight;
    double decode_ns[EFS_DECODES], decode_bytes[EFS_DECODES];
    uint64_t bursts, decoded_bytes; /* total, without decay */
};

/* Current rates. */
struct efs_rates_now {
    double disk_bytes_per_second, read_latency_ns;
    double together;                /* 0: concurrent reads complete one after the other, 1: all with the last */
    double decode_bytes_per_second; /* of one worker, over all recent decodes */
    double decode_each[EFS_DECODES];
};

void efs_rates_init(struct efs_rates *rates, const struct efs_rates_start *start);
/* Sets another start, but keeps the samples. Ignores a start out of bounds. */
void efs_rates_set_start(struct efs_rates *rates, const struct efs_rates_start *start);
/* Adds a completed burst. One of more than 64 MiB is scaled down to 64 MiB. */
void efs_rates_burst(struct efs_rates *rates, const struct efs_rates_burst *burst);
/* Adds a decode: one worker decoded raw_bytes in ns. */
void efs_rates_decode(struct efs_rates *rates, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns);
void efs_rates_now(const struct efs_rates *rates, struct efs_rates_now *now);

/* Recent time of reads and decodes divided by the time according to the start; 1 if too few samples are known. Above
 * EFS_RATES_DOUBT, or below its reciprocal, the start is not reliable. */
struct efs_rates_doubt {
    double disk, decode;
};
void efs_rates_doubt(const struct efs_rates *rates, struct efs_rates_doubt *doubt);
bool efs_rates_doubtful(double part);
/* Sets the start according to the samples, and discards them. Slow samples were clipped relative to the old start, so
 * several calls may be needed. */
void efs_rates_recalibrate(struct efs_rates *rates, const struct efs_rates_doubt *doubt);

#ifdef __cplusplus
}
#endif
#endif
