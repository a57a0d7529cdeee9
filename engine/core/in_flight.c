/* SPDX-License-Identifier: Apache-2.0 */
/* in_flight.c - see efs.h: the count of operations in flight, and log messages. */
#include "efs.h"
#include "expertfs-private.h"

#include <stdarg.h>
#include <stdio.h>

void efs_log(const struct efs *fs, enum efs_log_level level, const char *format, ...)
{
    char line[2048];
    va_list args;
    if (!fs->options.log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fs->options.log(fs->options.log_arg, level, line);
}

errint_t efs_check_process(const struct efs *fs, struct efs_error *err)
{
    return efs_owner_check(&fs->owner, "the store", err);
}

void efs_in_flight_begin(struct efs *fs)
{
    atomic_fetch_add(&fs->in_flight, 1);
}

void efs_in_flight_end(struct efs *fs)
{
    unsigned count = atomic_load(&fs->in_flight);
    while (count > 1)
        if (atomic_compare_exchange_weak(&fs->in_flight, &count, count - 1))
            return;
    pthread_mutex_lock(&fs->lock); /* the last, while closing: efs_close() must not free the lock under us */
    efs_in_flight_end_locked(fs);
    pthread_mutex_unlock(&fs->lock);
}

void efs_in_flight_end_locked(struct efs *fs)
{
    if (atomic_fetch_sub(&fs->in_flight, 1) == 1)
        pthread_cond_broadcast(&fs->drained);
}
