/* SPDX-License-Identifier: Apache-2.0 */
/* log_queue.c - see log_queue.h. */
#include "log_queue.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

struct queue_line {
    struct queue_line *next;
    size_t bytes; /* of this allocation */
    int priority;
    char text[];
};

static struct {
    pthread_mutex_t lock;   /* guards all of it */
    pthread_cond_t changed; /* a line was added, the last one was written, or the thread ends */
    pthread_t thread;
    enum { LOG_DIRECT, LOG_QUEUED, LOG_BLOCKED } state;
    bool ending, ended;
    struct queue_line *first, *last; /* the first is being written */
    size_t bytes;
    uint64_t unreported; /* lines lost since the last report of them, */
    int lost_priority;   /* the last one of which had this priority */
    _Atomic uint64_t *lost;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* write(2) in place of stdio: a thread that is blocked here must not hold a lock that exit() takes. */
static void stderr_write(const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(STDERR_FILENO, text, bytes);
        if (n < 0 && errno == EAGAIN) { /* whoever started the daemon set O_NONBLOCK */
            struct pollfd wait = {.fd = STDERR_FILENO, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return;
        } else if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
}

static void line_write(int priority, const char *text)
{
    char line[2048];
    if (priority != EFSD_LOG_STDERR) {
        syslog(priority, "%s", text);
        return;
    }
    size_t bytes = (size_t)snprintf(line, sizeof(line), "%s\n", text);
    stderr_write(line, bytes < sizeof(line) ? bytes : sizeof(line) - 1);
}

/* Lock held. */
static void queue_append(int priority, const char *text)
{
    size_t text_bytes = strlen(text) + 1, bytes = sizeof(struct queue_line) + text_bytes;
    bool room = queue.state == LOG_QUEUED && queue.bytes + bytes <= EFSD_LOG_QUEUE_BYTES;
    struct queue_line *line = room ? malloc(bytes) : NULL;
    if (!line) {
        queue.unreported++;
        queue.lost_priority = priority;
        if (queue.lost)
            atomic_fetch_add_explicit(queue.lost, 1, memory_order_relaxed);
        return;
    }
    *line = (struct queue_line){.bytes = bytes, .priority = priority};
    memcpy(line->text, text, text_bytes);
    if (queue.first)
        queue.last->next = line;
    else
        queue.first = line;
    queue.last = line;
    queue.bytes += bytes;
    pthread_cond_broadcast(&queue.changed);
}

/* Lock held: the queue is empty, and lines were lost. */
static void queue_report_lost(void)
{
    char text[128];
    bool to_stderr = queue.lost_priority == EFSD_LOG_STDERR;
    snprintf(text, sizeof(text), "%s%llu messages were lost: %s did not take them in time",
             to_stderr ? "expertfs: " : "", (unsigned long long)queue.unreported,
             to_stderr ? "standard error" : "syslog");
    queue.unreported = 0;
    queue_append(to_stderr ? EFSD_LOG_STDERR : LOG_WARNING, text);
}

static void *queue_run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        while (!queue.first && !queue.ending)
            pthread_cond_wait(&queue.changed, &queue.lock);
        struct queue_line *line = queue.first;
        if (!line)
            break;
        pthread_mutex_unlock(&queue.lock);
        line_write(line->priority, line->text);
        pthread_mutex_lock(&queue.lock);
        queue.first = line->next;
        queue.bytes -= line->bytes;
        free(line);
        if (!queue.first && queue.unreported)
            queue_report_lost();
        if (!queue.first)
            pthread_cond_broadcast(&queue.changed);
    }
    queue.ended = true;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
    return NULL;
}

void efsd_log_queue_put(int priority, const char *line)
{
    pthread_mutex_lock(&queue.lock);
    bool direct = queue.state == LOG_DIRECT;
    if (!direct)
        queue_append(priority, line);
    pthread_mutex_unlock(&queue.lock);
    if (direct)
        line_write(priority, line);
}

errint_t efsd_log_queue_start(_Atomic uint64_t *lost)
{
    pthread_mutex_lock(&queue.lock);
    queue.ending = queue.ended = false;
    queue.lost = lost;
    int rc = pthread_create(&queue.thread, NULL, queue_run, NULL);
    if (!rc) {
        pthread_setname_np(queue.thread, "efs-log");
        queue.state = LOG_QUEUED;
    }
    pthread_mutex_unlock(&queue.lock);
    return -rc;
}

/* Lock held: wait for a second at most until the queue is empty, and with ending until the thread has ended. */
static void queue_wait(bool ending)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    while ((ending ? !queue.ended : queue.first != NULL) &&
           pthread_cond_timedwait(&queue.changed, &queue.lock, &until) == 0) {
    }
}

void efsd_log_queue_flush(void)
{
    pthread_mutex_lock(&queue.lock);
    queue_wait(false);
    pthread_mutex_unlock(&queue.lock);
}

void efsd_log_queue_stop(void)
{
    pthread_mutex_lock(&queue.lock);
    bool started = queue.state == LOG_QUEUED;
    if (started) {
        queue.ending = true;
        pthread_cond_broadcast(&queue.changed);
        queue_wait(true);
        queue.state = queue.ended ? LOG_DIRECT : LOG_BLOCKED;
        queue.lost = NULL;
    }
    bool ended = started && queue.ended;
    pthread_mutex_unlock(&queue.lock);
    if (ended)
        pthread_join(queue.thread, NULL);
}
