/* SPDX-License-Identifier: Apache-2.0 */
/* shared_options.c - see shared_options.h. */
#include "shared_options.h"

#include "options.h"

static void parse_batches(const struct argp_state *state, const char *value, struct replay_shared *s)
{
    uint64_t batch[REPLAY_BATCHES];
    s->batch_count = tools_option_numbers(state, "batch", value, 1, REPLAY_BATCH_MAX, batch, REPLAY_BATCHES);
    for (uint32_t i = 0; i < s->batch_count; i++)
        s->batch[i] = (uint32_t)batch[i];
}

error_t replay_shared_parse(const struct argp_state *state, int key, const char *value, struct replay_shared *s)
{
    switch (key) {
    case REPLAY_OPT_STORE:
        s->store = value;
        return 0;
    case REPLAY_OPT_PLAN_FROM:
        s->plan_from = value;
        return 0;
    case REPLAY_OPT_TOKENS:
        s->tokens = tools_option_number(state, "tokens", value, 1, UINT64_MAX);
        return 0;
    case REPLAY_OPT_BATCH:
        parse_batches(state, value, s);
        return 0;
    case REPLAY_OPT_LAYER_US:
        s->layer_ns = 1000 * tools_option_number(state, "layer-us", value, 0, 100000000);
        return 0;
    case REPLAY_OPT_SEED:
        s->seed = tools_option_number(state, "seed", value, 0, UINT64_MAX);
        return 0;
    case REPLAY_OPT_QUIET:
        s->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}
