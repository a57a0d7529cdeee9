/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - expertctl status [MNT]: memory, rates, pools and the experts that are requested most. */
#include "expertctl.h"

#include "clock.h"
#include "control_file.h"
#include "mountpoint.h"
#include "options.h"
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS 24
#define POOLS "FCSEM"
#define EXPERTS_SHOWN 10u

struct arguments {
    struct tools_arguments mount;
    uint64_t seconds; /* 0: once */
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {{"watch", 'w', "SECONDS",
                                               "Print again every SECONDS, 1 to 3600, until interrupted", TOOLS_NUMBER,
                                               AT(seconds), .least = 1, .most = 3600},
                                              {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[MNT]",
    .help =
        "Show memory, rates and pools of a mount, and the experts that are requested most. Without MNT, of the only "
        "mount. Rates are since it was mounted; with -w, later ones since the print before.",
    .at = AT(mount)};

/* ---- the tables of .expertfs ---------------------------------------------------------------------------------- */

struct table {
    char *text; /* of the file; cells point into it */
    char *(*row)[COLUMNS];
    size_t rows; /* without the header, row[0] */
};

static void table_free(struct table *table)
{
    free(table->text);
    free(table->row);
}

static errint_t table_read(const char *root, const char *file, struct table *table, struct efs_error *err)
{
    errint_t rc = tools_control_read(root, file, &table->text, err);
    size_t room = 0, rows = 0;
    char *rest = table->text;
    for (char *line; rc == 0 && (line = strsep(&rest, "\n")) && *line; rows++) {
        if (rows == room) {
            room = room ? 2 * room : 64;
            void *more = reallocarray(table->row, room, sizeof(*table->row));
            if (!more)
                return efs_fail(err, -ENOMEM, "no memory for %s", file);
            table->row = more;
        }
        for (unsigned i = 0; i < COLUMNS; i++)
            table->row[rows][i] = strtok_r(i ? NULL : line, " ", &line);
    }
    table->rows = rows ? rows - 1 : 0;
    return rc;
}

/* The cell of a column; "": no such column. */
static const char *table_cell(const struct table *table, size_t row, const char *column)
{
    for (unsigned i = 0; i < COLUMNS && table->row && table->row[0][i]; i++)
        if (strcmp(table->row[0][i], column) == 0 && table->row[row][i])
            return table->row[row][i];
    return "";
}

static uint64_t table_number(const struct table *table, size_t row, const char *column)
{
    return strtoull(table_cell(table, row, column), NULL, 10); /* "-": 0 */
}

/* ---- a sample --------------------------------------------------------------------------------------------------- */

struct sample {
    double seconds; /* CLOCK_MONOTONIC */
    char *stat, *config;
    struct table pools, experts;
};

static void sample_free(struct sample *s)
{
    free(s->stat);
    free(s->config);
    table_free(&s->pools);
    table_free(&s->experts);
    *s = (struct sample){.seconds = 0};
}

static errint_t sample_take(const char *root, struct sample *s, struct efs_error *err)
{
    errint_t rc = tools_control_read(root, "stat", &s->stat, err);
    s->seconds = tools_now_s();
    if (rc == 0)
        rc = tools_control_read(root, "config", &s->config, err);
    if (rc == 0)
        rc = table_read(root, "pools", &s->pools, err);
    return rc == 0 ? table_read(root, "experts", &s->experts, err) : rc;
}

/* Two samples; with a zeroed `was`, rates are averages since the mount. */
struct view {
    const struct sample *was, *is;
    double seconds; /* between them, > 0 */
};

static double rate_of(const struct view *v, uint64_t was, uint64_t is)
{
    return is > was ? (double)(is - was) / v->seconds : 0;
}

static double stat_rate(const struct view *v, const char *name)
{
    return rate_of(v, tools_line_number(v->was->stat, name), tools_line_number(v->is->stat, name));
}

/* The rows of a table have the same order in every sample. */
static double cell_rate(const struct view *v, const struct table *was, const struct table *is, size_t row,
                        const char *column)
{
    uint64_t before = row <= was->rows ? table_number(was, row, column) : 0;
    return rate_of(v, before, table_number(is, row, column));
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

static struct text stat_size(const struct view *v, const char *name)
{
    return size_text((double)tools_line_number(v->is->stat, name));
}

static struct text stat_size_rate(const struct view *v, const char *name)
{
    return size_text(stat_rate(v, name));
}

static void show_mount(const struct view *v, const char *root)
{
    char up[24], path[32], policy[32], goal[32], plan[128], pools[16];
    const char *config = v->is->config, *stat = v->is->stat;
    uint64_t held = tools_line_number(stat, "fixed_bytes") + tools_line_number(stat, "chunk_pool_bytes") +
                    tools_line_number(stat, "full_pool_bytes");
    tools_duration_print((double)time(NULL) - (double)tools_line_number(config, "started"), up, sizeof(up));
    printf("%s  up %s, %s\n", root, up, tools_line_text(stat, "serving_path", path, sizeof(path)));
    printf("policy  %s, goal %s, pools %s, plan %s\n", tools_line_text(config, "policy", policy, sizeof(policy)),
           tools_line_text(config, "goal", goal, sizeof(goal)), tools_line_text(config, "pools", pools, sizeof(pools)),
           tools_line_text(config, "plan", plan, sizeof(plan)));
    printf("memory  %s of %s, %s available; leased %s in %llu experts\n", size_text((double)held).is,
           stat_size(v, "budget_bytes").is, stat_size(v, "effective_budget_bytes").is, stat_size(v, "leased_bytes").is,
           (unsigned long long)tools_line_number(stat, "leased_experts"));
    printf("held    fixed %s, chunks %s, full %s; %.0f leases/s, %.0f opens/s\n", stat_size(v, "fixed_bytes").is,
           stat_size(v, "chunk_pool_bytes").is, stat_size(v, "full_pool_bytes").is, stat_rate(v, "leases"),
           stat_rate(v, "fuse_opens"));
    printf("reads   %s/s, %.0f reads/s; sent %s/s; errors %llu\n", stat_size_rate(v, "read_bytes").is,
           stat_rate(v, "reads"), stat_size_rate(v, "fuse_reply_bytes").is,
           (unsigned long long)(tools_line_number(stat, "read_errors") + tools_line_number(stat, "lease_errors") +
                                tools_line_number(stat, "disk_errors")));
    printf("disk    %s/s, %.0f reads/s, busy %.0f%%\n", stat_size_rate(v, "disk_bytes").is, stat_rate(v, "disk_reads"),
           stat_rate(v, "disk_ns") / 1e7);
    printf("decode  %s/s, %.2f threads at work\n\n", stat_size_rate(v, "decoded_bytes").is,
           stat_rate(v, "decode_ns") / 1e9);
}

static void show_pools(const struct view *v)
{
    const struct table *was = &v->was->pools, *is = &v->is->pools;
    double all = 0;
    for (int pass = 0; pass < 2; pass++) { /* the first pass sums the hits */
        if (pass)
            printf("%-4s %8s %8s %7s %7s %5s %6s %7s %7s %8s\n", "POOL", "CAPACITY", "USED", "EXPERTS", "HITS/S",
                   "HITS%", "PART/S", "DEMOT/S", "EVICT/S", "SAVED/S");
        for (size_t row = 1; row <= is->rows; row++) {
            const char *pool = table_cell(is, row, "pool");
            if (pool[0] == '\0' || pool[1] || !strchr(POOLS, pool[0]))
                continue;
            double hits = cell_rate(v, was, is, row, pool[0] == 'M' ? "misses" : "hits");
            all += pass ? 0 : hits;
            if (pass)
                printf("%-4s %8s %8s %7s %7s %5.1f %6s %7s %7s %8s\n", pool,
                       size_text((double)table_number(is, row, "capacity_bytes")).is,
                       size_text((double)table_number(is, row, "used_bytes")).is, table_cell(is, row, "experts"),
                       rate_text(hits).is, all > 0 ? 100 * hits / all : 0.0,
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
    const struct table *was = &v->was->experts, *is = &v->is->experts;
    struct use *uses = calloc(is->rows + 1, sizeof(*uses));
    if (!uses)
        return efs_fail(err, -ENOMEM, "no memory for %zu experts", is->rows);
    for (size_t row = 1; row <= is->rows; row++) /* count includes earlier mounts: no rate from one sample */
        uses[row - 1] =
            (struct use){row, was->row ? cell_rate(v, was, is, row, "count") : 0, table_number(is, row, "count")};
    qsort(uses, is->rows, sizeof(*uses), compare_uses);
    printf("%-18s %5s %4s %3s %5s %9s %10s %9s %6s\n", "EXPERT", "STATE", "KEPT", "PIN", "RANK", "ASKED/S", "COUNT",
           "MEMORY", "LEASES");
    for (size_t i = 0; i < EXPERTS_SHOWN && i < is->rows; i++) {
        size_t row = uses[i].row;
        printf("%-18s %5s %4s %3s %5s %9s %10s %9s %6s\n", table_cell(is, row, "name"), table_cell(is, row, "state"),
               table_cell(is, row, "kept"), table_cell(is, row, "pin"), table_cell(is, row, "rank"),
               rate_text(uses[i].asked).is, table_cell(is, row, "count"),
               size_text((double)table_number(is, row, "resident_bytes")).is, table_cell(is, row, "leases"));
    }
    free(uses);
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static errint_t status_print(const char *root, const struct sample *was, const struct sample *is, struct efs_error *err)
{
    double seconds =
        was->stat ? is->seconds - was->seconds : (double)time(NULL) - (double)tools_line_number(is->config, "started");
    const struct view v = {was, is, seconds > 1e-3 ? seconds : 1};
    show_mount(&v, root);
    show_pools(&v);
    errint_t rc = show_experts(&v, err);
    return rc == 0 && fflush(stdout) != 0 ? efs_fail(err, -errno, "standard output: %s", strerror(errno)) : rc;
}

static int status_run(int argc, char **argv)
{
    struct arguments a = {.seconds = 0};
    struct sample was = {.seconds = 0}, is = {.seconds = 0};
    struct efs_error err = {""};
    char *root;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = a.mount.count ? ctl_mount_of(*a.mount.word, &root, &err) : ctl_mount_only(&root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    while ((rc = sample_take(root, &is, &err)) == 0 && (rc = status_print(root, &was, &is, &err)) == 0 && a.seconds) {
        sample_free(&was);
        was = is;
        is = (struct sample){.seconds = 0};
        sleep((unsigned)a.seconds);
        putchar('\n');
    }
    sample_free(&was);
    sample_free(&is);
    free(root);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_status = {"status", "show what a mount does, once or every few seconds", status_run};
