/* SPDX-License-Identifier: Apache-2.0 */
/* profile_sizes.c - the numbers of a profile that the store's index gives: averages over the experts. */
#include "profile_sizes.h"

#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "kernels.h"
#include "store.h"

#define PART_OF_EXPERT 25 /* a tensor counts if it has at least 1/25 of its expert's bytes */
#define SHARDS_MAX 256    /* EFS_TASK_MAX_SHARDS */

struct sums {
    uint64_t raw, e, sm, e_exact, exponent_raw;
    uint64_t large, large_shards; /* tensors that count, and their shards */
};

static void sums_add_expert(const struct efs_store *store, const struct efs_disk_group *group, struct sums *sums)
{
    uint64_t raw = 0;
    for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++)
        raw += store->objects[o].bytes;
    for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++) {
        const struct efs_disk_object *object = &store->objects[o];
        bool large = object->bytes >= raw / PART_OF_EXPERT;
        sums->large += large;
        sums->large_shards += large ? object->shard_count : 0;
        for (uint32_t s = object->shard_first; s < object->shard_first + object->shard_count; s++) {
            const struct efs_disk_shard *shard = &store->shards[s];
            uint32_t elements = efs_store_shard_elements(store, object, s);
            sums->e += efs_chunk_up(shard->e_bytes);
            sums->sm += efs_chunk_up(shard->sm_bytes);
            if (object->format != EFS_FORMAT_BYTES) {
                sums->e_exact += shard->e_bytes;
                sums->exponent_raw += elements;
            }
        }
        const struct efs_disk_shard *first = &store->shards[object->shard_first];
        sums->e += first->e_bytes ? EFS_ALIGN : 0; /* whole pages are read: on average half a page more at each end */
        sums->sm += first->sm_bytes ? EFS_ALIGN : 0;
    }
    sums->raw += raw;
}

void efs_profile_sizes(struct efs_store *store, struct efs_profile *p)
{
    struct sums sums = {0};
    double n = store->expert_count;
    struct efs_store_info info;
    efs_store_info(store, &info);
    p->layers = (double)info.layers;
    p->experts = (double)info.layer_experts;
    for (uint32_t g = 0; g < store->expert_count; g++)
        sums_add_expert(store, &store->groups[g], &sums);
    p->full_bytes = (double)sums.raw / n;
    p->e_bytes = (double)sums.e / n;
    p->sm_bytes = (double)sums.sm / n;
    p->coded_bytes = p->e_bytes + p->sm_bytes;
    p->rho = sums.exponent_raw ? (double)sums.e_exact / (double)sums.exponent_raw : 0;
    p->tensors = (double)((sums.large + store->expert_count / 2) / store->expert_count);
    p->tensors = p->tensors < 1 ? 1 : p->tensors;
    p->shards = sums.large ? (double)((sums.large_shards + sums.large / 2) / sums.large) : 1;
    p->shards = p->shards < 1 ? 1 : p->shards > SHARDS_MAX ? SHARDS_MAX : p->shards;
}
