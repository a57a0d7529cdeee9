/* SPDX-License-Identifier: Apache-2.0 */
/* top_view.c - see top_view.h. */
#include "top_view.h"

#include "size.h"
#include "top_rates.h"

#include <time.h>

struct view {
    FILE *out;
    const struct top_sample *now;
    struct top_rates rates;
};

static const char *format_size(double bytes, char text[24])
{
    return tools_size_print(bytes > 0 ? (uint64_t)bytes : 0, text, 24);
}

/* Seven letters at most. */
static const char *format_rate(double rate, char text[24])
{
    if (rate < 9999.95)
        snprintf(text, 24, "%.1f", rate);
    else
        snprintf(text, 24, "%.0f%s", rate < 999999.5 ? rate : rate / 1000, rate < 999999.5 ? "" : "k");
    return text;
}

static uint64_t view_gauge(const struct view *v, const char *name)
{
    return top_number(v->now->stat, name);
}

static void show_head(const struct view *v, const char *root)
{
    char clock[16], up[24], path[32], policy[32], goal[32], plan[128], pools[16];
    time_t now = time(NULL);
    struct tm local;
    const char *config = v->now->config;
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    tools_duration_print((double)now - (double)top_number(config, "started"), up, sizeof(up));
    fprintf(v->out, "%s  %s  up %s, %s\n", root, clock, up, top_text(v->now->stat, "serving_path", path, sizeof(path)));
    fprintf(v->out, "policy  %s, goal %s, pools %s, plan %s\n", top_text(config, "policy", policy, sizeof(policy)),
            top_text(config, "goal", goal, sizeof(goal)), top_text(config, "pools", pools, sizeof(pools)),
            top_text(config, "plan", plan, sizeof(plan)));
}

static void show_memory(const struct view *v)
{
    char budget[24], can[24], held[24], fixed[24], chunks[24], full[24], leased[24];
    uint64_t asked = view_gauge(v, "budget_bytes"), effective = view_gauge(v, "effective_budget_bytes");
    bool less = effective && effective < asked;
    uint64_t f = view_gauge(v, "fixed_bytes"), c = view_gauge(v, "chunk_pool_bytes"),
             l = view_gauge(v, "full_pool_bytes");
    fprintf(v->out, "memory  %s of %s%s%s%s: fixed %s, chunks %s, full %s\n", format_size((double)(f + c + l), held),
            format_size((double)asked, budget), less ? ", of which " : "",
            less ? format_size((double)effective, can) : "", less ? " can be had" : "", format_size((double)f, fixed),
            format_size((double)c, chunks), format_size((double)l, full));
    fprintf(v->out, "leased  %llu experts, %s; %.0f leases/s, %.0f opens/s\n",
            (unsigned long long)view_gauge(v, "leased_experts"),
            format_size((double)view_gauge(v, "leased_bytes"), leased), v->rates.leases, v->rates.opens);
}

static void show_rates(const struct view *v)
{
    const struct top_rates *r = &v->rates;
    char read[24], disk[24], decoded[24], sent[24];
    fprintf(v->out, "reads   %s/s, %.0f reads/s; sent %s/s; errors %llu\n", format_size(r->read_bytes, read), r->reads,
            format_size(r->sent_bytes, sent), (unsigned long long)r->errors);
    fprintf(v->out, "disk    %s/s, %.0f reads/s, busy %.0f%%\n", format_size(r->disk_bytes, disk), r->disk_reads,
            100 * r->disk_busy);
    fprintf(v->out, "decode  %s/s, %.2f threads at work\n", format_size(r->decoded_bytes, decoded), r->decode_threads);
}

static void show_pools(const struct view *v)
{
    fprintf(v->out, "\1%-4s %8s %8s %3s %7s %7s %5s %6s %7s %7s %8s\n", "POOL", "CAPACITY", "USED", "%", "EXPERTS",
            "HITS/S", "HITS%", "PART/S", "DEMOT/S", "EVICT/S", "SAVED/S");
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++) {
        const struct top_pool_rates *r = &v->rates.pools[p];
        const struct top_pool *is = &v->now->pools[p];
        char capacity[24] = "-", used[24] = "-", part[16] = "-", saved[24] = "-", hits[24], partial[24], demoted[24],
             evicted[24];
        if (TOP_POOLS[p] != 'M') {
            format_size((double)is->capacity_bytes, capacity);
            format_size((double)is->used_bytes, used);
            snprintf(part, sizeof(part), "%.0f",
                     is->capacity_bytes ? 100 * (double)is->used_bytes / (double)is->capacity_bytes : 0.0);
            format_size(r->saved_bytes, saved);
        }
        fprintf(v->out, "%-4c %8s %8s %3s %7llu %7s %5.1f %6s %7s %7s %8s\n", TOP_POOLS[p], capacity, used, part,
                (unsigned long long)is->experts, format_rate(r->hits, hits), 100 * r->hit_part,
                format_rate(r->partial, partial), format_rate(r->demoted, demoted), format_rate(r->evicted, evicted),
                saved);
    }
    fprintf(v->out, "KEY  F full  C coded  S signs, mantissas  E exponents  P other part  M missing\n");
}

static void show_experts(const struct view *v, size_t rows)
{
    fprintf(v->out, "\1%-18s %5s %4s %3s %5s %9s %10s %9s %6s\n", "EXPERT", "STATE", "KEPT", "PIN", "RANK", "ASKED/S",
            "COUNT", "MEMORY", "LEASES");
    for (size_t i = 0; i < rows && i < v->now->expert_count; i++) {
        const struct top_expert *e = &v->now->experts[i];
        char memory[24], asked[24];
        fprintf(v->out, "%-18s %5s %4s %3s %5llu %9s %10llu %9s %6llu\n", e->name, e->state, e->kept, e->pin,
                (unsigned long long)e->rank, format_rate((double)e->asked / v->rates.seconds, asked),
                (unsigned long long)e->count, format_size((double)e->resident_bytes, memory),
                (unsigned long long)e->leases);
    }
}

void top_view(FILE *out, const char *root, const struct top_sample *before, const struct top_sample *now,
              size_t expert_rows)
{
    struct view v = {.out = out, .now = now};
    top_rates_between(before, now, &v.rates);
    show_head(&v, root);
    show_memory(&v);
    show_rates(&v);
    fputc('\n', out);
    show_pools(&v);
    fputc('\n', out);
    show_experts(&v, expert_rows);
}
