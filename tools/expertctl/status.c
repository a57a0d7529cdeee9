/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - expertctl status [MNT]: a mount in words (status_words.c), the tables of pools and experts, or JSON. */
#include "expertctl.h"

#include "control_file.h"
#include "interrupt.h"
#include "mountpoint.h"
#include "options.h"
#include "sample.h"
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POOLS "FCSEM"
#define EXPERTS_SHOWN 10u

struct arguments {
    struct tools_arguments mount;
    uint64_t seconds; /* 0: once */
    bool tables, json, metrics;
};

#define AT(member) offsetof(struct arguments, member)
static void check_arguments(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (a->json && (a->tables || a->seconds))
        argp_error(state, "--json goes with no other option");
    if (a->metrics && (a->json || a->tables || a->seconds))
        argp_error(state, "--metrics goes with no other option");
}

static const struct tools_option options[] = {
    {"tables", 't', NULL, "Print also the tables of pools, and of the experts that are requested most", TOOLS_FLAG,
     .at = AT(tables)},
    {"watch", 'w', "SECONDS", "Print again every SECONDS, 1 to 3600, until interrupted", TOOLS_NUMBER, AT(seconds),
     .least = 1, .most = 3600},
    {"metrics", 'm', NULL, "Print the counters in Prometheus' text format", TOOLS_FLAG, .at = AT(metrics)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[MNT]",
    .help = "Show what a mount serves, how fast, for which programs, and what is wrong. Without MNT, of the only "
            "mount that this user may read. Rates in the tables are since it was mounted; with -w, later ones since "
            "the print before.\vExamples:\n  expertctl status\n  expertctl status -w 2 /mnt\n  expertctl status "
            "--json /mnt",
    .at = AT(mount),
    .finish = check_arguments};

/* Two samples; with a zeroed `was`, rates are averages since the mount. */
struct view {
    const struct ctl_sample *was, *is;
    double seconds; /* between them, > 0 */
};

static double rate_of(const struct view *v, uint64_t was, uint64_t is)
{
    return is > was ? (double)(is - was) / v->seconds : 0;
}

/* The rows of a table have the same order in every sample. */
static double cell_rate(const struct view *v, const struct ctl_table *was, const struct ctl_table *is, size_t row,
                        const char *column)
{
    uint64_t before = row <= was->rows ? ctl_table_number(was, row, column) : 0;
    return rate_of(v, before, ctl_table_number(is, row, column));
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

struct text {
    char is[24];
};

static struct text size_text(double bytes)
{
    struct text text;
    tools_size_print((uint64_t)bytes, text.is, sizeof(text.is));
    return text;
}

/* At most seven characters. */
static struct text rate_text(double rate)
{
    struct text text;
    bool large = rate >= 999999.5;
    snprintf(text.is, sizeof(text.is), "%.*f%s", rate < 9999.95, large ? rate / 1000 : rate, large ? "k" : "");
    return text;
}

static void show_policy(const struct ctl_sample *s)
{
    char policy[32], goal[32], plan[128], pools[16];
    printf("\npolicy %s, goal %s, pools %s, plan %s\n", tools_line_text(s->config, "policy", policy, sizeof(policy)),
           tools_line_text(s->config, "goal", goal, sizeof(goal)),
           tools_line_text(s->config, "pools", pools, sizeof(pools)),
           tools_line_text(s->config, "plan", plan, sizeof(plan)));
}

static void show_pools(const struct view *v)
{
    const struct ctl_table *was = &v->was->pools, *is = &v->is->pools;
    double all = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first pass sums the hits */
        if (pass)
            printf("%-4s %8s %8s %7s %7s %5s %6s %7s %7s %8s\n", "POOL", "CAPACITY", "USED", "EXPERTS", "HITS/S",
                   "HITS%", "PART/S", "DEMOT/S", "EVICT/S", "SAVED/S");
        for (size_t row = 1; row <= is->rows; row++) {
            const char *pool = ctl_table_cell(is, row, "pool");
            if (pool[0] == '\0' || pool[1] || !strchr(POOLS, pool[0]))
                continue;
            double hits = cell_rate(v, was, is, row, pool[0] == 'M' ? "misses" : "hits");
            all += pass ? 0 : hits;
            if (pass)
                printf("%-4s %8s %8s %7s %7s %5.1f %6s %7s %7s %8s\n", pool,
                       size_text((double)ctl_table_number(is, row, "capacity_bytes")).is,
                       size_text((double)ctl_table_number(is, row, "used_bytes")).is,
                       ctl_table_cell(is, row, "experts"), rate_text(hits).is, all > 0 ? 100 * hits / all : 0.0,
                       rate_text(cell_rate(v, was, is, row, "partial")).is,
                       rate_text(cell_rate(v, was, is, row, "demoted")).is,
                       rate_text(cell_rate(v, was, is, row, "evicted")).is,
                       size_text(cell_rate(v, was, is, row, "saved_bytes")).is);
        }
    }
    printf("KEY  F full  C coded  S signs, mantissas  E exponents  P other part  M missing\n\n");
}

struct use {
    size_t row;
    double asked;
    uint64_t count;
};

static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    if (x->asked < y->asked || x->asked > y->asked)
        return x->asked < y->asked ? 1 : -1;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : (x->row > y->row) - (x->row < y->row);
}

