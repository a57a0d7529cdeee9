/* SPDX-License-Identifier: Apache-2.0 */
/* shared_options.h - options that several commands of moe-replay have, with one meaning. */
#ifndef MOE_REPLAY_SHARED_OPTIONS_H
#define MOE_REPLAY_SHARED_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#define REPLAY_BATCH_MAX 64u
#define REPLAY_BATCHES 32u /* of a list */

/* Keys, above those of the commands' own options. */
enum {
    REPLAY_OPT_STORE = 512,
    REPLAY_OPT_PLAN_FROM,
    REPLAY_OPT_TOKENS,
    REPLAY_OPT_BATCH,
    REPLAY_OPT_LAYER_US,
    REPLAY_OPT_SEED,
    REPLAY_OPT_QUIET = 'q'
};

struct replay_shared {
    const char *store, *plan_from; /* NULL: not given */
    uint64_t tokens;               /* 0: all */
    uint64_t layer_ns, seed;
    uint32_t batch[REPLAY_BATCHES], batch_count;
    bool quiet;
};

/* For the keys that a command does not know: 0, or ARGP_ERR_UNKNOWN. */
error_t replay_shared_parse(const struct argp_state *state, int key, const char *value, struct replay_shared *shared);

#endif
