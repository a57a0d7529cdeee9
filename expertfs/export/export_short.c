/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_short.c - see export_internal.h: memory is short while clients hold experts. An expert cannot be taken from a
 * client, which may be reading it. So the client that holds memory wins, and the requests that wait for it are refused
 * (-EDEADLK) WAIT_SECONDS after they were sent, or after the last progress (efs_memory_short_fn) if that was later: by
 * the timer of the kernel (timerfd), as nothing else need happen then. An expert that another client holds, too,
 * releases no memory when it is dropped. Clients of libexpertfs hold only what they use: dropped experts stay in memory
 * of the mount.
 *
 * Clients that hold experts and have sent nothing in that time are *silent*: stopped, or deaf. Until one of them is
 * heard, requests wait for SILENT_SECONDS only.
 */
#include "export_internal.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "expertfs-clock-private.h"
#include "log.h"

#define SECOND 1000000000ull /* ns */
#define WAIT_SECONDS 30
#define SILENT_SECONDS 1

/* How long a request waits without progress. */
static uint64_t short_wait(const struct efsd_export *h)
{
    return (h->silent_count ? SILENT_SECONDS : WAIT_SECONDS) * SECOND;
}

/* Lock held. Starts the timer, which ends at this time. */
static void short_arm(struct efsd_export *h, uint64_t end)
{
    const struct itimerspec at = {.it_value = {(time_t)(end / SECOND), (long)(end % SECOND)}};
    h->armed = timerfd_settime(h->timer, TFD_TIMER_ABSTIME, &at, NULL) == 0;
}

void efsd_export_memory_short(void *arg, bool progressed)
{
    struct efsd_export *h = arg;
    pthread_mutex_lock(&h->lock);
    const bool arm = h->clients && !h->armed;
    const uint64_t now = progressed || arm ? efs_clock_ns(CLOCK_MONOTONIC) : 0;
    if (progressed)
        h->progressed_at = now;
    if (arm)
        short_arm(h, now + short_wait(h));
    pthread_mutex_unlock(&h->lock);
}

void efsd_export_client_heard(struct efsd_export_client *s)
{
    s->heard_at = efs_clock_ns(CLOCK_MONOTONIC_COARSE);
    s->export->silent_count -= s->silent;
    s->silent = false;
}

/* With efs.lock held: whether an expert has waited long enough. If not, the timer ends again when it has. */
static bool item_is_overdue(const void *item)
{
    const struct efsd_export_item *i = item;
    struct efsd_export *h = i->client->export;
    uint64_t since = i->charge->requested_at;
    if (since < h->progressed_at)
        since = h->progressed_at;
    const uint64_t end = since + short_wait(h);
    if (end > h->now && end < h->next)
        h->next = end;
    return end <= h->now;
}

/* Lock held. */
static void short_mark_silent(struct efsd_export *h)
{
    for (struct efsd_export_client *s = h->clients; s; s = s->next) {
        const bool silent = s->heard_at + WAIT_SECONDS * SECOND <= h->now && s->experts > s->pending;
        h->silent_count += silent && !s->silent;
        s->silent |= silent;
    }
    if (h->next > h->now + short_wait(h))
        h->next = h->now + short_wait(h);
}

void efsd_export_timer_ended(struct efsd_export *h)
{
    struct efs *fs = h->daemon->fs;
    uint64_t times;
    if (read(h->timer, &times, sizeof(times)) != (ssize_t)sizeof(times))
        return;
    h->now = efs_clock_ns(CLOCK_MONOTONIC);
    const uint64_t most = h->next = h->now + short_wait(h);
    pthread_mutex_lock(&h->lock);
    h->armed = false;
    pthread_mutex_unlock(&h->lock);
    const uint32_t refused = efs_requests_refuse(fs, item_is_overdue);
    const bool is_short = efs_memory_short(fs);
    pthread_mutex_lock(&h->lock);
    if (refused)
        short_mark_silent(h);
    const uint32_t silent = h->silent_count;
    if (is_short || h->next < most)
        short_arm(h, h->next);
    pthread_mutex_unlock(&h->lock);
    if (refused)
        efsd_log(EFS_LOG_WARNING,
                 "%u experts were refused to clients: the memory that they need is held by clients, of which %u "
                 "do not answer; `expertctl status` lists them",
                 refused, silent);
}
