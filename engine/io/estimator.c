/* estimator.c - see estimator.h. */
#include "estimator.h"

#include "serve.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

struct efs_estimator {
    pthread_mutex_t lock;
    struct efs_rates rates;
};

errint_t efs_estimator_build(struct efs *fs)
{
    fs->estimator = efs_sys_calloc(1, sizeof(*fs->estimator));
    if (!fs->estimator)
        return -ENOMEM;
    pthread_mutex_init(&fs->estimator->lock, NULL);
    efs_rates_init(&fs->estimator->rates, &(struct efs_rates_start){0});
    return 0;
}

void efs_estimator_destroy(struct efs *fs)
{
    if (fs->estimator)
        pthread_mutex_destroy(&fs->estimator->lock);
    free(fs->estimator);
    fs->estimator = NULL;
}

void efs_estimator_profile(struct efs_estimator *g, const struct efs_profile *profile)
{
    const struct efs_rates_start start = {profile->disk_bytes_per_second, profile->read_latency_ns,
                                          profile->decode_bytes_per_second};
    pthread_mutex_lock(&g->lock);
    efs_rates_from(&g->rates, &start);
    pthread_mutex_unlock(&g->lock);
}

void efs_estimator_burst(struct efs_estimator *g, const struct efs_rates_burst *burst)
{
    pthread_mutex_lock(&g->lock);
    efs_rates_burst(&g->rates, burst);
    pthread_mutex_unlock(&g->lock);
}

void efs_estimator_decode(struct efs_estimator *g, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns)
{
    pthread_mutex_lock(&g->lock);
    efs_rates_decode(&g->rates, kind, raw_bytes, ns);
    pthread_mutex_unlock(&g->lock);
}

void efs_estimator_now(struct efs_estimator *g, struct efs_rates_now *now, uint64_t *bursts, uint64_t *decoded_bytes)
{
    pthread_mutex_lock(&g->lock);
    efs_rates_now(&g->rates, now);
    if (bursts)
        *bursts = g->rates.bursts;
    if (decoded_bytes)
        *decoded_bytes = g->rates.decoded_bytes;
    pthread_mutex_unlock(&g->lock);
}
