/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what is said of runs: tables, checks, JSON. */
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
    bool live;      /* some runs are not simulated */
    uint32_t turns; /* passes with guesses and without by turns; 0: none */
};
/* "zipmoe:io", "expertfs lru:coded", "mmap": what the rows of a table are called. */
void replay_run_name(const struct replay_report *report, const struct replay_run_record *run, char *name, size_t room);
double replay_tokens_per_second(const struct replay_result *r);

void replay_report_head(const struct replay_report *report);    /* over the rows of the last run's budget and batch */
void replay_report_row(const struct replay_report *report);     /* the last run */
void replay_report_ahead(const struct replay_report *report);   /* what its guesses were worth, if it has any */
void replay_report_summary(const struct replay_report *report); /* tables run by budget */
/* Did all live runs that did the same on the same tokens get the same? Tells of those that did not; print: and what. */
bool replay_report_checks(const struct replay_report *report, bool print);
int replay_report_json(const struct replay_report *report, const char *path, struct efs_error *err);

#endif
