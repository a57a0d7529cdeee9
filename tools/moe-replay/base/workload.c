/* SPDX-License-Identifier: Apache-2.0 */
/* workload.c - maps a trace onto the requests of a model, with interleaved sequences. */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An active sequence: the range of its remaining tokens in the trace. */
struct stream {
    uint64_t next, end;
};

static int workload_allocate(const struct efs_route *route, uint64_t tokens, struct replay_workload *w)
{
    size_t requests, ids;
    if (__builtin_mul_overflow(tokens, (size_t)w->layers, &requests) ||
        __builtin_mul_overflow(requests, (size_t)route->chosen, &ids))
        return -ENOMEM;
    EFS_TABLE(&w->tables, w->width, tokens);
    EFS_TABLE(&w->tables, w->starts, tokens);
    EFS_TABLE(&w->tables, w->first, requests + 1);
    EFS_TABLE(&w->tables, w->ids, ids);
    EFS_TABLE(&w->tables, w->of_them, ids);
    EFS_TABLE(&w->tables, w->at, tokens);
    return efs_tables_error(&w->tables);
}

/* Advances each active sequence by one token and replaces those that ended. Writes the tokens' indices to at[] and the
 * number of new sequences to *starts. Returns the number of tokens of the pass. */
static uint32_t workload_next_pass(const struct efs_route *route, uint64_t tokens, struct stream *streams,
                                   uint32_t batch, uint64_t *next, uint64_t *at, uint32_t *starts)
{
    uint32_t width = 0;
    *starts = 0;
    for (uint32_t s = 0; s < batch; s++) {
        if (streams[s].next == streams[s].end && *next < tokens) {
            uint64_t end = *next + 1;
            while (end < tokens && route->sequence[end] == route->sequence[*next])
                end++;
            streams[s] = (struct stream){*next, end};
            *next = end;
            ++*starts;
        }
        if (streams[s].next < streams[s].end)
            at[width++] = streams[s].next++;
    }
    return width;
}

/* Appends the request of a layer in a pass at ids[end] and returns the new end. place: scratch of w->experts zeros,
 * which are 0 again on return. */
static size_t workload_add_request(const struct efs_route *route, struct replay_workload *w, uint32_t layer,
                                   const uint64_t *at, uint32_t width, size_t end, uint32_t *place)
{
    size_t begin = end;
    for (uint32_t t = 0; t < width; t++) {
        const uint16_t *ids = route->ids + (at[t] * route->layers + layer % route->layers) * route->chosen;
        for (uint32_t i = 0; i < route->chosen; i++) {
            uint32_t expert = ids[i] % w->experts;
            if (place[expert] == 0) {
                place[expert] = (uint32_t)(end - begin) + 1;
                w->ids[end++] = expert;
            }
            w->of_them[begin + place[expert] - 1]++;
        }
    }
    for (size_t i = begin; i < end; i++)
        place[w->ids[i]] = 0;
    return end;
}

int replay_workload_make(const struct efs_route *route, uint32_t layers, uint32_t experts, uint32_t batch,
                         uint64_t tokens, struct replay_workload *w)
{
    *w = (struct replay_workload){.layers = layers, .experts = experts, .batch = batch, .route = route};
    uint32_t most = experts < batch * route->chosen ? experts : batch * route->chosen;
    if (most > REPLAY_REQUEST_MAX)
        return -E2BIG;
    tokens = tokens && tokens < route->tokens ? tokens : route->tokens;
    struct stream *streams = calloc(batch, sizeof(*streams));
    uint64_t *at = calloc(batch, sizeof(*at)), next = 0;
    uint32_t *place = calloc(experts, sizeof(*place));
    size_t end = 0;
    int rc = streams && at && place ? workload_allocate(route, tokens, w) : -ENOMEM;
    while (rc == 0 && w->tokens < tokens) {
        uint32_t width = workload_next_pass(route, tokens, streams, batch, &next, at, &w->starts[w->passes]);
        w->width[w->passes] = width;
        memcpy(w->at + w->tokens, at, width * sizeof(*at));
        for (uint32_t l = 0; l < layers; l++) {
            end = workload_add_request(route, w, l, at, width, end, place);
            w->first[w->passes * layers + l + 1] = end;
        }
        w->passes++;
        w->tokens += width;
    }
    w->chosen = rc == 0 ? (double)end / (double)(w->passes * layers) : 0;
    free(place);
    free(at);
    free(streams);
    if (rc < 0)
        replay_workload_free(w);
    return rc;
}

int replay_workload_widen(const struct replay_workload *w, struct replay_workload *wide)
{
    size_t requests = w->passes * w->layers, all;
    *wide = *w;
    wide->tables = (struct efs_tables){0};
    if (w->experts > REPLAY_REQUEST_MAX)
        return -E2BIG;
    if (__builtin_mul_overflow(requests, (size_t)w->experts, &all))
        return -ENOMEM;
    EFS_TABLE(&wide->tables, wide->first, requests + 1);
    EFS_TABLE(&wide->tables, wide->ids, all);
    EFS_TABLE(&wide->tables, wide->of_them, all);
    int rc = efs_tables_error(&wide->tables);
    for (size_t r = 0; rc == 0 && r < requests; r++) {
        size_t begin = wide->first[r] = r * w->experts;
        for (uint32_t e = 0; e < w->experts; e++)
            wide->ids[begin + e] = e;
        for (size_t i = w->first[r]; i < w->first[r + 1]; i++)
            wide->of_them[begin + w->ids[i]] = w->of_them[i];
    }
    if (rc < 0)
        replay_workload_free(wide);
    else
        wide->first[requests] = all;
    return rc;
}

void replay_workload_free(struct replay_workload *w)
{
    efs_tables_free(&w->tables);
    *w = (struct replay_workload){0};
}
