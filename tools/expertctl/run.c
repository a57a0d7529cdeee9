/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - see run.h. */
#include "run.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "gguf_models.h"
#include "mountpoint.h"
#include "run_ggml.h"
#include "run_mount.h"
#include "run_plain.h"
#include "run_values.h"
#include "size.h"

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

enum way {
    WAY_PLAIN,  /* the program reads the plain files; no backend */
    WAY_STORE,  /* the backend opens the source in the program */
    WAY_MOUNT,  /* a mount of the source, in a temporary folder */
    WAY_MOUNTED /* a mount that was given */
};

struct run {
    const struct ctl_run *given;
    enum way way;
    bool plain_file; /* the plain files are one file, or named by a part */
    char **words;
    char root[sizeof(((struct ctl_run_mount *)NULL)->path)]; /* the folder of the files that the program reads; "": it
                                                                opens them by names of its own */
    char gguf[4096];                                         /* path of the GGUF file in it, if a word has {gguf} */
    char plugin[4096];                                       /* the backend; "": not installed */
    struct ctl_run_plain plain; /* of the GGUF file on the mount, which the program reads in its place; "": none */
    bool fits;                  /* these files fit into memory: the program runs on them without the backend */
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

/* Finds the GGUF file in the folder. */
static errint_t gguf_find(struct run *r, struct efs_error *err)
{
    struct ctl_paths models;
    char names[400] = "";
    if (r->way <= WAY_STORE && r->plain_file) {
        snprintf(r->gguf, sizeof(r->gguf), "%s", r->given->plain);
        ctl_gguf_first_part(r->gguf);
        return 0;
    }
    errint_t rc = ctl_gguf_models(r->root, NULL, NULL, &models, err);
    for (size_t i = 0; i < models.count; i++)
        ctl_list_add(names, sizeof(names), models.path[i] + strlen(r->root) + 1);
    if (rc == 0 && models.count == 0)
        rc = efs_fail(err, -ENOENT, "{gguf}: the model has no GGUF file\nhint: {} is its folder");
    else if (rc == 0 && models.count > 1)
        rc = efs_fail(err, -E2BIG, "{gguf}: the model has several GGUF files: %s\nhint: write {}/NAME", names);
    else if (rc == 0)
        snprintf(r->gguf, sizeof(r->gguf), "%s", models.path[0]);
    ctl_paths_free(&models);
    return rc;
}

/* Takes the plain file in place of that of the mount: it fits into memory, or the backend takes experts from the mount.
 */
static void gguf_use_plain(struct run *r)
{
    const bool found = ctl_run_plain_find(r->root, r->gguf, &r->plain);
    const struct ctl_run plain = {.plain = r->plain.file, .bytes = r->plain.bytes};
    r->fits = found && ctl_run_is_plain(&plain);
    if (r->fits || (found && *r->plugin))
        strcpy(r->gguf, r->plain.file);
    else
        r->plain.file[0] = '\0';
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
    const bool named = *r->root && run_has(r, "{gguf}");
    errint_t rc = named ? gguf_find(r, err) : 0;
    if (rc == 0 && named && r->way == WAY_MOUNTED)
        gguf_use_plain(r);
    for (char **word = r->words; rc == 0 && *r->root && *word; word++)
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

/* Whether llama.cpp could run the model. */
static bool has_gguf(const char *root)
{
    struct ctl_paths models;
    struct efs_error err;
    bool has = ctl_gguf_models(root, NULL, NULL, &models, &err) == 0 && models.count > 0;
    ctl_paths_free(&models);
    return has;
}

static errint_t run_environment(const struct run *r, struct efs_error *err)
{
    const bool mounted = r->way >= WAY_MOUNT;
    unsetenv("EXPERTFS_STORE");
    unsetenv("EXPERTFS_MOUNT");
    unsetenv("EXPERTFS_MOUNT_STORE");
    if (r->fits)
        setenv("EXPERTFS_MOUNT", r->root, 1);
    if (r->fits || r->way == WAY_PLAIN)
        return 0;
    errint_t rc = *r->plugin ? ctl_run_check_ggml(r->words[0], r->plugin, mounted, err) : 0;
    if (rc < 0)
        return rc;
    if (*r->plugin)
        environment_backend(r->plugin);
    else if (!mounted)
        return efs_fail(err, -ENOENT,
                        PLUGIN ": not installed; it opens the store in the program\nhint: write {}/NAME in an argument "
                               "to mount the store instead, or install the backend: expertfs-ggml(7)");
    else if (has_gguf(r->root))
        fprintf(stderr, "expertctl: note: " PLUGIN " is not installed: llama.cpp reads experts from the mount's files\n"
                        "hint: expertfs-ggml(7) says how to install it\n");
    /* Else the backend leaves what fits into memory to ggml: options may set the memory for experts, all of an address
     * would be fetched, and of plain files it was decided, and printed, that they do not fit. */
    if (r->given->options || efs_is_address(r->given->source) || (r->way == WAY_STORE && r->given->plain) ||
        *r->plain.file)
        setenv("EXPERTFS_BUDGET", "auto", 0);
    setenv(mounted ? "EXPERTFS_MOUNT" : "EXPERTFS_STORE", mounted ? r->root : r->given->source, 1);
    if (*r->plain.file)
        setenv("EXPERTFS_MOUNT_STORE", r->plain.store, 1);
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

/* Whether EXPERTFS_DEVICE takes experts to a device: expertfs-ggml(7). */
static bool device_is_named(void)
{
    const char *device = getenv("EXPERTFS_DEVICE");
    return device && *device && strcmp(device, "none") != 0 && strcmp(device, "auto") != 0;
}

bool ctl_run_is_plain(const struct ctl_run *run)
{
    const char *budget = getenv("EXPERTFS_BUDGET");
    return run->plain && !run->options && !(budget && *budget) && !device_is_named() && efs_fits_memory(run->bytes);
}

/* Whether only the options keep the program from the plain files, which are faster. */
static bool options_are_why(const struct ctl_run *run)
{
    struct ctl_run without = *run;
    without.options = NULL;
    return run->options && ctl_run_is_plain(&without);
}

/* The folder of the plain files. */
static void plain_folder(struct run *r)
{
    snprintf(r->root, sizeof(r->root), "%s", r->given->plain);
    char *slash = r->plain_file ? strrchr(r->root, '/') : NULL;
    if (slash)
        *slash = '\0';
}

/* Whether the plain files are GGUF files. */
static bool plain_is_gguf(const struct run *r)
{
    return r->plain_file || (r->given->plain && has_gguf(r->given->plain));
}

static void print_plain(const struct run *r, uint64_t bytes)
{
    char size[16], available[16];
    struct efs_memory memory;
    efs_memory(&memory);
    ctl_print_line(stderr, "expertctl: %s runs on the plain files: they fit, %s of %s that are available", r->words[0],
                   tools_size_print(bytes, size, sizeof(size)),
                   tools_size_print(memory.available_bytes, available, sizeof(available)));
    if (getenv("EXPERTFS_PEERS"))
        fputs("expertctl: EXPERTFS_PEERS is not used on plain files\n"
              "hint: with EXPERTFS_BUDGET=auto experts come from a store, and products from peers\n",
              stderr);
}

/* unless: words on when the experts are not taken; "": always. rest: the file with all else. */
static void print_experts(const struct run *r, const char *from, const char *unless, const char *rest,
                          const struct ctl_run_memory *known)
{
    char experts[16], bytes[16];
    struct efs_memory memory = {.available_bytes = known->budget_bytes};
    if (known->budget_bytes == 0)
        efs_memory(&memory);
    tools_size_print(known->expert_bytes, experts, sizeof(experts));
    tools_size_print(memory.available_bytes, bytes, sizeof(bytes));
    ctl_print_line(stderr, "expertctl: %s takes experts from %s%s, all else from %s: %s of experts, %s%s", r->words[0],
                   from, unless, rest, experts, known->budget_bytes ? "a budget of " : bytes,
                   known->budget_bytes ? bytes : " of memory are available");
}

/* Chooses the way and prepares it: mounts the source, or finds the folder of the plain files. */
static errint_t run_choose(struct run *r, struct efs_error *err)
{
    const struct ctl_run *given = r->given;
    const bool placed = run_has(r, "{gguf}") || run_has(r, "{}");
    char source[4200];
    snprintf(source, sizeof(source), "%s", given->source);
    efs_hide_secret(source);
    if (ctl_is_mount(given->source)) {
        r->way = WAY_MOUNTED;
        snprintf(r->root, sizeof(r->root), "%s", given->source);
        return given->options ? efs_fail(err, -EINVAL,
                                         "%s: mounted already, -o is for stores\nhint: `expertctl set` tunes a mount",
                                         given->source)
                              : 0;
    }
    if (given->fits) {
        r->way = WAY_PLAIN;
        plain_folder(r);
        print_plain(r, given->bytes);
        return 0;
    }
    r->way = given->options || (placed && !(*r->plugin && plain_is_gguf(r))) ? WAY_MOUNT : WAY_STORE;
    struct ctl_run_memory memory;
    errint_t rc = ctl_run_values_check_store(given->source, r->way == WAY_STORE, &memory, err);
    if (rc == 0 && r->way == WAY_STORE) {
        if (given->plain)
            plain_folder(r);
        const char *budget = getenv("EXPERTFS_BUDGET");
        const bool decided = given->plain || (budget && *budget) || device_is_named();
        print_experts(r, source, decided ? "" : " unless the model fits into memory",
                      given->plain ? given->plain : "the file that it opens", &memory);
    } else if (rc == 0 && (rc = ctl_run_mount_begin(&r->mount, given->source, given->options, err)) == 0) {
        snprintf(r->root, sizeof(r->root), "%s", r->mount.path);
        ctl_print_line(stderr, "expertctl: %s runs on a mount of %s", r->words[0], source);
        if (options_are_why(given))
            fprintf(stderr, "expertctl: note: the plain files fit into memory: without -o %s runs on them\n",
                    r->words[0]);
    }
    return rc;
}

/* The caller frees it. NULL: no memory, after a message. */
static struct run *run_new(const struct ctl_run *given)
{
    struct efs_error err = {""};
    struct stat st;
    struct run *r = calloc(1, sizeof(*r)); /* 34 KB */
    if (!r) {
        ctl_fail(-ENOMEM, &err);
        return NULL;
    }
    *r = (struct run){.given = given, .words = given->words, .mount = {.life = -1}};
    r->plain_file = given->plain && stat(given->plain, &st) == 0 && S_ISREG(st.st_mode);
    return r;
}

int ctl_run_check(const struct ctl_run *given)
{
    struct efs_error err = {""};
    struct run *r = run_new(given);
    if (!r)
        return RUN_FAILED;
    int status = 0;
    if (!ctl_find_program(r->words[0], r->gguf, sizeof(r->gguf))) {
        errno = ENOENT;
        status = RUN_NOT_FOUND;
    } else if (access(r->gguf, X_OK) < 0) {
        status = errno == ENOENT ? RUN_NOT_FOUND : RUN_NOT_EXECUTABLE;
    }
    if (status != 0) {
        fprintf(stderr, "expertctl: %s: %s\n", r->words[0], strerror(errno));
    } else if (given->plain && run_has(r, "{gguf}")) {
        plain_folder(r);
        status = gguf_find(r, &err) < 0 ? RUN_FAILED : 0;
        if (status != 0)
            ctl_fail(-ENOENT, &err);
    }
    free(r);
    return status;
}

int ctl_run_program(const struct ctl_run *given)
{
    struct efs_error err = {""};
    struct run *r = run_new(given);
    int status = RUN_FAILED;
    if (!r)
        return RUN_FAILED;
    if (!plugin_find(r->plugin, sizeof(r->plugin)))
        r->plugin[0] = '\0';
    errint_t rc = run_choose(r, &err);
    if (rc == 0)
        rc = run_expand(r, &err);
    if (rc == 0)
        rc = run_environment(r, &err);
    if (rc == 0 && r->fits)
        print_plain(r, r->plain.bytes);
    else if (rc == 0 && *r->plain.file)
        print_experts(r, r->root, "", r->plain.file, &r->plain.memory);
    if (rc == 0)
        status = program_run(r);
    else
        ctl_fail(rc, &err);
    ctl_run_mount_end(&r->mount);
    free(r);
    return status;
}
