/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu CODED RAW: the rate at which plain experts arrive in the memory of a GPU. CODED is a store, RAW a store of
 * the same checkpoint packed with --codec raw, whose experts cross the link uncompressed: the baseline with the same
 * code. Each round requests all layers in order from both stores in turn, the next one while a layer is on its way.
 * Pool G holds two layers, so each expert is transferred in each round. The chunks stay in memory registered with the
 * driver, or are read from disk in each round
 * (--cold). Prints the median rates in plain bytes per second and the median of the ratios.
 */
#include "expertfs-clock-private.h"
#include "expertfs-gpu.h"
#include "measure.h"
#include "options.h"
#include "process.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS_MAX 1000u
#define EXPERTS_MAX 512u
#define FIXED_BYTES (33ull << 20) /* device memory that is not for experts: expertfs-gpu(7) */

struct arguments {
    struct tools_arguments store; /* two */
    unsigned rounds;
    bool cold;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"rounds", 'n', "N", "Turns of both stores, each through all layers (default 20)", TOOLS_UNSIGNED, AT(rounds),
     .least = 1, .most = ROUNDS_MAX},
    {"cold", 'c', NULL, "Chunks are read from the disk each time", TOOLS_FLAG, .at = AT(cold)},
    {0},
};
static const struct tools_command command = {.options = options,
                                             .arguments = "CODED RAW",
                                             .help =
                                                 "Plain experts that arrive in memory of the first graphics processor, "
                                                 "coded over raw.\vExit status: 0 measured, 1 failed, 2 wrong usage.",
                                             .at = AT(store)};

/* One of the two stores. */
struct side {
    struct efs_client *client;
    struct efs_expert_info last; /* of the last expert; all layers have the same number of experts */
    uint64_t bytes;              /* plain bytes that arrived in the last round */
    double rate[ROUNDS_MAX];
};

static errint_t side_open(struct side *side, const struct arguments *a, const char *path, struct efs_error *err)
{
    struct efs_store *store;
    struct efs_store_info info;
    errint_t rc = efs_store_open(path, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    efs_store_close(store);
    if (info.experts == 0 || info.layers < 3)
        return efs_fail(err, -1, "%s: a model with experts in at least 3 layers is needed", path);
    const uint64_t layer_bytes = info.expert_raw_bytes / info.layers;
    const struct efs_client_options how = {.no_state = true,
                                           .coded_only = true,
                                           .budget_bytes =
                                               (256ull << 20) + (a->cold ? layer_bytes : 2 * info.store_bytes)};
    const struct efs_gpu_options gpu = {.policy = "lru",
                                        .budget_bytes = FIXED_BYTES + 2 * (layer_bytes + layer_bytes / 8)};
    rc = efs_client_open(path, &how, &side->client, err);
    if (rc == 0)
        rc = efs_set(efs_client_fs(side->client), "policy", "lru", NULL, err);
    if (rc == 0)
        rc = efs_client_gpu(side->client, &gpu, err);
    if (rc == 0)
        rc = efs_expert_info(efs_client_fs(side->client), efs_id((uint32_t)info.experts - 1), &side->last);
    return rc < 0 || side->last.expert < EXPERTS_MAX ? rc : efs_fail(err, -1, "%s: too many experts in a layer", path);
}

/* Requests all layers once and measures the rate. */
static errint_t side_round(struct side *side, unsigned round, struct efs_error *err)
{
    static struct efs_need needs[EXPERTS_MAX];
    struct efs_gpu_stats before, after;
    errint_t rc = efs_client_gpu_stats(side->client, &before);
    const double began = efs_now_seconds();
    struct efs_client_request *previous = NULL;
    for (uint32_t e = 0; e <= side->last.expert; e++)
        needs[e] = (struct efs_need){e, 1};
    for (uint32_t layer = 0; layer <= side->last.layer + 1 && rc == 0; layer++) {
        struct efs_client_request *request = NULL;
        if (layer <= side->last.layer)
            rc =
                efs_client_begin(side->client, "", layer, needs, side->last.expert + 1, EFS_FORM_DEVICE, &request, err);
        if (previous) {
            const errint_t came = efs_client_wait(previous);
            rc = rc < 0 ? rc : came;
        }
        efs_client_release(previous);
        previous = request;
    }
    efs_client_release(previous);
    const double seconds = efs_now_seconds() - began;
    if (rc == 0)
        rc = efs_client_gpu_stats(side->client, &after);
    if (rc < 0)
        return err->text[0] ? rc : efs_fail(err, rc, "an expert did not come: %s", strerror(-rc));
    side->bytes = after.g_plain_bytes - before.g_plain_bytes;
    side->rate[round] = (double)side->bytes / seconds;
    return 0;
}

int main(int argc, char **argv)
{
    static struct side sides[2];
    static double ratio[ROUNDS_MAX];
    struct arguments a = {.rounds = 20};
    struct efs_error err = {""};
    errint_t rc = 0;
    tools_init();
    tools_parse(&command, argc, argv, &a);
    for (unsigned s = 0; s < 2 && rc == 0; s++)
        rc = side_open(&sides[s], &a, a.store.word[s], &err);
    for (unsigned s = 0; s < 2 && rc == 0; s++) /* warm up: reads the chunks, allocates */
        rc = side_round(&sides[s], 0, &err);
    for (unsigned round = 0; round < a.rounds && rc == 0; round++) {
        for (unsigned s = 0; s < 2 && rc == 0; s++)
            rc = side_round(&sides[(s + round) % 2], round, &err);
        ratio[round] = sides[0].rate[round] / sides[1].rate[round];
    }
    if (rc == 0 && sides[0].bytes == 0)
        rc = efs_fail(&err, -1, "%s: too few experts: all of them stay in the device's memory", a.store.word[0]);
    if (rc == 0 && sides[0].bytes != sides[1].bytes)
        rc = efs_fail(&err, -1, "the stores are of two models: %" PRIu64 " and %" PRIu64 " bytes of experts",
                      sides[0].bytes, sides[1].bytes);
    if (rc == 0) {
        struct efs_gpu_stats coded, raw;
        efs_client_gpu_stats(sides[0].client, &coded);
        efs_client_gpu_stats(sides[1].client, &raw);
        printf("plain_bytes_a_round: %" PRIu64 "\n", sides[0].bytes);
        printf("link_bytes_over_plain: %.4f\n", (double)coded.g_link_bytes / (double)coded.g_plain_bytes);
        printf("coded_gb_per_second: %.3f\n", tools_median(sides[0].rate, a.rounds) / 1e9);
        printf("raw_gb_per_second: %.3f\n", tools_median(sides[1].rate, a.rounds) / 1e9);
        printf("coded_over_raw: %.3f\n", tools_median(ratio, a.rounds));
    } else {
        fprintf(stderr, "bench_gpu: %s\n", err.text);
    }
    for (unsigned s = 0; s < 2; s++)
        efs_client_close(sides[s].client);
    return rc < 0 ? 1 : 0;
}
