/* SPDX-License-Identifier: Apache-2.0 */
/*
 * servers.c - the event-driven simulator of servers.
 *
 * An event is the next layer of a server's current request, or its end, so each busy server has one event. The compute
 * clock is a backlog: work starts after the work queued before it, and its length is added at the time of the call,
 * even if the message is still in flight; otherwise a server would idle until the message arrives.
 */
#include "servers.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define EVENTS_BETWEEN_STOPS 65536u
#define HOLDERS_COMPARED 4u /* holders compared by backlog; the first one rotates */

struct event {
    double at_s;
    uint32_t server;
};

struct work {                      /* state of a server */
    double compute_s, out_s, in_s; /* its clocks */
    uint64_t layer_number;         /* last layer that called this server, and the end of that work */
    double layer_done_s;
    size_t head, tail; /* its waiting requests, a list through next */
    size_t waiting;
    bool busy;
    uint32_t token, layer, width; /* position of its request: tokens [token, token + width) */
};

#define NO_REQUEST SIZE_MAX

struct simulation {
    struct efs_tables tables;
    const struct efs_servers_config *c;
    const struct efs_servers_request *requests;
    size_t count, next_arrival, all;
    struct efs_servers_result *r;
    struct work *work;
    size_t *next; /* [requests] */
    struct event *heap;
    uint32_t heap_count;
    uint8_t *placement, *next_placement; /* next_placement: takes effect at change_s */
    double change_s, review_s;
    bool change_pending;
    uint32_t *holders, *first; /* servers that hold an expert: holders[first[item]] up to first[item + 1] */
    uint32_t round_robin;
    uint64_t layer_number; /* number of layers started */
    double *calls, *passes;
    uint32_t *tokens;   /* [experts], all 0 between layers */
    uint16_t *distinct; /* distinct experts of a layer */
};

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bool event_before(const struct event *a, const struct event *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->server < b->server);
}

