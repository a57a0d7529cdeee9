/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maintenance.c - see mount.h. Closing a file frees memory for pending opens, so it must not be queued behind them: it
 * has a thread, which also sends notifications to the mount and receives packets when no other thread does.
 */
#include "mount.h"

#include "clock.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define RECEIVE_NS 10000000
#define NOTIFY_DELAY_NS 4000000 /* delay of notifications of mapped experts, to send many at once */

/* Sends notifications of used experts and dropped tags. */
static void maintenance_send(struct efs_mount *m)
{
    efs_mount_notify(m, "", 0);
    if (!m->export)
        return;
    pthread_mutex_lock(&m->send_lock);
    efs_export_send(m, NULL);
    pthread_mutex_unlock(&m->send_lock);
}

/* Receives packets that no other thread waits for. */
static void maintenance_receive(struct efs_mount *m)
{
    const struct timespec until = efs_from_now(RECEIVE_NS);
    efs_export_receive(m, &until);
}

/* For requests whose users wait by poll(2): receives packets and evicts idle files, as a thread in efs_mount_wait()
 * would. *quiet_ns: time without a packet; idle files are evicted after EFS_TRIM_DELAY_NS of it. */
static void maintenance_wait_watched(struct efs_mount *m, uint64_t *quiet_ns)
{
    bool receive = !m->receiving && efs_export_works(m->export);
    const struct timespec until = efs_from_now(receive ? RECEIVE_NS : EFS_TRIM_DELAY_NS);
    bool late;
    if (receive) {
        late = efs_export_receive(m, &until) == -ETIMEDOUT;
    } else {
        m->maintenance_sleeps = true;
        late = pthread_cond_timedwait(&m->maintenance_wake, &m->lock, &until) == ETIMEDOUT;
        m->maintenance_sleeps = false;
    }
    *quiet_ns = !late ? 0 : *quiet_ns + (receive ? RECEIVE_NS : EFS_TRIM_DELAY_NS);
    if (*quiet_ns >= EFS_TRIM_DELAY_NS) {
        efs_files_trim(m, 0);
        *quiet_ns = 0;
    }
}

/* Requests the list of protected experts, if it is due. true: it was, and the lock was released meanwhile. */
static bool maintenance_request_list(struct efs_mount *m)
{
    uint64_t now = efs_now_ns();
    if (!m->keep_auto || m->listing || now < m->next_list_ns || !m->became_idle || !efs_export_works(m->export))
        return false;
    m->became_idle = false;
    m->listing = true;
    m->list_requested_ns = now;
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_lock(&m->send_lock);
    efs_export_send_list(m);
    pthread_mutex_unlock(&m->send_lock);
    pthread_mutex_lock(&m->lock);
    return true;
}

static void *maintenance_run(void *arg)
{
    struct efs_mount *m = arg;
    const struct timespec a_while = {0, NOTIFY_DELAY_NS};
    uint64_t quiet_ns = 0;
    pthread_mutex_lock(&m->lock);
    while (!m->stop || m->close_queue) {
        if (maintenance_request_list(m))
            continue;
        if (m->close_queue) {
            efs_mount_close_files(m);
        } else if (m->unsent_bytes || (m->export && efs_export_has_unsent(m->export))) {
            pthread_mutex_unlock(&m->lock);
            nanosleep(&a_while, NULL); /* collects more notifications */
            maintenance_send(m);
            pthread_mutex_lock(&m->lock);
        } else if (!m->stop && !m->receiving && m->export && (m->listing || efs_export_has_orphans(m->export))) {
            maintenance_receive(m);
        } else if (!m->stop && efs_mount_has_watched_pending(m)) {
            maintenance_wait_watched(m, &quiet_ns);
        } else {
            m->maintenance_sleeps = true;
            pthread_cond_wait(&m->maintenance_wake, &m->lock);
            m->maintenance_sleeps = false;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

errint_t efs_maintenance_start(struct efs_mount *m)
{
    errint_t rc = efs_thread_start(maintenance_run, m, "efs-reap", &m->maintenance);
    m->maintenance_started = rc == 0;
    return rc;
}

void efs_maintenance_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    efs_files_trim(m, 0);
    pthread_cond_broadcast(&m->maintenance_wake);
    pthread_mutex_unlock(&m->lock);
    if (m->maintenance_started)
        pthread_join(m->maintenance, NULL);
    maintenance_send(m);
    pthread_mutex_lock(&m->lock);
    efs_mount_close_files(m); /* queued after the thread had ended */
    pthread_mutex_unlock(&m->lock);
}
