/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - expertctl run STORE|MNT -- PROGRAM...: runs a program with the ggml backend preloaded. The store is mounted
 * while the program runs if an argument contains {} or -o is given; otherwise the program opens it itself.
 */
#include "expertctl.h"
#include "expertfs-private.h"
#include "mountpoint.h"
#include "options.h"
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

/* Exit statuses as of env(1), timeout(1) and shells: 125 to 127 are failures before the program ran. */
enum { RUN_FAILED = 125, RUN_NOT_EXECUTABLE = 126, RUN_NOT_FOUND = 127, RUN_SIGNAL = 128 };

#define PLUGIN "libggml-expertfs.so"

struct run {
    struct tools_arguments given; /* STORE|MNT [--] PROGRAM [ARGUMENT...] */
    char *options;                /* of -o, joined */
    char **words;                 /* the program and its arguments, ended by NULL */
    char store[4096];             /* absolute; "": a mount was given */
    const char *root;             /* of the mount; NULL: no mount, the program opens the store */
    char *given_root;             /* of a mount given on the command line; owned */
    struct ctl_run_mount mount;
};

static void parse_mount_options(const struct argp_state *state, const struct tools_option *option, char *value,
                                void *into)
{
    struct run *r = into;
    char *joined;
    if (asprintf(&joined, "%s%s%s", r->options ? r->options : "", r->options ? "," : "", value) < 0)
        argp_error(state, "--%s: no memory", option->name);
    free(r->options);
    r->options = joined;
}

static void check_words(const struct argp_state *state, void *into)
{
    struct run *r = into;
    r->words = r->given.word + 1 + (strcmp(r->given.word[1], "--") == 0);
    if (!*r->words)
        argp_error(state, "PROGRAM is needed");
    for (char **word = r->words; *word; word++)
        if (strstr(*word, "{gguf}"))
            argp_error(state, "there is no {gguf} any more: {}/NAME is a file of the mount");
}

static const struct tools_option options[] = {
    {"options", 'o', "OPTIONS", "Options of the mount, as expertfs takes them; the store is mounted then in any case",
     TOOLS_CALL, .parse = parse_mount_options},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|MNT -- PROGRAM [ARGUMENT...]",
    .help = "Run PROGRAM on a store, or on a mount: llama.cpp computes on the experts as the store has them, and other "
            "programs read files. {} in its arguments is the path of the mount; a store is mounted while the program "
            "runs. Without {} and -o nothing is mounted: give the path of the GGUF file that was packed, and the "
            "backend takes the experts from STORE.\n\nexpertctl run model.efs -- llama-cli -m model.gguf\n"
            "expertctl run -o budget=8G model.efs -- llama-cli -m {}/model.gguf\vExit status: that of the program, 128 "
            "and the signal that ended it, 125 if it was not started, 126 "
            "and 127 if it could not be executed, or found.",
    .at = offsetof(struct run, given),
    .in_order = true,
    .finish = check_words};

static bool run_names_mount(const struct run *r)
{
    for (char **word = r->words; *word; word++)
        if (strstr(*word, "{}"))
            return true;
    return false;
}

/* A copy of word with each {} replaced by the path of the mount; the caller frees it. NULL: no memory. */
static char *word_expand(const char *word, const char *root)
{
    char *expanded = NULL;
    size_t bytes;
    FILE *to = open_memstream(&expanded, &bytes);
    for (const char *next; to && (next = strstr(word, "{}")); word = next + 2)
        fprintf(to, "%.*s%s", (int)(next - word), word, root);
    if (to)
        fputs(word, to);
    return to && fclose(to) == 0 ? expanded : NULL;
}

static errint_t run_expand(struct run *r, struct efs_error *err)
{
    for (char **word = r->words; r->root && *word; word++)
        if (!(*word = word_expand(*word, r->root))) /* the old word is in argv */
            return efs_fail(err, -ENOMEM, "no memory");
    return 0;
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

/* Resolves the mount or the store. Opens a store once, so that a damaged store is reported here and not by the program
 * or the daemon. */
static errint_t run_check_source(struct run *r, const char *source, struct efs_error *err)
{
    struct stat st;
    if (stat(source, &st) < 0)
        return efs_fail(err, -errno, "%s: %s%s", source, strerror(errno),
                        errno == ENOENT ? "\nhint: a store or a mount comes first, then the program" : "");
    if (S_ISDIR(st.st_mode)) {
        errint_t rc = ctl_mount_of(source, &r->given_root, err);
        if (rc == -ENODEV)
            efs_fail(err, rc,
                     "%s: neither a store nor a mount of expertfs\nhint: pack a checkpoint first: mkexpertfs %s "
                     "OUT.efs",
                     source, source);
        if (rc == 0 && r->options)
            rc = efs_fail(err, -EINVAL, "%s: mounted already, -o is for stores\nhint: `expertctl set` tunes a mount",
                          source);
        r->root = r->given_root;
        return rc;
    }
    struct efs_store *store;
    errint_t rc = efs_store_open(source, &store, err);
    if (rc < 0)
        return rc;
    efs_store_close(store);
    char *real;
    rc = efs_absolute_path(source, &real, err);
    if (rc == 0 && (size_t)snprintf(r->store, sizeof(r->store), "%s", real) >= sizeof(r->store))
        rc = efs_fail(err, -ENAMETOOLONG, "%s: %s", source, strerror(ENAMETOOLONG));
    free(real);
    return rc;
}

static int run_run(int argc, char **argv)
{
    struct run r = {.mount = {.life = -1}};
    struct efs_error err = {""};
    int status = RUN_FAILED;
    tools_parse(&command, argc, argv, &r);
    errint_t rc = run_check_source(&r, r.given.word[0], &err);
    if (rc == 0 && !r.root && (r.options || run_names_mount(&r))) {
        rc = ctl_run_mount_begin(&r.mount, r.store, r.options, &err);
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
    free(r.given_root);
    free(r.options);
    return status;
}

const struct ctl_command ctl_run = {"run", "run a program, such as llama.cpp, on a store or a mount", run_run};
