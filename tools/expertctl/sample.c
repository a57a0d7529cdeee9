/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - see sample.h. */
#include "sample.h"

#include "expertfs-private.h"
#include "expertfs-clock-private.h"
#include "control_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ctl_table_free(struct ctl_table *table)
{
    free(table->text);
    free(table->row);
}

errint_t ctl_table_read(const char *root, const char *file, struct ctl_table *table, struct efs_error *err)
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
        for (unsigned i = 0; i < CTL_TABLE_COLUMNS; i++)
            table->row[rows][i] = strtok_r(i ? NULL : line, " ", &line);
    }
    table->rows = rows ? rows - 1 : 0;
    return rc;
}

const char *ctl_table_cell(const struct ctl_table *table, size_t row, const char *column)
{
    for (unsigned i = 0; i < CTL_TABLE_COLUMNS && table->row && table->row[0][i]; i++)
        if (strcmp(table->row[0][i], column) == 0 && table->row[row][i])
            return table->row[row][i];
    return "";
}

uint64_t ctl_table_number(const struct ctl_table *table, size_t row, const char *column)
{
    return strtoull(ctl_table_cell(table, row, column), NULL, 10);
}

void ctl_sample_free(struct ctl_sample *s)
{
    free(s->stat);
    free(s->config);
    free(s->predict);
    free(s->recent);
    ctl_table_free(&s->pools);
    ctl_table_free(&s->experts);
    ctl_table_free(&s->clients);
    ctl_table_free(&s->readers);
    *s = (struct ctl_sample){.seconds = 0};
}

errint_t ctl_sample_take(const char *root, struct ctl_sample *s, struct efs_error *err)
{
    const struct {
        const char *file;
        char **text;
    } texts[] = {{"stat", &s->stat}, {"config", &s->config}, {"predict", &s->predict}, {"recent", &s->recent}};
    const struct {
        const char *file;
        struct ctl_table *table;
    } tables[] = {{"pools", &s->pools}, {"clients", &s->clients}, {"readers", &s->readers}, {"experts", &s->experts}};
    errint_t rc = 0;
    s->seconds = efs_now_seconds();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && rc == 0; i++)
        rc = tools_control_read(root, texts[i].file, texts[i].text, err);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && rc == 0; i++)
        rc = ctl_table_read(root, tables[i].file, tables[i].table, err);
    return rc;
}
