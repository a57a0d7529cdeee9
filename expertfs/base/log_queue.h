/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_queue.h - queue of lines to standard error, a file or syslog. write(2) to a full pipe and syslog(3) to a socket
 * that is not read block without limit, so a separate thread makes these calls: threads that serve requests only append
 * to the queue. A line that does not fit into the queue is dropped and counted. Process-wide, like syslog(3).
 */
#ifndef EFSD_LOG_QUEUE_H
#define EFSD_LOG_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "expertfs.h"

#define EFSD_LOG_QUEUE_BYTES (64u << 10)
#define EFSD_LOG_STDERR (-1)

/* Appends one line, without newline. priority: of syslog(3), or EFSD_LOG_STDERR. Any thread. Does not wait for the
 * output, except before efsd_log_queue_start(): then the caller writes the line itself. */
void efsd_log_queue_put(int priority, const char *line);
/* Writes lines with a priority to the end of this file in place of syslog. Call before starting threads. -errno: it
 * cannot be opened. */
errint_t efsd_log_queue_file(const char *path);
bool efsd_log_queue_has_file(void);
/* Opens a regular file again by its path, as after it was renamed, before the next line is written. Does not wait. */
void efsd_log_queue_reopen(void);
/* Starts the thread, which runs until the process exits. 0 or -errno. */
errint_t efsd_log_queue_start(void);
/* Waits until the queue is empty, for at most a second. Call before the process exits. */
void efsd_log_queue_flush(void);
/* Number of lines that were dropped or could not be written to standard error. */
uint64_t efsd_log_queue_lost(void);

#endif
