/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.c - lanes from top to bottom, time from left to right, an operation a box with its expert's number.
 */
#include "chart.h"

#include <errno.h>

#define WIDTH 1200.
#define LEFT 90.
#define ROW 22.
#define HEAD 30.

static const struct {
    const char *name, *colour;
} kinds[] = {[EFS_OP_READ_E] = {"read E-chunk", "#4e79a7"},
             [EFS_OP_READ_SM] = {"read SM-chunk", "#a0cbe8"},
             [EFS_OP_DECODE] = {"decode", "#f28e2b"},
             [EFS_OP_RECOVER] = {"recover", "#ffbe7d"},
             [EFS_OP_RUN] = {"run", "#59a14f"}};

/* The recovery stream is left out where the workers recover. */
static uint32_t chart_rows(const struct efs_graph *graph)
{
    return graph->workers + (graph->recovery == EFS_RECOVER_STREAM ? 3 : 2);
}

static uint32_t row_of_lane(const struct efs_graph *graph, uint32_t lane)
{
    return lane == graph->workers + 2 ? chart_rows(graph) - 1 : lane;
}

static double panel_height(const struct chart *chart)
{
    return HEAD + ROW * chart_rows(chart->graph) + 12;
}

static void svg_text(FILE *out, double x, double y, const char *anchor, const char *words)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, words);
}

static void lane_names(FILE *out, const struct efs_graph *graph, double top)
{
    char name[32];
    svg_text(out, LEFT - 6, top + 15, "end", "I/O");
    for (uint32_t l = 1; l <= graph->workers; l++) {
        snprintf(name, sizeof name, "worker %u", l);
        svg_text(out, LEFT - 6, top + l * ROW + 15, "end", name);
    }
    if (graph->recovery == EFS_RECOVER_STREAM)
        svg_text(out, LEFT - 6, top + (graph->workers + 1) * ROW + 15, "end", "recovery");
    svg_text(out, LEFT - 6, top + (chart_rows(graph) - 1) * ROW + 15, "end", "experts");
}

static void svg_panel(FILE *out, const struct chart *chart, double top, double per_ns)
{
    const struct efs_graph *graph = chart->graph;
    char title[200];
    snprintf(title, sizeof title, "%s: %.3f ms, %u blocks, I/O busy %.0f %%, workers %.0f %%", chart->title,
             (double)chart->result->makespan_ns / 1e6, chart->schedule->block_count,
             100 * efs_sim_utilisation(graph, chart->result, EFS_ON_IO),
             100 * efs_sim_utilisation(graph, chart->result, EFS_ON_WORKER));
    svg_text(out, LEFT, top + 20, "start", title);
    top += HEAD;
    lane_names(out, graph, top);
    for (uint32_t op = 0; op < graph->op_count; op++) {
        const struct efs_sim_op *t = &chart->times[op];
        uint32_t kind = graph->ops[op].kind;
        uint32_t expert = kind == EFS_OP_RUN ? graph->ops[op].task : graph->tasks[graph->ops[op].task].expert;
        double x = LEFT + (double)t->start_ns * per_ns, width = (double)(t->end_ns - t->start_ns) * per_ns;
        double y = top + row_of_lane(graph, t->lane) * ROW;
        if (width <= 0)
            continue;
        fprintf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\" stroke=\"#fff\"/>\n", x, y,
                width, ROW - 2, kinds[kind].colour);
        if (width > 9)
            fprintf(out, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%u</text>\n", x + width / 2, y + 15,
                    expert);
    }
}

static void svg_axis(FILE *out, double y, uint64_t end_ns, double per_ns)
{
    uint64_t step_ns = 1;
    while (end_ns / step_ns > 12)
        step_ns *= end_ns / step_ns > 60 ? 10 : end_ns / step_ns > 24 ? 5 : 2;
    for (uint64_t t = 0; t <= end_ns; t += step_ns) {
        char label[32];
        double x = LEFT + (double)t * per_ns;
        snprintf(label, sizeof label, "%g ms", (double)t / 1e6);
        fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, x, y);
        svg_text(out, x, y + 14, "middle", label);
    }
    for (uint32_t kind = 0; kind <= EFS_OP_RUN; kind++) {
        double x = LEFT + kind * 130.;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y + 24,
                kinds[kind].colour);
        svg_text(out, x + 18, y + 34, "start", kinds[kind].name);
    }
}

int chart_write(FILE *out, const struct chart *charts, uint32_t count)
{
    double height = 0;
    uint64_t end_ns = 1;
    for (uint32_t i = 0; i < count; i++) {
        height += panel_height(&charts[i]);
        end_ns = charts[i].result->makespan_ns > end_ns ? charts[i].result->makespan_ns : end_ns;
    }
    double per_ns = (WIDTH - LEFT - 30) / (double)end_ns, top = 0;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height + 50);
    svg_axis(out, height, end_ns, per_ns);
    for (uint32_t i = 0; i < count; i++) {
        svg_panel(out, &charts[i], top, per_ns);
        top += panel_height(&charts[i]);
    }
    fprintf(out, "</svg>\n");
    return ferror(out) ? -EIO : 0;
}
