/* SPDX-License-Identifier: Apache-2.0 */
/* place_tasks.c - reads traces as tasks and generates requests from them. */
#include "place_command.h"
#include "random.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a trace as a task ------------------------------------------------------------------------------------------ */

/* Maps the trace onto the shape: layers modulo route->layers, experts modulo tasks->experts, the first choices. */
static void map_ids(const struct efs_route *route, const struct replay_tasks *tasks, uint16_t *ids)
{
    for (uint64_t t = 0; t < route->tokens; t++)
        for (uint32_t l = 0; l < tasks->layers; l++)
            for (uint32_t k = 0; k < tasks->chosen; k++)
                *ids++ = (uint16_t)(route->ids[(t * route->layers + l % route->layers) * route->chosen + k] %
                                    tasks->experts);
}

static void find_sequences(const struct efs_route *route, uint32_t least, struct replay_task *task)
{
    for (uint64_t first = 0, end; first < route->tokens; first = end) {
        for (end = first + 1; end < route->tokens && route->sequence[end] == route->sequence[first];)
            end++;
        if (end - first >= least && end - first <= UINT32_MAX)
            task->sequence[task->sequences++] = (struct replay_sequence){first, (uint32_t)(end - first)};
    }
    /* Splits a single sequence in two, so that the requests served are not those used for planning. */
    if (task->sequences == 1 && task->sequence[0].tokens >= 2 * least) {
        uint32_t half = task->sequence[0].tokens / 2;
        task->sequence[1] = (struct replay_sequence){task->sequence[0].first + half, task->sequence[0].tokens - half};
        task->sequence[0].tokens = half;
        task->sequences = 2;
    }
}

/* Counts calls and tokens per call over consecutive requests from the first half of the sequences. */
static void count_calls(const struct replay_tasks *tasks, struct replay_task *task)
{
    uint32_t length = tasks->prompt + tasks->output, row = tasks->layers * tasks->chosen;
    double passes = 0, calls = 0, called = 0;
    for (uint32_t q = 0; q < task->sequences / 2; q++)
        for (uint32_t at = 0; at + length <= task->sequence[q].tokens; at += length)
            for (uint32_t pass = 0; pass <= tasks->output; pass++) {
                uint64_t begin = task->sequence[q].first + at + (pass ? tasks->prompt + pass - 1 : 0);
                uint32_t width = pass ? 1 : tasks->prompt;
                passes++;
                for (uint32_t l = 0; l < tasks->layers; l++) {
                    uint8_t seen[65536 / 8] = {0};
                    for (uint32_t i = 0; i < width * tasks->chosen; i++) {
                        uint16_t e =
                            task->ids[(begin + i / tasks->chosen) * row + l * tasks->chosen + i % tasks->chosen];
                        bool first = !(seen[e / 8] >> e % 8 & 1);
                        seen[e / 8] |= (uint8_t)(1u << e % 8);
                        task->calls[(size_t)l * tasks->experts + e] += first;
                        called += first;
                        calls++;
                    }
                }
            }
    for (size_t i = 0; i < (size_t)tasks->layers * tasks->experts; i++)
        task->calls[i] /= passes > 0 ? passes : 1;
    task->call_tokens = called > 0 ? calls / called : 1;
}

static errint_t take_task(const char *path, const struct efs_route *route, struct replay_tasks *tasks,
                          struct efs_error *err)
{
    struct replay_task *task = &tasks->task[tasks->count++];
    uint32_t length = tasks->prompt + tasks->output;
    memcpy(task->name, route->name, sizeof(task->name));
    if (tasks->chosen > route->chosen || tasks->experts > route->experts)
        return efs_fail(err, -EINVAL, "%s: %u of %u experts chosen cannot stand for %u of %u", path, route->chosen,
                        route->experts, tasks->chosen, tasks->experts);
    task->tokens = route->tokens;
    task->ids = calloc(route->tokens * tasks->layers * tasks->chosen, sizeof(*task->ids));
    task->sequence = calloc(route->tokens + 1, sizeof(*task->sequence));
    task->calls = calloc((size_t)tasks->layers * tasks->experts, sizeof(*task->calls));
    if (!task->ids || !task->sequence || !task->calls)
        return efs_fail(err, -ENOMEM, "no memory");
    map_ids(route, tasks, task->ids);
    find_sequences(route, length, task);
    if (task->sequences < 2)
        return efs_fail(err, -EINVAL, "%s: fewer than two sequences of the %u tokens of a request", path, length);
    count_calls(tasks, task);
    return 0;
}