static errint_t show_experts(const struct view *v, struct efs_error *err)
{
    const struct ctl_table *was = &v->was->experts, *is = &v->is->experts;
    struct use *uses = calloc(is->rows + 1, sizeof(*uses));
    if (!uses)
        return efs_fail(err, -ENOMEM, "no memory for %zu experts", is->rows);
    for (size_t row = 1; row <= is->rows; row++) /* count includes earlier mounts: no rate from one sample */
        uses[row - 1] =
            (struct use){row, was->row ? cell_rate(v, was, is, row, "count") : 0, ctl_table_number(is, row, "count")};
    qsort(uses, is->rows, sizeof(*uses), compare_uses);
    printf("%-18s %5s %4s %3s %5s %9s %10s %9s %6s\n", "EXPERT", "STATE", "KEPT", "PIN", "RANK", "ASKED/S", "COUNT",
           "MEMORY", "LEASES");
    for (size_t i = 0; i < EXPERTS_SHOWN && i < is->rows; i++) {
        size_t row = uses[i].row;
        printf("%-18s %5s %4s %3s %5s %9s %10s %9s %6s\n", ctl_table_cell(is, row, "name"),
               ctl_table_cell(is, row, "state"), ctl_table_cell(is, row, "kept"), ctl_table_cell(is, row, "pin"),
               ctl_table_cell(is, row, "rank"), was->row ? rate_text(uses[i].asked).is : "-",
               ctl_table_cell(is, row, "count"), size_text((double)ctl_table_number(is, row, "resident_bytes")).is,
               ctl_table_cell(is, row, "leases"));
    }
    free(uses);
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static errint_t status_print(const char *root, const struct arguments *a, const struct ctl_sample *was,
                             const struct ctl_sample *is, struct efs_error *err)
{
    double seconds =
        was->stat ? is->seconds - was->seconds : (double)time(NULL) - (double)tools_line_number(is->config, "started");
    const struct view v = {was, is, seconds > 1e-3 ? seconds : 1};
    errint_t rc = 0;
    ctl_status_words(root, is);
    if (a->tables) {
        show_policy(is);
        show_pools(&v);
        rc = show_experts(&v, err);
    }
    return rc == 0 && fflush(stdout) != 0 ? efs_fail(err, -errno, "standard output: %s", strerror(errno)) : rc;
}

static int status_print_json(const char *root, struct ctl_sample *is)
{
    struct efs_error err = {""};
    errint_t rc = ctl_sample_take(root, is, &err);
    return rc < 0 ? ctl_fail(rc, &err) : ctl_print_json(ctl_status_json(root, is));
}

static int status_print_metrics(const char *root)
{
    struct efs_error err = {""};
    char *text = NULL;
    errint_t rc = tools_control_read(root, "metrics", &text, &err);
    if (rc == 0)
        fputs(text, stdout);
    free(text);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

/* Prints once, or every a->seconds until interrupted or unmounted, which are no failures. */
static errint_t status_watch(const char *root, const struct arguments *a, struct efs_error *err)
{
    struct ctl_sample was = {.seconds = 0}, is = {.seconds = 0};
    errint_t rc;
    if (a->seconds)
        tools_interrupt_catch();
    while ((rc = ctl_mount_check(root, err)) == 0 && (rc = ctl_sample_take(root, &is, err)) == 0) {
        rc = status_print(root, a, &was, &is, err);
        if (rc < 0 || !a->seconds || tools_interrupt_pause((unsigned)a->seconds * 1000))
            break;
        ctl_sample_free(&was);
        was = is;
        is = (struct ctl_sample){.seconds = 0};
        putchar('\n');
    }
    ctl_sample_free(&was);
    ctl_sample_free(&is);
    return rc < 0 && a->seconds && ctl_mount_was_unmounted(root) ? 0 : rc;
}

static int status_run(int argc, char **argv)
{
    struct arguments a = {.seconds = 0};
    struct ctl_sample is = {.seconds = 0};
    struct efs_error err = {""};
    char *root;
    int status = CTL_OK;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = a.mount.count ? ctl_mount_of(*a.mount.word, &root, &err) : ctl_mount_only(&root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    if (a.json)
        status = status_print_json(root, &is);
    else if (a.metrics)
        status = status_print_metrics(root);
    else
        rc = status_watch(root, &a, &err);
    ctl_sample_free(&is);
    free(root);
    return rc < 0 ? ctl_fail(rc, &err) : status;
}

const struct ctl_command ctl_status = {"status", "show what a mount does, once or every few seconds", status_run};
