/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - see run.h. */
#include "run.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "gguf_models.h"
#include "mountpoint.h"
#include "run_ggml.h"
#include "run_mount.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLUGIN "libggml-expertfs.so"

struct run {
    const char *options; /* of -o; NULL: none */
    char **words;        /* the program and its arguments, ended by NULL */
    const char *store;   /* NULL: a mount was given */
    const char *root;    /* of the mount; NULL: no mount, the program opens the store */
    char gguf[4096];     /* path of the GGUF file of the mount, if a word has {gguf} */
    struct ctl_run_mount mount;
};

static bool run_has(const struct run *r, const char *placeholder)
{
    for (char **word = r->words; *word; word++)
        if (strstr(*word, placeholder))
            return true;
    return false;
}

/* ---- placeholders ---- */

/* Finds the GGUF file of the mount. */
static errint_t gguf_find(struct run *r, struct efs_error *err)
{
    struct ctl_gguf_models models;
    char names[400] = "";
    errint_t rc = ctl_gguf_models(r->root, NULL, NULL, &models, err);
    for (size_t i = 0; i < models.count; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "", models.path[i] + strlen(r->root) + 1);
    }
    if (rc == 0 && models.count == 0)
        rc = efs_fail(err, -ENOENT, "{gguf}: the model has no GGUF file\nhint: {} is its folder");
    else if (rc == 0 && models.count > 1)
        rc = efs_fail(err, -E2BIG, "{gguf}: the model has several GGUF files: %s\nhint: write {}/NAME", names);
    else if (rc == 0)
        snprintf(r->gguf, sizeof(r->gguf), "%s", models.path[0]);
    ctl_gguf_models_free(&models);
    return rc;
}

/* A copy of word with each {} and {gguf} replaced; the caller frees it. NULL: no memory. */
static char *word_expand(const struct run *r, const char *word)
{
    char *expanded = NULL;
    size_t bytes;
    FILE *to = open_memstream(&expanded, &bytes);
    while (to && *word) {
        bool folder = strncmp(word, "{}", 2) == 0, file = strncmp(word, "{gguf}", 6) == 0;
        if (folder || file)
            fputs(folder ? r->root : r->gguf, to);
        else
            fputc(*word, to);
        word += folder ? 2 : file ? 6 : 1;
    }
    return to && fclose(to) == 0 ? expanded : NULL;
}

static errint_t run_expand(struct run *r, struct efs_error *err)
{
    errint_t rc = r->root && run_has(r, "{gguf}") ? gguf_find(r, err) : 0;
    for (char **word = r->words; rc == 0 && r->root && *word; word++)
        if (!(*word = word_expand(r, *word))) /* the old word is in argv */
            rc = efs_fail(err, -ENOMEM, "no memory");
    return rc;
}

/* ---- environment of the program ---- */

/* Finds the ggml backend in this program's folder (build tree) or in ../lib, ../lib/TRIPLET or ../lib64 (installed). */
static bool plugin_find(char *path, size_t room)
{
    char folder[4096], pattern[4200];
    glob_t paths;
    if (!*ctl_program_folder(folder, sizeof(folder)))
        return false;
    snprintf(pattern, sizeof(pattern), "%s/{,../lib/,../lib/*/,../lib64/}" PLUGIN, folder);
    if (glob(pattern, GLOB_BRACE, NULL, &paths) != 0)
        return false;
    char *real = realpath(paths.gl_pathv[0], NULL);
    bool found = real && (size_t)snprintf(path, room, "%s", real) < room;
    free(real);
    globfree(&paths);
    return found;
}

static void environment_prepend(const char *name, const char *value)
{
    const char *before = getenv(name);
    char *joined = NULL;
    if (before && *before && asprintf(&joined, "%s:%s", value, before) > 0)
        setenv(name, joined, 1);
    else
        setenv(name, value, 1);
    free(joined);
}

/*
 * A ggml built with GGML_BACKEND_DL loads the backend from GGML_BACKEND_PATH; one with the CPU backend linked in
 * ignores the variable and needs LD_PRELOAD. If both apply, the library is loaded once. Blanks and colons separate
 * names in LD_PRELOAD, so for a path with a blank the folder is added to LD_LIBRARY_PATH; a path with a colon cannot be
 * preloaded.
 */
static void environment_backend(const char *plugin)
{
    char *folder = strchr(plugin, ' ') ? strdup(plugin) : NULL;
    if (folder) {
        *strrchr(folder, '/') = '\0';
        environment_prepend("LD_LIBRARY_PATH", folder);
    }
    if (strchr(plugin, ':'))
        fprintf(stderr, "expertctl: %s: a path with a colon cannot be preloaded\n", plugin);
    else
        environment_prepend("LD_PRELOAD", folder ? PLUGIN : plugin);
    free(folder);
    setenv("GGML_BACKEND_PATH", plugin, 0);
}

