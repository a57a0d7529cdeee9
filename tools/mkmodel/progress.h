/* progress.h - a bar on a terminal, a line at the end. */
#ifndef MKMODEL_PROGRESS_H
#define MKMODEL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct mk_progress {
    uint64_t total, done;
    struct timespec begin;
    int shown; /* per mille on the screen; -1: nothing yet */
    bool quiet, terminal;
};

void mk_progress_begin(struct mk_progress *progress, uint64_t total, bool quiet);
/* A callback for struct mk_writer. */
void mk_progress_add(void *progress, uint64_t bytes);
/* Take the bar away; unless what is NULL, say what was made and how fast. */
void mk_progress_end(struct mk_progress *progress, const char *what);

#endif
