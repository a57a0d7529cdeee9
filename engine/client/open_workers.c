/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_workers.c - see mount.h. An open waits until the mount has brought its expert, so each has a thread. Closing,
 * which makes room for opens that wait, never stands behind them: the reaper does it.
 */
#include "mount.h"

#include "clock.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_NS 10000000
#define TELL_NS 4000000 /* what was found mapped is told to the mount within some milliseconds, many lines at once */

/* ---- opening ---- */

static struct efs_expert_file *mount_next_to_open(struct efs_mount *m)
{
    while (!m->open_queue && !m->stop) {
        m->idle_open_workers++;
        pthread_cond_wait(&m->to_open, &m->lock);
        m->idle_open_workers--;
    }
    struct efs_expert_file *file = m->stop ? NULL : m->open_queue;
    if (!file)
        return NULL;
    m->open_queue = file->next_queued;
    if (!m->open_queue)
        m->open_tail = &m->open_queue;
    file->next_queued = NULL;
    m->queued--;
    file->state = EFS_FILE_OPENING;
    return file;
}

static void *open_worker_run(void *arg)
{
    struct efs_mount *m = arg;
    struct efs_expert_file *file;
    pthread_mutex_lock(&m->lock);
    while ((file = mount_next_to_open(m))) {
        if (file->refs == 0) { /* nobody waits for it any more */
            file->error = -ECANCELED;
            efs_file_opened(m, file);
            continue;
        }
        const struct efs_file_layout *known = efs_known_find(m, &file->key, file->hash);
        pthread_mutex_unlock(&m->lock);
        errint_t rc = efs_mapped_open(m->root, &file->key, known, &file->mapped);
        pthread_mutex_lock(&m->lock);
        if (rc == -ENOMEM && efs_files_trim(m, 0)) { /* the mount, or we, had no room: once more without what is kept */
            pthread_mutex_unlock(&m->lock);
            rc = efs_mapped_open(m->root, &file->key, known, &file->mapped);
            pthread_mutex_lock(&m->lock);
        }
        if (file->mapped.learned)
            efs_known_add(m, file);
        file->error = rc;
        efs_file_opened(m, file);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void efs_mount_wake_open_workers(struct efs_mount *m)
{
    while (!m->stop && m->queued > m->idle_open_workers && m->open_worker_count < m->open_workers_max) {
        if (efs_thread_start(open_worker_run, m, "efs-open", &m->open_workers[m->open_worker_count]) < 0)
            break; /* those that there are will do */
        m->open_worker_count++;
        if (m->open_worker_count - 1 >= m->queued)
            break;
    }
    pthread_cond_broadcast(&m->to_open);
}

/* ---- closing and telling ---- */

/* Lock held on entry and return. */
static void reaper_close_files(struct efs_mount *m)
{
    struct efs_expert_file *list = m->close_queue;
    m->close_queue = NULL;
    pthread_mutex_unlock(&m->lock);
    while (list) {
        struct efs_expert_file *file = list;
        list = file->next_queued;
        efs_mapped_close(&file->mapped);
        free(file);
    }
    pthread_mutex_lock(&m->lock);
}

/* telling held: write what is to be told, and line behind it. What the mount thinks of it changes nothing here. */
static void mount_write_told(struct efs_mount *m, const char *line, size_t bytes)
{
    char text[EFS_WANT_BYTES];
    pthread_mutex_lock(&m->lock);
    size_t used = m->told_bytes;
    memcpy(text, m->text, used);
    m->told_bytes = 0;
    pthread_mutex_unlock(&m->lock);
    if (used && used + bytes > sizeof(text)) {
        efs_sys_pwrite(m->want, text, used, 0);
        used = 0;
    }
    memcpy(text + used, line, bytes);
    used += bytes;
    if (used)
        efs_sys_pwrite(m->want, text, used, 0);
}

void efs_mount_tell(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return;
    pthread_mutex_lock(&m->telling);
    mount_write_told(m, line, bytes);
    pthread_mutex_unlock(&m->telling);
}

bool efs_mount_tell_later(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return true;
    if (bytes > sizeof(m->text) - m->told_bytes)
        return false;
    memcpy(m->text + m->told_bytes, line, bytes);
    m->told_bytes += bytes;
    return true;
}

/* Experts that are used, and what is given back. */
static void mount_tell_all(struct efs_mount *m)
{
    pthread_mutex_lock(&m->telling);
    if (m->want >= 0)
        mount_write_told(m, "", 0);
    if (m->export)
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

static void *reaper_run(void *arg)
{
    struct efs_mount *m = arg;
    const struct timespec a_while = {0, TELL_NS};
    uint64_t quiet_ns = 0;
    pthread_mutex_lock(&m->lock);
    while (!m->stop || m->close_queue) {
        if (efs_full_set_ask(m))
            continue;
        if (m->close_queue) {
            reaper_close_files(m);
        } else if (m->told_bytes || (m->export && efs_export_has_news(m->export))) {
            pthread_mutex_unlock(&m->lock);
            nanosleep(&a_while, NULL); /* more may come */
            mount_tell_all(m);
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

void efs_mount_wake_reaper(struct efs_mount *m)
{
    if (m->reaper_sleeps)
        pthread_cond_signal(&m->to_keep);
}

/* ---- all ---- */

errint_t efs_mount_threads_start(struct efs_mount *m)
{
    errint_t rc = efs_thread_start(reaper_run, m, "efs-reap", &m->reaper);
    m->reaper_there = rc == 0;
    if (rc == 0)
        rc = efs_thread_start(open_worker_run, m, "efs-open", &m->open_workers[0]);
    m->open_worker_count = rc == 0;
    return rc;
}

void efs_mount_threads_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->to_open);
    pthread_mutex_unlock(&m->lock);
    for (uint32_t i = 0; i < m->open_worker_count; i++)
        pthread_join(m->open_workers[i], NULL);
    pthread_mutex_lock(&m->lock);
    efs_files_trim(m, 0);
    pthread_cond_broadcast(&m->to_keep);
    pthread_mutex_unlock(&m->lock);
    if (m->reaper_there)
        pthread_join(m->reaper, NULL);
    mount_tell_all(m);
    pthread_mutex_lock(&m->lock);
    reaper_close_files(m); /* what came after it had ended */
    pthread_mutex_unlock(&m->lock);
}
