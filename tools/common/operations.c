/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations.c - the table of .expertfs/sched, and which lane of the chart each operation stands in: reads share lanes,
 * as many as were under way at once; decodes stand in their thread's.
 */
#include "operations.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATIONS_MAX 1000000u

const char *const tools_operation_names[TOOLS_OPERATION_KINDS] = {"read_e", "read_sm", "decode"};

static bool is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/")] == '\0';
}

static bool parse_line(const char *line, struct tools_operation *o)
{
    char kind[16];
    int end = 0;
    if (sscanf(line, "%15s %63s %" SCNu32 " %" SCNu32 " %" SCNu64 " %" SCNu64 " %" SCNd32 " %n", kind, o->expert,
               &o->unit, &o->shard, &o->begin_ns, &o->end_ns, &o->thread, &end) != 7 ||
        line[end] || !is_name(o->expert) || o->end_ns < o->begin_ns || o->end_ns > INT64_MAX)
        return false;
    for (o->kind = 0; o->kind < TOOLS_OPERATION_KINDS; o->kind++)
        if (strcmp(kind, tools_operation_names[o->kind]) == 0)
            return true;
    return false;
}

static errint_t read_lines(FILE *in, const char *path, struct tools_operations *g, struct efs_error *err)
{
    char line[512];
    size_t room = 0;
    for (unsigned number = 1; fgets(line, sizeof(line), in); number++) {
        if (number == 1 && strncmp(line, "kind ", 5) == 0)
            continue;
        if (g->count == room) {
            room = room ? 2 * room : 4096;
            struct tools_operation *more = realloc(g->operations, room * sizeof(*more));
            if (!more)
                return efs_fail(err, -ENOMEM, "no memory");
            g->operations = more;
        }
        if (number == 1 || g->count == OPERATIONS_MAX || !parse_line(line, &g->operations[g->count]))
            return efs_fail(err, -EUCLEAN, "%s: line %u is not a line of .expertfs/sched", path, number);
        g->count++;
    }
    return ferror(in) ? efs_fail(err, -EIO, "%s: %s", path, strerror(errno)) : 0;
}

static int compare_begins(const void *a, const void *b)
{
    const struct tools_operation *x = a, *y = b;
    return x->begin_ns != y->begin_ns ? (x->begin_ns < y->begin_ns ? -1 : 1) : 0;
}

static void operations_keep_last(struct tools_operations *g, uint64_t last_ns)
{
    uint64_t end = 0;
    size_t kept = 0;
    for (size_t i = 0; i < g->count; i++)
        end = g->operations[i].end_ns > end ? g->operations[i].end_ns : end;
    for (size_t i = 0; i < g->count; i++)
        if (last_ns == 0 || g->operations[i].end_ns + last_ns >= end)
            g->operations[kept++] = g->operations[i];
    g->count = kept;
}

/* The first lane of its kind that is free. */
static errint_t operations_put_in_lanes(struct tools_operations *g)
{
    uint32_t reads = 0, workers = 0;
    for (size_t i = 0; i < g->count; i++) {
        struct tools_operation *o = &g->operations[i];
        bool read = o->kind != TOOLS_DECODE;
        uint32_t l = 0;
        while (l < g->lanes && (g->lane[l].reads != read || (!read && g->lane[l].thread != o->thread) ||
                                g->lane[l].end_ns > o->begin_ns))
            l++;
        if (l == g->lanes) {
            struct tools_lane *more = realloc(g->lane, (l + 1) * sizeof(*more));
            if (!more)
                return -ENOMEM;
            g->lane = more;
            more[l] = (struct tools_lane){.reads = read, .thread = o->thread};
            if (read)
                snprintf(more[l].name, sizeof(more[l].name), "read %u", ++reads);
            else
                snprintf(more[l].name, sizeof(more[l].name), "worker %u", ++workers);
            g->lanes++;
        }
        g->lane[l].end_ns = o->end_ns;
        o->lane = l;
    }
    return 0;
}

errint_t tools_operations_take(FILE *in, const char *name, uint64_t last_ns, struct tools_operations *g,
                               struct efs_error *err)
{
    *g = (struct tools_operations){.count = 0};
    errint_t rc = read_lines(in, name, g, err);
    if (rc == 0 && g->count == 0)
        rc = efs_fail(err, -ENODATA, "%s: no expert was read or decoded yet", name);
    if (rc == 0) {
        operations_keep_last(g, last_ns);
        qsort(g->operations, g->count, sizeof(*g->operations), compare_begins);
        rc = operations_put_in_lanes(g) < 0 ? efs_fail(err, -ENOMEM, "no memory") : 0;
    }
    if (rc < 0)
        tools_operations_free(g);
    return rc;
}

errint_t tools_operations_read(const char *path, uint64_t last_ns, struct tools_operations *g, struct efs_error *err)
{
    *g = (struct tools_operations){.count = 0};
    FILE *in = fopen(path, "re");
    if (!in)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    errint_t rc = tools_operations_take(in, path, last_ns, g, err);
    fclose(in);
    return rc;
}

void tools_operations_free(struct tools_operations *g)
{
    free(g->operations);
    free(g->lane);
    *g = (struct tools_operations){.count = 0};
}
