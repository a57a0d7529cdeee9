/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - see progress.h. */
#include "progress.h"

#include "expertfs-clock-private.h"
#include "interrupt.h"
#include "size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_SECONDS 5.0
#define TERMINAL_SECONDS 0.5
#define CLEAR "\r\033[K" /* ECMA-48: erase to the end of the line */

void tools_progress_init(struct tools_progress *p, bool quiet)
{
    const char *kind = getenv("TERM");
    *p = (struct tools_progress){.quiet = quiet,
                                 .terminal = isatty(STDERR_FILENO) && kind && strcmp(kind, "dumb") != 0,
                                 .last = efs_now_seconds()};
}

static const char *amount(const struct tools_progress *p, uint64_t n, char *text, size_t room)
{
    if (!p->unit)
        return tools_size_print(n, text, room);
    snprintf(text, room, "%llu %s", (unsigned long long)n, p->unit);
    return text;
}

bool tools_progress_report(void *arg, uint64_t done, uint64_t total, const char *phase)
{
    struct tools_progress *p = arg;
    double now = efs_now_seconds();
    if (!p->phase || strcmp(p->phase, phase) != 0) {
        p->phase = phase;
        p->began = p->printed = p->last;       /* the end of the previous phase */
        p->began_at = done < total ? 0 : done; /* a sync phase starts with done == total */
    }
    p->last = now;
    bool in_place = p->terminal && !p->unit;
    if (!p->quiet && now - p->printed >= (in_place ? TERMINAL_SECONDS : LINE_SECONDS)) {
        char is[32], all[32], speed[32], left[16] = "?";
        double rate = done > p->began_at ? (double)(done - p->began_at) / (now - p->began) : 0;
        p->printed = now;
        /* The rate of the first bytes gave 33 hours: threads start, folders are made. */
        bool known = now - p->began >= LINE_SECONDS || done - p->began_at >= total / 50;
        if (rate > 0 && total >= done && known)
            tools_duration_print((double)(total - done) / rate, left, sizeof(left));
        p->shown = in_place;
        fprintf(stderr, "%s%s: %s of %s (%.0f%%), %s/s, %s left%s", in_place ? CLEAR : "", phase,
                amount(p, done, is, sizeof(is)), amount(p, total, all, sizeof(all)),
                total && done < total ? 100 * (double)done / (double)total : 100.0,
                amount(p, (uint64_t)rate, speed, sizeof(speed)), left, in_place ? "" : "\n");
    }
    return tools_interrupted();
}

void tools_progress_clear(struct tools_progress *p)
{
    if (p->shown)
        fputs(CLEAR, stderr);
    p->shown = false;
}
