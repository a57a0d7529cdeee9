/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maintenance.c - see mount.h. A thread does for other threads what would block them: it sends to the mount, and
 * receives for users of poll(2).
 */
#include "mount.h"

#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Waits until it is woken, or, if a request's users wait by poll(2) and no other thread receives, for packets. */
static void maintenance_wait(struct efs_mount *m)
{
    m->maintenance_receives = !m->stop && !m->receiving && m->polled && efs_export_works(m->export);
    struct pollfd wait[2] = {{.fd = m->wake, .events = POLLIN},
                             {.fd = m->maintenance_receives ? m->export->fd : -1, .events = POLLIN}};
    uint64_t wakes;
    m->receiving |= m->maintenance_receives;
    pthread_mutex_unlock(&m->lock);
    poll(wait, 2, -1);
    pthread_mutex_lock(&m->lock);
    ssize_t n = read(m->wake, &wakes, sizeof(wakes));
    (void)n;
    if (wait[1].revents && efs_export_works(m->export))
        efs_export_receive_ready(m);
    if (m->maintenance_receives) {
        m->receiving = m->maintenance_receives = false;
        pthread_cond_broadcast(&m->arrived); /* another thread may receive in place of this one */
    }
}

void efs_mount_flush(struct efs_mount *m, bool block)
{
    errint_t rc = -EAGAIN;
    int busy = block ? pthread_mutex_lock(&m->send_lock) : pthread_mutex_trylock(&m->send_lock);
    if (!busy) {
        rc = efs_export_send(m, NULL, block ? 0 : MSG_DONTWAIT);
        pthread_mutex_unlock(&m->send_lock);
    }
    if (rc == -EAGAIN)
        efs_mount_signal(m->wake);
}

static void *maintenance_run(void *arg)
{
    struct efs_mount *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        if (efs_mount_has_unsent(m)) {
            pthread_mutex_unlock(&m->lock);
            efs_mount_flush(m, true);
            pthread_mutex_lock(&m->lock);
        } else {
            maintenance_wait(m);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

errint_t efs_maintenance_start(struct efs_mount *m)
{
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    errint_t rc = m->wake < 0 ? -errno : efs_thread_start(maintenance_run, m, "efs-reap", &m->maintenance);
    m->maintenance_started = rc == 0;
    return rc;
}

void efs_maintenance_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    efs_mount_signal(m->wake);
    pthread_mutex_unlock(&m->lock);
    if (m->maintenance_started)
        pthread_join(m->maintenance, NULL);
    efs_mount_flush(m, true);
}
