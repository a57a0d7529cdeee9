/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - see place.h: validates, evaluates, packs and compares placements. */
#include "place_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_items(const void *a, const void *b)
{
    const struct efs_place_item *x = a, *y = b;
    if (x->worth != y->worth)
        return x->worth < y->worth ? 1 : -1;
    return x->item < y->item ? -1 : x->item > y->item;
}

void efs_place_sort(struct efs_place_item *items, size_t count)
{
    qsort(items, count, sizeof(*items), compare_items);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

uint64_t efs_place_slots(const struct efs_place_problem *p, uint32_t server)
{
    const struct efs_place_server *s = &p->server[server];
    uint64_t slots = 0, most = (uint64_t)p->layers * p->experts;
    for (uint32_t g = 0; g < s->gpus; g++)
        slots += s->gpu_bytes[g] / p->expert_bytes;
    return slots < most ? slots : most; /* more are useless */
}

static bool is_number(double x)
{
    return isfinite(x) && x >= 0;
}

int efs_place_check(const struct efs_place_problem *p)
{
    if (p->servers < 1 || p->servers > EFS_PLACE_SERVERS_MAX || p->layers < 1 || p->layers > EFS_PLACE_LAYERS_MAX ||
        p->experts < 1 || p->experts > EFS_PLACE_EXPERTS_MAX || p->expert_bytes == 0 || !p->server || !p->calls)
        return -EINVAL;
    uint64_t slots = 0;
    for (uint32_t n = 0; n < p->servers; n++) {
        const struct efs_place_server *s = &p->server[n];
        if (s->gpus < 1 || s->gpus > EFS_PLACE_GPUS_MAX || !is_number(s->load_bytes_per_second) ||
            s->load_bytes_per_second == 0 || !is_number(s->passes) || !is_number(s->remote_s) ||
            !is_number(s->pass_s) || !is_number(s->call_s))
            return -EINVAL;
        for (uint32_t g = 0; g < s->gpus; g++)
            if (s->gpu_bytes[g] > UINT64_MAX / EFS_PLACE_GPUS_MAX / EFS_PLACE_SERVERS_MAX)
                return -EINVAL;
        slots += efs_place_slots(p, n);
    }
    for (size_t i = 0, all = efs_place_at(p, p->servers, 0, 0); i < all; i++)
        if (!is_number(p->calls[i]))
            return -EINVAL;
    return slots < (uint64_t)p->layers * p->experts ? -ENOSPC : 0;
}

void efs_place_count_holders(const struct efs_place_problem *p, const uint8_t *placement, uint32_t *holders)
{
    size_t all = (size_t)p->layers * p->experts;
    memset(holders, 0, all * sizeof(*holders));
    for (uint32_t n = 0; n < p->servers; n++)
        for (size_t i = 0; i < all; i++)
            holders[i] += placement[n * all + i] != 0;
}

bool efs_place_fits(const struct efs_place_problem *p, const uint8_t *placement)
{
    size_t all = (size_t)p->layers * p->experts;
    for (uint32_t n = 0; n < p->servers; n++) {
        uint64_t count = 0;
        for (size_t i = 0; i < all; i++)
            count += placement[n * all + i] != 0;
        if (count > efs_place_slots(p, n))
            return false;
    }
    return true;
}

/* ---- cost of a placement ----------------------------------------------------------------------------------------- */

static double server_remote_calls(const struct efs_place_problem *p, const uint8_t *placement, uint32_t server)
{
    size_t all = (size_t)p->layers * p->experts;
    double sum = 0;
    for (size_t i = server * all; i < (server + 1) * all; i++)
        sum += placement[i] ? 0 : p->calls[i];
    return sum;
}

double efs_place_remote_s(const struct efs_place_problem *p, const uint8_t *placement)
{
    double sum = 0;
    for (uint32_t n = 0; n < p->servers; n++)
        sum += server_remote_calls(p, placement, n) * p->server[n].remote_s;
    return sum;
}

double efs_place_wait_s(const struct efs_place_problem *p, const uint8_t *placement)
{
    double sum = 0;
    for (uint32_t n = 0; n < p->servers; n++) {
        const struct efs_place_server *s = &p->server[n];
        sum += server_remote_calls(p, placement, n) * s->call_s;
        for (uint32_t l = 0; l < p->layers && s->passes > 0; l++) {
            double all_here = 1;
            for (size_t i = efs_place_at(p, n, l, 0); i < efs_place_at(p, n, l, p->experts); i++)
                all_here *= placement[i] ? 1 : p->calls[i] < s->passes ? 1 - p->calls[i] / s->passes : 0;
            sum += s->passes * s->pass_s * (1 - all_here);
        }
    }
    return sum;
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

static void pack_server(const struct efs_place_problem *p, uint32_t n, const uint8_t *placement, const uint8_t *before,
                        uint8_t *gpu)
{
    const struct efs_place_server *s = &p->server[n];
    uint64_t room[EFS_PLACE_GPUS_MAX];
    for (uint32_t g = 0; g < s->gpus; g++)
        room[g] = s->gpu_bytes[g] / p->expert_bytes;
    for (size_t i = efs_place_at(p, n, 0, 0); i < efs_place_at(p, n + 1, 0, 0); i++) {
        gpu[i] = EFS_PLACE_NO_GPU;
        if (placement[i] && before && before[i] < s->gpus && room[before[i]] > 0) {
            gpu[i] = before[i];
            room[before[i]]--;
        }
    }
    for (uint32_t l = 0; l < p->layers; l++) {
        double load[EFS_PLACE_GPUS_MAX] = {0};
        for (size_t i = efs_place_at(p, n, l, 0); i < efs_place_at(p, n, l, p->experts); i++)
            if (gpu[i] != EFS_PLACE_NO_GPU)
                load[gpu[i]] += p->calls[i];
        for (size_t i = efs_place_at(p, n, l, 0); i < efs_place_at(p, n, l, p->experts); i++) {
            if (!placement[i] || gpu[i] != EFS_PLACE_NO_GPU)
                continue;
            uint32_t best = s->gpus;
            for (uint32_t g = 0; g < s->gpus; g++)
                if (room[g] > 0 && (best == s->gpus || load[g] < load[best]))
                    best = g;
            if (best == s->gpus)
                return; /* placement exceeds the slots: efs_place_pack() has refused it */
            gpu[i] = (uint8_t)best;
            load[best] += p->calls[i];
            room[best]--;
        }
    }
}

int efs_place_pack(const struct efs_place_problem *p, const uint8_t *placement, const uint8_t *before, uint8_t *gpu)
{
    int rc = efs_place_check(p);
    if (rc < 0)
        return rc;
    if (!efs_place_fits(p, placement))
        return -ENOSPC;
    for (uint32_t n = 0; n < p->servers; n++)
        pack_server(p, n, placement, before, gpu);
    return 0;
}

double efs_place_migration_s(const struct efs_place_problem *p, const uint8_t *before, const uint8_t *after)
{
    double sum = 0;
    for (uint32_t n = 0; n < p->servers; n++) {
        uint64_t changes = 0; /* of z: an expert that moves to another GPU counts twice */
        for (size_t i = efs_place_at(p, n, 0, 0); i < efs_place_at(p, n + 1, 0, 0); i++)
            if (before[i] != after[i])
                changes += (before[i] != EFS_PLACE_NO_GPU ? 1u : 0u) + (after[i] != EFS_PLACE_NO_GPU ? 1u : 0u);
        sum += (double)changes * (double)p->expert_bytes / p->server[n].load_bytes_per_second;
    }
    return sum;
}

bool efs_place_migrates(const struct efs_place_problem *p, const uint8_t *held_before, const uint8_t *held_after,
                        const uint8_t *gpu_before, const uint8_t *gpu_after)
{
    return efs_place_remote_s(p, held_after) + efs_place_migration_s(p, gpu_before, gpu_after) <
           efs_place_remote_s(p, held_before);
}

int efs_place_replace_if_cheaper(const struct efs_place_problem *p,
                                 int (*place)(const struct efs_place_problem *, uint8_t *),
                                 double (*cost)(const struct efs_place_problem *, const uint8_t *), uint8_t *placement)
{
    size_t bytes = efs_place_at(p, p->servers, 0, 0);
    uint8_t *other = calloc(bytes, 1);
    int rc = other ? place(p, other) : -ENOMEM;
    if (rc == 0 && cost(p, other) < cost(p, placement))
        memcpy(placement, other, bytes);
    free(other);
    return rc;
}
