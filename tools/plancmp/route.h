/*
 * route.h - a routing trace in memory: which experts a model chose, token by token, layer by layer.
 *
 * The file, zstd-compressed and little-endian: "MOETRACE", u32 version (1), layers L, experts E, chosen K,
 * has_probabilities, name length N, u64 tokens T, the name, and T times: u32 sequence number, u16[L*K] expert ids,
 * f16[L*K] probabilities if there are any (passed over here).
 */
#ifndef PLANCMP_ROUTE_H
#define PLANCMP_ROUTE_H

#include <stddef.h>
#include <stdint.h>

struct route {
    uint32_t layers, experts, chosen;
    uint64_t tokens;
    uint32_t *sequence; /* [tokens] */
    uint32_t *ids;      /* [tokens][layers][chosen] */
    char name[64];
};

/* 0 or -errno, with a line in error: -EUCLEAN for a file that is no trace, or whose numbers are out of bounds. */
int route_read(const char *path, struct route *route, char *error, size_t error_bytes);
void route_free(struct route *route);

static inline const uint32_t *route_ids(const struct route *route, uint64_t token, uint32_t layer)
{
    return route->ids + (token * route->layers + layer) * route->chosen;
}

#endif
