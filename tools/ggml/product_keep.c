/* SPDX-License-Identifier: Apache-2.0 */
/*
 * product_keep.c - requests that are not released at the end of a call: that of gate and up, whose experts down needs,
 * too; and one that reads the next layer of a batch while this one is computed. If their experts were released, the
 * cache would evict them for one another, because an expert that only a prompt has used ranks below those in memory.
 */
#include "product.h"

static void kept_set(struct efsg_kept *kept, const struct efsg_weight *w, uint32_t layer,
                     struct efs_client_request *request, const struct efs_need *needs, uint32_t count)
{
    *kept = (struct efsg_kept){.request = request, .source = w->source, .layer = layer, .count = count};
    efsg_source_ref(w->source);
    for (uint32_t i = 0; i < count; i++)
        kept->experts[i] = needs[i].expert;
}

void efsg_kept_put(struct efsg_kept *kept, const struct products *p)
{
    kept_set(kept, p->weights[0], p->weights[0]->layer, p->request, p->needs, p->chosen_count);
}

struct efs_client_request *efsg_kept_take(struct efsg_kept *kept, struct products *p)
{
    const struct efsg_weight *w = p->weights[0];
    const uint32_t count = p->chosen_count;
    bool same = kept->request && kept->source == w->source && kept->layer == w->layer && kept->count == count;
    const bool reversed = same && kept->experts[0] != p->chosen[0].expert; /* down after gate and up */
    for (uint32_t i = 0; i < count && same; i++)
        same = kept->experts[reversed ? count - 1 - i : i] == p->chosen[i].expert;
    if (!same) {
        efsg_kept_release(kept);
        return NULL;
    }
    for (uint32_t i = 0; i < count && reversed; i++)
        p->chosen[i].item = count - 1 - i;
    struct efs_client_request *request = kept->request;
    efsg_source_put(kept->source);
    kept->request = NULL;
    return request;
}

bool efsg_kept_read_ahead(struct efsg_kept *ahead, const struct efsg_weight *w, uint32_t count)
{
    struct efs_need needs[EFS_ROUTING_EXPERTS];
    struct efs_client_request *request;
    struct efs_error err;
    if (ahead->request)
        return true;
    count = count < w->experts ? count : w->experts;
    if (count == 0 || !efsg_source_has_layer(w->source, w->layer + 2))
        return false;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){.expert = i, .tokens = 1};
    if (efsg_source_begin(w->source, w->layer + 1, needs, count, false, &request, &err) < 0)
        return false;
    kept_set(ahead, w, w->layer + 1, request, needs, count);
    return true;
}
