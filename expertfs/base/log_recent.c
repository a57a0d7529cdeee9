/* SPDX-License-Identifier: Apache-2.0 */
/* log_recent.c - see log_recent.h. */
#include "log_recent.h"

#include <pthread.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "expertfs-private.h"

static struct {
    pthread_mutex_t lock; /* guards the fields below */
    size_t used;
    char text[EFSD_LOG_RECENT_BYTES]; /* whole lines */
} recent = {.lock = PTHREAD_MUTEX_INITIALIZER};

size_t efsd_log_format(int priority, const char *text, char *line, size_t room)
{
    char joined[2048], when[32] = "";
    time_t now = time(NULL);
    struct tm parts;
    snprintf(joined, sizeof(joined), "%s", text);
    efs_join_hint(joined, sizeof(joined));
    if (gmtime_r(&now, &parts))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &parts);
    int bytes = snprintf(line, room, "%s %s: %s", when,
                         priority <= LOG_ERR       ? "error"
                         : priority <= LOG_WARNING ? "warning"
                                                   : "info",
                         joined);
    size_t used = (size_t)bytes < room - 1 ? (size_t)bytes : room - 2;
    for (size_t i = 0; i < used; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[used] = '\n';
    line[used + 1] = '\0';
    return used + 1;
}

void efsd_log_recent_add(int priority, const char *text)
{
    char line[2048];
    size_t bytes = efsd_log_format(priority, text, line, sizeof(line));
    pthread_mutex_lock(&recent.lock);
    if (recent.used + bytes > sizeof(recent.text)) {
        const char *kept = memchr(recent.text + sizeof(recent.text) / 4, '\n', recent.used - sizeof(recent.text) / 4);
        size_t dropped = kept ? (size_t)(kept + 1 - recent.text) : recent.used;
        recent.used -= dropped;
        memmove(recent.text, recent.text + dropped, recent.used);
    }
    memcpy(recent.text + recent.used, line, bytes);
    recent.used += bytes;
    pthread_mutex_unlock(&recent.lock);
}

void efsd_log_recent_print(FILE *out)
{
    pthread_mutex_lock(&recent.lock);
    fwrite(recent.text, 1, recent.used, out); /* to memory */
    pthread_mutex_unlock(&recent.lock);
}
