/* SPDX-License-Identifier: Apache-2.0 */
/* placed_thread.c - see placed_thread.h. */
#include "placed_thread.h"

#include "counts.h"
#include "deadline.h"
#include "expertfs-placement-private.h"
#include "rados.h"
#include "regular.h"
#include "state_file.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS 1000000000
#define CONNECT_TURNS 30 /* between two tries to connect */
#define STOP_NS INT64_C(5000000000)
#define OPEN_NS INT64_C(5000000000) /* that the start of the store waits for the folder */

struct efs_placed_thread {
    struct efs *fs; /* with lock, while the thread was not left */
    char *placement, server[EFS_SERVER_NAME_BYTES], counts_path[EFS_STATE_PATH_BYTES]; /* "": counts are not saved */
    const struct efs_placed_calls *calls;
    bool pooled;
    unsigned long thread;
    /* of the thread */
    int folder; /* of a file */
    const char *file;
    struct stat seen;
    struct efs_cluster *cluster; /* of a pool; NULL: not connected */
    uint64_t version;
    unsigned turns;           /* until the next try to connect */
    errint_t looked, counted; /* of the last try */
    pthread_mutex_t lock;     /* guards the rest */
    pthread_cond_t wake, changed;
    bool stop, ended, left; /* left: nothing waits for the thread any more */
    bool opened, late;      /* the folder, or it was refused; late: the store was opened without it */
    errint_t refused;       /* with why: that the placement is no file */
    struct efs_error why;
    void *counts; /* to be written; NULL: none */
    size_t bytes;
};

static void thread_free(struct efs_placed_thread *t)
{
    efs_cluster_close(t->cluster);
    if (t->folder >= 0)
        efs_sys_close(t->folder);
    pthread_cond_destroy(&t->wake);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->counts);
    free(t->placement);
    free(t);
}

/* ---- what the store gets to know ---- */

/* A placement, or with why the reason that there is none. */
static void report(struct efs_placed_thread *t, const char *text, size_t bytes, const char *why)
{
    pthread_mutex_lock(&t->lock);
    if (!t->left && why)
        t->calls->refuse(t->fs, why);
    else if (!t->left)
        t->calls->take(t->fs, text, bytes);
    pthread_mutex_unlock(&t->lock);
}

static void report_counted(struct efs_placed_thread *t, errint_t rc, const char *reason)
{
    pthread_mutex_lock(&t->lock);
    if (rc < 0 && rc != t->counted && !t->left && t->pooled)
        efs_log(t->fs, EFS_LOG_WARNING, "placement %s: the counts of %s are not written: %s", t->placement, t->server,
                reason);
    else if (rc < 0 && rc != t->counted && !t->left)
        efs_log(t->fs, EFS_LOG_WARNING, "the counts are not saved: %s", reason);
    t->counted = rc;
    pthread_mutex_unlock(&t->lock);
}

/* ---- a file ---- */

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Why a file cannot be opened, or read. */
static const char *file_reason(errint_t rc)
{
    return rc == -EINVAL ? "not a regular file" : strerror(-rc);
}

static void look_at_file(struct efs_placed_thread *t)
{
    struct stat st;
    char *text = NULL;
    size_t bytes = 0;
    int fd = efs_regular_open(t->folder, t->file, 0, &st);
    errint_t rc = fd < 0 ? fd : 0;
    const bool another = rc == 0 && !is_same(&st, &t->seen);
    if (another)
        rc = efs_placement_read(fd, &text, &bytes);
    if (another && rc == 0)
        report(t, text, bytes, NULL);
    else if (another || (rc < 0 && rc != t->looked))
        report(t, NULL, 0, file_reason(rc));
    t->looked = fd < 0 ? fd : 0;
    t->seen = fd < 0 ? (struct stat){.st_ino = 0} : st;
    free(text);
    if (fd >= 0)
        efs_sys_close(fd);
}

static void count_in_file(struct efs_placed_thread *t, const void *counts, size_t bytes)
{
    struct efs_error err = {""};
    errint_t rc = efs_state_save(t->counts_path, counts, bytes, &err);
    report_counted(t, rc, err.text);
}

