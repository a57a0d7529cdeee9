/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - the daemon's messages: stderr in the foreground, syslog else, where warnings go to stderr, too, until the
 * mount is ready. A thread of its own writes them (log_queue.h). Of errors and warnings only some of a kind are told in
 * a minute: a kind has one format; the errors of the engine are one, and its warnings. Process-wide, as
 * syslog(3) itself is.
 */
#ifndef EFSD_LOG_H
#define EFSD_LOG_H

#include "expertfs.h"

/* Choose where messages go, libfuse's too. Call before there are threads. */
void efsd_log_open(bool foreground);
/* One line, no newline. Any thread. */
void efsd_log(enum efs_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The form that struct efs_options wants. */
void efsd_log_line(void *arg, enum efs_log_level level, const char *line);
/* Tell how many messages were not told, and let as many through again: each EFSD_LOG_LEFT_OUT_MS, and at the end. */
void efsd_log_left_out(void);
#define EFSD_LOG_LEFT_OUT_MS 60000
#define EFSD_LOG_KINDS 32 /* more than there are formats of warnings and errors */
#define EFSD_LOG_LINES 16 /* of each kind, in that time */
/* The mount is ready: from now on the terminal is left alone. */
void efsd_log_started(void);
/* Keep libfuse's messages of a call that may fail, or write them again: the failure tells the last one, once. */
void efsd_log_hold_fuse(bool hold);
/* libfuse's last message since it was held, for the reason of a failed mount; "" when there was none. */
void efsd_log_last_fuse(char *text, size_t text_bytes);

#endif
