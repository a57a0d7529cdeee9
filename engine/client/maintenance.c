/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maintenance.c - see mount.h. Closing a file frees memory for pending opens, so it must not be queued behind them: it has a
 * thread, which also sends notifications to the mount and receives packets when no other thread does.
 */
#include "mount.h"

#include "clock.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define RECEIVE_NS 10000000
#define TELL_NS 4000000 /* what was found mapped is told to the mount within some milliseconds, many lines at once */

/* Experts that are used, and what is given back. */
static void reaper_tell(struct efs_mount *m)
{
    efs_mount_tell(m, "", 0);
    if (!m->export)
        return;
    pthread_mutex_lock(&m->telling);
    efs_export_send(m, NULL);
    pthread_mutex_unlock(&m->telling);
}

/* What nobody else waits for; there may be more to tell soon. */
static void reaper_receive(struct efs_mount *m)
{
    const struct timespec until = efs_from_now(RECEIVE_NS);
    efs_export_receive(m, &until);
}

/* In the place of a thread that waits: users of requests wait by poll(2). What is kept stands back when it takes long,
 * that is when a while passed without a word: *quiet_ns. */
static void reaper_watch(struct efs_mount *m, uint64_t *quiet_ns)
{
    bool receive = !m->receiving && efs_export_works(m->export);
    const struct timespec until = efs_from_now(receive ? RECEIVE_NS : EFS_PATIENCE_NS);
    bool late;
    if (receive) {
        late = efs_export_receive(m, &until) == -ETIMEDOUT;
    } else {
        m->reaper_sleeps = true;
        late = pthread_cond_timedwait(&m->to_keep, &m->lock, &until) == ETIMEDOUT;
        m->reaper_sleeps = false;
    }
    *quiet_ns = !late ? 0 : *quiet_ns + (receive ? RECEIVE_NS : EFS_PATIENCE_NS);
    if (*quiet_ns >= EFS_PATIENCE_NS) {
        efs_files_trim(m, 0);
        *quiet_ns = 0;
    }
}

/* Ask which experts the mount keeps full, if it is time to. true: it was, and the lock was given up meanwhile. */
static bool reaper_ask_list(struct efs_mount *m)
{
    uint64_t now = efs_now_ns();
    if (!m->keep_auto || m->listing || now < m->look_ns || !m->rested || !efs_export_works(m->export))
        return false;
    m->rested = false;
    m->listing = true;
    m->asked_ns = now;
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_lock(&m->telling);
    efs_export_send_list(m);
    pthread_mutex_unlock(&m->telling);
    pthread_mutex_lock(&m->lock);
    return true;
}

static void *reaper_run(void *arg)
{
    struct efs_mount *m = arg;
    const struct timespec a_while = {0, TELL_NS};
    uint64_t quiet_ns = 0;
    pthread_mutex_lock(&m->lock);
    while (!m->stop || m->close_queue) {
        if (reaper_ask_list(m))
            continue;
        if (m->close_queue) {
            efs_mount_close_files(m);
        } else if (m->told_bytes || (m->export && efs_export_has_news(m->export))) {
            pthread_mutex_unlock(&m->lock);
            nanosleep(&a_while, NULL); /* more may come */
            reaper_tell(m);
            pthread_mutex_lock(&m->lock);
        } else if (!m->stop && !m->receiving && m->export && (m->listing || efs_export_has_orphans(m->export))) {
            reaper_receive(m);
        } else if (!m->stop && efs_mount_is_watching(m)) {
            reaper_watch(m, &quiet_ns);
        } else {
            m->reaper_sleeps = true;
            pthread_cond_wait(&m->to_keep, &m->lock);
            m->reaper_sleeps = false;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

errint_t efs_reaper_start(struct efs_mount *m)
{
    errint_t rc = efs_thread_start(reaper_run, m, "efs-reap", &m->reaper);
    m->reaper_there = rc == 0;
    return rc;
}

void efs_reaper_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    efs_files_trim(m, 0);
    pthread_cond_broadcast(&m->to_keep);
    pthread_mutex_unlock(&m->lock);
    if (m->reaper_there)
        pthread_join(m->reaper, NULL);
    reaper_tell(m);
    pthread_mutex_lock(&m->lock);
    efs_mount_close_files(m); /* what came after it had ended */
    pthread_mutex_unlock(&m->lock);
}
