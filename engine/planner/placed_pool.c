/* SPDX-License-Identifier: Apache-2.0 */
/* placed_pool.c - see placed_pool.h. */
#include "placed_pool.h"

#include "deadline.h"
#include "expertfs-placement-private.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS 1000000000
#define CONNECT_TURNS 30 /* between two tries to connect */

struct efs_placed_pool {
    struct efs *fs;
    const char *address, *server;
    void (*take)(struct efs *fs, const char *text, size_t bytes);
    void (*refuse)(struct efs *fs, const char *why);
    unsigned long thread;
    /* of the thread */
    struct efs_cluster *cluster; /* NULL: not connected */
    uint64_t version;
    unsigned turns;           /* until the next try to connect */
    errint_t looked, counted; /* of the last try */
    pthread_mutex_t lock;     /* guards the rest */
    pthread_cond_t wake;
    bool stop;
    void *counts; /* to be written; NULL: none */
    size_t bytes;
};

static void connect_pool(struct efs_placed_pool *p)
{
    struct efs_error err = {""};
    if (p->turns > 0) {
        p->turns--;
        return;
    }
    p->turns = CONNECT_TURNS;
    errint_t rc = efs_cluster_open(p->address, &p->cluster, &err);
    const size_t label = strlen(p->address);
    const bool labelled = strncmp(err.text, p->address, label) == 0 && err.text[label] == ':';
    if (rc < 0 && rc != p->looked)
        p->refuse(p->fs, err.text + (labelled ? label + 2 : 0));
    p->looked = rc;
}

static void look(struct efs_placed_pool *p)
{
    char *text, reason[300];
    size_t bytes;
    errint_t rc = efs_cluster_placement(p->cluster, &p->version, &text, &bytes);
    if (rc == 0 && text)
        p->take(p->fs, text, bytes);
    else if (rc < 0 && rc != -EAGAIN && rc != p->looked)
        p->refuse(p->fs, efs_cluster_reason(rc, reason, sizeof(reason)));
    free(text);
    p->looked = rc;
}

static void count(struct efs_placed_pool *p, const void *counts, size_t bytes)
{
    char reason[300];
    errint_t rc = efs_cluster_count(p->cluster, p->server, counts, bytes);
    if (rc < 0 && rc != p->counted)
        efs_log(p->fs, EFS_LOG_WARNING, "%s: the counts of %s are not written: %s", p->address, p->server,
                efs_cluster_reason(rc, reason, sizeof(reason)));
    p->counted = rc;
}

static void *pool_run(void *arg)
{
    struct efs_placed_pool *p = arg;
    for (bool stop = false; !stop;) {
        if (!p->cluster)
            connect_pool(p);
        if (p->cluster)
            look(p);
        pthread_mutex_lock(&p->lock);
        const struct timespec until = efs_from_now(LOOK_NS);
        while (!p->stop && !(p->counts && p->cluster) &&
               pthread_cond_timedwait(&p->wake, &p->lock, &until) != ETIMEDOUT)
            ;
        void *counts = p->cluster ? p->counts : NULL;
        const size_t bytes = p->bytes;
        if (counts)
            p->counts = NULL;
        stop = p->stop;
        pthread_mutex_unlock(&p->lock);
        if (counts)
            count(p, counts, bytes);
        free(counts);
    }
    efs_cluster_close(p->cluster);
    return NULL;
}

errint_t efs_placed_pool_start(struct efs *fs, const char *address, const char *server,
                               void (*take)(struct efs *fs, const char *text, size_t bytes),
                               void (*refuse)(struct efs *fs, const char *why), struct efs_placed_pool **pool)
{
    struct efs_placed_pool *p = efs_sys_calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->fs = fs;
    p->address = address;
    p->server = server;
    p->take = take;
    p->refuse = refuse;
    pthread_mutex_init(&p->lock, NULL);
    efs_cond_init(&p->wake);
    errint_t rc = efs_thread_start(pool_run, p, "efs-cluster", &p->thread);
    if (rc < 0) {
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return rc;
    }
    *pool = p;
    return 0;
}

void efs_placed_pool_count(struct efs_placed_pool *p, void *data, size_t bytes)
{
    pthread_mutex_lock(&p->lock);
    free(p->counts);
    p->counts = data;
    p->bytes = bytes;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void efs_placed_pool_stop(struct efs_placed_pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    free(p->counts);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
