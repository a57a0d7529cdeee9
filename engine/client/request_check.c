/* SPDX-License-Identifier: Apache-2.0 */
/* request_check.c - see request_check.h. */
#include "request_check.h"

#include <errno.h>

errint_t efs_request_check_experts(uint32_t layer, const struct efs_need *needs, uint32_t count, uint32_t most,
                                   struct efs_error *err)
{
    if (count == 0 || count > most)
        return efs_fail(err, -EINVAL, "%u experts in a request: 1 to %u are taken", count, most);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].tokens == 0)
            return efs_fail(err, -EINVAL, "expert %u of layer %u gets no token", needs[i].expert, layer);
        for (uint32_t n = 0; n < i; n++)
            if (needs[n].expert == needs[i].expert)
                return efs_fail(err, -EINVAL, "expert %u twice in a request", needs[i].expert);
    }
    return 0;
}
