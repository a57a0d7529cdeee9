/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - runs as tables and as JSON, from one list of their numbers. */
#ifndef MOE_REPLAY_REPORT_H
#define MOE_REPLAY_REPORT_H

#include "replay.h"

struct replay_report {
    const struct replay_setup *setup;
    const char *trace, *history; /* history NULL: the default skew */
    struct replay_run_record *runs;
    size_t count;
    const char *const *budgets; /* as the user wrote them */
    uint32_t budget_count;
};

/* The numbers of a run: in the table where they have a title, in the order of the columns. */
struct replay_number {
    const char *name, *title; /* in JSON; in the table, NULL: not there */
    double scale;             /* of the table */
    int width, digits;
    double value;
};
#define REPLAY_NUMBERS 32u
unsigned replay_run_numbers(const struct replay_report *report, const struct replay_run_record *run,
                            struct replay_number numbers[REPLAY_NUMBERS]);

/* "zipmoe:io +mixed", "oracle", "mmap": what the rows of a table are called. */
void replay_run_name(const struct replay_run_record *run, char *name, size_t room);

void replay_report_head(const struct replay_report *report);    /* over the rows of the last run's budget and batch */
void replay_report_row(const struct replay_report *report);     /* the last run, and what its guesses were worth */
void replay_report_summary(const struct replay_report *report); /* tables run by budget */
int replay_report_json(const struct replay_report *report, const char *path, struct efs_error *err);

#endif
