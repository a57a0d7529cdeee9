/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot.c - runs as pictures, by gnuplot: tpot.svg, time per token over the budget, and hits.svg, where experts
 * were found. The script and its data stay beside them, to be drawn in another way.
 */
#include "draw.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0

/* "mmap, batch 4": the title of a line. */
static void title_of(const struct replay_report *report, const struct replay_run_record *run, char *title, size_t room)
{
    char name[64];
    replay_run_name(report, run, name, sizeof(name));
    snprintf(title, room, "%s, batch %u", name, run->batch);
}

static bool is_first(const struct replay_report *report, size_t i)
{
    char title[96], other[96];
    title_of(report, &report->runs[i], title, sizeof(title));
    for (size_t j = 0; j < i; j++) {
        title_of(report, &report->runs[j], other, sizeof(other));
        if (strcmp(title, other) == 0)
            return false;
    }
    return true;
}

/* A block of lines "budget GiB, median ms, p99 ms" for each title, in the order of the runs. */
static errint_t write_times(const struct replay_report *report, const char *directory, struct efs_error *err)
{
    FILE *out;
    char title[96], other[96];
    if (replay_draw_create(directory, "tpot.tsv", &out, err) < 0)
        return -EIO;
    fprintf(out, "# budget GiB\tTPOT ms, median\tTPOT ms, p99\n");
    for (size_t i = 0; i < report->count; i++) {
        if (!is_first(report, i))
            continue;
        title_of(report, &report->runs[i], title, sizeof(title));
        fprintf(out, "# %s\n", title);
        for (size_t j = i; j < report->count; j++) {
            const struct replay_run_record *run = &report->runs[j];
            title_of(report, run, other, sizeof(other));
            if (strcmp(title, other) == 0)
                fprintf(out, "%.6f\t%.6f\t%.6f\n", (double)run->budget_bytes / GIB,
                        (double)run->result.tpot_ns_median / 1e6, (double)run->result.tpot_ns_p99 / 1e6);
        }
        fprintf(out, "\n\n");
    }
    return replay_draw_finish(out, directory, 0, err);
}

/* A line for each run: its name, shares of those found full, coded, in S, in E and missing, in percent. */
static errint_t write_hits(const struct replay_report *report, const char *directory, struct efs_error *err)
{
    FILE *out;
    char title[96];
    if (replay_draw_create(directory, "hits.tsv", &out, err) < 0)
        return -EIO;
    fprintf(out, "run\tF: full\tC: coded\tS: signs, mantissas\tE: exponents\tM: missing\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        double sum = 0;
        for (unsigned p = 0; p <= EFS_POOLS; p++)
            sum += (double)run->result.all.hits[p];
        title_of(report, run, title, sizeof(title));
        fprintf(out, "\"%s, %s\"", title, report->budgets[run->budget]);
        for (unsigned p = 0; p <= EFS_POOLS; p++)
            fprintf(out, "\t%.3f", sum > 0 ? 100 * (double)run->result.all.hits[p] / sum : 0);
        fprintf(out, "\n");
    }
    return replay_draw_finish(out, directory, 0, err);
}

/* Time per token over the budget: a line for each run's name and batch size. */
static void script_times(const struct replay_report *report, const char *trace, FILE *out)
{
    char title[96];
    double least = 0, most = 0;
    unsigned block = 0;
    for (size_t i = 0; i < report->count; i++) {
        double ms = (double)report->runs[i].result.tpot_ns_median / 1e6;
        least = ms > 0 && (!(least > 0) || ms < least) ? ms : least;
        most = ms > most ? ms : most;
    }
    fprintf(out,
            "set terminal svg size 1000,600 dynamic background 'white'\nset output 'tpot.svg'\n"
            "set title 'Time per token over the budget, %s' noenhanced\n"
            "set xlabel 'budget: memory for experts'\nset ylabel 'ms per token after the first (TPOT, median)'\n"
            "set grid\nset key outside right top noenhanced\n",
            trace);
    replay_draw_log_axis(out, least, most);
    fprintf(out, "set xtics (");
    for (size_t i = 0; i < report->count; i++) {
        const char *budget = report->budgets[report->runs[i].budget];
        /* as a format: a percent sign is two */
        fprintf(out, "%s'%s%s' %.6f", i ? ", " : "", budget, strchr(budget, '%') ? "%" : "",
                (double)report->runs[i].budget_bytes / GIB);
    }
    fprintf(out, ")\nplot ");
    for (size_t i = 0; i < report->count; i++)
        if (is_first(report, i)) {
            title_of(report, &report->runs[i], title, sizeof(title));
            fprintf(out, "%s'tpot.tsv' index %u using 1:2 with linespoints linetype %u pointtype %u%s title '%s'",
                    block ? ", \\\n     " : "", block, block + 1, block + 1,
                    report->runs[i].runner == REPLAY_SIMULATE && report->live ? " dashtype 2" : "", title);
            block++;
        }
}

/* Where experts were found: a column for each run, whose name stands upright below it. */
static void script_hits(const struct replay_report *report, const char *trace, FILE *out)
{
    char title[96];
    size_t longest = 0;
    for (size_t i = 0; i < report->count; i++) {
        title_of(report, &report->runs[i], title, sizeof(title));
        size_t length = strlen(title) + 2 + strlen(report->budgets[report->runs[i].budget]);
        longest = length > longest ? length : longest;
    }
    /* a letter of 12 points takes about 8 points along, a line 16 */
    fprintf(out,
            "\n\nreset\nset terminal svg size %u,%u dynamic background 'white'\nset output 'hits.svg'\n"
            "set title 'Where experts were found, %s' noenhanced\nset ylabel '%% of the experts asked for'\n"
            "set style data histograms\nset style histogram rowstacked\nset style fill solid 1 border -1\n"
            "set boxwidth 0.8\nset yrange [0:100]\nset xtics rotate by 90 right noenhanced\nset bmargin %u\n"
            "set datafile separator '\\t'\nset key outside right top\n"
            "array colours = ['#1b4f9c', '#2ca02c', '#9ecae1', '#ff7f0e', '#dddddd']\n"
            "plot for [c=2:6] 'hits.tsv' using c:xtic(1) linecolor rgb colours[c-1] title columnheader(c)\n",
            report->count > 20 ? (unsigned)report->count * 30 + 400 : 1000, 480 + (unsigned)longest * 8, trace,
            2 + (unsigned)longest / 2);
}

static errint_t write_script(const struct replay_report *report, const char *directory, struct efs_error *err)
{
    FILE *out;
    char trace[96];
    if (replay_draw_create(directory, "replay.gp", &out, err) < 0)
        return -EIO;
    replay_draw_quotable(report->trace, trace, sizeof(trace));
    replay_draw_colours(out);
    script_times(report, trace, out);
    script_hits(report, trace, out);
    return replay_draw_finish(out, directory, 0, err);
}

int replay_report_plot(const struct replay_report *report, const char *directory, struct efs_error *err)
{
    errint_t rc = replay_draw_directory(directory, err);
    if (rc < 0 || report->count == 0)
        return rc;
    rc = write_times(report, directory, err);
    if (rc == 0)
        rc = write_hits(report, directory, err);
    if (rc == 0)
        rc = write_script(report, directory, err);
    return rc == 0 ? replay_draw_run(directory, "replay.gp", err) : rc;
}
