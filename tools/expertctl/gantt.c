/* SPDX-License-Identifier: Apache-2.0 */
/* gantt.c - expertctl gantt MOUNT|FILE: when experts were read and decoded, as a chart. */
#include "gantt.h"

#include "expertctl.h"
#include "mountpoint.h"
#include "size.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct arguments {
    const char *path, *output;
    uint64_t last_ns;
};

static error_t gantt_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'o':
        a->output = value;
        return 0;
    case 'l': {
        double ms = 0;
        if (!tools_decimal_parse(value, 0, 1e9, &ms) || ms == 0)
            argp_error(state, "--last %s: milliseconds, up to 1000000000", value);
        a->last_ns = (uint64_t)(ms * 1e6);
        return 0;
    }
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            return ARGP_ERR_UNKNOWN;
        a->path = value;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "a mount, or a copy of its .expertfs/sched, is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static errint_t gantt_write_to(const struct tools_operations *gantt, const char *path, struct efs_error *err)
{
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *out = to_stdout ? stdout : fopen(path, "we");
    if (!out)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    gantt_write_json(gantt, out);
    bool bad = ferror(out);
    if ((to_stdout ? fflush(out) : fclose(out)) != 0 || bad)
        return efs_fail(err, -EIO, "%s: writing failed: %s", path, strerror(errno));
    return 0;
}

static int gantt_run(int argc, char **argv)
{
    const struct argp_option options[] = {
        {"output", 'o', "FILE", 0, "FILE.json (trace events), FILE.svg or FILE.png (by gnuplot); -: JSON (-)", 0},
        {"last", 'l', "MS", 0, "Only what ended in the last MS milliseconds that there are", 0},
        {NULL, 0, NULL, 0, NULL, 0}};
    const struct argp argp = {.options = options,
                              .parser = gantt_parse,
                              .args_doc = "MOUNT|FILE",
                              .doc = "Chart when experts were read and decoded: the latest of a mount, or of a copy of "
                                     "its .expertfs/sched."};
    struct arguments a = {.output = "-"};
    struct efs_error err = {""};
    struct tools_operations gantt;
    struct stat st;
    char path[4200];
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    bool svg = ends_in(a.output, ".svg"), png = ends_in(a.output, ".png");
    if (!svg && !png && strcmp(a.output, "-") != 0 && !ends_in(a.output, ".json")) {
        fprintf(stderr, "expertctl: -o %s: FILE.json, FILE.svg, FILE.png or -\n", a.output);
        return CTL_USAGE;
    }
    bool directory = stat(a.path, &st) == 0 && S_ISDIR(st.st_mode);
    char *root = NULL;
    errint_t rc = directory ? ctl_mount_of(a.path, &root, &err) : 0;
    if (rc == 0 && (size_t)snprintf(path, sizeof(path), "%s%s", directory ? root : a.path,
                                    directory ? "/.expertfs/sched" : "") >= sizeof(path))
        rc = efs_fail(&err, -ENAMETOOLONG, "%s: %s", a.path, strerror(ENAMETOOLONG));
    free(root);
    if (rc == 0)
        rc = tools_operations_read(path, a.last_ns, &gantt, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    rc = svg || png ? gantt_draw(&gantt, svg ? "svg" : "png", a.output, &err) : gantt_write_to(&gantt, a.output, &err);
    tools_operations_free(&gantt);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_gantt = {"gantt", "chart when experts were read and decoded", gantt_run};
