/* SPDX-License-Identifier: Apache-2.0 */
/* http_flow.c - how many ranges are requested at once: rate times latency, both measured. */
#include "http.h"

#define DEPTH_FIRST 8u
#define DEPTH_LEAST 4u
#define WINDOW_NS 100000000u

static uint64_t smooth(uint64_t before, uint64_t now, unsigned weight)
{
    return before == 0 ? now : now > before ? before + (now - before) / weight : before - (before - now) / weight;
}

void efs_http_flow_note(struct efs_http_flow *f, uint64_t now_ns, uint64_t latency_ns, size_t bytes, bool last)
{
    /* The shortest latency is that of the line; a longer one also has the time in the queue that the depth makes. */
    f->latency_ns =
        f->latency_ns == 0 || latency_ns < f->latency_ns ? latency_ns : smooth(f->latency_ns, latency_ns, 64);
    f->read_bytes = smooth(f->read_bytes, bytes, 8);
    f->bytes += bytes;
    const uint64_t took = now_ns - f->since_ns;
    if (f->since_ns != 0 && took >= WINDOW_NS && took >= 4 * f->latency_ns) {
        uint64_t rate = (uint64_t)((double)f->bytes / (double)took * 1e9);
        f->bytes_per_second = rate > f->bytes_per_second ? rate : smooth(f->bytes_per_second, rate, 8);
        f->since_ns = 0;
    }
    if (f->since_ns == 0 || last) { /* a window begins; with `last`, with the next range on an idle line */
        f->since_ns = last ? 0 : now_ns;
        f->bytes = 0;
    }
}

uint32_t efs_http_flow_depth(const struct efs_http_flow *f)
{
    if (f->bytes_per_second == 0 || f->read_bytes == 0)
        return DEPTH_FIRST;
    double bytes = 2.0 * (double)f->bytes_per_second * (double)f->latency_ns / 1e9;
    double depth = bytes / (double)f->read_bytes + 1;
    return depth < DEPTH_LEAST ? DEPTH_LEAST : depth > EFS_HTTP_DEPTH ? EFS_HTTP_DEPTH : (uint32_t)depth;
}
