/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the files below .expertfs.
 *
 * control/ answers the files of .expertfs/ and the extended attributes, and submits the requests and hints that are
 * written to .expertfs/want and .expertfs/hint. fuse/, export/ and expertfs/serve.c call it. It never reads the bytes
 * of an expert and never waits for a request.
 */
#ifndef EFSD_CONTROL_H
#define EFSD_CONTROL_H

#include <stdio.h>

#include "expertfs.h"

struct efsd;

enum efsd_control {
    EFSD_CONTROL_VERSION,
    EFSD_CONTROL_CONFIG,
    EFSD_CONTROL_STAT,
    EFSD_CONTROL_POOLS,
    EFSD_CONTROL_EXPERTS,
    EFSD_CONTROL_PLAN,
    EFSD_CONTROL_PROFILE,
    EFSD_CONTROL_WANT,
    EFSD_CONTROL_SCHED,
    EFSD_CONTROL_TRACE,
    EFSD_CONTROL_METRICS,
    EFSD_CONTROL_HANDOUT,
    EFSD_CONTROL_HINT,
    EFSD_CONTROL_PREDICT,
    EFSD_CONTROL_RECENT,
    EFSD_CONTROL_CLIENTS,
    EFSD_CONTROL_LOG,
    EFSD_CONTROL_READERS,
    EFSD_CONTROL_TENSORS,
    EFSD_CONTROL_LAYERS,
    EFSD_CONTROL_COUNT
};
#define EFSD_CONTROL_DIRECTORY ".expertfs"
const char *efsd_control_name(enum efsd_control file);
/* Generates the file's text, to be freed by the caller. 0 or -ENOMEM. */
errint_t efsd_control_render(struct efsd *daemon, enum efsd_control file, char **text, size_t *bytes);

#define EFSD_POOLS "FCSEM"                                /* pools of efs_pool_info() */
void efsd_render_metrics(struct efsd *daemon, FILE *out); /* control_metrics.c */

#endif
