/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages of the daemon: to a file (efsd_log_queue_file()), else in the foreground to stderr, else to syslog.
 * Errors and warnings that do not go there also go to stderr until the mount is ready. The latest messages are in
 * .expertfs/log (log_recent.h). A separate thread writes them (log_queue.h). Errors and warnings are rate-limited by
 * kind; a kind is one format and one priority. All errors of the engine are one kind, all its warnings another.
 * Process-wide, like syslog(3).
 */
#ifndef EFSD_LOG_H
#define EFSD_LOG_H

#include "expertfs.h"

/* Sets the destination of messages, also of libfuse's. Call before starting threads. */
void efsd_log_open(bool foreground);
/* Drops messages of lower levels from now on: EFS_LOG_ERROR drops warnings, too. Default: EFS_LOG_INFO, none. Call
 * before starting threads. */
void efsd_log_level(enum efs_log_level highest);
/* Logs one line, without newline. It may end with "\nhint: ...", a second line on stderr; syslog gets "; hint: ...".
 * Any thread. */
void efsd_log(enum efs_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, with the signature of efs_options.log. */
void efsd_log_line(void *arg, enum efs_log_level level, const char *line);
/* Logs how many messages of each kind were suppressed, and resets the limits. Call every EFSD_LOG_SUPPRESSED_MS and at
 * the end. */
void efsd_log_report_suppressed(void);
#define EFSD_LOG_SUPPRESSED_MS 60000
#define EFSD_LOG_KINDS 32 /* more than the formats of warnings and errors */
#define EFSD_LOG_LINES 16 /* limit per kind and EFSD_LOG_SUPPRESSED_MS */
/* The mount is ready: in the background, stderr is no longer used. */
void efsd_log_started(void);
/* true: suppress libfuse's messages during a call that may fail, and keep the last one for the error message; false:
 * log them again. */
void efsd_log_mute_fuse(bool mute);
/* Copies libfuse's last message since efsd_log_mute_fuse(), the reason of a failed mount; "" if none. */
void efsd_log_last_fuse(char *text, size_t text_bytes);

#endif
