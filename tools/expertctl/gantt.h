/* SPDX-License-Identifier: Apache-2.0 */
/* gantt.h - operations of a mount as a chart. */
#ifndef EXPERTCTL_GANTT_H
#define EXPERTCTL_GANTT_H

#include "operations.h"

#include <stdio.h>

/* Trace events for chrome://tracing and Perfetto. */
void gantt_write_json(const struct tools_operations *operations, FILE *out);
/* A picture by gnuplot: terminal "svg" or "png". -ENOENT: there is no gnuplot; -EIO: it failed. */
errint_t gantt_draw(const struct tools_operations *operations, const char *terminal, const char *path,
                    struct efs_error *err);

#endif
