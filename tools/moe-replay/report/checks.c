/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c - runs that did the same on the same tokens have the same check, whatever runner and batch size. */
#include "report.h"

#include <stdio.h>
#include <string.h>

/* What is comparable: sums over what was loaded depend on how often, which is how passes are put together. */
static bool same_work(const struct replay_run_record *a, const struct replay_run_record *b)
{
    bool ffn_a = strncmp(a->compute, "ffn", 3) == 0, ffn_b = strncmp(b->compute, "ffn", 3) == 0;
    return a->result.tokens == b->result.tokens && ffn_a == ffn_b && (ffn_a || a->batch == b->batch);
}

/* Does anyone before i differ from it? first: nobody did the same work before. */
static bool differs(const struct replay_report *report, size_t i, bool *first)
{
    const struct replay_run_record *run = &report->runs[i];
    *first = true;
    for (size_t j = 0; j < i; j++) {
        const struct replay_run_record *before = &report->runs[j];
        if (!before->compute || before->result.tokens == 0 || !same_work(before, run))
            continue;
        *first = false;
        if (before->check != run->check)
            return true;
    }
    return false;
}

bool replay_report_checks(const struct replay_report *report, bool print)
{
    bool good = true, first;
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        char name[64];
        if (!run->compute || run->result.tokens == 0 || strcmp(run->compute, "none") == 0)
            continue;
        bool bad = differs(report, i, &first);
        replay_run_name(report, run, name, sizeof(name));
        if (bad)
            fprintf(stderr, "moe-replay: %s with %s, batch %u: its numbers are not those of the runs before: %016llx\n",
                    name, report->budgets[run->budget], run->batch, (unsigned long long)run->check);
        if (first && print)
            printf("\ncheck of what was computed (%s, %llu tokens): %016llx\n",
                   strncmp(run->compute, "ffn", 3) == 0 ? "ffn" : run->compute, (unsigned long long)run->result.tokens,
                   (unsigned long long)run->check);
        good = good && !bad;
    }
    return good;
}
