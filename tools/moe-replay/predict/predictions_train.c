/* SPDX-License-Identifier: Apache-2.0 */
/* predictions_train.c - trains a predictor on traces with hidden states. */
#include "predictions.h"

#include "interrupt.h"

#include <errno.h>
#include <string.h>

static void read_sample(void *from, uint64_t token, unsigned layer, uint16_t *experts, float *state)
{
    const struct efs_route *route = from;
    for (; !route->states || token >= route->tokens; route++)
        token -= route->states ? route->tokens : 0;
    uint64_t at = token * route->layers + layer;
    memcpy(experts, route->ids + at * route->chosen, route->chosen * sizeof(*experts));
    for (uint32_t i = 0; i < route->width; i++)
        state[i] = efs_route_half(route->states[at * route->width + i]);
}

static bool stop_training(void *from)
{
    (void)from;
    return tools_interrupted();
}

int predict_train(struct efs_predictor *predictor, const struct efs_route *histories, uint32_t count)
{
    struct efs_predict_samples samples = {
        .from = (void *)(uintptr_t)histories, .read = read_sample, .stop = stop_training};
    for (uint32_t h = 0; h < count; h++)
        samples.tokens += histories[h].states ? histories[h].tokens : 0;
    int rc = efs_predict_train(predictor, &samples);
    return rc == -EOPNOTSUPP ? 0 : rc == -EINVAL ? -ENODATA : rc;
}
