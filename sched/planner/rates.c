/* SPDX-License-Identifier: Apache-2.0 */
/* rates.c - see rates.h. */
#include "rates.h"

#include <math.h>

#define BURSTS_LATELY 1024.0               /* a burst's weight falls to 1/e after this number of bursts */
#define LOAD_BURSTS_LATELY 16.0            /* the same for bursts much faster than the start: load has ended */
#define DECODED_LATELY (16.0 * (1u << 30)) /* a decode's weight falls to 1/e after this number of bytes */
#define PRIOR_BURSTS 3.0                   /* weight of the start: empty bursts, and as many full ones */
#define PRIOR_BURST_BYTES (8.0 * (1u << 20))
#define PRIOR_DECODED (1.0 * (1u << 30))
#define DOUBT_BURSTS 32                      /* least sum of squared waves of the bursts for a doubt of the disk */
#define DOUBT_DECODED (64.0 * (1u << 20))    /* least bytes decoded for a doubt of the decoding */
#define FELT 0.25                            /* the latency is corrected, too, if it is a larger part of the time */
#define BURST_BYTES_MOST (64.0 * (1u << 20)) /* limit of a request's reads; a longer burst is a stream */
#define SERIAL_SHARE 0.2                     /* least part of a burst after its first read, to update `together` */

static double clamp(double value, double least, double most)
{
    return !(value > least) ? least : value < most ? value : most;
}

/* Limits a measurement to EFS_RATES_CLIP times its expected time. There is no lower limit: load can make one sample
 * many times slower, but no disturbance makes one much faster. */
static double clip(double measured, double expected)
{
    return fmin(measured, expected * EFS_RATES_CLIP);
}

static bool rates_start_valid(const struct efs_rates_start *s)
{
    return s->disk_bytes_per_second >= 1 && s->disk_bytes_per_second <= 1e15 && s->decode_bytes_per_second >= 1 &&
           s->decode_bytes_per_second <= 1e15 && s->read_latency_ns >= 0 && s->read_latency_ns <= 1e12;
}

static double rates_start_ns(const struct efs_rates_start *s, double waves, double bytes)
{
    return waves * s->read_latency_ns + bytes * 1e9 / s->disk_bytes_per_second;
}

void efs_rates_init(struct efs_rates *r, const struct efs_rates_start *start)
{
    *r = (struct efs_rates){.start = {1.5e9, 1e5, 5e9}};
    efs_rates_set_start(r, start);
}

void efs_rates_set_start(struct efs_rates *r, const struct efs_rates_start *start)
{
    if (rates_start_valid(start))
        r->start = *start;
}

/* Fits the time of a burst, in ns: waves * latency_ns + bytes * ns_per_byte. */
static void rates_fit(const struct efs_rates *r, double *latency_ns, double *ns_per_byte)
{
    double first = r->start.read_latency_ns, slope = 1e9 / r->start.disk_bytes_per_second, x = PRIOR_BURST_BYTES;
    double ww = r->ww + 2 * PRIOR_BURSTS, wx = r->wx + PRIOR_BURSTS * x;
    double wy = r->wy + PRIOR_BURSTS * (first + first + slope * x), xx = r->xx + PRIOR_BURSTS * x * x;
    double xy = r->xy + PRIOR_BURSTS * x * (first + slope * x);

    *ns_per_byte = clamp((ww * xy - wx * wy) / (ww * xx - wx * wx), slope / EFS_RATES_BOUND, slope * EFS_RATES_BOUND);
    *latency_ns = clamp((wy - *ns_per_byte * wx) / ww, first / EFS_RATES_BOUND, first * EFS_RATES_BOUND);
    /* if the latency was clamped, the bandwidth that fits it */
    *ns_per_byte = clamp((wy - *latency_ns * ww) / wx, slope / EFS_RATES_BOUND, slope * EFS_RATES_BOUND);
}

/* Updates `together` from the first completion of a burst, if the burst is suitable. */
static void rates_add_together(struct efs_rates *r, const struct efs_rates_burst *b, double latency_ns, double keep)
{
    double rest = (double)b->ns - latency_ns, serial;

    if (b->reads < 2 || b->waves > 1 || b->first_bytes >= b->bytes || b->first_ns > b->ns || !(rest > 0))
        return;
    serial = latency_ns + rest * (double)b->first_bytes / (double)b->bytes;
    if ((double)b->ns - serial < SERIAL_SHARE * (double)b->ns)
        return;
    r->together_weight = keep * r->together_weight + 1;
    r->together +=
        (clamp(((double)b->first_ns - serial) / ((double)b->ns - serial), 0, 1) - r->together) / r->together_weight;
}

