/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_command.h - moe-replay assign: a trace's experts dealt out to a processor, whose times are measured, and a
 * graphics processor, whose times are given.
 */
#ifndef MOE_REPLAY_ASSIGN_COMMAND_H
#define MOE_REPLAY_ASSIGN_COMMAND_H

#include "assign.h"
#include "replay.h"

/* The command line behind "moe-replay assign"; returns the exit status. */
int replay_assign_main(int argc, char **argv);

/* ---- what things take (assign_costs.c, assign_measure.c) ---- */

#define REPLAY_CPU_POINTS 32u

/* The processor: an expert by its tokens, in between by straight lines. */
struct replay_cpu {
    uint64_t expert_bytes; /* plain BF16 */
    uint32_t points;       /* 1 or more, by rising tokens */
    struct {
        uint32_t tokens;
        double ns;
    } point[REPLAY_CPU_POINTS];
};
/* As JSON: {"expert_bytes": N, "points": [[TOKENS, NS], ...]}. */
errint_t replay_cpu_read(const char *path, struct replay_cpu *cpu, struct efs_error *err);
errint_t replay_cpu_write(const char *path, const struct replay_cpu *cpu, struct efs_error *err);
/* Run experts of a store from memory with 1 to 64 tokens on all cores; medians. Blocks for some seconds. */
errint_t replay_cpu_measure(const char *store, struct replay_cpu *cpu, struct efs_error *err);
double replay_cpu_ns(const struct replay_cpu *cpu, uint32_t tokens);

/* A graphics processor and its link, as what kernels reach of the data sheets: some 0.8 of the memory's rate, half of
 * the products, 0.8 of the link. */
struct replay_gpu {
    const char *name;
    double memory_bytes, bytes_per_second, flops, launch_us, link_bytes_per_second;
};
#define REPLAY_GPUS 3u
extern const struct replay_gpu replay_gpus[REPLAY_GPUS];
double replay_gpu_compute_ns(const struct replay_gpu *gpu, uint64_t expert_bytes, uint32_t tokens);
double replay_gpu_transfer_ns(const struct replay_gpu *gpu, uint64_t expert_bytes);

/* ---- a run (assign_play.c) ---- */

struct replay_assign_setup {
    struct replay_cpu cpu;
    struct replay_gpu gpu;
    double cpu_speed; /* times are divided by it */
    double cached;    /* part of each layer's experts that the graphics processor holds, 0 to 1 */
    const struct replay_workload
        *history; /* whose popular experts are cached first; NULL: those of the trace's start */
};

/* All rules on the same layers, with the same experts cached. */
struct replay_assign_rules {
    uint64_t layers, unknown; /* layers that were decided; of them, those whose optimum was not found in its limits */
    struct replay_assign_rule {
        double moe_ns; /* all layers, by Eq. 5 */
        double worst;  /* of a layer, over the optimum */
        double decide_ns, decide_worst_ns;
    } rule[EFS_ASSIGN_RULES];
    double optimum_ns; /* of all layers; of the unknown ones its lower bound */
};
errint_t replay_assign_rules(const struct replay_assign_setup *setup, const struct replay_workload *w,
                             struct replay_assign_rules *result);

/* A whole system: what decides, what is cached, what is brought ahead. */
enum replay_gpu_keeps { REPLAY_GPU_NOTHING, REPLAY_GPU_POPULAR, REPLAY_GPU_LRU, REPLAY_GPU_WINDOW };
enum replay_gpu_guess { REPLAY_GUESS_NONE, REPLAY_GUESS_TRANSITIONS, REPLAY_GUESS_ORACLE };
struct replay_assign_system {
    const char *name;
    enum efs_assign_rule rule;
    enum replay_gpu_keeps keeps;
    enum replay_gpu_guess guess;
    bool whole_layers; /* as many layers on the graphics processor as it holds, the others here */
};
struct replay_assign_run {
    uint64_t tokens, asked, hits, guessed, guessed_right;
    double time_ns, moe_ns, cpu_ns, gpu_ns, decide_ns, moved_bytes;
};
errint_t replay_assign_play(const struct replay_assign_setup *setup, const struct replay_workload *w,
                            const struct replay_assign_system *system, struct replay_assign_run *run);

/* The steps of DALI (Figure 19), its peers (Figure 12), ours. */
#define REPLAY_ASSIGN_SYSTEMS 13u
extern const struct replay_assign_system replay_assign_systems[REPLAY_ASSIGN_SYSTEMS];

/* ---- tables (assign_report.c) ---- */

/* plan_from may be NULL. */
void replay_assign_print_head(const struct replay_assign_setup *setup, const char *trace, const char *plan_from);
void replay_assign_print(uint32_t batch, const struct replay_assign_rules *rules,
                         const struct replay_assign_run run[REPLAY_ASSIGN_SYSTEMS]);
/* The time of deciding for many experts on as many devices as there may be. */
void replay_assign_print_deciding(void);

#endif
