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

/* name, and the function in control.c that prints it; NULL: the engine does, efs_describe() */
#define EFSD_CONTROL_FILES(X)                                                                                          \
    X(version, render_version)                                                                                         \
    X(config, render_config)                                                                                           \
    X(stat, render_stat)                                                                                               \
    X(pools, render_pools)                                                                                             \
    X(experts, render_experts)                                                                                         \
    X(plan, NULL)                                                                                                      \
    X(profile, NULL)                                                                                                   \
    X(want, render_want)                                                                                               \
    X(trace, NULL) /* binary */                                                                                        \
    X(metrics, efsd_render_metrics)                                                                                    \
    X(handout, render_handout)                                                                                         \
    X(hint, render_hint)                                                                                               \
    X(predict, NULL)                                                                                                   \
    X(recent, efsd_render_recent)                                                                                      \
    X(clients, render_clients)                                                                                         \
    X(log, render_log)                                                                                                 \
    X(readers, render_readers)                                                                                         \
    X(tensors, render_tensors)                                                                                         \
    X(layers, NULL)

enum efsd_control {
#define EFSD_CONTROL_NUMBER(name, render) EFSD_CONTROL_##name,
    EFSD_CONTROL_FILES(EFSD_CONTROL_NUMBER)
#undef EFSD_CONTROL_NUMBER
        EFSD_CONTROL_COUNT
};
#define EFSD_CONTROL_DIRECTORY ".expertfs"
const char *efsd_control_name(enum efsd_control file);
/* Generates the file's text, to be freed by the caller. 0 or -ENOMEM. */
errint_t efsd_control_render(struct efsd *daemon, enum efsd_control file, char **text, size_t *bytes);

#define EFSD_POOLS "FCSEM"                                /* pools of efs_pool_info() */
void efsd_render_metrics(struct efsd *daemon, FILE *out); /* control_metrics.c */

#endif
