/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h - a Gantt chart of a simulated request as SVG.
 */
#ifndef SCHEDCMP_CHART_H
#define SCHEDCMP_CHART_H

#include <stdio.h>

#include "schedule_simulate.h"

struct chart {
    const char *title;
    const struct efs_graph *graph;
    const struct efs_schedule *schedule;
    const struct efs_sim_op *times;
    const struct efs_sim_result *result;
};

/* Draw the charts below each other on one time axis. 0 or -errno. */
int chart_write(FILE *out, const struct chart *charts, uint32_t count);

#endif
