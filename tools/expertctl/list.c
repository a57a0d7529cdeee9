/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - expertctl list: all mounts of expertfs, a line each. */
#include "expertctl.h"
#include "failure.h"
#include "lines.h"
#include "mountpoint.h"
#include "size.h"
#include "top_sample.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_SECONDS 5 /* until a mount does not answer */

enum { OPT_JSON = 256 };

static const struct argp_option options[] = {{"json", OPT_JSON, NULL, 0, "Print JSON", 0}, {0}};

static error_t list_parse(int key, char *value, struct argp_state *state)
{
    bool *json = state->input;
    switch (key) {
    case OPT_JSON:
        *json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\": it lists all mounts and takes none; of one, `expertctl get` and `top` tell", value);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* How often experts were asked for and found in a pool; of M: not found. */
static uint64_t pool_found(const struct top_sample *s, size_t pool)
{
    return TOP_POOLS[pool] == 'M' ? s->pools[pool].misses : s->pools[pool].hits;
}

static uint64_t sample_asked(const struct top_sample *s)
{
    uint64_t asked = 0;
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++)
        asked += pool_found(s, p);
    return asked;
}

static uint64_t sample_held_bytes(const struct top_sample *s)
{
    return top_number(s->stat, "fixed_bytes") + top_number(s->stat, "chunk_pool_bytes") +
           top_number(s->stat, "full_pool_bytes");
}

/* What can be had of the budget; a daemon of before, which does not tell, takes all for that. */
static uint64_t sample_effective_bytes(const struct top_sample *s)
{
    uint64_t bytes = top_number(s->stat, "effective_budget_bytes");
    return bytes ? bytes : top_number(s->stat, "budget_bytes");
}

static void row_print(const char *mount, const struct top_sample *s)
{
    char source[16], store[16], budget[16], held[16];
    uint64_t budget_bytes = sample_effective_bytes(s), held_bytes = sample_held_bytes(s), asked = sample_asked(s);
    printf("%8s %8s %8s %8s %4.0f %8llu",
           tools_size_print(top_number(s->config, "source_bytes"), source, sizeof(source)),
           tools_size_print(top_number(s->config, "store_bytes"), store, sizeof(store)),
           tools_size_print(budget_bytes, budget, sizeof(budget)), tools_size_print(held_bytes, held, sizeof(held)),
           budget_bytes ? 100 * (double)held_bytes / (double)budget_bytes : 0.0, (unsigned long long)asked);
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++)
        if (asked)
            printf(" %3.0f", 100 * (double)pool_found(s, p) / (double)asked);
        else
            printf(" %3s", "-");
    putchar(' ');
    for (; *mount; mount++) /* a line stays a line */
        putchar((unsigned char)*mount < ' ' ? '?' : *mount);
    putchar('\n');
}

static json_t *row_to_json(const char *mount, const struct top_sample *s)
{
    char store[4200], path[32];
    top_text(s->config, "store", store, sizeof(store));
    tools_line_unescape(store);
    json_t *row = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "mount", ctl_json_text(mount), "store",
                            ctl_json_text(store), "serving_path",
                            ctl_json_text(top_text(s->stat, "serving_path", path, sizeof(path))), "source_bytes",
                            (json_int_t)top_number(s->config, "source_bytes"), "store_bytes",
                            (json_int_t)top_number(s->config, "store_bytes"), "budget_bytes",
                            (json_int_t)top_number(s->stat, "budget_bytes"), "effective_budget_bytes",
                            (json_int_t)sample_effective_bytes(s), "used_bytes", (json_int_t)sample_held_bytes(s),
                            "asked", (json_int_t)sample_asked(s));
    json_t *found = json_object();
    if (!row || json_object_set_new(row, "found", found) < 0) {
        json_decref(row);
        return NULL;
    }
    for (size_t p = 0; p < sizeof(TOP_POOLS) - 1; p++)
        json_object_set_new(found, (char[]){TOP_POOLS[p], '\0'}, json_integer((json_int_t)pool_found(s, p)));
    return row;
}

/* ---- mounts that do not answer ---- */

struct glance {
    const char *root;
    struct top_sample sample;
    struct efs_error err;
    errint_t rc;
};

static void *glance_run(void *arg)
{
    struct glance *g = arg;
    g->rc = top_sample_glance(g->root, &g->sample, &g->err);
    return NULL;
}

/* A look at a mount, which is given up when its daemon is stopped or stuck: its thread stays in the kernel, with what
 * is its own, until this process ends. */
