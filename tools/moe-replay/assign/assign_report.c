/* SPDX-License-Identifier: Apache-2.0 */
/* assign_report.c - tables of moe-replay assign. */
#include "assign_command.h"

#include "expertfs-clock-private.h"
#include "measure.h"
#include "size.h"

#include <stdio.h>

#define MANY_EXPERTS 256u
#define MANY_ROUNDS 501u

const struct replay_assign_system replay_assign_systems[REPLAY_ASSIGN_SYSTEMS] = {
    {"naive", EFS_ASSIGN_ALL_CPU, REPLAY_GPU_NOTHING, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"layers", EFS_ASSIGN_POPULAR, REPLAY_GPU_NOTHING, REPLAY_PREDICT_NONE, REPLAY_GPU_LAYERS},
    {"moe-lightning", EFS_ASSIGN_POPULAR, REPLAY_GPU_NOTHING, REPLAY_PREDICT_NONE, REPLAY_GPU_PAGED},
    {"popular", EFS_ASSIGN_POPULAR, REPLAY_GPU_POPULAR, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"fiddler", EFS_ASSIGN_FIDDLER, REPLAY_GPU_POPULAR, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"hybrimoe", EFS_ASSIGN_HYBRIMOE, REPLAY_GPU_NOTHING, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"hybrimoe+lru", EFS_ASSIGN_HYBRIMOE, REPLAY_GPU_LRU, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"greedy", EFS_ASSIGN_GREEDY, REPLAY_GPU_NOTHING, REPLAY_PREDICT_NONE, REPLAY_GPU_EXPERTS},
    {"greedy+guess", EFS_ASSIGN_GREEDY, REPLAY_GPU_NOTHING, REPLAY_PREDICT_TRANSITIONS, REPLAY_GPU_EXPERTS},
    {"greedy+all-known", EFS_ASSIGN_GREEDY, REPLAY_GPU_NOTHING, REPLAY_PREDICT_ORACLE, REPLAY_GPU_EXPERTS},
    {"dali", EFS_ASSIGN_GREEDY, REPLAY_GPU_WINDOW, REPLAY_PREDICT_TRANSITIONS, REPLAY_GPU_EXPERTS},
    {"dali-lru", EFS_ASSIGN_GREEDY, REPLAY_GPU_LRU, REPLAY_PREDICT_TRANSITIONS, REPLAY_GPU_EXPERTS},
    {"ours", EFS_ASSIGN_BALANCED, REPLAY_GPU_WINDOW, REPLAY_PREDICT_TRANSITIONS, REPLAY_GPU_EXPERTS},
    {"optimum", EFS_ASSIGN_OPTIMUM, REPLAY_GPU_WINDOW, REPLAY_PREDICT_TRANSITIONS, REPLAY_GPU_EXPERTS},
};

