/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - runs as tables and as JSON, both from the numbers of replay_run_numbers().
 *
 * report/ prints the results of runs. Only the main program of moe-replay calls it. It never changes a run and never
 * reads a file.
 */
#ifndef MOE_REPLAY_REPORT_H
#define MOE_REPLAY_REPORT_H

#include "replay.h"

struct replay_report {
    const struct replay_setup *setup;
    const char *trace, *history; /* history NULL: the default skew */
    struct replay_run_record *runs;
    size_t count;
    const char *const *budgets; /* as given on the command line */
    uint32_t budget_count;
};

/* A number of a run. The table has a column for each number with a title, in this order. */
struct replay_number {
    const char *name, *title; /* name in JSON; head of the column, NULL: not in the table */
    double scale;             /* factor for the table */
    int width, digits;
    double value;
};
#define REPLAY_NUMBERS 32u
unsigned replay_run_numbers(const struct replay_report *report, const struct replay_run_record *run,
                            struct replay_number numbers[REPLAY_NUMBERS]);

/* The name of a run in the tables: "zipmoe:io +mixed", "oracle", "mmap". */
void replay_run_name(const struct replay_run_record *run, char *name, size_t room);

void replay_report_head(const struct replay_report *report); /* head of the rows for the last run's budget and batch */
void replay_report_row(const struct replay_report *report);  /* the last run, and the effect of its prefetch */
void replay_report_summary(const struct replay_report *report); /* tables of runs by budget */
int replay_report_json(const struct replay_report *report, const char *path, struct efs_error *err);

#endif