static errint_t glance_take(const char *root, struct top_sample *sample, struct efs_error *err)
{
    struct timespec until;
    pthread_t thread;
    struct glance *g = calloc(1, sizeof(*g));
    if (!g)
        return efs_fail(err, -ENOMEM, "no memory");
    g->root = root;
    if (pthread_create(&thread, NULL, glance_run, g) != 0) {
        free(g);
        return efs_fail(err, -EAGAIN, "%s: no thread to look at it", root);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ANSWER_SECONDS;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0)
        return efs_fail(err, -ETIMEDOUT, "%s: does not answer: its daemon is stopped, or waits for its disk", root);
    errint_t rc = g->rc;
    *sample = g->sample;
    if (rc == -EACCES)
        efs_fail(err, rc, "%s: of another user, who mounted it without -o allow_other", root);
    else
        *err = g->err;
    free(g);
    return rc;
}

static int list_all(bool json)
{
    struct ctl_mounts mounts;
    struct efs_error err = {""};
    int status = CTL_OK;
    errint_t rc = ctl_mounts_find(&mounts, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    json_t *rows = json ? json_array() : NULL;
    if (!json && mounts.count)
        printf("%8s %8s %8s %8s %4s %8s %3s %3s %3s %3s %3s %s\n", "FILES", "STORE", "BUDGET", "USED", "USE%", "ASKED",
               "F%", "C%", "S%", "E%", "M%", "MOUNT");
    for (size_t i = 0; i < mounts.count; i++) {
        struct top_sample sample;
        rc = glance_take(mounts.paths[i], &sample, &err);
        if (rc < 0 && !ctl_mount_is_there(mounts.paths[i], mounts.ids[i]))
            continue; /* it was unmounted meanwhile */
        if (rc == -ENODEV) {
            fprintf(stderr, "expertctl: %s\n", err.text);
        } else if (rc < 0) {
            fflush(stdout);
            status = ctl_fail(rc, &err);
        } else if (json) {
            if (json_array_append_new(rows, row_to_json(mounts.paths[i], &sample)) < 0)
                status = CTL_FAILED;
        } else {
            row_print(mounts.paths[i], &sample);
        }
        if (rc == 0)
            top_sample_free(&sample);
    }
    if (!json && !mounts.count)
        fprintf(stderr, "expertctl: there is no mount of expertfs\n");
    if (status == CTL_OK)
        ctl_mounts_free(&mounts); /* else a thread may still have one of the names */
    int printed = json ? ctl_print_json(rows) : CTL_OK;
    return status == CTL_OK ? printed : status;
}

/* What a daemon has taken and does not answer keeps the thread that asked, even one that is killed, and with it its
 * process: this one only waits for what comes of the other, which then keeps nothing that others wait for. */
static int list_in_child(bool json)
{
    int told[2];
    pid_t parent = getpid(), child;
    unsigned char status = CTL_FAILED;
    if (pipe2(told, O_CLOEXEC) < 0 || (child = fork()) < 0) {
        fprintf(stderr, "expertctl: no process to look at mounts: %s\n", strerror(errno));
        return CTL_FAILED;
    }
    if (child == 0) {
        signal(SIGINT, SIG_IGN); /* the other one tells of it, and takes this one along */
        told[1] = dup2(told[1], STDERR_FILENO + 1);
        closefrom(STDERR_FILENO + 2); /* a lock that it was called with would be held for as long as this one is kept */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent) {
            status = (unsigned char)list_all(json);
            if (tools_end_output("expertctl") != EXIT_SUCCESS)
                status = CTL_FAILED;
            close(STDOUT_FILENO);
            close(STDERR_FILENO);
        }
        _exit(write(told[1], &status, 1) == 1 ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(told[1]);
    ssize_t n;
    int ended = 0;
    while ((n = read(told[0], &status, 1)) < 0 && errno == EINTR)
        ;
    close(told[0]);
    /* it ends where all mounts answered, or has ended: whoever would inherit it may not reap */
    if ((status == CTL_OK || n == 0) && waitpid(child, &ended, 0) == child && n == 0 && WIFSIGNALED(ended))
        raise(WTERMSIG(ended));
    return status;
}

static int list_run(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = list_parse,
        .doc = "List all mounts of expertfs: sizes of their files and of the store, what can be had of the budget and "
               "what "
               "is held, how many experts were asked for, and the part of these that was found full in memory (F), "
               "coded (C), "
               "with one of two components there (S, E), or missing (M).\vA mount that does not answer is told on "
               "standard error; the exit status is 1 then."};
    bool json = false;
    argp_parse(&argp, argc, argv, 0, NULL, &json);
    return list_in_child(json);
}

const struct ctl_command ctl_list = {"list", "list all mounts: budget, use, hits", list_run};
