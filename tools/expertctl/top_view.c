/* SPDX-License-Identifier: Apache-2.0 */
/* top_view.c - see top_view.h. */
#include "top_view.h"

#include "size.h"

#include <string.h>
#include <time.h>

struct view {
    FILE *out;
    const struct top_sample *before, *now;
    double seconds; /* between them */
};

static const char *format_size(double bytes, char text[24])
{
    return tools_size_print(bytes > 0 ? (uint64_t)bytes : 0, text, 24);
}

/* How much a counter of stat grew a second. */
static double view_rate(const struct view *v, const char *name)
{
    uint64_t was = v->before ? top_number(v->before->stat, name) : 0, is = top_number(v->now->stat, name);
    return is > was ? (double)(is - was) / v->seconds : 0;
}

static double view_per_second(const struct view *v, uint64_t was, uint64_t is)
{
    return is > was ? (double)(is - was) / v->seconds : 0;
}

static uint64_t view_gauge(const struct view *v, const char *name)
{
    return top_number(v->now->stat, name);
}

static void show_head(const struct view *v, const char *root)
{
    char clock[16], up[24], path[32], policy[32], plan[128], pools[16];
    time_t now = time(NULL);
    struct tm local;
    const char *config = v->now->config;
    strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
    tools_duration_print((double)now - (double)top_number(config, "started"), up, sizeof(up));
    fprintf(v->out, "%s  %s  up %s, %s, policy %s, pools %s, plan %s\n", root, clock, up,
            top_text(v->now->stat, "serving_path", path, sizeof(path)),
            top_text(config, "policy", policy, sizeof(policy)), top_text(config, "pools", pools, sizeof(pools)),
            top_text(config, "plan", plan, sizeof(plan)));
}

static void show_memory(const struct view *v)
{
    char budget[24], held[24], fixed[24], chunks[24], full[24], leased[24];
    uint64_t f = view_gauge(v, "fixed_bytes"), c = view_gauge(v, "chunk_pool_bytes"),
             l = view_gauge(v, "full_pool_bytes");
    fprintf(v->out, "memory  %s of %s: fixed %s, chunks %s, full %s; %llu experts leased, %s\n",
            format_size((double)(f + c + l), held), format_size((double)view_gauge(v, "budget_bytes"), budget),
            format_size((double)f, fixed), format_size((double)c, chunks), format_size((double)l, full),
            (unsigned long long)view_gauge(v, "leased_experts"),
            format_size((double)view_gauge(v, "leased_bytes"), leased));
}

static void show_rates(const struct view *v)
{
    char read[24], disk[24], decoded[24], sent[24];
    double disk_busy = view_rate(v, "disk_ns") / 1e9, decode_busy = view_rate(v, "decode_ns") / 1e9;
    fprintf(v->out, "reads   %.0f/s %s/s; opens %.0f/s, leases %.0f/s; sent %s/s; errors %llu\n", view_rate(v, "reads"),
            format_size(view_rate(v, "read_bytes"), read), view_rate(v, "fuse_opens"), view_rate(v, "leases"),
            format_size(view_rate(v, "fuse_reply_bytes"), sent),
            (unsigned long long)(view_gauge(v, "read_errors") + view_gauge(v, "lease_errors") +
                                 view_gauge(v, "disk_errors")));
    fprintf(v->out, "disk    %s/s, %.0f reads/s, busy %.0f%%\n", format_size(view_rate(v, "disk_bytes"), disk),
            view_rate(v, "disk_reads"), 100 * disk_busy);
    fprintf(v->out, "decode  %s/s, %.2f threads at work\n", format_size(view_rate(v, "decoded_bytes"), decoded),
            decode_busy);
}

static void show_pools(const struct view *v)
{
    double hits[sizeof(TOP_POOLS) - 1], all = 0;
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++) {
        const struct top_pool *was = v->before ? &v->before->pools[p] : NULL, *is = &v->now->pools[p];
        bool missing = TOP_POOLS[p] == 'M';
        hits[p] = view_per_second(v, was ? (missing ? was->misses : was->hits) : 0, missing ? is->misses : is->hits);
        all += hits[p];
    }
    fprintf(v->out, "\1%-4s %10s %10s %4s %8s %10s %6s %10s %10s %10s %12s\n", "POOL", "CAPACITY", "USED", "%",
            "EXPERTS", "HITS/S", "HITS%", "PARTIAL/S", "DEMOTED/S", "EVICTED/S", "SAVED/S");
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++) {
        static const struct top_pool none;
        const struct top_pool *was = v->before ? &v->before->pools[p] : &none, *is = &v->now->pools[p];
        char capacity[24] = "-", used[24] = "-", part[16] = "-", saved[24] = "-";
        if (TOP_POOLS[p] != 'M') {
            format_size((double)is->capacity_bytes, capacity);
            format_size((double)is->used_bytes, used);
            snprintf(part, sizeof(part), "%.0f",
                     is->capacity_bytes ? 100 * (double)is->used_bytes / (double)is->capacity_bytes : 0.0);
            format_size(view_per_second(v, was->saved_bytes, is->saved_bytes), saved);
        }
        fprintf(v->out, "%-4c %10s %10s %4s %8llu %10.1f %6.1f %10.1f %10.1f %10.1f %12s\n", TOP_POOLS[p], capacity,
                used, part, (unsigned long long)is->experts, hits[p], all > 0 ? 100 * hits[p] / all : 0.0,
                view_per_second(v, was->partial, is->partial), view_per_second(v, was->demoted, is->demoted),
                view_per_second(v, was->evicted, is->evicted), saved);
    }
}

static void show_experts(const struct view *v, size_t rows)
{
    fprintf(v->out, "\1%-24s %5s %4s %3s %5s %10s %10s %10s %6s\n", "EXPERT", "STATE", "KEPT", "PIN", "RANK", "ASKED/S",
            "COUNT", "MEMORY", "LEASES");
    for (size_t i = 0; i < rows && i < v->now->expert_count; i++) {
        const struct top_expert *e = &v->now->experts[i];
        char memory[24];
        fprintf(v->out, "%-24s %5s %4s %3s %5llu %10.1f %10llu %10s %6llu\n", e->name, e->state, e->kept, e->pin,
                (unsigned long long)e->rank, (double)e->asked / v->seconds, (unsigned long long)e->count,
                format_size((double)e->resident_bytes, memory), (unsigned long long)e->leases);
    }
}

void top_view(FILE *out, const char *root, const struct top_sample *before, const struct top_sample *now,
              size_t expert_rows)
{
    double since_mount = (double)time(NULL) - (double)top_number(now->config, "started");
    struct view v = {.out = out, .before = before, .now = now};
    v.seconds = before ? now->seconds - before->seconds : since_mount;
    if (v.seconds < 1e-3)
        v.seconds = before ? 1e-3 : 1;
    show_head(&v, root);
    show_memory(&v);
    show_rates(&v);
    fputc('\n', out);
    show_pools(&v);
    fputc('\n', out);
    show_experts(&v, expert_rows);
}
