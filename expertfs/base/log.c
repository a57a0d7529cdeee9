/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - see log.h. */
#define FUSE_USE_VERSION 314
#include "log.h"

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <xxhash.h>

#include "log_queue.h"
#include "log_recent.h"

#define LINE_BYTES 1536

/* Rate limit, so that repeated reads from a failing disk do not fill the log: of each kind the first EFSD_LOG_LINES
 * different lines are logged, each once, until efsd_log_report_suppressed() resets it. Other lines are counted. */
struct log_kind {
    const void *key; /* address that is the same for all lines of a kind, such as the format; NULL: unused */
    int priority;
    uint32_t logged;
    uint64_t hashes[EFSD_LOG_LINES]; /* of the lines that were logged */
    uint64_t suppressed;
    char last[512]; /* start of the last suppressed line */
};

static struct {
    bool to_log;           /* a file or syslog, else stderr */
    bool foreground;       /* in the background efsd_background_failed() prints the error of a start that fails */
    int highest;           /* priority of syslog(3); messages with a higher number are dropped */
    _Atomic bool starting; /* the mount is not ready, stderr is still in use */
    pthread_mutex_t lock;  /* guards the fields below */
    bool muted;            /* libfuse's messages are not logged */
    char last[512];
    struct log_kind kinds[EFSD_LOG_KINDS]; /* the last is shared by all kinds that found no free element */
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .highest = LOG_INFO};

static const int priorities[] = {[EFS_LOG_ERROR] = LOG_ERR, [EFS_LOG_WARNING] = LOG_WARNING, [EFS_LOG_INFO] = LOG_INFO};

static void log_write_stderr(int priority, const char *line)
{
    char text[LINE_BYTES + 32];
    snprintf(text, sizeof(text), "expertfs: %s%s", priority == LOG_WARNING ? "warning: " : "", line);
    efsd_log_queue_put(EFSD_LOG_STDERR, text);
}

static void log_write_line(int priority, const char *line)
{
    efsd_log_recent_add(priority, line);
    if (log_state.to_log)
        efsd_log_queue_put(priority, line);
    else
        log_write_stderr(priority, line);
}

/* Lock held. True: the line may be logged; false: it was counted as suppressed. */
static bool kind_admit(const void *key, int priority, const char *line)
{
    struct log_kind *kind = log_state.kinds, *last = kind + EFSD_LOG_KINDS - 1;
    while (kind < last && kind->key && (kind->key != key || kind->priority != priority))
        kind++;
    if (!kind->key) {
        kind->key = key;
        kind->priority = priority;
    }
    uint64_t hash = XXH3_64bits(line, strlen(line));
    bool take = kind->logged < EFSD_LOG_LINES;
    for (uint32_t i = 0; take && i < kind->logged; i++)
        take = kind->hashes[i] != hash;
    if (take) {
        kind->hashes[kind->logged++] = hash;
    } else {
        kind->suppressed++;
        snprintf(kind->last, sizeof(kind->last), "%s", line);
    }
    return take;
}

/* LOG_INFO is always logged, warnings and errors within the limit of their kind. */
static bool log_may_write(const void *key, int priority, const char *line)
{
    if (priority > log_state.highest)
        return false;
    if (priority > LOG_WARNING)
        return true;
    pthread_mutex_lock(&log_state.lock);
    bool may = kind_admit(key, priority, line);
    pthread_mutex_unlock(&log_state.lock);
    return may;
}

static void log_from_fuse(enum fuse_log_level level, const char *format, va_list arguments)
{
    char line[512];
    vsnprintf(line, sizeof(line), format, arguments);
    line[strcspn(line, "\n")] = '\0';
    if (level >= FUSE_LOG_INFO) { /* option -d: every request */
        efsd_log_queue_put(EFSD_LOG_STDERR, line);
        return;
    }
    pthread_mutex_lock(&log_state.lock);
    snprintf(log_state.last, sizeof(log_state.last), "%s", line);
    bool muted = log_state.muted;
    pthread_mutex_unlock(&log_state.lock);
    if (!muted && log_may_write(format, (int)level, line))
        log_write_line((int)level, line);
}

void efsd_log_open(bool foreground)
{
    log_state.to_log = !foreground || efsd_log_queue_has_file();
    log_state.foreground = foreground;
    log_state.starting = true;
    if (!foreground && !efsd_log_queue_has_file())
        openlog("expertfs", LOG_PID, LOG_DAEMON);
    fuse_set_log_func(log_from_fuse);
}

void efsd_log_level(enum efs_log_level highest)
{
    log_state.highest = priorities[highest];
}

static void log_emit(const void *key, enum efs_log_level level, const char *line)
{
    int priority = level <= EFS_LOG_INFO ? priorities[level] : LOG_INFO;
    if (!log_may_write(key, priority, line))
        return;
    bool waits = log_state.starting && (level == EFS_LOG_WARNING || (level == EFS_LOG_ERROR && log_state.foreground));
    if (log_state.to_log && waits)
        log_write_stderr(priority, line); /* also to the terminal, where the user waits for the mount */
    log_write_line(priority, line);
}

void efsd_log(enum efs_log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    log_emit(format, level, line);
}

void efsd_log_line(void *arg, enum efs_log_level level, const char *line)
{
    (void)arg;
    log_emit(&log_state, level, line);
}

void efsd_log_report_suppressed(void)
{
    char line[sizeof(log_state.kinds[0].last) + 80];
    for (uint32_t i = 0; i < EFSD_LOG_KINDS; i++) {
        pthread_mutex_lock(&log_state.lock);
        const struct log_kind kind = log_state.kinds[i];
        log_state.kinds[i] = (struct log_kind){0};
        pthread_mutex_unlock(&log_state.lock);
        if (!kind.suppressed)
            continue;
        snprintf(line, sizeof(line), "%llu more messages like this one were left out: %s",
                 (unsigned long long)kind.suppressed, kind.last);
        log_write_line(kind.priority, line);
    }
}

void efsd_log_started(void)
{
    if (log_state.to_log)
        efsd_log_queue_flush(); /* write queued warnings before stderr is redirected */
    log_state.starting = false;
}

void efsd_log_mute_fuse(bool mute)
{
    pthread_mutex_lock(&log_state.lock);
    log_state.muted = mute;
    log_state.last[0] = '\0';
    pthread_mutex_unlock(&log_state.lock);
}

void efsd_log_last_fuse(char *text, size_t text_bytes)
{
    pthread_mutex_lock(&log_state.lock);
    snprintf(text, text_bytes, "%s", log_state.last);
    pthread_mutex_unlock(&log_state.lock);
}