void replay_assign_print_head(const struct replay_assign_setup *s, const char *trace, const char *plan_from)
{
    char expert[16];
    printf("trace %s, %s%s; experts of %s, %.0f %% of a layer's on the graphics processor\n", trace,
           plan_from ? "popular by " : "popular by its first tenth", plan_from ? plan_from : "",
           tools_size_print(s->cpu.expert_bytes, expert, sizeof(expert)), 100 * s->cached);
    printf("processor, us by tokens:");
    for (uint32_t i = 0; i < s->cpu.points; i++)
        printf(" %u: %.0f", s->cpu.point[i].tokens, s->cpu.point[i].ns / 1e3);
    if (s->cpu_speed > 1)
        printf("; taken as %.0f times as fast", s->cpu_speed);
    printf("\ngraphics processor %s: an expert %.0f us with 1 token, %.0f with 64; brought in %.0f us\n", s->gpu.name,
           replay_gpu_compute_ns(&s->gpu, s->cpu.expert_bytes, 1) / 1e3,
           replay_gpu_compute_ns(&s->gpu, s->cpu.expert_bytes, 64) / 1e3,
           replay_gpu_transfer_ns(&s->gpu, s->cpu.expert_bytes) / 1e3);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

void replay_assign_print(uint32_t batch, const struct replay_assign_rules *r,
                         const struct replay_assign_run run[REPLAY_ASSIGN_SYSTEMS])
{
    double layers = (double)r->layers;
    printf("\nbatch %u: rules on the same %llu layers with work, popular experts cached", batch,
           (unsigned long long)r->layers);
    if (r->unknown)
        printf("; of %llu the optimum was not found, its lower bound stands for it", (unsigned long long)r->unknown);
    printf("\n%-18s %12s %12s %12s %10s %10s\n", "rule", "us a layer", "over optimum", "worst layer", "decide us",
           "% of layer");
    for (unsigned k = 0; k < EFS_ASSIGN_RULES; k++) {
        const struct replay_assign_rule *rule = &r->rule[k];
        printf("%-18s %12.1f %12.3f %12.3f %10.2f %10.2f\n", efs_assign_rule_name((enum efs_assign_rule)k),
               ratio(rule->moe_ns, layers) / 1e3, ratio(rule->moe_ns, r->optimum_ns), rule->worst,
               ratio(rule->decide_ns, layers) / 1e3, 100 * ratio(rule->decide_ns, rule->moe_ns));
    }
    printf("\nbatch %u: whole systems\n%-18s %12s %12s %10s %8s %8s %10s %10s\n", batch, "system", "tokens/s",
           "times naive", "cpu/gpu", "hit %", "right %", "MB/token", "decide %");
    for (unsigned k = 0; k < REPLAY_ASSIGN_SYSTEMS; k++) {
        const struct replay_assign_run *o = &run[k];
        double tokens = (double)o->tokens;
        printf("%-18s %12.3f %12.2f %10.2f %8.1f %8.1f %10.1f %10.2f\n", replay_assign_systems[k].name,
               ratio(tokens, o->time_ns) * 1e9, ratio(run[0].time_ns, o->time_ns), ratio(o->cpu_ns, o->gpu_ns),
               100 * ratio((double)o->hits, (double)o->asked),
               100 * ratio((double)o->guessed_right, (double)o->guessed), ratio(o->moved_bytes, tokens) / 1e6,
               100 * ratio(o->decide_ns, o->moe_ns));
    }
}

void replay_assign_print_deciding(void)
{
    static uint64_t ns[EFS_ASSIGN_DEVICES_MAX * MANY_EXPERTS];
    const struct efs_assign_problem problem = {.experts = MANY_EXPERTS, .devices = EFS_ASSIGN_DEVICES_MAX, .ns = ns};
    double greedy_us[MANY_ROUNDS], balanced_us[MANY_ROUNDS], greedy_ns = 0, balanced_ns = 0;
    uint64_t seed = 1;
    for (unsigned round = 0; round < MANY_ROUNDS; round++) {
        struct efs_assign_sum greedy, balanced;
        uint8_t device[MANY_EXPERTS];
        for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]); i++)
            ns[i] = 1000 + (uint64_t)(1e6 * tools_uniform(&seed));
        uint64_t began = efs_now_ns();
        efs_assign_greedy(&problem, device, &greedy);
        uint64_t between = efs_now_ns();
        efs_assign_balanced(&problem, device, &balanced);
        balanced_us[round] = (double)(efs_now_ns() - between) / 1e3;
        greedy_us[round] = (double)(between - began) / 1e3;
        greedy_ns += (double)greedy.makespan_ns;
        balanced_ns += (double)balanced.makespan_ns;
    }
    printf(
        "\ndeciding for %u experts on %u devices, random times, medians of %u: greedy %.1f us, balanced %.1f us, whose "
        "layer takes %.3f of that of greedy\n",
        MANY_EXPERTS, EFS_ASSIGN_DEVICES_MAX, MANY_ROUNDS, tools_median(greedy_us, MANY_ROUNDS),
        tools_median(balanced_us, MANY_ROUNDS), ratio(balanced_ns, greedy_ns));
}
