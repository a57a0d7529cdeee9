/* SPDX-License-Identifier: Apache-2.0 */
/* log_limit.c - see log_limit.h. */
#include "log_limit.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static struct efsd_log_kind *log_kind_find(struct efsd_log_limit *limit, const void *key, int priority)
{
    struct efsd_log_kind *kind = limit->kinds;
    struct efsd_log_kind *last = kind + EFSD_LOG_KINDS - 1;
    while (kind < last && kind->key && (kind->key != key || kind->priority != priority))
        kind++;
    if (!kind->key) {
        kind->key = key;
        kind->priority = priority;
    }
    return kind;
}

bool efsd_log_limit_take(struct efsd_log_limit *limit, const void *key, int priority, const char *line)
{
    struct efsd_log_kind *kind = log_kind_find(limit, key, priority);
    uint64_t hash = XXH3_64bits(line, strlen(line));
    bool take = kind->told < EFSD_LOG_LINES;
    for (uint32_t i = 0; take && i < kind->told; i++)
        take = kind->hashes[i] != hash;
    if (take) {
        kind->hashes[kind->told++] = hash;
    } else {
        kind->left_out++;
        snprintf(kind->last, sizeof(kind->last), "%s", line);
    }
    return take;
}
