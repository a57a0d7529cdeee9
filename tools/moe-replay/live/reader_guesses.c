/* SPDX-License-Identifier: Apache-2.0 */
/* reader_guesses.c - what a store that is served tells of its guesses. */
#include "reader.h"

#include "mounted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number_of(const char *text, const char *name)
{
    const char *at = tools_line_value(text, name);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* A row of the table, by distance: recalls and precision are not looked at, "-" where nothing is known. */
static void add_row(struct replay_counters *c, const char *line)
{
    unsigned long long bytes, covered, late, wasted, wasted_bytes;
    if (sscanf(line, "%*s %*s %*s %*s %*s %*u %llu %llu %*s %llu %llu %llu", &bytes, &covered, &late, &wasted,
               &wasted_bytes) != 5)
        return;
    c->guessed_bytes += bytes;
    c->covered += covered;
    c->late += late;
    c->wasted += wasted;
    c->wasted_bytes += wasted_bytes;
}

void replay_counters_guesses(struct replay_counters *c, const char *text)
{
    const char *row = strstr(text, "\ndistance ");
    c->missed = number_of(text, "misses");
    c->cancelled = number_of(text, "cancelled");
    while (row && (row = strchr(row + 1, '\n')) && row[1])
        add_row(c, row + 1);
}
