/* SPDX-License-Identifier: Apache-2.0 */
/* draw.c - what all pictures share. */
#include "draw.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

errint_t replay_draw_directory(const char *directory, struct efs_error *err)
{
    return mkdir(directory, 0777) != 0 && errno != EEXIST ? efs_fail(err, -errno, "%s: %s", directory, strerror(errno))
                                                          : 0;
}

errint_t replay_draw_create(const char *directory, const char *name, FILE **out, struct efs_error *err)
{
    char path[4096];
    *out = NULL;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, name) >= sizeof(path))
        errno = ENAMETOOLONG;
    else
        *out = fopen(path, "we");
    return *out ? 0 : efs_fail(err, -errno, "%s/%s: %s", directory, name, strerror(errno));
}

errint_t replay_draw_finish(FILE *out, const char *directory, errint_t rc, struct efs_error *err)
{
    if (!out)
        return rc;
    bool bad = ferror(out);
    if (fclose(out) != 0 || bad)
        return rc < 0 ? rc : efs_fail(err, -EIO, "%s: writing failed: %s", directory, strerror(errno));
    return rc;
}

void replay_draw_quotable(const char *name, char *out, size_t room)
{
    size_t used = 0;
    for (; *name && used + 1 < room; name++)
        out[used++] = *name;
    out[used] = '\0';
    for (char *p = out; (p = strchr(p, '\''));)
        *p = ' ';
}

void replay_draw_colours(FILE *out)
{
    static const char *const colours[] = {"#1b4f9c", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2b8",
                                          "#8c564b", "#555555", "#e377c2", "#a0a000", "#6baed6", "#000000",
                                          "#98df8a", "#f4a582", "#c5b0d5", "#00695c"};
    const unsigned count = sizeof(colours) / sizeof(colours[0]);
    for (unsigned i = 0; i < count; i++)
        fprintf(out, "set linetype %u linecolor rgb '%s'\n", i + 1, colours[i]);
    fprintf(out, "set linetype cycle %u\n", count);
}

/* ..., 1, 1.5, 2, 3, 5, 7, 10, ...: the 0th is 1. */
static double draw_step(int n)
{
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    const int count = sizeof(steps) / sizeof(steps[0]);
    int decade = n >= 0 ? n / count : -((count - 1 - n) / count);
    return steps[n - decade * count] * pow(10, decade);
}

void replay_draw_log_axis(FILE *out, double least, double most)
{
    if (!(least >= 1e-9 && most >= least && most <= 1e12))
        return;
    int first = -60, last;
    while (draw_step(first + 1) <= least)
        first++;
    for (last = first + 2; draw_step(last) < most;)
        last++;
    fprintf(out, "set logscale y\nset yrange [%g:%g]\nset ytics (", draw_step(first), draw_step(last));
    for (int n = first; n <= last; n++)
        fprintf(out, "%s%g", n > first ? ", " : "", draw_step(n));
    fprintf(out, ")\n");
}

errint_t replay_draw_run(const char *directory, const char *script, struct efs_error *err)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(directory) == 0)
            execlp("gnuplot", "gnuplot", script, (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return efs_fail(err, -errno, "gnuplot: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return efs_fail(err, -ENOENT, "gnuplot is not installed; %s has its script and data", directory);
    return status == 0 ? 0 : efs_fail(err, -EIO, "gnuplot failed on %s/%s", directory, script);
}