/* Opens the folder, so that a mount above it changes nothing. The file may be written later. */
static errint_t open_folder(struct efs_placed_thread *t, struct efs_error *err)
{
    struct stat st;
    const char *path = t->placement, *slash = strrchr(path, '/');
    const size_t bytes = slash ? (size_t)(slash - path) : 0;
    char folder[4096];
    t->file = slash ? slash + 1 : path;
    if (bytes >= sizeof(folder) || !*t->file)
        return efs_fail(err, -EINVAL, "option placement: %s: not a file", path);
    snprintf(folder, sizeof(folder), "%.*s", (int)bytes, path);
    t->folder = efs_sys_open(bytes ? folder : slash ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    const int fd = t->folder < 0 ? t->folder : efs_regular_open(t->folder, t->file, 0, &st);
    if (fd >= 0)
        efs_sys_close(fd);
    if (fd >= 0 || (fd == -ENOENT && t->folder >= 0))
        return 0;
    return efs_fail(err, fd, "option placement: %s: %s", path, file_reason(fd));
}

/* ---- a pool ---- */

static void connect_pool(struct efs_placed_thread *t)
{
    struct efs_error err = {""};
    if (t->turns > 0) {
        t->turns--;
        return;
    }
    t->turns = CONNECT_TURNS;
    errint_t rc = efs_cluster_open(t->placement, &t->cluster, &err);
    const size_t label = strlen(t->placement);
    const bool labelled = strncmp(err.text, t->placement, label) == 0 && err.text[label] == ':';
    if (rc < 0 && rc != t->looked)
        report(t, NULL, 0, err.text + (labelled ? label + 2 : 0));
    t->looked = rc;
}

static void look_at_pool(struct efs_placed_thread *t)
{
    char *text, reason[300];
    size_t bytes;
    errint_t rc = efs_cluster_placement(t->cluster, &t->version, &text, &bytes);
    if (rc == 0 && text)
        report(t, text, bytes, NULL);
    else if (rc < 0 && rc != -EAGAIN && rc != t->looked)
        report(t, NULL, 0, efs_cluster_reason(rc, reason, sizeof(reason)));
    free(text);
    t->looked = rc;
}

static void count_in_pool(struct efs_placed_thread *t, const void *counts, size_t bytes)
{
    char reason[300];
    errint_t rc = efs_cluster_count(t->cluster, t->server, counts, bytes);
    report_counted(t, rc, efs_cluster_reason(rc, reason, sizeof(reason)));
}

/* ---- the thread ---- */

/* Opens the folder, on the thread. false: it was refused, and the store is not opened. */
static bool thread_open(struct efs_placed_thread *t)
{
    struct efs_error why = {""};
    const errint_t rc = open_folder(t, &why);
    pthread_mutex_lock(&t->lock);
    t->opened = true;
    t->refused = rc;
    t->why = why;
    const bool late = t->late;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (late && t->folder < 0)
        report(t, NULL, 0, strerror(-rc));
    return rc == 0 || late;
}

/* Waits until the folder is open; if it does not answer, it is opened later. */
static errint_t wait_open(struct efs_placed_thread *t, struct efs_error *err)
{
    const struct timespec until = efs_from_now(OPEN_NS);
    pthread_mutex_lock(&t->lock);
    while (!t->opened && efs_cond_wait_until(&t->changed, &t->lock, &until) == 0)
        ;
    const bool late = t->late = !t->opened;
    const errint_t rc = late ? 0 : t->refused;
    if (rc < 0)
        efs_fail(err, rc, "%s", t->why.text);
    pthread_mutex_unlock(&t->lock);
    if (late)
        efs_log(t->fs, EFS_LOG_WARNING, "placement %s: its folder does not answer: it is read when it does",
                t->placement);
    if (rc < 0)
        pthread_join(t->thread, NULL);
    return rc;
}

/* Waits until there are counts, or the next look is due. Returns the counts, which the caller frees, or NULL. */
static void *next_counts(struct efs_placed_thread *t, size_t *bytes, bool *stop)
{
    const struct timespec until = efs_from_now(LOOK_NS);
    const bool can_write = !t->pooled || t->cluster;
    void *counts = NULL;
    pthread_mutex_lock(&t->lock);
    while (!t->stop && !(t->counts && can_write) && efs_cond_wait_until(&t->wake, &t->lock, &until) == 0)
        ;
    if (can_write) {
        counts = t->counts;
        *bytes = t->bytes;
        t->counts = NULL;
    }
    *stop = t->stop;
    pthread_mutex_unlock(&t->lock);
    return counts;
}

static void *placed_run(void *arg)
{
    struct efs_placed_thread *t = arg;
    if (!t->pooled && !thread_open(t))
        return NULL;
    for (bool stop = false; !stop;) {
        size_t bytes = 0;
        if (t->folder >= 0)
            look_at_file(t);
        else if (t->pooled && !t->cluster)
            connect_pool(t);
        if (t->cluster)
            look_at_pool(t);
        void *counts = next_counts(t, &bytes, &stop);
        if (counts && t->pooled)
            count_in_pool(t, counts, bytes);
        else if (counts && *t->counts_path)
            count_in_file(t, counts, bytes);
        free(counts);
    }
    pthread_mutex_lock(&t->lock);
    const bool left = t->left;
    t->ended = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (left)
        thread_free(t);
    return NULL;
}

errint_t efs_placed_thread_start(struct efs *fs, const char *placement, const char *server,
                                 const struct efs_placed_calls *calls, struct efs_placed_thread **thread,
                                 struct efs_error *err)
{
    struct efs_placed_thread *t = efs_sys_calloc(1, sizeof(*t));
    if (!t)
        return efs_fail(err, -ENOMEM, "no memory");
    *t = (struct efs_placed_thread){.fs = fs, .calls = calls, .pooled = efs_is_rados(placement), .folder = -1};
    pthread_mutex_init(&t->lock, NULL);
    efs_cond_init(&t->wake);
    efs_cond_init(&t->changed);
    snprintf(t->server, sizeof(t->server), "%s", server);
    t->placement = strdup(placement);
    struct efs_rados address;
    errint_t rc = !t->placement ? efs_fail(err, -ENOMEM, "no memory")
                  : t->pooled   ? efs_rados_parse(placement, &address, err)
                                : 0;
    if (rc == 0 && !t->pooled && !fs->options.no_state)
        rc = efs_counts_path(fs->store->sb.content_hash, t->counts_path, sizeof(t->counts_path), err);
    if (rc == 0 && (rc = efs_thread_start(placed_run, t, "efs-placement", &t->thread)) < 0)
        efs_fail(err, rc, "option placement: %s: cannot start its thread: %s", placement, strerror(-rc));
    if (rc == 0 && !t->pooled)
        rc = wait_open(t, err);
    if (rc < 0)
        thread_free(t);
    else
        *thread = t;
    return rc;
}

void efs_placed_thread_count(struct efs_placed_thread *t, void *data, size_t bytes)
{
    pthread_mutex_lock(&t->lock);
    free(t->counts);
    t->counts = data;
    t->bytes = bytes;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

void efs_placed_thread_stop(struct efs_placed_thread *t)
{
    const struct timespec until = efs_from_now(STOP_NS);
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->wake);
    while (!t->ended && efs_cond_wait_until(&t->changed, &t->lock, t->pooled ? NULL : &until) == 0)
        ;
    t->left = !t->ended;
    if (t->left)
        efs_log(t->fs, EFS_LOG_WARNING, "placement %s: its folder does not answer: the counts are not saved",
                t->placement);
    const bool left = t->left;
    const unsigned long thread = t->thread;
    pthread_mutex_unlock(&t->lock);
    if (left) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    thread_free(t);
}

void efs_placed_thread_close_in_child(struct efs_placed_thread *t)
{
    if (t->folder >= 0)
        efs_sys_close(t->folder);
}
