/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - the control files of a mount at one time, and rates between two times, for `expertctl status`. */
#ifndef EXPERTCTL_SAMPLE_H
#define EXPERTCTL_SAMPLE_H

#include "expertfs.h"

#define CTL_TABLE_COLUMNS 24

/* A control file that has a header and rows. */
struct ctl_table {
    char *text; /* of the file; cells point into it */
    char *(*row)[CTL_TABLE_COLUMNS];
    size_t rows; /* without the header, row[0] */
};
errint_t ctl_table_read(const char *root, const char *file, struct ctl_table *table, struct efs_error *err);
void ctl_table_free(struct ctl_table *table);
/* The cell of a column; "": no such column. */
const char *ctl_table_cell(const struct ctl_table *table, size_t row, const char *column);
uint64_t ctl_table_number(const struct ctl_table *table, size_t row, const char *column); /* "-": 0 */

struct ctl_sample {
    double seconds;                         /* CLOCK_MONOTONIC */
    char *stat, *config, *predict, *recent; /* recent: of about a minute before */
    struct ctl_table pools, experts, clients, readers;
};
errint_t ctl_sample_take(const char *root, struct ctl_sample *sample, struct efs_error *err);
void ctl_sample_free(struct ctl_sample *sample);

/* Prints a mount in words, on one screen: status_words.c. */
void ctl_status_words(const char *root, const struct ctl_sample *sample);
/* ctl_status_words() as JSON; NULL: no memory. */
struct json_t;
struct json_t *ctl_status_json(const char *root, const struct ctl_sample *sample);

#endif
