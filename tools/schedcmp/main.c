/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedcmp - compare schedules in the simulator: against request order and against the lower bound. Run by hand.
 *
 *   schedcmp [-n REQUESTS]            the table
 *   schedcmp -c FILE.svg [-w WORKERS] [-s SEED]   a chart of one request, in request order and as scheduled
 */
#include "bounds.h"
#include "cases.h"
#include "chart.h"
#include "clock.h"
#include "schedule_simulate.h"
#include "surroundings.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define OPS 1024u

static uint64_t graph_memory[1 << 13], schedule_memory[2][1 << 13], run_memory[1 << 10];

/* Of one kind of schedule over many requests. */
struct score {
    double ratio_sum, ratio_worst; /* over request order */
    double bound_sum, bound_worst; /* over the lower bound */
    double makespan_sum_ns;
};

static void add_score(struct score *score, uint64_t end_ns, uint64_t request_ns, uint64_t lower_ns)
{
    double ratio = (double)end_ns / (double)request_ns, bound = (double)end_ns / (double)lower_ns;
    score->ratio_sum += ratio;
    score->ratio_worst = ratio > score->ratio_worst ? ratio : score->ratio_worst;
    score->bound_sum += bound;
    score->bound_worst = bound > score->bound_worst ? bound : score->bound_worst;
    score->makespan_sum_ns += (double)end_ns;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Make and simulate a schedule; the buffers hold any request of next_case. */
static int schedule_run(const struct efs_graph *graph, enum efs_schedule_kind kind, void *memory,
                        struct efs_schedule *schedule, struct efs_sim_op *times, struct efs_sim_result *result)
{
    int error = efs_schedule_make(graph, kind, memory, sizeof schedule_memory[0], schedule);
    if (error || efs_simulate_bytes(graph) > sizeof run_memory || graph->op_count > OPS)
        return error ? error : -ENOSPC;
    efs_simulate(graph, schedule, run_memory, times, result);
    return 0;
}

static const struct {
    enum efs_schedule_kind kind;
    const char *name;
} columns[] = {{EFS_SCHEDULE_REQUEST, "request"},
               {EFS_SCHEDULE_PAPER, "published"},
               {EFS_SCHEDULE_ORDERED, "ordered"},
               {EFS_SCHEDULE_JOHNSON, "johnson"},
               {EFS_SCHEDULE_BEST, "best"}};
#define COLUMNS (sizeof columns / sizeof columns[0])

static int table_row(struct cases *cases, uint32_t requests, uint64_t *times_ns)
{
    struct score scores[COLUMNS] = {{0}};
    uint32_t counted = 0;
    for (uint32_t i = 0; i < requests; i++) {
        struct case_request request;
        struct efs_graph graph;
        struct efs_schedule schedule;
        struct efs_sim_result result;
        struct efs_bounds bounds;
        uint64_t ends_ns[COLUMNS];
        next_case(cases, &request);
        int error = efs_graph_build(&request.request, graph_memory, sizeof graph_memory, &graph);
        if (error)
            return error;
        efs_bounds_compute(&graph, &bounds);
        for (uint32_t c = 0; c < COLUMNS && !error; c++) {
            error = schedule_run(&graph, columns[c].kind, schedule_memory[0], &schedule, NULL, &result);
            ends_ns[c] = result.makespan_ns;
        }
        uint64_t start_ns = tools_now_ns(); /* as a daemon does it: graph and schedule, caches as they are */
        if (!error)
            error = efs_graph_build(&request.request, graph_memory, sizeof graph_memory, &graph);
        if (!error)
            error =
                efs_schedule_make(&graph, EFS_SCHEDULE_BEST, schedule_memory[0], sizeof schedule_memory[0], &schedule);
        times_ns[i] = tools_now_ns() - start_ns;
        if (error)
            return error;
        if (bounds.lower_ns == 0)
            continue;
        for (uint32_t c = 0; c < COLUMNS; c++)
            add_score(&scores[c], ends_ns[c], ends_ns[0], bounds.lower_ns);
        counted++;
    }
    qsort(times_ns, requests, sizeof *times_ns, compare_u64);
    printf("%-20s %-6s %5.1f %2u %8.2f |", cases->profile->name, cases->mix == MIX_EVEN ? "even" : "skewed",
           (double)cases->run_token_ns / 1e6, cases->workers, scores[0].makespan_sum_ns / counted / 1e6);
    for (uint32_t c = 1; c < COLUMNS; c++)
        printf(" %6.3f %6.3f |", scores[c].ratio_sum / counted, scores[c].ratio_worst);
    printf(" %6.3f %6.3f %6.3f |", scores[0].bound_sum / counted, scores[COLUMNS - 1].bound_sum / counted,
           scores[COLUMNS - 1].bound_worst);
    printf(" %5.1f %5.1f\n", (double)times_ns[requests / 2] / 1e3, (double)times_ns[requests * 99ul / 100] / 1e3);
    return 0;
}

static int print_table(uint32_t requests)
{
    static const uint64_t run_token_ns[] = {100000, 500000, 2000000};
    uint64_t *times_ns = calloc(requests, sizeof *times_ns);
    int error = times_ns ? 0 : -ENOMEM;
    printf("%u requests a row, 8 experts x 3 tensors of 3 MiB, disk 1.5 GB/s. p: ms a token. L: workers.\n"
           "Of request order: mean makespan in ms. Of each schedule: mean and worst makespan over request order.\n"
           "Over the lower bound max(I, C/L, P, Z): request order's mean, best's mean and worst. us: graph and best, "
           "median and p99.\n\n",
           requests);
    printf("%-20s %-6s %5s %2s %8s |", "profile", "states", "p", "L", "request");
    for (uint32_t c = 1; c < COLUMNS; c++)
        printf(" %13s |", columns[c].name);
    printf(" %20s | %11s\n", "over lower bound", "us");
    for (uint32_t p = 0; p < profile_count; p++)
        for (enum mix mix = MIX_EVEN; mix <= MIX_SKEWED; mix++)
            for (uint32_t r = 0; r < sizeof run_token_ns / sizeof run_token_ns[0]; r++)
                for (uint32_t workers = 1; workers <= 4 && !error; workers++) {
                    struct cases cases = {&profiles[p], mix, run_token_ns[r], workers, 1};
                    error = table_row(&cases, requests, times_ns);
                }
    free(times_ns);
    return error;
}

static int write_chart(const char *path, uint32_t workers, uint64_t seed)
{
    static const char *const titles[] = {"request order", "scheduled"};
    static const enum efs_schedule_kind kinds[] = {EFS_SCHEDULE_REQUEST, EFS_SCHEDULE_BEST};
    static struct efs_sim_op times[2][OPS];
    struct cases cases = {&profiles[0], MIX_EVEN, 500000, workers, seed};
    struct case_request request;
    struct efs_graph graph;
    struct efs_schedule schedules[2];
    struct efs_sim_result results[2];
    struct chart charts[2];
    next_case(&cases, &request);
    int error = efs_graph_build(&request.request, graph_memory, sizeof graph_memory, &graph);
    for (uint32_t i = 0; i < 2 && !error; i++) {
        error = schedule_run(&graph, kinds[i], schedule_memory[i], &schedules[i], times[i], &results[i]);
        charts[i] = (struct chart){titles[i], &graph, &schedules[i], times[i], &results[i]};
    }
    if (error)
        return error;
    FILE *out = fopen(path, "w");
    if (!out)
        return -errno;
    error = chart_write(out, charts, 2);
    return fclose(out) && !error ? -EIO : error;
}

/* A whole number of an option, or exit with a message. */
static uint32_t parse_number(const char *text, char option, unsigned long least, unsigned long most)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || value < least || value > most) {
        fprintf(stderr, "schedcmp: -%c %s: want a number from %lu to %lu\n", option, text, least, most);
        exit(2);
    }
    return (uint32_t)value;
}

int main(int argc, char **argv)
{
    uint32_t requests = 2000, workers = 3, seed = 1;
    const char *path = NULL;
    int option;
    tools_surroundings();
    while ((option = getopt(argc, argv, "n:c:w:s:")) != -1) {
        switch (option) {
        case 'n':
            requests = parse_number(optarg, 'n', 1, 10000000);
            break;
        case 'c':
            path = optarg;
            break;
        case 'w':
            workers = parse_number(optarg, 'w', 1, EFS_TASK_MAX_WORKERS);
            break;
        case 's':
            seed = parse_number(optarg, 's', 1, UINT32_MAX);
            break;
        default:
            fprintf(stderr, "usage: schedcmp [-n REQUESTS] | -c FILE.svg [-w WORKERS] [-s SEED]\n");
            return 2;
        }
    }
    int error = path ? write_chart(path, workers, seed) : print_table(requests);
    if (error)
        fprintf(stderr, "schedcmp: %s%s%s\n", path ? path : "", path ? ": " : "", strerror(-error));
    return error ? 1 : 0;
}
