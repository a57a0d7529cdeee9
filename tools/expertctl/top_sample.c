/* SPDX-License-Identifier: Apache-2.0 */
/* top_sample.c - see top_sample.h. */
#include "top_sample.h"

#include "clock.h"
#include "lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define COLUMNS 24

/* ---- files ---- */

/* A file of .expertfs, for free(); its size is not told beforehand. */
static errint_t control_read(const char *root, const char *name, char **text, struct efs_error *err)
{
    char path[4200];
    size_t room = 0;
    snprintf(path, sizeof(path), "%s/.expertfs/%s", root, name);
    *text = NULL;
    FILE *file = fopen(path, "re");
    ssize_t n = file ? getdelim(text, &room, '\0', file) : -1;
    errint_t rc = n < 0 ? efs_fail(err, errno ? -errno : -EIO, "%s: %s", path, strerror(errno)) : 0;
    if (file)
        fclose(file);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

uint64_t top_number(const char *lines, const char *name)
{
    const char *value = tools_line_value(lines, name);
    return value ? strtoull(value, NULL, 10) : 0;
}

const char *top_text(const char *lines, const char *name, char *text, size_t room)
{
    const char *value = tools_line_value(lines, name);
    snprintf(text, room, "%.*s", value ? (int)strcspn(value, "\n") : 0, value ? value : "");
    return text;
}

/* ---- tables ---- */

struct table {
    char *text, *rest; /* all; lines not looked at yet */
    char *head[COLUMNS], *row[COLUMNS];
    unsigned columns;
};

/* Cut a line into its words; how many. */
static unsigned line_cut(char *line, char *words[COLUMNS])
{
    unsigned count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line, " ", &rest); word && count < COLUMNS; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    return count;
}

/* A file of .expertfs; free(table->text). */
static errint_t table_read(const char *root, const char *file, struct table *table, struct efs_error *err)
{
    errint_t rc = control_read(root, file, &table->text, err);
    if (rc < 0)
        return rc;
    table->rest = table->text;
    char *line = strsep(&table->rest, "\n");
    table->columns = line_cut(line, table->head);
    return 0;
}

static bool table_next(struct table *table)
{
    char *line = strsep(&table->rest, "\n");
    return line && *line && line_cut(line, table->row) == table->columns;
}

/* The cell of a column; "" for a column that is not there. */
static const char *table_cell(const struct table *table, const char *column)
{
    for (unsigned i = 0; i < table->columns; i++)
        if (strcmp(table->head[i], column) == 0)
            return table->row[i];
    return "";
}

static uint64_t table_number(const struct table *table, const char *column)
{
    return strtoull(table_cell(table, column), NULL, 10); /* "-": 0 */
}

static errint_t sample_take_pools(const char *root, struct top_sample *sample, struct efs_error *err)
{
    struct table table;
    unsigned found = 0;
    errint_t rc = table_read(root, "pools", &table, err);
    if (rc < 0)
        return rc;
    while (table_next(&table)) {
        const char *name = table_cell(&table, "pool");
        const char *at = name[0] && !name[1] ? strchr(TOP_POOLS, name[0]) : NULL;
        if (!at)
            continue;
        sample->pools[at - TOP_POOLS] = (struct top_pool){
            .capacity_bytes = table_number(&table, "capacity_bytes"),
            .used_bytes = table_number(&table, "used_bytes"),
            .experts = table_number(&table, "experts"),
            .hits = table_number(&table, "hits"),
            .partial = table_number(&table, "partial"),
            .misses = table_number(&table, "misses"),
            .demoted = table_number(&table, "demoted"),
            .evicted = table_number(&table, "evicted"),
            .saved_bytes = table_number(&table, "saved_bytes"),
        };
        found++;
    }
    free(table.text);
    return found == sizeof(TOP_POOLS) - 1 ? 0 : efs_fail(err, -EPROTO, "%s/.expertfs/pools: unexpected format", root);
}

static void cell_copy(char *to, size_t room, const char *from)
{
    snprintf(to, room, "%s", from);
}

