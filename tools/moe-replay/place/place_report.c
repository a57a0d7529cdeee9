/* SPDX-License-Identifier: Apache-2.0 */
/* place_report.c - tables of moe-replay place. */
#include "place_command.h"

#include "size.h"

#include <stdio.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double mean_latency(const struct replay_place_run *run)
{
    return ratio(run->result.latency_s, (double)run->result.requests);
}

static double local_ratio(const struct replay_place_run *run)
{
    return ratio((double)run->result.local, (double)run->result.calls);
}

/* Prints mean latency over that of another row at the same point; "-" if that row was not run. */
static const char *print_over(const struct replay_place_report *report, const struct replay_place_run *run,
                              unsigned row, char text[static 16])
{
    double other = 0;
    for (size_t i = 0; i < report->count; i++)
        other = report->runs[i].row == row ? mean_latency(&report->runs[i]) : other;
    snprintf(text, 16, "%.3f", ratio(mean_latency(run), other));
    return other > 0 ? text : "-";
}

void replay_place_print_head(const struct replay_place_report *report)
{
    const struct replay_place_setup *s = report->setup;
    const struct replay_tasks *tasks = report->tasks;
    char expert[16], load[16];
    printf("%u layers, %u of %u experts of %s; tasks:", tasks->layers, tasks->chosen, tasks->experts,
           tools_size_print(s->expert_bytes, expert, sizeof(expert)));
    for (uint32_t i = 0; i < tasks->count; i++)
        printf("%s %s (%u sequences)", i ? "," : "", tasks->task[i].name, tasks->task[i].sequences);
    printf("\nrequests of %u tokens at once and %u one by one, every %.0f s for %.0f s at each server%s; a graphics "
           "processor holds %.0f %% of all experts and loads %s a second; reviews every %.0f s\n",
           tasks->prompt, tasks->output, s->arrival_s, s->duration_s, s->switched ? ", tasks change at half time" : "",
           100 * s->memory, tools_size_print(REPLAY_PLACE_LOAD, load, sizeof(load)), s->review_s);
}

void replay_place_print_table(const struct replay_place_report *report)
{
    const struct replay_place_point *p = &report->runs[0].point;
    printf("\n%u servers, %.0f Mbps, %.0f %% of the requests of a server's own task: %llu requests\n", p->servers,
           p->mbps, 100 * p->skew, (unsigned long long)report->runs[0].result.requests);
    printf("%-12s %10s %10s %10s %10s %8s %10s %8s %10s %10s %10s\n", "rule", "latency s", "over eplb", "over bound",
           "95 % in s", "local %", "remote ms", "changes", "servers'", "plan ms", "simulate s");
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_place_run *run = &report->runs[i];
        double least = 0, most = 0;
        char eplb[16], bound[16];
        for (uint32_t n = 0; n < p->servers; n++) {
            double s = ratio(run->result.server_latency_s[n], (double)run->result.server_requests[n]);
            least = n == 0 || s < least ? s : least;
            most = s > most ? s : most;
        }
        printf("%-12s %10.3f %10s %10s %10.3f %8.1f %10.3f %8llu %4.1f-%-5.1f %10.1f %10.2f\n",
               replay_place_name(run->row), mean_latency(run), print_over(report, run, EFS_PLACE_EPLB, eplb),
               print_over(report, run, REPLAY_PLACE_ALL_LOCAL, bound), run->p95_s, 100 * local_ratio(run),
               1e3 * run->remote_s, (unsigned long long)run->result.changes, least, most, 1e3 * run->plan_s,
               run->simulate_s);
    }
}
