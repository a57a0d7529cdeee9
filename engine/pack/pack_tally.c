/* SPDX-License-Identifier: Apache-2.0 */
/* pack_tally.c - exponent counts of an object, from whichever thread codes its shards. */
#include "pack.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct efs_pack_tally {
    uint32_t left; /* shards to come */
    uint64_t counts[256];
};

errint_t efs_pack_tallies_init(struct efs_pack_tallies *t, uint32_t object_count, double *entropy_bits)
{
    *t = (struct efs_pack_tallies){.entropy_bits = entropy_bits};
    t->by_object = efs_sys_calloc((size_t)object_count + 1, sizeof(*t->by_object));
    pthread_mutex_init(&t->lock, NULL);
    return t->by_object ? 0 : -ENOMEM;
}

void efs_pack_tallies_free(struct efs_pack_tallies *t, uint32_t object_count)
{
    for (uint32_t o = 0; t->by_object && o < object_count; o++)
        free(t->by_object[o]);
    free(t->by_object);
    pthread_mutex_destroy(&t->lock);
}

bool efs_pack_tally_get(struct efs_pack_tallies *t, uint32_t object, uint64_t counts[256])
{
    pthread_mutex_lock(&t->lock);
    const struct efs_pack_tally *tally = t->by_object[object];
    if (tally)
        memcpy(counts, tally->counts, sizeof(tally->counts));
    pthread_mutex_unlock(&t->lock);
    return tally != NULL;
}

errint_t efs_pack_tally_set(struct efs_pack_tallies *t, uint32_t object, uint32_t left, const uint64_t counts[256])
{
    struct efs_pack_tally *tally = efs_sys_calloc(1, sizeof(*tally));
    if (!tally)
        return -ENOMEM;
    tally->left = left;
    memcpy(tally->counts, counts, sizeof(tally->counts));
    pthread_mutex_lock(&t->lock);
    free(t->by_object[object]);
    t->by_object[object] = tally;
    pthread_mutex_unlock(&t->lock);
    return 0;
}

errint_t efs_pack_tally(struct efs_pack_tallies *t, uint32_t object, uint32_t shard_count, const uint64_t counts[256])
{
    if (shard_count == 1) {
        t->entropy_bits[object] = efs_entropy_bits(counts);
        return 0;
    }
    errint_t rc = 0;
    pthread_mutex_lock(&t->lock);
    struct efs_pack_tally *tally = t->by_object[object];
    if (!tally) {
        tally = t->by_object[object] = efs_sys_calloc(1, sizeof(*tally));
        if (tally)
            tally->left = shard_count;
        else
            rc = -ENOMEM;
    }
    if (rc == 0) {
        for (int i = 0; i < 256; i++)
            tally->counts[i] += counts[i];
        if (--tally->left == 0) {
            t->entropy_bits[object] = efs_entropy_bits(tally->counts);
            t->by_object[object] = NULL;
            free(tally);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}
