/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_limit.h - which messages the log takes, so that a disk that fails and is asked again and again does not fill it:
 * of each kind the first EFSD_LOG_LINES different lines, each once, until the caller sets it to 0 again. The others are
 * counted. Takes no memory beside itself and no lock: the caller has one.
 */
#ifndef EFSD_LOG_LIMIT_H
#define EFSD_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define EFSD_LOG_KINDS 32 /* more than there are formats of warnings and errors; the last is of all others */
#define EFSD_LOG_LINES 16

struct efsd_log_kind {
    const void *key; /* NULL: not in use */
    int priority;
    uint32_t told;
    uint64_t hashes[EFSD_LOG_LINES]; /* of the lines that were told */
    uint64_t left_out;
    char last[512]; /* left out, its begin */
};

struct efsd_log_limit { /* all 0: nothing was told */
    struct efsd_log_kind kinds[EFSD_LOG_KINDS];
};

/* Whether this line is told. key: what is the same address for all lines of a kind, such as their format. */
bool efsd_log_limit_take(struct efsd_log_limit *limit, const void *key, int priority, const char *line);
#endif