void efs_rates_burst(struct efs_rates *r, const struct efs_rates_burst *b)
{
    double x = (double)b->bytes, y = (double)b->ns, w = (double)b->waves;
    double latency, slope, expected, keep;
    bool faster;

    if (b->bytes == 0 || b->reads == 0 || b->waves == 0)
        return;
    rates_fit(r, &latency, &slope);
    if (x > BURST_BYTES_MOST) {
        y *= BURST_BYTES_MOST / x;
        w *= BURST_BYTES_MOST / x;
        x = BURST_BYTES_MOST;
    } else {
        rates_add_together(r, b, latency, exp(-1 / BURSTS_LATELY));
    }
    expected = w * latency + x * slope;
    faster = r->ww > 2 * DOUBT_BURSTS && y * EFS_RATES_DOUBT < rates_start_ns(&r->start, w, x);
    keep = exp(-1 / (faster ? LOAD_BURSTS_LATELY : BURSTS_LATELY));
    y = clip(y, expected);
    r->ww = keep * r->ww + w * w;
    r->wx = keep * r->wx + w * x;
    r->wy = keep * r->wy + w * y;
    r->xx = keep * r->xx + x * x;
    r->xy = keep * r->xy + x * y;
    r->bursts++;
}

static double rates_rate(const struct efs_rates *r, double bytes, double ns)
{
    double first = r->start.decode_bytes_per_second;

    return clamp((bytes + PRIOR_DECODED) / (ns + PRIOR_DECODED / first * 1e9) * 1e9, first / EFS_RATES_BOUND,
                 first * EFS_RATES_BOUND);
}

void efs_rates_decode(struct efs_rates *r, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns)
{
    double x = (double)raw_bytes, keep = exp(-x / DECODED_LATELY);
    double expected = x / rates_rate(r, r->decode_bytes[kind], r->decode_ns[kind]) * 1e9;

    r->decode_bytes[kind] = keep * r->decode_bytes[kind] + x;
    r->decode_ns[kind] = keep * r->decode_ns[kind] + clip((double)ns, expected);
    r->decoded_bytes += raw_bytes;
}

void efs_rates_now(const struct efs_rates *r, struct efs_rates_now *now)
{
    double slope, bytes = 0, ns = 0;

    *now = (struct efs_rates_now){.together = r->together};
    rates_fit(r, &now->read_latency_ns, &slope);
    now->disk_bytes_per_second = 1e9 / slope;
    for (unsigned kind = 0; kind < EFS_DECODES; kind++) {
        bytes += r->decode_bytes[kind];
        ns += r->decode_ns[kind];
        now->decode_each[kind] = rates_rate(r, r->decode_bytes[kind], r->decode_ns[kind]);
    }
    now->decode_bytes_per_second = rates_rate(r, bytes, ns);
}

/* From samples alone, without the weight of the start; each sample was clipped on arrival, so that a single one has
 * little effect. */
void efs_rates_doubt(const struct efs_rates *r, struct efs_rates_doubt *doubt)
{
    double bytes = 0, ns = 0;
    double expected = rates_start_ns(&r->start, r->ww, r->wx);

    *doubt = (struct efs_rates_doubt){1, 1};
    if (r->ww >= DOUBT_BURSTS && expected > 0)
        doubt->disk = r->wy / expected;
    for (unsigned kind = 0; kind < EFS_DECODES; kind++) {
        bytes += r->decode_bytes[kind];
        ns += r->decode_ns[kind];
    }
    if (bytes >= DOUBT_DECODED)
        doubt->decode = ns / (bytes * 1e9 / r->start.decode_bytes_per_second);
}

void efs_rates_recalibrate(struct efs_rates *r, const struct efs_rates_doubt *doubt)
{
    struct efs_rates_start start = r->start;

    if (doubt->disk != 1) {
        if (start.read_latency_ns * r->ww > FELT * r->wy)
            start.read_latency_ns *= doubt->disk;
        start.disk_bytes_per_second = r->wx * 1e9 / (r->wy - start.read_latency_ns * r->ww);
    }
    start.decode_bytes_per_second /= doubt->decode;
    if (!rates_start_valid(&start))
        return;
    r->start = start;
    r->ww = r->wx = r->wy = r->xx = r->xy = 0;
    for (unsigned kind = 0; kind < EFS_DECODES; kind++)
        r->decode_bytes[kind] = r->decode_ns[kind] = 0;
}

bool efs_rates_doubtful(double part)
{
    return part > EFS_RATES_DOUBT || part < 1 / EFS_RATES_DOUBT;
}
