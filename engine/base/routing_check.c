/* SPDX-License-Identifier: Apache-2.0 */
/* routing_check.c - efs_routing_check(). */
#include "expertfs-private.h"

#include <errno.h>

#define SCORE_MOST 1e6F

static errint_t routing_check_experts(const struct efs_routing *r, enum efs_routing_kind kind, struct efs_error *err)
{
    const bool hint = kind == EFS_ROUTING_PREDICTED;
    if (r->count > EFS_ROUTING_EXPERTS)
        return efs_fail(err, -EINVAL, "%u experts of a layer; at most %u are taken", r->count, EFS_ROUTING_EXPERTS);
    if (r->count && !r->experts)
        return efs_fail(err, -EINVAL, "%u experts of a layer, and none is named", r->count);
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->weights && !(r->weights[i] >= 0 && r->weights[i] <= (hint ? 1 : SCORE_MOST)))
            return efs_fail(err, -EINVAL, "expert %u: %g is no %s", r->experts[i], (double)r->weights[i],
                            hint ? "probability" : "score of a gate");
        for (uint32_t n = 0; n < i; n++)
            if (r->experts[n] == r->experts[i])
                return efs_fail(err, -EINVAL, "expert %u twice", r->experts[i]);
    }
    return 0;
}

errint_t efs_routing_check(const struct efs_routing *from, struct efs_routing *to, enum efs_routing_kind kind,
                           struct efs_error *err)
{
    *to = *from;
    if (!to->stack)
        to->stack = "";
    return routing_check_experts(to, kind, err);
}
