/* SPDX-License-Identifier: Apache-2.0 */
/* top.c - expertctl top [MOUNT]: what a mount does, live, in a terminal or as text. */
#include "expertctl.h"
#include "clock.h"
#include "interrupt.h"
#include "mountpoint.h"
#include "size.h"
#include "surroundings.h"
#include "top_view.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define BATCH_EXPERTS 10u
enum { OPT_JSON = 256 };

struct arguments {
    const char *path;
    bool batch, json;
    uint64_t screens; /* 0: until interrupted */
    double seconds;
};

static const struct argp_option options[] = {
    {"batch", 'b', NULL, 0, "Print one screen after the other, as on a pipe", 0},
    {"json", OPT_JSON, NULL, 0, "Print an object of JSON on a line for each screen", 0},
    {"delay", 'd', "SECONDS", 0, "Between two screens, 0.1 to 3600 (2)", 0},
    {"number", 'n', "N", 0, "End after N screens", 0},
    {0},
};

static error_t top_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'b':
        a->batch = true;
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case 'd':
        if (!tools_decimal_parse(value, 0.1, 3600, &a->seconds))
            argp_error(state, "--delay %s: seconds from 0.1 to 3600", value);
        return 0;
    case 'n':
        if (!tools_number_parse(value, 1, UINT32_MAX, &a->screens))
            argp_error(state, "--number %s: not a number from 1 on", value);
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "one mount at a time");
        a->path = value;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the terminal ---- */

static volatile sig_atomic_t resized, stopping; /* a signal handler has nowhere else to put it */

static void on_signal(int number)
{
    *(number == SIGWINCH ? &resized : &stopping) = 1;
}

struct screen {
    bool terminal; /* else lines are printed one after the other */
    bool json;
    bool keys;              /* the keyboard is ours */
    unsigned rows, columns; /* 0: not of a terminal */
    struct termios before;
};

static void screen_measure(struct screen *s)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col;
    s->rows = known ? size.ws_row : 24;
    s->columns = known ? size.ws_col : 80;
    resized = 0;
}

static void screen_open(struct screen *s)
{
    if (!s->terminal)
        return;
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal; /* no SA_RESTART: it ends ppoll() */
    sigaction(SIGWINCH, &action, NULL);
    if (sigaction(SIGTSTP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* no shell that has jobs */
        sigaction(SIGTSTP, &action, NULL);
    s->keys = tcgetattr(STDIN_FILENO, &s->before) == 0;
    if (s->keys) {
        struct termios raw = s->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* Ctrl-C stays a signal */
        s->keys = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    fputs("\033[?1049h", stdout); /* the other screen */
    screen_measure(s);
}

static void screen_close(struct screen *s)
{
    if (!s->terminal)
        return;
    if (s->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &s->before);
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
}

/* Stop as Ctrl-Z asks: the shell gets the terminal as it was, and what it left is made again behind `fg`. */
static void screen_stop(struct screen *s)
{
    sigset_t stop, before;
    stopping = 0;
    screen_close(s);
    signal(SIGTSTP, SIG_DFL);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, &before); /* here it stops */
    sigprocmask(SIG_SETMASK, &before, NULL);
    screen_open(s);
    resized = 1;
}

/* Text of top_view() onto the screen: lines are cut at its edge. */
static void screen_show(const struct screen *s, char *text)
{
    static const char keys[] = "q ends, space shows the next screen now";
    unsigned row = 0, rows = s->keys && s->rows > TOP_VIEW_LINES ? s->rows - 1 : s->rows;
    if (s->terminal)
        fputs("\033[H", stdout);
    for (char *line; (line = strsep(&text, "\n")) && (text || *line);) {
        bool head = *line == '\1';
        line += head;
        if (!s->terminal) {
            puts(line);
        } else if (row++ < rows) {
            /* cleared first: behind a full line the cursor is still on its last letter */
            printf("%s\033[K%s%.*s%s", row > 1 ? "\n" : "", head ? "\033[7m" : "", (int)s->columns, line,
                   head ? "\033[0m" : "");
        }
    }
    if (s->terminal && row < rows)
        fputs("\n\033[J", stdout);
    if (s->terminal && rows < s->rows) { /* in the last line */
        for (row += row < rows; row < rows; row++)
            putchar('\n');
        printf("\n\033[K%.*s", (int)s->columns, keys);
    }
    if (s->terminal)
        fputs("\033[?25l", stdout);
    fflush(stdout);
}

/* ---- the loop ---- */

static errint_t json_update(const char *root, const struct top_sample *before, const struct top_sample *now,
                            struct efs_error *err)
{
    json_t *json = top_view_json(root, before, now, BATCH_EXPERTS);
    bool printed = json && json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10)) == 0;
    json_decref(json);
    putchar('\n');
    return printed && fflush(stdout) == 0 ? 0 : efs_fail(err, -EIO, "standard output: JSON was not written");
}