errint_t replay_tasks_read(char *const *paths, uint32_t count, const uint32_t shape[3], uint32_t prompt,
                           uint32_t output, struct replay_tasks *tasks, struct efs_error *err)
{
    errint_t rc = 0;
    *tasks = (struct replay_tasks){.prompt = prompt, .output = output};
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct efs_route route = {0};
        rc = efs_route_read(paths[i], &route, err);
        if (rc == 0 && i == 0) {
            tasks->layers = shape[0] ? shape[0] : route.layers;
            tasks->experts = shape[0] ? shape[1] : route.experts;
            tasks->chosen = shape[0] ? shape[2] : route.chosen;
        }
        if (rc == 0 && !shape[0] &&
            (route.layers != tasks->layers || route.experts != tasks->experts || route.chosen != tasks->chosen))
            rc = efs_fail(err, -EINVAL, "%s: %u layers, %u of %u experts, %s has %u, %u of %u; --shape maps them",
                          paths[i], route.layers, route.chosen, route.experts, paths[0], tasks->layers, tasks->chosen,
                          tasks->experts);
        if (rc == 0)
            rc = take_task(paths[i], &route, tasks, err);
        efs_route_free(&route);
    }
    return rc;
}

void replay_tasks_free(struct replay_tasks *tasks)
{
    for (uint32_t i = 0; i < tasks->count; i++) {
        free(tasks->task[i].ids);
        free(tasks->task[i].sequence);
        free(tasks->task[i].calls);
    }
    *tasks = (struct replay_tasks){0};
}

/* ---- requests -----------------------------------------------------------------------------------------------------
 */

static double random_unit(uint64_t *seed) /* (0, 1] */
{
    return (double)((efs_random(seed) >> 11) + 1) * 0x1p-53;
}

static struct efs_servers_request make_request(const struct replay_tasks *tasks, uint32_t server, double at_s,
                                               double skew, bool is_switched, bool planned_by, uint64_t *seed)
{
    uint32_t length = tasks->prompt + tasks->output, number = (server + is_switched) % tasks->count;
    if (random_unit(seed) > skew)
        number = (uint32_t)(efs_random(seed) % tasks->count);
    const struct replay_task *task = &tasks->task[number];
    uint32_t half = task->sequences / 2;
    const struct replay_sequence *q =
        &task->sequence[planned_by ? efs_random(seed) % half : half + efs_random(seed) % (task->sequences - half)];
    uint64_t first = q->first + efs_random(seed) % (q->tokens - length + 1);
    return (struct efs_servers_request){.arrival_s = at_s,
                                        .server = server,
                                        .prompt = tasks->prompt,
                                        .tokens = length,
                                        .ids = task->ids + first * tasks->layers * tasks->chosen};
}

static int compare_requests(const void *a, const void *b)
{
    const struct efs_servers_request *x = a, *y = b;
    if (x->arrival_s != y->arrival_s)
        return x->arrival_s < y->arrival_s ? -1 : 1;
    return x->server < y->server ? -1 : x->server > y->server;
}

struct efs_servers_request *replay_tasks_requests(const struct replay_tasks *tasks, uint32_t servers, double skew,
                                                  double arrival_s, double duration_s, double switch_s, bool planned_by,
                                                  uint64_t seed, size_t *count)
{
    size_t room = 1024;
    struct efs_servers_request *all = calloc(room, sizeof(*all));
    *count = 0;
    for (uint32_t n = 0; all && n < servers; n++) {
        uint64_t own = seed * UINT64_C(0x100000001B3) + n; /* the same requests with all rules and settings */
        for (double at_s = -log(random_unit(&own)) * arrival_s; all && at_s < duration_s;
             at_s -= log(random_unit(&own)) * arrival_s) {
            if (*count == room) {
                struct efs_servers_request *grown = realloc(all, 2 * room * sizeof(*all));
                if (!grown)
                    free(all);
                all = grown;
                room *= 2;
                if (!all)
                    return NULL;
            }
            all[(*count)++] = make_request(tasks, n, at_s, skew, switch_s > 0 && at_s >= switch_s, planned_by, &own);
        }
    }
    if (all)
        qsort(all, *count, sizeof(*all), compare_requests);
    return all;
}