static errint_t run_environment(const struct run *r, struct efs_error *err)
{
    char plugin[4096];
    bool found = plugin_find(plugin, sizeof(plugin));
    errint_t rc = found ? ctl_run_check_ggml(r->words[0], plugin, r->root != NULL, err) : 0;
    if (rc < 0)
        return rc;
    if (found)
        environment_backend(plugin);
    else if (!r->root)
        return efs_fail(err, -ENOENT,
                        PLUGIN ": not installed; it opens the store in the program\nhint: write {}/NAME in an argument "
                               "to mount the store instead, or install the backend: expertfs-ggml(7)");
    else
        fprintf(stderr,
                "expertctl: note: " PLUGIN " is not installed: llama.cpp reads experts from the mount's files\n");
    unsetenv(r->root ? "EXPERTFS_STORE" : "EXPERTFS_MOUNT");
    setenv(r->root ? "EXPERTFS_MOUNT" : "EXPERTFS_STORE", r->root ? r->root : r->store, 1);
    return 0;
}

/* ---- the program ---- */

static volatile sig_atomic_t program; /* its pid, for the signal handler */

static void pass_on(int number)
{
    kill(program, number);
}

/*
 * Waits for the program and returns its status as a shell computes it. The terminal sends SIGINT and SIGQUIT to the
 * program as well, so this process ignores them; it forwards the other signals. They are blocked until `program` is
 * set.
 */
static int program_wait(pid_t pid, const sigset_t *mask, const int *signals, size_t count)
{
    struct sigaction action = {.sa_handler = pass_on};
    int status;
    program = pid;
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    for (size_t i = 0; i < count; i++)
        sigaction(signals[i], &action, NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    while (waitpid(pid, &status, 0) < 0) {
        if (errno == EINTR)
            continue;
        fprintf(stderr, "expertctl: cannot wait for the program: %s\n", strerror(errno));
        return RUN_FAILED; /* PR_SET_PDEATHSIG kills the program when this process exits */
    }
    for (size_t i = 0; i < count; i++)
        signal(signals[i], SIG_IGN); /* the kernel may have reused the pid */
    return WIFSIGNALED(status) ? RUN_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static int program_run(const struct run *r)
{
    static const int signals[] = {SIGHUP, SIGTERM, SIGUSR1, SIGUSR2};
    const size_t count = sizeof(signals) / sizeof(signals[0]);
    sigset_t blocked, mask;
    sigemptyset(&blocked);
    for (size_t i = 0; i < count; i++)
        sigaddset(&blocked, signals[i]);
    signal(SIGCHLD, SIG_DFL); /* if the caller ignores it, waitpid() returns no status */
    sigprocmask(SIG_BLOCK, &blocked, &mask);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        fprintf(stderr, "expertctl: fork: %s\n", strerror(errno));
    if (pid != 0)
        return pid < 0 ? RUN_FAILED : program_wait(pid, &mask, signals, count);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the mount ends with the parent */
    if (getppid() != parent)
        _exit(RUN_FAILED);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    execvp(r->words[0], r->words);
    fprintf(stderr, "expertctl: %s: %s\n", r->words[0], strerror(errno));
    _exit(errno == ENOENT ? RUN_NOT_FOUND : RUN_NOT_EXECUTABLE);
}

/* ---- the command ---- */

/* Opens a store once, so that a damaged store is reported here and not by the program or the daemon. */
static errint_t run_check_source(struct run *r, const char *source, struct efs_error *err)
{
    struct efs_store *store;
    if (ctl_is_mount(source)) {
        r->root = source;
        return r->options
                   ? efs_fail(err, -EINVAL,
                              "%s: mounted already, -o is for stores\nhint: `expertctl set` tunes a mount", source)
                   : 0;
    }
    errint_t rc = efs_store_open(source, &store, err);
    if (rc < 0)
        return rc;
    efs_store_close(store);
    r->store = source;
    return 0;
}

int ctl_run_program(const char *source, const char *options, char **words)
{
    struct run r = {.options = options, .words = words, .mount = {.life = -1}};
    struct efs_error err = {""};
    int status = RUN_FAILED;
    errint_t rc = run_check_source(&r, source, &err);
    if (rc == 0 && !r.root && (options || run_has(&r, "{}") || run_has(&r, "{gguf}"))) {
        rc = ctl_run_mount_begin(&r.mount, r.store, options, &err);
        r.root = r.mount.path;
    }
    if (rc == 0)
        rc = run_expand(&r, &err);
    if (rc == 0)
        rc = run_environment(&r, &err);
    if (rc == 0)
        status = program_run(&r);
    else
        ctl_fail(rc, &err);
    ctl_run_mount_end(&r.mount);
    return status;
}