static errint_t screen_update(const struct screen *s, const char *root, const struct top_sample *before,
                              const struct top_sample *now, struct efs_error *err)
{
    char *text = NULL;
    size_t bytes = 0, rows = BATCH_EXPERTS;
    if (s->json)
        return json_update(root, before, now, err);
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return efs_fail(err, -ENOMEM, "no memory for a screen");
    if (s->rows)
        rows = s->rows > TOP_VIEW_LINES + 1 ? s->rows - TOP_VIEW_LINES - 1 : 0; /* the last line tells the keys */
    top_view(out, root, before, now, rows);
    if (fclose(out) == 0 && text)
        screen_show(s, text);
    free(text);
    return ferror(stdout) ? efs_fail(err, -EIO, "standard output: %s", strerror(errno)) : 0;
}

/* Wait that long for a key or a signal; the key, or 0. */
static char screen_wait_for_key(const struct screen *s, const sigset_t *unblocked, double seconds)
{
    struct pollfd keyboard = {.fd = s->keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    char key = 0;
    if (ppoll(&keyboard, 1, &time, unblocked) > 0 && read(STDIN_FILENO, &key, 1) != 1)
        key = 'q'; /* the terminal is gone */
    return key;
}

/* Wait for the next screen. false: the user has seen enough. */
static bool screen_wait_for_next(struct screen *s, const char *root, const struct top_sample *before,
                                 const struct top_sample *now, double seconds)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP};
    sigset_t blocked, unblocked; /* so that none comes between a look at its mark and the wait */
    double end = tools_now_s() + seconds, left = seconds;
    char key = 0;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaddset(&blocked, signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &unblocked);
    while (left > 0 && !tools_interrupted() && key != 'q' && key != ' ') {
        if (s->terminal && stopping)
            screen_stop(s);
        if (s->terminal && resized) {
            struct efs_error err;
            screen_measure(s);
            fputs("\033[2J", stdout);
            screen_update(s, root, before, now, &err);
        }
        key = screen_wait_for_key(s, &unblocked, left);
        left = end - tools_now_s();
    }
    sigprocmask(SIG_SETMASK, &unblocked, NULL);
    return !tools_interrupted() && key != 'q';
}

static errint_t top_loop(const struct arguments *a, struct screen *s, const char *root, struct efs_error *err)
{
    struct top_sample samples[2] = {{.seconds = 0}}, *before = NULL, *now = &samples[0];
    errint_t rc = 0;
    for (uint64_t n = 1;; n++) {
        rc = top_sample_take(root, before, now, err);
        if (rc == 0)
            rc = screen_update(s, root, before, now, err);
        if (rc == 0 && n == a->screens && s->terminal) { /* the last one stays */
            screen_close(s);
            s->terminal = false;
            rc = screen_update(s, root, before, now, err);
        }
        if (rc < 0 || n == a->screens || !screen_wait_for_next(s, root, before, now, a->seconds))
            break;
        if (!s->terminal && !s->json)
            putchar('\n');
        struct top_sample *older = before ? before : &samples[1];
        before = now;
        now = older;
        top_sample_free(now);
    }
    top_sample_free(&samples[0]);
    top_sample_free(&samples[1]);
    return rc;
}

static int top_run(int argc, char **argv)
{
    const struct argp argp = {.options = options,
                              .parser = top_parse,
                              .args_doc = "[MOUNT]",
                              .doc = "Show what a mount does: pools, rates, the experts that are asked for most. Rates "
                                     "of the first screen are those since it was mounted.\vq ends it, space shows the "
                                     "next screen now."};
    struct arguments a = {.seconds = 2};
    struct efs_error err = {""};
    char *root;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = a.path ? ctl_mount_of(a.path, &root, &err) : ctl_mount_only(&root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    struct screen screen = {.terminal = !a.batch && !a.json && tools_terminal(STDOUT_FILENO), .json = a.json};
    tools_interrupt_catch();
    screen_open(&screen);
    rc = top_loop(&a, &screen, root, &err);
    screen_close(&screen);
    free(root);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_top = {"top", "show what a mount does, live", top_run};
