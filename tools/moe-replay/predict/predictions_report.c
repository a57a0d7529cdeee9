/* SPDX-License-Identifier: Apache-2.0 */
/* predictions_report.c - the table of moe-replay predict. */
#include "predictions.h"

#include <stdio.h>

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

void predict_report_head(const struct predict_arguments *a, const struct efs_route *histories,
                         const struct efs_route *trace)
{
    static const char *const learns[PREDICT_LEARNS] = {
        [PREDICT_LEARN_REQUEST] = "each request begins with what the history taught and learns from itself",
        [PREDICT_LEARN_ALL] = "all that came before in the trace is learned from, too",
        [PREDICT_LEARN_NO] = "nothing is learned from the trace"};
    const char *known = trace->all_scores ? "scores of all experts"
                        : trace->scores   ? "scores of the chosen experts, so maps are sparse"
                                          : "no scores: maps hold what was chosen";
    uint64_t tokens = a->tokens && a->tokens < trace->tokens ? a->tokens : trace->tokens, past = 0;
    printf("%s: %llu tokens, every %llu judged; %u layers of %u experts, K = %u; %s\n", trace->name,
           (unsigned long long)tokens, (unsigned long long)a->every, trace->layers, trace->experts, trace->chosen,
           known);
    for (uint32_t h = 0; h < a->histories; h++)
        past += histories[h].tokens;
    if (past)
        printf("history: %llu tokens; ", (unsigned long long)past);
    else
        printf("no history; ");
    printf("%s; the semantic key is the map before%s\n\n", learns[a->learn],
           !trace->states  ? "; no hidden states: without the predictors that need them"
           : !trace->gates ? "; no weights of the routers: without the predictors that need them"
                           : "");
    printf("%-20s %-23s  %-23s  next token   whole  fetched    %23s\n", "", "recall@K, layers ahead", "recall@2K",
           "us a layer");
    printf("%-20s     1     2     3     4      1     2     3     4     @K   @2K    @2K     n right   Brier     MiB "
           "observe   guess\n",
           "");
}

void predict_report_row(const struct predict_choice *choice, const struct predict_result *r)
{
    printf("%-20s", choice->name);
    for (unsigned d = 0; d < PREDICT_DISTANCES; d++)
        printf(" %5.3f", share(r->at[d].within_k, r->at[d].slots));
    printf(" ");
    for (unsigned d = 0; d < PREDICT_DISTANCES; d++)
        printf(" %5.3f", share(r->at[d].within_2k, r->at[d].slots));
    printf("  %5.3f %5.3f  %5.3f  %4.1f %5.3f", share(r->start.within_k, r->start.slots),
           share(r->start.within_2k, r->start.slots), share(r->whole, r->layers), share(r->picked, r->layers),
           share(r->picked_right, r->picked));
    printf(" %7.4f %7.1f %7.2f %7.2f\n", r->judged ? r->squares / (double)r->judged : 0, (double)r->bytes / 1048576,
           share(r->observe_ns, r->observed) / 1e3, share(r->predict_ns, r->predicted) / 1e3);
    fflush(stdout);
}
