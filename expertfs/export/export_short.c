/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_short.c - see export_internal.h: memory is short while clients hold experts. An expert cannot be taken from a
 * client, which may be reading it. So the client that holds memory wins, and the requests that wait for it are refused
 * (-EDEADLK) when clients have released no memory for WAIT_SECONDS: by the timer of the kernel (timerfd), as nothing else
 * need happen then. An expert that another client holds, too, releases none when it is dropped. Clients of libexpertfs hold only what they use: dropped experts stay in memory of the mount.
 *
 * Clients that hold experts and have sent nothing in that time are *silent*: stopped, or deaf. Until one of them is
 * heard, requests wait for SILENT_SECONDS only.
 */
#include "export_internal.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "log.h"

#define WAIT_SECONDS 30
#define SILENT_SECONDS 1

/* Lock held. Starts the timer. */
static void short_arm(struct efsd_export *h)
{
    const struct itimerspec after = {.it_value.tv_sec = h->silent_count ? SILENT_SECONDS : WAIT_SECONDS};
    h->armed = timerfd_settime(h->timer, 0, &after, NULL) == 0;
    h->progressed = false;
    h->round++;
    for (struct efsd_export_client *s = h->clients; s; s = s->next)
        s->heard = false;
}

void efsd_export_memory_short(void *arg, bool progressed)
{
    struct efsd_export *h = arg;
    pthread_mutex_lock(&h->lock);
    h->progressed |= progressed;
    if (h->clients && !h->armed)
        short_arm(h);
    pthread_mutex_unlock(&h->lock);
}

void efsd_export_client_heard(struct efsd_export_client *s)
{
    s->heard = true;
    s->export->silent_count -= s->silent;
    s->silent = false;
}

/* With efs.lock held: whether an expert was requested before the timer was started. */
static bool item_is_old(const void *item)
{
    const struct efsd_export_item *i = item;
    return i->round != i->client->export->round;
}

/* Lock held. */
static void short_mark_silent(struct efsd_export *h)
{
    for (struct efsd_export_client *s = h->clients; s; s = s->next) {
        const bool silent = !s->heard && s->experts > s->pending;
        h->silent_count += silent && !s->silent;
        s->silent |= silent;
    }
}

void efsd_export_timer_ended(struct efsd_export *h)
{
    struct efs *fs = h->daemon->fs;
    uint64_t times;
    if (read(h->timer, &times, sizeof(times)) != (ssize_t)sizeof(times))
        return;
    pthread_mutex_lock(&h->lock);
    const bool progressed = h->progressed;
    h->armed = false;
    pthread_mutex_unlock(&h->lock);
    const uint32_t refused = progressed ? 0 : efs_requests_refuse(fs, item_is_old);
    const bool is_short = efs_memory_short(fs);
    pthread_mutex_lock(&h->lock);
    if (refused)
        short_mark_silent(h);
    const uint32_t silent = h->silent_count;
    if (is_short && !h->armed)
        short_arm(h);
    pthread_mutex_unlock(&h->lock);
    if (refused)
        efsd_log(EFS_LOG_WARNING,
                 "%u experts were refused to clients: the memory that they need is held by other clients, of which %u "
                 "do not answer; `expertctl status` lists them",
                 refused, silent);
}
