/* SPDX-License-Identifier: Apache-2.0 */
/* open_workers.c - see mount.h. An open waits until the mount has brought its expert, so each has a thread. */
#include "mount.h"

#include "thread.h"

#include <errno.h>

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

static errint_t file_open(const struct efs_mount *m, struct efs_expert_file *file, const struct efs_file_layout *known)
{
    return m->no_view ? -EOPNOTSUPP : efs_mapped_open(m->root, &file->key, known, &file->mapped);
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
        errint_t rc = file_open(m, file, known);
        pthread_mutex_lock(&m->lock);
        if (rc == -ENOMEM && efs_files_trim(m, 0)) { /* the mount, or we, had no room: once more without what is kept */
            pthread_mutex_unlock(&m->lock);
            rc = file_open(m, file, known);
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

errint_t efs_open_workers_start(struct efs_mount *m)
{
    errint_t rc = efs_thread_start(open_worker_run, m, "efs-open", &m->open_workers[0]);
    m->open_worker_count = rc == 0;
    return rc;
}

void efs_open_workers_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->to_open);
    pthread_mutex_unlock(&m->lock);
    for (uint32_t i = 0; i < m->open_worker_count; i++)
        pthread_join(m->open_workers[i], NULL);
}
