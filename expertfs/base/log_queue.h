/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_queue.h - lines on their way to standard error or syslog. write(2) to a full pipe and syslog(3) to a socket that
 * is not read block without limit, so a thread of its own makes these calls: threads that serve requests only append
 * to the queue. A line for which the queue has no room is lost and counted. Process-wide, as syslog(3) itself is.
 */
#ifndef EFSD_LOG_QUEUE_H
#define EFSD_LOG_QUEUE_H

#include <stdint.h>

#include "expertfs.h"

#define EFSD_LOG_QUEUE_BYTES (64u << 10)
#define EFSD_LOG_STDERR (-1)

/* Append one line without newline. priority: of syslog(3), or EFSD_LOG_STDERR. Any thread. Never waits for the output;
 * until efsd_log_queue_start() the caller writes the line itself. */
void efsd_log_queue_put(int priority, const char *line);
/* Start the thread, which runs until the process ends. 0 or -errno. */
errint_t efsd_log_queue_start(void);
/* Wait until all lines so far are written, for at most a second. Call before the process ends. */
void efsd_log_queue_flush(void);
/* How many lines were lost. */
uint64_t efsd_log_queue_lost(void);

#endif
