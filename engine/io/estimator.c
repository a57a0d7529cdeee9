/* SPDX-License-Identifier: Apache-2.0 */
/* estimator.c - see estimator.h. */
#include "estimator.h"

#include "sys.h"
#include "expertfs-profile-private.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct efs_estimator {
    pthread_mutex_t lock;
    struct efs_rates rates;
};

errint_t efs_estimator_new(struct efs_estimator **out)
{
    struct efs_estimator *e = *out = efs_sys_calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    efs_rates_init(&e->rates, &(struct efs_rates_start){0});
    return 0;
}

void efs_estimator_free(struct efs_estimator *e)
{
    if (e)
        pthread_mutex_destroy(&e->lock);
    free(e);
}

void efs_estimator_profile(struct efs_estimator *e, const struct efs_profile *profile)
{
    const struct efs_rates_start start = {profile->disk_bytes_per_second, profile->read_latency_ns,
                                          profile->decode_bytes_per_second};
    pthread_mutex_lock(&e->lock);
    efs_rates_set_start(&e->rates, &start);
    pthread_mutex_unlock(&e->lock);
}

/* Replaces the rates as soon as the samples contradict them: current behaviour counts more than the profile. */
static void believe_samples(struct efs_rates *rates)
{
    struct efs_rates_doubt doubt;
    efs_rates_doubt(rates, &doubt);
    if (efs_rates_doubtful(doubt.disk) || efs_rates_doubtful(doubt.decode))
        efs_rates_recalibrate(rates, &doubt);
}

void efs_estimator_burst(struct efs_estimator *e, const struct efs_rates_burst *burst)
{
    pthread_mutex_lock(&e->lock);
    efs_rates_burst(&e->rates, burst);
    believe_samples(&e->rates);
    pthread_mutex_unlock(&e->lock);
}

void efs_estimator_decode(struct efs_estimator *e, enum efs_rates_decode kind, uint64_t raw_bytes, uint64_t ns)
{
    pthread_mutex_lock(&e->lock);
    efs_rates_decode(&e->rates, kind, raw_bytes, ns);
    believe_samples(&e->rates);
    pthread_mutex_unlock(&e->lock);
}

void efs_estimator_now(struct efs_estimator *e, struct efs_rates_now *now, uint64_t *bursts, uint64_t *decoded_bytes)
{
    pthread_mutex_lock(&e->lock);
    efs_rates_now(&e->rates, now);
    if (bursts)
        *bursts = e->rates.bursts;
    if (decoded_bytes)
        *decoded_bytes = e->rates.decoded_bytes;
    pthread_mutex_unlock(&e->lock);
}
