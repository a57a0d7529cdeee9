/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_command.h - moe-replay assign.
 *
 * assign/ is the command that assigns the experts of a trace to the CPU, with measured times, or to a GPU, with times
 * computed from its data sheet. Only the main program of moe-replay calls it. It never uses a GPU.
 */
#ifndef MOE_REPLAY_ASSIGN_COMMAND_H
#define MOE_REPLAY_ASSIGN_COMMAND_H

#include "assign.h"
#include "replay.h"

/* main() of "moe-replay assign". Returns the exit status. */
int replay_assign_main(int argc, char **argv);

/* ---- costs (assign_costs.c, assign_measure.c) ---- */

#define REPLAY_CPU_POINTS 32u

/* CPU time of an expert by its number of tokens, interpolated linearly between the points. */
struct replay_cpu {
    uint64_t expert_bytes; /* plain BF16 */
    uint32_t points;       /* 1 or more, sorted by tokens, ascending */
    struct {
        uint32_t tokens;
        double ns;
    } point[REPLAY_CPU_POINTS];
};
/* The file is JSON: {"expert_bytes": N, "points": [[TOKENS, NS], ...]}. */
errint_t replay_cpu_read(const char *path, struct replay_cpu *cpu, struct efs_error *err);
errint_t replay_cpu_write(const char *path, const struct replay_cpu *cpu, struct efs_error *err);
/* Measures experts of a store in memory with 1, 2, 4 ... 64 tokens on all cores, medians. Blocks for seconds. */
errint_t replay_cpu_measure(const char *store, struct replay_cpu *cpu, struct efs_error *err);
double replay_cpu_ns(const struct replay_cpu *cpu, uint32_t tokens);

/* A GPU and its PCIe link. Rates are the part of the data sheet's that kernels reach: about 0.8 of the memory
 * bandwidth, 0.5 of the FLOPS, 0.8 of the link bandwidth. */
struct replay_gpu {
    const char *name;
    double memory_bytes, bytes_per_second, flops, launch_us, link_bytes_per_second;
};
#define REPLAY_GPUS 3u
extern const struct replay_gpu replay_gpus[REPLAY_GPUS];
double replay_gpu_compute_ns(const struct replay_gpu *gpu, uint64_t expert_bytes, uint32_t tokens);
double replay_gpu_transfer_ns(const struct replay_gpu *gpu, uint64_t expert_bytes);

/* ---- a run (assign_simulate.c) ---- */

struct replay_assign_setup {
    struct replay_cpu cpu;
    struct replay_gpu gpu;
    double cpu_speed; /* divisor of the CPU times */
    double cached;    /* part of each layer's experts in the GPU's cache, 0 to 1 */
    const struct replay_workload
        *history; /* its most frequent experts are cached first; NULL: those of the first tenth of the trace */
};

/* Results of all rules on the same layers, with the same experts cached. */
struct replay_assign_rules {
    uint64_t layers, unknown; /* layers assigned; of them, those where the search for the optimum hit its limit */
    struct replay_assign_rule {
        double moe_ns; /* sum over the layers, by DALI's Eq. 5 */
        double worst;  /* largest ratio of a layer's time to the optimum */
        double decide_ns, decide_worst_ns;
    } rule[EFS_ASSIGN_RULES];
    double optimum_ns; /* sum over the layers; the lower bound where the optimum is unknown */
};
errint_t replay_assign_rules(const struct replay_assign_setup *setup, const struct replay_workload *w,
                             struct replay_assign_rules *result);

/* A system: an assignment rule, a cache policy of the GPU and a predictor for transfers ahead of use. */
enum replay_gpu_policy { REPLAY_GPU_NOTHING, REPLAY_GPU_POPULAR, REPLAY_GPU_LRU, REPLAY_GPU_WINDOW };
enum replay_gpu_prediction { REPLAY_PREDICT_NONE, REPLAY_PREDICT_TRANSITIONS, REPLAY_PREDICT_ORACLE };
/* LAYERS: the last layers, up to the size of the cache, run on the GPU, the rest on the CPU. PAGED: the GPU runs all
 * experts; a part of each layer stays there, and all others of the layer are copied ahead, whatever the router chooses,
 * while the layer before runs. */
enum replay_gpu_layout { REPLAY_GPU_EXPERTS, REPLAY_GPU_LAYERS, REPLAY_GPU_PAGED };
struct replay_assign_system {
    const char *name;
    enum efs_assign_rule rule;
    enum replay_gpu_policy keeps;
    enum replay_gpu_prediction guess;
    enum replay_gpu_layout layout;
};
struct replay_assign_run {
    uint64_t tokens, asked, hits, guessed, guessed_right;
    double time_ns, moe_ns, cpu_ns, gpu_ns, decide_ns, moved_bytes;
};
errint_t replay_assign_simulate(const struct replay_assign_setup *setup, const struct replay_workload *w,
                                const struct replay_assign_system *system, struct replay_assign_run *run);

/* The steps of DALI (Figure 19), the systems it is compared with (Figure 12), and the rule of sched/. */
#define REPLAY_ASSIGN_SYSTEMS 14u
extern const struct replay_assign_system replay_assign_systems[REPLAY_ASSIGN_SYSTEMS];

/* ---- tables (assign_report.c) ---- */

/* plan_from may be NULL. */
void replay_assign_print_head(const struct replay_assign_setup *setup, const char *trace, const char *plan_from);
void replay_assign_print(uint32_t batch, const struct replay_assign_rules *rules,
                         const struct replay_assign_run run[REPLAY_ASSIGN_SYSTEMS]);
/* Measures and prints the time of the greedy and the balanced rule for 256 experts on EFS_ASSIGN_DEVICES_MAX devices.
 */
void replay_assign_print_deciding(void);

#endif
