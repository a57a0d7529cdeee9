/* SPDX-License-Identifier: Apache-2.0 */
/* gantt_write.c - a chart as trace events in JSON, and as a picture by gnuplot. */
#include "gantt.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static const char *const colours[TOOLS_OPERATION_KINDS] = {"#4e79a7", "#a0cbe8", "#f28e2b"};

/* Reads above, then workers, as they were numbered. */
static uint32_t lane_row(const struct tools_operations *g, uint32_t lane)
{
    uint32_t row = 0;
    for (uint32_t l = 0; l < g->lanes; l++)
        row += g->lane[l].reads != g->lane[lane].reads ? g->lane[l].reads : l < lane;
    return row;
}

void gantt_write_json(const struct tools_operations *g, FILE *out)
{
    uint64_t start = g->operations[0].begin_ns;
    fprintf(out, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n");
    for (uint32_t l = 0; l < g->lanes; l++)
        fprintf(out,
                "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %" PRIu32
                ", \"args\": {\"name\": \"%s\"}},\n",
                lane_row(g, l), g->lane[l].name);
    for (size_t i = 0; i < g->count; i++) {
        const struct tools_operation *o = &g->operations[i];
        fprintf(out,
                "{\"name\": \"%s %s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": %" PRIu32
                ", \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"expert\": \"%s\", \"unit\": %" PRIu32
                ", \"shard\": %" PRIu32 ", \"thread\": %" PRId32 "}}%s\n",
                tools_operation_names[o->kind], o->expert, tools_operation_names[o->kind], lane_row(g, o->lane),
                (double)(o->begin_ns - start) / 1e3, (double)(o->end_ns - o->begin_ns) / 1e3, o->expert, o->unit,
                o->shard, o->thread, i + 1 < g->count ? "," : "");
    }
    fprintf(out, "]}\n");
}

/* In single quotes of gnuplot. */
static void print_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++)
        fputs(*text == '\'' ? "''" : (char[2]){*text, '\0'}, out);
    fputc('\'', out);
}

static void gantt_write_boxes(const struct tools_operations *g, FILE *out, uint64_t start,
                              enum tools_operation_kind kind)
{
    fprintf(out, "$%s << EOD\n0 -9 0 0 -9 -9\n", tools_operation_names[kind]); /* one out of sight: never empty */
    for (size_t i = 0; i < g->count; i++) {
        const struct tools_operation *o = &g->operations[i];
        double row = lane_row(g, o->lane), begin = (double)(o->begin_ns - start) / 1e6,
               end = (double)(o->end_ns - start) / 1e6;
        if (o->kind == kind)
            fprintf(out, "%.6f %g %.6f %.6f %g %g\n", begin, row, begin, end, row - 0.4, row + 0.4);
    }
    fprintf(out, "EOD\n");
}

/* Numbers of experts, where a box has room for one. */
static void gantt_write_labels(const struct tools_operations *g, FILE *out, uint64_t start, uint64_t length)
{
    fprintf(out, "$labels << EOD\n0 -9 \"\"\n");
    for (size_t i = 0; i < g->count; i++) {
        const struct tools_operation *o = &g->operations[i];
        const char *slash = strrchr(o->expert, '/');
        if (o->end_ns - o->begin_ns > length / 45)
            fprintf(out, "%.6f %" PRIu32 " \"%s\"\n", (double)(o->begin_ns + o->end_ns - 2 * start) / 2e6,
                    lane_row(g, o->lane), slash ? slash + 1 : o->expert);
    }
    fprintf(out, "EOD\n");
}

static void gantt_write_script(const struct tools_operations *g, const char *terminal, const char *path, FILE *out)
{
    uint64_t start = g->operations[0].begin_ns, end = start + 1;
    for (size_t i = 0; i < g->count; i++)
        end = g->operations[i].end_ns > end ? g->operations[i].end_ns : end;
    fprintf(out, "set terminal %s size 1200,%" PRIu32 " background 'white'\nset output ",
            strcmp(terminal, "svg") == 0 ? "svg dynamic" : "pngcairo", 140 + 26 * g->lanes);
    print_quoted(out, path);
    fprintf(out,
            "\nset title 'Reads and decodes of experts'\nset xlabel 'ms'\nset xrange [0:%.6f]\n"
            "set yrange [%g:-0.6]\nset style fill solid 1 noborder\nset key outside top center horizontal\n"
            "set grid xtics\nset ytics (",
            (double)(end - start) / 1e6, g->lanes - 0.4);
    for (uint32_t l = 0; l < g->lanes; l++)
        fprintf(out, "%s'%s' %" PRIu32, l ? ", " : "", g->lane[l].name, lane_row(g, l));
    fprintf(out, ")\n");
    for (enum tools_operation_kind k = 0; k < TOOLS_OPERATION_KINDS; k++)
        gantt_write_boxes(g, out, start, k);
    gantt_write_labels(g, out, start, end - start);
    fprintf(out, "plot ");
    for (enum tools_operation_kind k = 0; k < TOOLS_OPERATION_KINDS; k++)
        fprintf(out, "$%s using 1:2:3:4:5:6 with boxxyerror linecolor '%s' title '%s' noenhanced, ",
                tools_operation_names[k], colours[k], tools_operation_names[k]);
    fprintf(out, "$labels using 1:2:3 with labels font ',8' notitle\n");
}

errint_t gantt_draw(const struct tools_operations *g, const char *terminal, const char *path, struct efs_error *err)
{
    signal(SIGPIPE, SIG_IGN); /* a gnuplot that is not there, or that ends, tells it by its status */
    FILE *out = popen("command -v gnuplot >/dev/null || exit 127; exec gnuplot", "we");
    if (!out)
        return efs_fail(err, -errno, "gnuplot: %s", strerror(errno));
    gantt_write_script(g, terminal, path, out);
    int status = pclose(out);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return efs_fail(err, -ENOENT, "gnuplot is not installed; -o FILE.json needs none");
    return status == 0 ? 0 : efs_fail(err, -EIO, "gnuplot failed on %s", path);
}