static void event_push(struct simulation *s, struct event event)
{
    uint32_t i = s->heap_count++;
    while (i > 0 && event_before(&event, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = event;
}

static struct event event_pop(struct simulation *s)
{
    struct event first = s->heap[0], last = s->heap[--s->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && event_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!event_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return first;
}

/* ---- placement --------------------------------------------------------------------------------------------------- */

static int list_holders(struct simulation *s)
{
    uint32_t count = 0;
    bool uncovered = false;
    for (size_t i = 0; i < s->all; i++) {
        s->first[i] = count;
        for (uint32_t n = 0; n < s->c->servers; n++)
            if (s->placement[n * s->all + i])
                s->holders[count++] = n;
        uncovered |= count == s->first[i];
    }
    s->first[s->all] = count;
    return uncovered && s->c->missing == EFS_SERVERS_CALL ? -EINVAL : 0;
}

static int placement_now(struct simulation *s, double now_s)
{
    if (s->change_pending && now_s >= s->change_s) {
        s->change_pending = false;
        memcpy(s->placement, s->next_placement, s->c->servers * s->all);
        s->r->changes++;
        int rc = list_holders(s);
        if (rc < 0)
            return rc;
    }
    while (s->c->review_s > 0 && now_s >= s->review_s) {
        s->review_s += s->c->review_s;
        if (s->change_pending)
            continue;
        memcpy(s->next_placement, s->placement, s->c->servers * s->all);
        s->change_pending = s->c->review(s->c->arg, now_s, s->calls, s->passes, s->next_placement, &s->change_s);
        if (s->change_pending) {
            memset(s->calls, 0, s->c->servers * s->all * sizeof(*s->calls));
            memset(s->passes, 0, s->c->servers * sizeof(*s->passes));
        }
    }
    return 0;
}

/* Of up to HOLDERS_COMPARED holders, the one with the least backlog. */
static uint32_t choose_holder(struct simulation *s, size_t item)
{
    uint32_t count = s->first[item + 1] - s->first[item], at = count > 1 ? s->round_robin++ % count : 0;
    const uint32_t *holders = s->holders + s->first[item];
    uint32_t best = holders[at];
    for (uint32_t k = 1; k < HOLDERS_COMPARED && k < count; k++) {
        at = at + 1 < count ? at + 1 : 0;
        if (s->work[holders[at]].compute_s < s->work[best].compute_s)
            best = holders[at];
    }
    return best;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Queues work of length_s on a processor, requested at now_s and ready at ready_s. Returns its end. */
static double on_processor(struct work *w, double now_s, double ready_s, double length_s)
{
    double begin_s = later(ready_s, w->compute_s);
    w->compute_s = later(w->compute_s, now_s) + length_s;
    return begin_s + length_s;
}

/* Only one request uses a server's link, so the messages of a layer are sent one after the other. */
static double on_link(double *clock, double ready_s, double length_s)
{
    return *clock = later(ready_s, *clock) + length_s;
}

/* Calls of one layer to the same server also run one after the other. Returns the arrival of the answer. */
static double call_elsewhere(struct simulation *s, struct work *home, double now_s, size_t item, double run_s,
                             double message_s)
{
    struct work *other = &s->work[choose_holder(s, item)];
    double there_s = on_link(&home->out_s, now_s, message_s) + s->c->latency_s;
    double ready_s = other->layer_number == s->layer_number ? later(there_s, other->layer_done_s) : there_s;
    other->layer_number = s->layer_number;
    other->layer_done_s = on_processor(other, now_s, ready_s, run_s);
    double back_s = on_link(&home->in_s, other->layer_done_s + s->c->latency_s, message_s);
    s->r->remote_s += back_s - now_s - run_s;
    return back_s;
}

/* Simulates a layer and returns its end. */
static double run_layer(struct simulation *s, uint32_t server, double now_s)
{
    const struct efs_servers_config *c = s->c;
    struct work *home = &s->work[server];
    const struct efs_servers_request *q = &s->requests[home->head];
    uint32_t distinct = 0;
    for (uint32_t t = home->token; t < home->token + home->width; t++) {
        const uint16_t *ids = q->ids + ((size_t)t * c->layers + home->layer) * c->chosen;
        for (uint32_t i = 0; i < c->chosen; i++)
            if (s->tokens[ids[i]]++ == 0)
                s->distinct[distinct++] = ids[i];
    }
    double ready_s = on_processor(home, now_s, now_s, c->layer_s + c->layer_token_s * home->width);
    s->layer_number++;
    double end_s = ready_s;
    for (uint32_t i = 0; i < distinct; i++) {
        size_t item = (size_t)home->layer * c->experts + s->distinct[i];
        bool here = s->placement[server * s->all + item];
        double run_s = c->expert_s + c->expert_token_s * s->tokens[s->distinct[i]];
        double message_s = s->tokens[s->distinct[i]] * c->token_bytes / c->bytes_per_second;
        s->r->local += here;
        s->calls[server * s->all + item]++;
        s->tokens[s->distinct[i]] = 0;
        if (here || c->missing != EFS_SERVERS_CALL)
            end_s = later(end_s, on_processor(home, ready_s, ready_s, run_s + (here ? 0 : c->load_s)));
        else
            end_s = later(end_s, call_elsewhere(s, home, ready_s, item, run_s, message_s));
    }
    s->passes[server] += home->layer == 0;
    s->r->calls += distinct;
    return end_s;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void begin_request(struct simulation *s, uint32_t server, double now_s)
{
    struct work *w = &s->work[server];
    w->busy = true;
    w->token = w->layer = 0;
    w->width = s->requests[w->head].prompt;
    event_push(s, (struct event){now_s, server});
}

static void request_arrives(struct simulation *s)
{
    size_t number = s->next_arrival++;
    const struct efs_servers_request *q = &s->requests[number];
    uint32_t server = q->server;
    for (uint32_t n = 0; s->c->missing == EFS_SERVERS_REDIRECT && n < s->c->servers; n++)
        server = s->work[n].waiting < s->work[server].waiting ? n : server;
    struct work *w = &s->work[server];
    s->next[number] = NO_REQUEST;
    if (w->waiting++ == 0)
        w->head = number;
    else
        s->next[w->tail] = number;
    w->tail = number;
    if (!w->busy)
        begin_request(s, server, q->arrival_s);
}

static void end_request(struct simulation *s, uint32_t server, double now_s)
{
    struct work *w = &s->work[server];
    const struct efs_servers_request *q = &s->requests[w->head];
    double latency_s = now_s - q->arrival_s;
    s->r->latencies[s->r->requests++] = latency_s;
    s->r->latency_s += latency_s;
    s->r->server_latency_s[q->server] += latency_s;
    s->r->server_requests[q->server]++;
    w->head = s->next[w->head];
    w->waiting--;
    w->busy = false;
    if (w->waiting > 0)
        begin_request(s, server, now_s);
}

/* Processes one layer of a server's request, or its end. */
static void event_handle(struct simulation *s, struct event event)
{
    struct work *w = &s->work[event.server];
    if (w->token >= s->requests[w->head].tokens) {
        end_request(s, event.server, event.at_s);
        return;
    }
    double end_s = run_layer(s, event.server, event.at_s);
    if (++w->layer == s->c->layers) {
        w->layer = 0;
        w->token += w->width;
        w->width = 1;
    }
    event_push(s, (struct event){end_s, event.server});
}

/* ---- the public functions ---------------------------------------------------------------------------------------- */

static bool is_time(double x)
{
    return isfinite(x) && x >= 0;
}

static bool config_valid(const struct efs_servers_config *c, const struct efs_servers_request *requests, size_t count)
{
    if (c->servers < 1 || c->servers > 65536 || c->layers < 1 || c->experts < 1 || c->experts > 65536 ||
        c->chosen < 1 || !is_time(c->layer_s) || !is_time(c->layer_token_s) || !is_time(c->expert_s) ||
        !is_time(c->expert_token_s) || !is_time(c->latency_s) || !is_time(c->token_bytes) || !is_time(c->load_s) ||
        !is_time(c->review_s) || !(c->bytes_per_second > 0) || (c->review_s > 0 && !c->review))
        return false;
    for (size_t i = 0; i < count; i++)
        if (requests[i].server >= c->servers || requests[i].prompt < 1 || requests[i].tokens < requests[i].prompt ||
            !is_time(requests[i].arrival_s) || (i > 0 && requests[i].arrival_s < requests[i - 1].arrival_s))
            return false;
    return true;
}

static int simulation_open(struct simulation *s, const uint8_t *placement)
{
    const struct efs_servers_config *c = s->c;
    size_t bytes = c->servers * s->all;
    struct efs_tables *own = &s->tables, *theirs = &s->r->tables;
    EFS_TABLE(own, s->work, c->servers);
    EFS_TABLE(own, s->next, s->count + 1);
    EFS_TABLE(own, s->heap, (size_t)c->servers + 1);
    EFS_TABLE(own, s->placement, bytes);
    EFS_TABLE(own, s->next_placement, bytes);
    EFS_TABLE(own, s->holders, bytes);
    EFS_TABLE(own, s->first, s->all + 1);
    EFS_TABLE(own, s->calls, bytes);
    EFS_TABLE(own, s->passes, c->servers);
    EFS_TABLE(own, s->tokens, c->experts);
    EFS_TABLE(own, s->distinct, c->experts);
    EFS_TABLE(theirs, s->r->server_latency_s, c->servers);
    EFS_TABLE(theirs, s->r->server_requests, c->servers);
    EFS_TABLE(theirs, s->r->latencies, s->count + 1);
    if (own->failed || theirs->failed)
        return -ENOMEM;
    memcpy(s->placement, placement, bytes);
    return list_holders(s);
}

int efs_servers_run(const struct efs_servers_config *c, const uint8_t *placement,
                    const struct efs_servers_request *requests, size_t count, struct efs_servers_result *result)
{
    *result = (struct efs_servers_result){0};
    if (!config_valid(c, requests, count))
        return -EINVAL;
    struct simulation s = {.c = c,
                           .requests = requests,
                           .count = count,
                           .all = (size_t)c->layers * c->experts,
                           .r = result,
                           .review_s = c->review_s};
    int rc = simulation_open(&s, placement);
    uint32_t events = 0;
    while (rc == 0 && (s.heap_count > 0 || s.next_arrival < count)) {
        bool arrives =
            s.next_arrival < count && (s.heap_count == 0 || requests[s.next_arrival].arrival_s <= s.heap[0].at_s);
        rc = placement_now(&s, arrives ? requests[s.next_arrival].arrival_s : s.heap[0].at_s);
        if (rc == 0 && arrives)
            request_arrives(&s);
        else if (rc == 0)
            event_handle(&s, event_pop(&s));
        if (rc == 0 && c->stop && events++ % EVENTS_BETWEEN_STOPS == 0 && c->stop(c->arg))
            rc = -ECANCELED;
    }
    efs_tables_free(&s.tables);
    return rc;
}

void efs_servers_free(struct efs_servers_result *result)
{
    efs_tables_free(&result->tables);
    *result = (struct efs_servers_result){0};
}
