/* SPDX-License-Identifier: Apache-2.0 */
/* open_workers.c - see mount.h. An open blocks until the mount has loaded the expert, so each open in flight has a
 * thread. */
#include "mount.h"

#include "thread.h"

#include <errno.h>
#include <sys/resource.h>

#define FILES_PART 2u /* files of experts take at most 1/FILES_PART of the descriptors that the process may have */

/* Lock held. Whether the limit of descriptors allows one more file. */
static bool mount_may_open(const struct efs_mount *m)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 || m->open_files < limit.rlim_cur / FILES_PART;
}

/* Opens the file. Closes idle files if it needs their descriptors. Lock held on entry and return, released meanwhile.
 */
static errint_t file_open(struct efs_mount *m, struct efs_expert_file *file)
{
    const struct efs_file_layout *known = file->expert->layout;
    if (m->no_view)
        return -EOPNOTSUPP;
    while (!mount_may_open(m))
        if (!TAILQ_EMPTY(&m->close_queue) || efs_files_free_bytes(m, 1))
            efs_mount_close_files(m);
        else if (m->closing)
            pthread_cond_wait(&m->closed, &m->lock);
        else
            return -EMFILE;
    m->open_files++;
    pthread_mutex_unlock(&m->lock);
    errint_t rc = efs_mapped_open(m->root, &file->expert->key, known, &file->mapped);
    pthread_mutex_lock(&m->lock);
    efs_expert_keep_layout(&file->expert->layout, &file->mapped);
    m->open_files -= rc < 0;
    return rc;
}

/* Whether the mount or this process lacks memory or descriptors. */
static bool is_shortage(errint_t error)
{
    return error == -ENOMEM || error == -EMFILE || error == -ENFILE;
}

static void *open_worker_run(void *arg)
{
    struct efs_mount *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        struct efs_expert_file *file = TAILQ_FIRST(&m->open_queue);
        if (!file) {
            m->idle_open_workers++;
            pthread_cond_wait(&m->open_wake, &m->lock);
            m->idle_open_workers--;
            continue;
        }
        TAILQ_REMOVE(&m->open_queue, file, link);
        m->queued--;
        if (file->refs == 0) { /* no waiter is left */
            efs_file_opened(m, file, -ECANCELED);
            continue;
        }
        errint_t rc = file_open(m, file);
        if (is_shortage(rc) && efs_files_trim(m, 0)) { /* retry without idle files */
            efs_mount_close_files(m);
            rc = file_open(m, file);
        }
        efs_file_opened(m, file, rc);
        if (efs_mount_has_unsent(m))
            efs_mount_signal(m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

errint_t efs_open_workers_start(struct efs_mount *m)
{
    errint_t rc = efs_thread_start(open_worker_run, m, "efs-open", &m->open_workers[m->open_worker_count]);
    m->open_worker_count += rc == 0;
    return rc;
}

void efs_file_queue(struct efs_mount *m, struct efs_expert_file *file)
{
    LIST_INSERT_HEAD(&file->expert->files, file, sibling);
    TAILQ_INSERT_TAIL(&m->open_queue, file, link);
    m->queued++;
    if (!m->stop && m->queued > m->idle_open_workers && m->open_worker_count < m->open_workers_max)
        efs_open_workers_start(m); /* if that fails, the existing threads continue */
    pthread_cond_signal(&m->open_wake);
}

void efs_file_fall_back(struct efs_mount *m, struct efs_expert_file *file, errint_t error)
{
    efs_export_free_coded(&file->exported);
    file->exported = (struct efs_exported_expert){.tag = EFS_NO_TAG};
    if (!LIST_EMPTY(&file->waiting))
        efs_mount_item_set_oversize(LIST_FIRST(&file->waiting), false);
    if (file->form == EFS_FORM_CODED) {
        efs_file_opened(m, file, error == -EAGAIN ? -EIO : error);
    } else {
        file->form = EFS_FORM_FULL;
        efs_file_queue(m, file);
    }
}

void efs_open_workers_stop(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->open_wake);
    pthread_mutex_unlock(&m->lock);
    for (uint32_t i = 0; i < m->open_worker_count; i++)
        pthread_join(m->open_workers[i], NULL);
}
