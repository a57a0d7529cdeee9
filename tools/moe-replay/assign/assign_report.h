/* SPDX-License-Identifier: Apache-2.0 */
/* assign_report.h - what moe-replay assign prints. */
#ifndef MOE_REPLAY_ASSIGN_REPORT_H
#define MOE_REPLAY_ASSIGN_REPORT_H

#include "assign_command.h"

#include "options.h"

#define REPLAY_ASSIGN_SYSTEMS 16u
#define REPLAY_ASSIGN_MANY 256u /* experts, of which deciding is timed by itself */

/* The steps of DALI (Figure 19), its peers (Figure 12), ours. */
extern const struct replay_assign_system replay_assign_systems[];
extern const unsigned replay_assign_system_count;

struct replay_assign_report {
    const struct replay_assign_setup *setup;
    const char *trace, *plan_from; /* plan_from may be NULL */
    uint32_t batches;
    struct replay_assign_batch {
        uint32_t batch;
        struct replay_assign_rules rules;
        struct replay_assign_run run[REPLAY_ASSIGN_SYSTEMS];
    } batch[TOOLS_LIST_MAX];
};

void replay_assign_print_head(const struct replay_assign_report *report);
void replay_assign_print(const struct replay_assign_report *report); /* the last batch */
/* What deciding takes for many experts on as many devices as there may be, here and now. */
void replay_assign_print_deciding(void);

#endif
