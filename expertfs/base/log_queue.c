/* SPDX-License-Identifier: Apache-2.0 */
/* log_queue.c - see log_queue.h. */
#include "log_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "expertfs-private.h"
#include "log_recent.h"

#define LOG_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK)
#define LOG_MODE 0640

struct queue_line {
    struct queue_line *next;
    size_t bytes; /* of this allocation */
    int priority;
    char text[];
};

static struct {
    pthread_mutex_t lock;            /* guards the whole struct */
    pthread_cond_t changed;          /* a line was added, or the last one was written */
    bool started, reopen;            /* reopen: the file, before the next line */
    struct queue_line *first, *last; /* the first is being written */
    size_t bytes;
    uint64_t lost, reported; /* lines lost, and of these, lines that the log has reported as lost */
    int lost_priority;       /* of the last lost line */
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int log_file = -1; /* of efsd_log_queue_file() */
static char *log_path;    /* absolute */

/* write(2) instead of stdio: a thread that blocks here must not hold a lock that exit() takes. */
static bool line_write_fd(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EAGAIN) { /* stderr inherited with O_NONBLOCK; a file that is a FIFO */
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return false;
        } else if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

/* false: standard error or the file is closed or fails. */
static bool line_write(int priority, const char *text)
{
    char line[2048];
    if (priority != EFSD_LOG_STDERR && log_file >= 0)
        return line_write_fd(log_file, line, efsd_log_format(priority, text, line, sizeof(line)));
    if (priority != EFSD_LOG_STDERR) {
        snprintf(line, sizeof(line), "%s", text);
        efs_join_hint(line, sizeof(line));
        syslog(priority, "%s", line);
        return true;
    }
    size_t bytes = (size_t)snprintf(line, sizeof(line), "%s\n", text);
    return line_write_fd(STDERR_FILENO, line, bytes < sizeof(line) ? bytes : sizeof(line) - 1);
}

/* Lock held. */
static void queue_append(int priority, const char *text)
{
    size_t text_bytes = strlen(text) + 1, bytes = sizeof(struct queue_line) + text_bytes;
    struct queue_line *line = queue.bytes + bytes <= EFSD_LOG_QUEUE_BYTES ? malloc(bytes) : NULL;
    if (!line) {
        queue.lost++;
        queue.lost_priority = priority;
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

/* Lock held. The queue is empty, and lines were lost. */
static void queue_report_lost(void)
{
    char text[128];
    bool to_stderr = queue.lost_priority == EFSD_LOG_STDERR;
    snprintf(text, sizeof(text), "%s%llu messages were lost: %s did not take them in time",
             to_stderr ? "expertfs: " : "", (unsigned long long)(queue.lost - queue.reported),
             to_stderr       ? "standard error"
             : log_file >= 0 ? "the file"
                             : "syslog");
    queue.reported = queue.lost;
    queue_append(to_stderr ? EFSD_LOG_STDERR : LOG_WARNING, text);
}

/* Opens the file by its path again, in place of the one that was renamed. One that cannot be opened leaves the old one
 * in use, with a message. A pipe or a device is the same after that. */
static void file_reopen(void)
{
    struct stat st;
    char text[512];
    if (log_file < 0 || fstat(log_file, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    int fd = open(log_path, LOG_FLAGS, LOG_MODE);
    if (fd >= 0 && dup3(fd, log_file, O_CLOEXEC) >= 0)
        snprintf(text, sizeof(text), "the log was opened again");
    else
        snprintf(text, sizeof(text), "%.400s: %s: the log stays in the file that is open", log_path, strerror(errno));
    int priority = fd >= 0 ? LOG_INFO : LOG_ERR;
    if (fd >= 0)
        close(fd);
    efsd_log_recent_add(priority, text);
    line_write(priority, text);
}

static void *queue_run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        while (!queue.first && !queue.reopen)
            pthread_cond_wait(&queue.changed, &queue.lock);
        if (queue.reopen) {
            queue.reopen = false;
            pthread_mutex_unlock(&queue.lock);
            file_reopen();
            pthread_mutex_lock(&queue.lock);
            continue;
        }
        struct queue_line *line = queue.first;
        pthread_mutex_unlock(&queue.lock);
        bool written = line_write(line->priority, line->text);
        pthread_mutex_lock(&queue.lock);
        queue.lost += !written;
        queue.reported += !written; /* a report of this loss would fail, too */
        queue.first = line->next;
        queue.bytes -= line->bytes;
        free(line);
        if (!queue.first && queue.reported < queue.lost)
            queue_report_lost();
        if (!queue.first)
            pthread_cond_broadcast(&queue.changed);
    }
    return NULL;
}

void efsd_log_queue_put(int priority, const char *line)
{
    pthread_mutex_lock(&queue.lock);
    bool started = queue.started;
    if (started)
        queue_append(priority, line);
    pthread_mutex_unlock(&queue.lock);
    if (!started)
        line_write(priority, line);
}

errint_t efsd_log_queue_file(const char *path)
{
    char *here = *path == '/' ? strdup("") : getcwd(NULL, 0);
    int fd = here ? open(path, LOG_FLAGS, LOG_MODE) : -1;
    errint_t rc = fd < 0 ? -errno : asprintf(&log_path, "%s%s%s", here, *here ? "/" : "", path) < 0 ? -ENOMEM : 0;
    free(here);
    if (rc == 0)
        log_file = fd;
    else if (fd >= 0)
        close(fd);
    return rc;
}

void efsd_log_queue_reopen(void)
{
    pthread_mutex_lock(&queue.lock);
    queue.reopen = true;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
}

bool efsd_log_queue_has_file(void)
{
    return log_file >= 0;
}

errint_t efsd_log_queue_start(void)
{
    pthread_t thread;
    pthread_mutex_lock(&queue.lock);
    errint_t rc = efs_thread_start(queue_run, NULL, "efs-log", &thread);
    if (!rc) {
        pthread_detach(thread);
        queue.started = true;
    }
    pthread_mutex_unlock(&queue.lock);
    return rc;
}

void efsd_log_queue_flush(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_mutex_lock(&queue.lock);
    while (queue.first && pthread_cond_timedwait(&queue.changed, &queue.lock, &until) == 0) {
    }
    pthread_mutex_unlock(&queue.lock);
}

uint64_t efsd_log_queue_lost(void)
{
    pthread_mutex_lock(&queue.lock);
    uint64_t lost = queue.lost;
    pthread_mutex_unlock(&queue.lock);
    return lost;
}