static errint_t sample_take_experts(const char *root, struct top_sample *sample, struct efs_error *err)
{
    struct table table;
    size_t room = 0;
    errint_t rc = table_read(root, "experts", &table, err);
    if (rc < 0)
        return rc;
    while (table_next(&table)) {
        if (sample->expert_count == room) {
            room = room ? 2 * room : 256;
            struct top_expert *more = reallocarray(sample->experts, room, sizeof(*more));
            if (!more) {
                free(table.text);
                return efs_fail(err, -ENOMEM, "no memory for %zu experts", room);
            }
            sample->experts = more;
        }
        struct top_expert *e = &sample->experts[sample->expert_count++];
        *e = (struct top_expert){.leases = table_number(&table, "leases"),
                                 .rank = table_number(&table, "rank"),
                                 .count = table_number(&table, "count"),
                                 .touches = table_number(&table, "touches"),
                                 .resident_bytes = table_number(&table, "resident_bytes")};
        cell_copy(e->name, sizeof(e->name), table_cell(&table, "name"));
        cell_copy(e->state, sizeof(e->state), table_cell(&table, "state"));
        cell_copy(e->kept, sizeof(e->kept), table_cell(&table, "kept"));
        cell_copy(e->pin, sizeof(e->pin), table_cell(&table, "pin"));
    }
    free(table.text);
    return 0;
}

/* ---- the whole ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct top_expert *)a)->name, ((const struct top_expert *)b)->name);
}

static int compare_uses(const void *a, const void *b)
{
    const struct top_expert *x = a, *y = b;
    if (x->asked != y->asked)
        return x->asked < y->asked ? 1 : -1;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return strcmp(x->name, y->name);
}

/* Counts may be aged by the policy, so that they become less: not asked for, then. */
static void sample_compare(const struct top_sample *before, struct top_sample *sample)
{
    size_t n = before ? before->expert_count : 0;
    struct top_expert *old = n ? malloc(n * sizeof(*old)) : NULL;
    if (old) {
        memcpy(old, before->experts, n * sizeof(*old));
        qsort(old, n, sizeof(*old), compare_names);
    }
    for (size_t i = 0; i < sample->expert_count; i++) {
        struct top_expert *e = &sample->experts[i];
        const struct top_expert *was = old ? bsearch(e, old, n, sizeof(*old), compare_names) : NULL;
        uint64_t then = was ? was->count : 0;
        e->asked = before && e->count > then ? e->count - then : 0; /* at first it has those of earlier mounts */
    }
    free(old);
    if (sample->expert_count)
        qsort(sample->experts, sample->expert_count, sizeof(*sample->experts), compare_uses);
}

errint_t top_sample_glance(const char *root, struct top_sample *sample, struct efs_error *err)
{
    char path[4200];
    struct stat st;
    *sample = (struct top_sample){0};
    snprintf(path, sizeof(path), "%s/.expertfs/stat", root);
    if (stat(path, &st) < 0 ? errno == ENOENT || errno == ENOTDIR : st.st_size > 0) /* control files have size 0 */
        return efs_fail(err, -ENODEV, "%s: its checkpoint has an .expertfs of its own in place of the figures", root);
    errint_t rc = control_read(root, "stat", &sample->stat, err);
    sample->seconds = tools_now_s();
    if (rc == 0)
        rc = control_read(root, "config", &sample->config, err);
    if (rc == 0)
        rc = sample_take_pools(root, sample, err);
    if (rc < 0)
        top_sample_free(sample);
    return rc;
}

errint_t top_sample_take(const char *root, const struct top_sample *before, struct top_sample *sample,
                         struct efs_error *err)
{
    errint_t rc = top_sample_glance(root, sample, err);
    if (rc == 0)
        rc = sample_take_experts(root, sample, err);
    if (rc < 0)
        top_sample_free(sample);
    else
        sample_compare(before, sample);
    return rc;
}

void top_sample_free(struct top_sample *sample)
{
    free(sample->stat);
    free(sample->config);
    free(sample->experts);
    *sample = (struct top_sample){0};
}
