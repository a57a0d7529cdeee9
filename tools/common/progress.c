/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - a bar, or lines. */
#include "progress.h"

#include "clock.h"
#include "interrupt.h"
#include "size.h"
#include "surroundings.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LINE_SECONDS 5.0 /* between lines when stderr is no terminal */
#define BAR_COLUMNS_MAX 40
#define ECHO_COLUMNS 2 /* for the ^C of who interrupts: a line that wraps cannot be drawn again */

void tools_progress_init(struct tools_progress *p, bool quiet)
{
    *p = (struct tools_progress){.quiet = quiet, .terminal = tools_terminal(STDERR_FILENO), .last = tools_now_s()};
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

struct state {
    double part, rate; /* of 1; bytes a second */
    char done[32], total[32], speed[32], left[16];
};

static void print_amount(const struct tools_progress *p, uint64_t amount, char *text, size_t room)
{
    if (p->unit)
        snprintf(text, room, "%llu %s", (unsigned long long)amount, p->unit);
    else
        tools_size_print(amount, text, room);
}

static void state_describe(const struct tools_progress *p, uint64_t done, uint64_t total, double now, struct state *s)
{
    double elapsed = now - p->began;
    uint64_t moved = done > p->began_bytes ? done - p->began_bytes : 0;
    s->part = total ? (double)done / (double)total : 1;
    if (s->part > 1)
        s->part = 1;
    s->rate = elapsed > 0 ? (double)moved / elapsed : 0;
    if (p->unit)
        snprintf(s->done, sizeof(s->done), "%llu", (unsigned long long)done);
    else
        tools_size_print(done, s->done, sizeof(s->done));
    print_amount(p, total, s->total, sizeof(s->total));
    print_amount(p, (uint64_t)s->rate, s->speed, sizeof(s->speed));
    if (s->rate > 0 && total >= done)
        tools_duration_print((double)(total - done) / s->rate, s->left, sizeof(s->left));
    else
        snprintf(s->left, sizeof(s->left), "?");
}

static void draw_bar(const struct state *s, const char *phase)
{
    char line[256];
    int text = s->part < 1 ? snprintf(line, sizeof(line), "%s %3.0f%% of %s, %10s/s, %6s left", phase, 100 * s->part,
                                      s->total, s->speed, s->left)
                           : snprintf(line, sizeof(line), "%s %s", phase, s->total);
    int columns = terminal_columns() - 1 - ECHO_COLUMNS, room = columns - text - 3;
    int bar = room > BAR_COLUMNS_MAX ? BAR_COLUMNS_MAX : room;
    fputs("\r\033[K", stderr);
    if (bar >= 8) {
        int full = (int)(s->part * bar);
        fputc('[', stderr);
        for (int i = 0; i < bar; i++)
            fputc(i < full ? '#' : '.', stderr);
        fputs("] ", stderr);
    }
    fprintf(stderr, "%.*s", columns > 0 ? columns : 0, line);
    fflush(stderr);
}

/* Where the line is another's, who types on it. */
static bool in_background(void)
{
    pid_t front = tcgetpgrp(STDERR_FILENO);
    return front >= 0 && front != getpgrp();
}

bool tools_progress_tell(void *arg, uint64_t done, uint64_t total, const char *phase)
{
    struct tools_progress *p = arg;
    double now = tools_now_s();
    if (!p->phase || strcmp(p->phase, phase) != 0) {
        p->phase = phase;
        p->began = p->told = p->last;             /* the end of what came before */
        p->began_bytes = done < total ? 0 : done; /* the syncing moves nothing */
    }
    p->last = now;
    if (!p->quiet && (p->terminal || now - p->told >= LINE_SECONDS)) {
        struct state s;
        state_describe(p, done, total, now, &s);
        p->told = now;
        if (p->terminal) {
            p->drawn = !in_background();
            if (p->drawn)
                draw_bar(&s, phase);
        } else {
            fprintf(stderr, "%s: %s of %s (%.0f%%), %s/s, %s left\n", phase, s.done, s.total, 100 * s.part, s.speed,
                    s.left);
        }
    }
    return tools_interrupted();
}

void tools_progress_clear(struct tools_progress *p)
{
    if (p->drawn && !in_background())
        fputs("\r\033[K", stderr);
    p->drawn = false;
}
