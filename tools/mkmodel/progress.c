#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#define BAR 40

void mk_progress_begin(struct mk_progress *progress, uint64_t total, bool quiet)
{
    *progress = (struct mk_progress){.total = total, .shown = -1, .quiet = quiet, .terminal = isatty(STDERR_FILENO)};
    clock_gettime(CLOCK_MONOTONIC, &progress->begin);
}

static double seconds_since(const struct timespec *begin)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin->tv_sec) + (double)(now.tv_nsec - begin->tv_nsec) * 1e-9;
}

void mk_progress_add(void *arg, uint64_t bytes)
{
    static const char full[] = "########################################",
                      empty[] = "........................................";
    struct mk_progress *progress = arg;
    progress->done += bytes;
    int now = progress->total ? (int)((double)progress->done * 1000 / (double)progress->total) : 1000;
    if (progress->quiet || !progress->terminal || now == progress->shown)
        return;
    progress->shown = now;
    int filled = now * BAR / 1000;
    double seconds = seconds_since(&progress->begin);
    fprintf(stderr, "\r[%.*s%.*s] %3d %%  %.2f GB/s ", filled, full, BAR - filled, empty, now / 10,
            seconds > 0 ? (double)progress->done / seconds / 1e9 : 0.0);
}

void mk_progress_end(struct mk_progress *progress, const char *what)
{
    if (progress->shown >= 0)
        fprintf(stderr, "\r\033[K");
    double seconds = seconds_since(&progress->begin);
    if (what && !progress->quiet)
        fprintf(stderr, "%s: %.3f GB in %.1f s, %.2f GB/s\n", what, (double)progress->total / 1e9, seconds,
                seconds > 0 ? (double)progress->total / seconds / 1e9 : 0.0);
}
