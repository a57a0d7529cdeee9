/* SPDX-License-Identifier: Apache-2.0 */
/* log_recent.h - the latest messages, in memory, for .expertfs/log. Process-wide, like syslog(3). Any thread. */
#ifndef EFSD_LOG_RECENT_H
#define EFSD_LOG_RECENT_H

#include <stdio.h>

#define EFSD_LOG_RECENT_BYTES (64u << 10)

/* Writes one message as a line of a log file: "2026-11-26T20:32:35Z warning: TEXT", with a newline, and with a hint on
 * the same line. priority: of syslog(3). Truncates to room. Returns the bytes without the NUL. */
size_t efsd_log_format(int priority, const char *text, char *line, size_t room);
/* Adds a message. The oldest ones are dropped when EFSD_LOG_RECENT_BYTES are used. */
void efsd_log_recent_add(int priority, const char *text);
/* Prints the messages, oldest first. */
void efsd_log_recent_print(FILE *out);

#endif
