/* SPDX-License-Identifier: Apache-2.0 */
/* device_share.c - see device_share.h. */
#include "device_share.h"

#include "device_core.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* Lock held: what experts took that came since the last time. Of all that came: they share the link. */
static void deal_learn_link(struct efs_device *device)
{
    const struct efs_gpu_stats *s = &device->stats;
    const uint64_t brought = s->g_brought - device->learnt_brought;
    if (brought == 0)
        return;
    efs_assign_costs_took(&device->costs, EFS_ASSIGN_COST_LINK, 1, (s->g_bring_ns - device->learnt_bring_ns) / brought);
    device->learnt_brought = s->g_brought;
    device->learnt_bring_ns = s->g_bring_ns;
}

/* Lock held: what is in pool G. Returns the room for others, an expert taken as large as those that are there. */
static uint64_t deal_look(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_mixture *m,
                          struct efs_assign_expert *experts)
{
    const struct efs_vram *vram = &device->vram;
    const uint64_t each = vram->placed ? vram->used_granules / vram->placed : 0;
    uint64_t kept = vram->held;
    for (uint32_t i = 0; i < m->expert_count; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, m->experts[i].expert.number);
        const struct efs_vram_expert *expert = efs_vram_find(vram, &key);
        experts[i].tokens = m->experts[i].count;
        experts[i].cached = expert && expert->state == EFS_VRAM_HERE;
        experts[i].bytes = each;
        kept += experts[i].cached && !expert->holders;
    }
    return kept * each < vram->granules ? vram->granules - kept * each : 0;
}

errint_t efs_device_deal(struct efs_device *device, const char *stack, uint32_t layer, const struct efs_mixture *m,
                         bool *on_device, struct efs_error *err)
{
    uint8_t side[EFS_ROUTING_EXPERTS];
    if (strlen(stack) >= EFS_STACK_NAME_BYTES)
        return efs_fail(err, -ENOENT, "there is no stack %.40s", stack);
    if (m->expert_count > EFS_ROUTING_EXPERTS)
        return efs_fail(err, -EINVAL, "a mixture of %u experts: %u at most go to a device", m->expert_count,
                        EFS_ROUTING_EXPERTS);
    struct efs_assign_expert *experts = efs_sys_calloc(m->expert_count, sizeof(*experts));
    if (!experts)
        return efs_fail(err, -ENOMEM, "no memory for a mixture");
    pthread_mutex_lock(&device->lock);
    errint_t rc = device->lost ? efs_fail(err, device->lost, "%s", device->lost_error.text) : 0;
    if (rc == 0) {
        deal_learn_link(device);
        const uint64_t room = deal_look(device, stack, layer, m, experts);
        rc = efs_assign_by_costs(&device->costs, experts, m->expert_count, room, side);
    }
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < m->expert_count && rc == 0; i++)
        on_device[i] = side[i] == EFS_ASSIGN_GPU;
    free(experts);
    return rc;
}

void efs_device_ran_here(struct efs_device *device, uint32_t tokens, uint64_t ns)
{
    pthread_mutex_lock(&device->lock);
    device->stats.g_shared++;
    efs_assign_costs_took(&device->costs, EFS_ASSIGN_COST_CPU, tokens, ns);
    pthread_mutex_unlock(&device->lock);
}
