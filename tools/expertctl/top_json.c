/* SPDX-License-Identifier: Apache-2.0 */
/* top_json.c - see top_view.h. Numbers are as stat and the tables have them, rates a second. */
#include "expertctl.h"
#include "top_rates.h"
#include "top_view.h"

#include <jansson.h>
#include <time.h>

static json_t *config_text(const struct top_sample *s, const char *name)
{
    char text[128];
    return ctl_json_text(top_text(s->config, name, text, sizeof(text)));
}

static json_t *stat_number(const struct top_sample *s, const char *name)
{
    return json_integer((json_int_t)top_number(s->stat, name));
}

static json_t *memory_json(const struct top_sample *s)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "budget_bytes", stat_number(s, "budget_bytes"),
                     "effective_budget_bytes", stat_number(s, "effective_budget_bytes"), "fixed_bytes",
                     stat_number(s, "fixed_bytes"), "chunk_pool_bytes", stat_number(s, "chunk_pool_bytes"),
                     "full_pool_bytes", stat_number(s, "full_pool_bytes"), "leased_bytes",
                     stat_number(s, "leased_bytes"), "leased_experts", stat_number(s, "leased_experts"));
}

static json_t *rates_json(const struct top_rates *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "reads", r->reads, "read_bytes",
                     r->read_bytes, "opens", r->opens, "leases", r->leases, "sent_bytes", r->sent_bytes, "disk_reads",
                     r->disk_reads, "disk_bytes", r->disk_bytes, "disk_busy", r->disk_busy, "decoded_bytes",
                     r->decoded_bytes, "decode_threads", r->decode_threads);
}

static json_t *pools_json(const struct top_sample *s, const struct top_rates *rates)
{
    json_t *pools = json_object();
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++) {
        const struct top_pool_rates *r = &rates->pools[p];
        const struct top_pool *is = &s->pools[p];
        json_object_set_new(pools, (char[]){TOP_POOLS[p], '\0'},
                            json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "capacity_bytes",
                                      (json_int_t)is->capacity_bytes, "used_bytes", (json_int_t)is->used_bytes,
                                      "experts", (json_int_t)is->experts, "hits", r->hits, "hit_part", r->hit_part,
                                      "partial", r->partial, "demoted", r->demoted, "evicted", r->evicted,
                                      "saved_bytes", r->saved_bytes));
    }
    return pools;
}

static json_t *expert_json(const struct top_expert *e, double seconds)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:I, s:I, s:I}", "name", e->name, "state", e->state, "kept",
                     e->kept, "pin", e->pin, "rank", (json_int_t)e->rank, "asked", (double)e->asked / seconds, "count",
                     (json_int_t)e->count, "resident_bytes", (json_int_t)e->resident_bytes, "leases",
                     (json_int_t)e->leases);
}

json_t *top_view_json(const char *root, const struct top_sample *before, const struct top_sample *now,
                      size_t expert_rows)
{
    struct top_rates rates;
    top_rates_between(before, now, &rates);
    json_t *experts = json_array();
    for (size_t i = 0; i < expert_rows && i < now->expert_count; i++)
        json_array_append_new(experts, expert_json(&now->experts[i], rates.seconds));
    return json_pack("{s:o, s:I, s:f, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "mount", ctl_json_text(root),
                     "time", (json_int_t)time(NULL), "seconds", rates.seconds, "policy", config_text(now, "policy"),
                     "goal", config_text(now, "goal"), "plan", config_text(now, "plan"), "serving_path",
                     config_text(now, "serving_path"), "errors", (json_int_t)rates.errors, "memory", memory_json(now),
                     "rates", rates_json(&rates), "pools", pools_json(now, &rates), "experts", experts);
}
