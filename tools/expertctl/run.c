/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - expertctl run STORE|MOUNT PROGRAM...: a program on a store: mounted for it if it wants files, with the
 * backend of ggml before it, and nothing left when it has ended.
 */
#include "expertctl.h"
#include "model_config.h"
#include "mountpoint.h"
#include "run_mount.h"
#include "run_witness.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* As env(1), timeout(1) and shells have them: what went wrong before the program ran is told apart from its status. */
enum { RUN_FAILED = 125, RUN_NOT_EXECUTABLE = 126, RUN_NOT_FOUND = 127, RUN_SIGNAL = 128, EXIT_USAGE = 2 };

#define PLUGIN "libggml-expertfs.so"
#define GROUP_PAUSE_US 50000

/* What is passed on to the program. */
static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

struct run {
    const char *source;     /* as given */
    char *options, **words; /* of -o, joined; the program and its arguments */
    unsigned word_count;
    char store[4096]; /* absolute; "": a mount was given */
    const char *root; /* of the mount; NULL: there is none, the program opens the store */
    char *given_root; /* of a mount that was there; for free() */
    struct ctl_run_mount mount;
    sigset_t mask; /* before ours */
    int signal_fd;
};

static const struct argp_option options[] = {
    {"options", 'o', "OPTIONS", 0, "Options of the mount, as expertfs takes them; it is mounted then in any case", 0},
    {0}};

static error_t run_parse(int key, char *value, struct argp_state *state)
{
    struct run *r = state->input;
    char *joined;
    switch (key) {
    case 'o':
        if (asprintf(&joined, "%s%s%s", r->options ? r->options : "", r->options ? "," : "", value) < 0)
            return ENOMEM;
        free(r->options);
        r->options = joined;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) {
            r->source = value;
            return 0;
        }
        r->words = state->argv + state->next - 1; /* the rest is the program's, options, too */
        r->word_count = (unsigned)(state->argc - state->next + 1);
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        if (!r->words)
            argp_error(state, "a store or a mount, and a program are needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- arguments ---- */

static bool run_names_mount(const struct run *r)
{
    for (unsigned i = 0; i < r->word_count; i++)
        if (strstr(r->words[i], "{}") || strstr(r->words[i], "{gguf}"))
            return true;
    return false;
}

/* The GGUF file of the model in the mount, its first part; for free(). -ENOENT, -E2BIG: there is none, or more than
 * one. */
static errint_t gguf_find(const char *root, const char *source, char **path, struct efs_error *err)
{
    char *const roots[] = {(char *)(uintptr_t)root, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    errint_t rc = tree ? 0 : efs_fail(err, -errno, "%s: %s", root, strerror(errno));
    *path = NULL;
    for (FTSENT *at; rc == 0 && (at = fts_read(tree));) {
        if (at->fts_info == FTS_D && at->fts_level == 1 &&
            (strcmp(at->fts_name, "experts") == 0 || strcmp(at->fts_name, ".expertfs") == 0))
            fts_set(tree, at, FTS_SKIP);
        if (at->fts_info != FTS_F || !tools_gguf_file_is_model(at->fts_path))
            continue;
        if (*path)
            rc = efs_fail(err, -E2BIG, "{gguf}: there are %s and %s; write {}/NAME", *path, at->fts_path);
        else if (!(*path = strdup(at->fts_path)))
            rc = efs_fail(err, -ENOMEM, "no memory");
    }
    if (tree)
        fts_close(tree);
    if (rc == 0 && !*path)
        rc = efs_fail(err, -ENOENT, "{gguf}: %s has no GGUF file of a model", source);
    if (rc < 0) {
        free(*path);
        *path = NULL;
    }
    return rc;
}

/* The word with each {} and {gguf} filled in, for free(). */
static errint_t word_expand(const struct run *r, const char *word, char **expanded, char **gguf, struct efs_error *err)
{
    size_t bytes;
    errint_t rc = 0;
    FILE *to = open_memstream(expanded, &bytes);
    if (!to)
        return efs_fail(err, -ENOMEM, "no memory");
    while (*word && rc == 0) {
        if (strncmp(word, "{}", 2) == 0) {
            fputs(r->root, to);
            word += 2;
        } else if (strncmp(word, "{gguf}", 6) == 0) {
            if (!*gguf)
                rc = gguf_find(r->root, r->source, gguf, err);
            if (rc == 0)
                fputs(*gguf, to);
            word += 6;
        } else {
            putc(*word++, to);
        }
    }
    return fclose(to) == 0 || rc < 0 ? rc : efs_fail(err, -ENOMEM, "no memory");
}

static errint_t run_expand(struct run *r, struct efs_error *err)
{
    char *gguf = NULL;
    errint_t rc = 0;
    for (unsigned i = 0; i < r->word_count && rc == 0 && r->root; i++)
        rc = word_expand(r, r->words[i], &r->words[i], &gguf, err); /* what was there is argv's */
    free(gguf);
    return rc;
}

/* ---- what the program finds ---- */

/* The backend of ggml: beside this program, as built, or in the libraries beside its folder, as installed. */
static bool plugin_find(char *path, size_t room)
{
    static const char *const places[] = {"%s/" PLUGIN, "%s/../lib/" PLUGIN, "%s/../lib/*/" PLUGIN,
                                         "%s/../lib64/" PLUGIN};
    char folder[4096], pattern[4200];
    bool found = false;
    if (!*ctl_program_folder(folder, sizeof(folder)))
        return false;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !found; i++) {
        glob_t paths;
        snprintf(pattern, sizeof(pattern), places[i], folder); // NOLINT: one of those above
        if (glob(pattern, 0, NULL, &paths) != 0)
            continue;
        char *real = realpath(paths.gl_pathv[0], NULL);
        found = real && (size_t)snprintf(path, room, "%s", real) < room;
        free(real);
        globfree(&paths);
    }
    return found;
}

/* In front of what is there already. */
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
 * Programs whose ggml looks for backends find it by name; those that have the processor's inside do not look, and get
 * it preloaded. It comes once where both happen. In LD_PRELOAD blanks and colons stand between names: a path with a
 * blank goes by the folder in LD_LIBRARY_PATH.
 */
static void environment_backend(const char *plugin)
{
    if (strchr(plugin, ':')) {
        fprintf(stderr,
                "expertctl: %s: a path with a colon cannot be preloaded; programs that do not look for "
                "backends go on without it\n",
                plugin);
    } else if (strchr(plugin, ' ')) {
        char *folder = strdup(plugin);
        if (folder) {
            *strrchr(folder, '/') = '\0';
            environment_prepend("LD_LIBRARY_PATH", folder);
            environment_prepend("LD_PRELOAD", PLUGIN);
        }
        free(folder);
    } else {
        environment_prepend("LD_PRELOAD", plugin);
    }
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
                        "%s: " PLUGIN " is not installed, which would open it in the program; with {} in the "
                        "arguments, for the mount's path, it is mounted",
                        r->source);
    else
        fprintf(stderr, "expertctl: " PLUGIN " is not installed: llama.cpp reads experts from the mount's files\n");
    if (r->root) {
        unsetenv("EXPERTFS_STORE"); /* the mount is what was asked for */
        setenv("EXPERTFS_MOUNT", r->root, 1);
    } else {
        unsetenv("EXPERTFS_MOUNT");
        setenv("EXPERTFS_STORE", r->store, 1);
    }
    return 0;
}

/* ---- the program ---- */

static errint_t signals_take(struct run *r, struct efs_error *err)
{
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        sigaddset(&taken, passed[i]);
    signal(SIGCHLD, SIG_DFL); /* ignored, as some have it, there would be no status */
    sigprocmask(SIG_BLOCK, &taken, &r->mask);
    r->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC);
    return r->signal_fd < 0 ? efs_fail(err, -errno, "signalfd: %s", strerror(errno)) : 0;
}

/* The next signal for this process that may be one for the program, too; 0: none. */
static int signal_take(const struct run *r, pid_t program)
{
    struct signalfd_siginfo info;
    bool grouped = getpgid(program) == getpgrp();
    if (read(r->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info) || info.ssi_signo == SIGCHLD ||
        info.ssi_pid == (uint32_t)program)
        return 0;
    return info.ssi_code == SI_KERNEL && grouped ? 0 : (int)info.ssi_signo; /* of the terminal: it has it already */
}

/*
 * Pass on what is sent to this process, but not what was sent to the whole group: the program, which is in it, has that
 * already, and a second one makes many a program give up at once. Who sends to a process and then to its group, as
 * timeout(1) does, is waited for.
 */
static void signals_pass_on(const struct run *r, pid_t program, struct ctl_run_witness *witness, int first)
{
    struct pollfd more = {.fd = r->signal_fd, .events = POLLIN};
    bool grouped = getpgid(program) == getpgrp();
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, first);
    usleep(GROUP_PAUSE_US);
    while (poll(&more, 1, 0) > 0) {
        int number = signal_take(r, program);
        if (number)
            sigaddset(&taken, number);
    }
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
        if (sigismember(&taken, passed[i]) && !(grouped && ctl_run_witness_saw(witness, passed[i])))
            kill(program, passed[i]);
    ctl_run_witness_end(witness);
    ctl_run_witness_begin(witness);
}

/* Wait for the program, and pass signals on. Its status as a shell has it. */
static int program_wait(const struct run *r, pid_t program, struct ctl_run_witness *witness)
{
    for (;;) {
        int status, number;
        pid_t ended = waitpid(program, &status, WNOHANG);
        if (ended < 0) {
            fprintf(stderr, "expertctl: cannot wait for the program: %s\n", strerror(errno));
            return RUN_FAILED; /* the program is killed when this process ends */
        }
        if (ended == program)
            return WIFSIGNALED(status) ? RUN_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
        if ((number = signal_take(r, program)))
            signals_pass_on(r, program, witness, number);
    }
}

static int program_run(const struct run *r)
{
    struct ctl_run_witness witness;
    ctl_run_witness_begin(&witness);
    pid_t parent = getpid(), program = fork();
    int status = RUN_FAILED;
    if (program < 0)
        fprintf(stderr, "expertctl: fork: %s\n", strerror(errno));
    if (program > 0)
        status = program_wait(r, program, &witness);
    if (program != 0) {
        ctl_run_witness_end(&witness);
        return status;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* without us its files go */
    if (getppid() != parent)
        _exit(RUN_FAILED);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &r->mask, NULL);
    execvp(r->words[0], r->words);
    fprintf(stderr, "expertctl: %s: %s\n", r->words[0], strerror(errno));
    _exit(errno == ENOENT ? RUN_NOT_FOUND : RUN_NOT_EXECUTABLE);
}

/* ---- all of it ---- */

/* A mount, or a store, which is looked at now so that what is wrong with it is said here. */
static errint_t run_look(struct run *r, struct efs_error *err)
{
    struct stat st;
    if (stat(r->source, &st) < 0)
        return efs_fail(err, -errno, "%s: %s%s", r->source, strerror(errno),
                        errno == ENOENT ? "; a store or a mount comes first, then the program" : "");
    if (S_ISDIR(st.st_mode)) {
        errint_t rc = ctl_mount_of(r->source, &r->given_root, err);
        if (rc == -ENODEV)
            efs_fail(err, rc, "%s: neither a store nor a mount of expertfs", r->source);
        if (rc == 0 && r->options)
            rc = efs_fail(err, -EINVAL, "%s is mounted already: -o is for stores; `expertctl set` tunes a mount",
                          r->source);
        r->root = r->given_root;
        return rc;
    }
    struct efs_store *store;
    errint_t rc = efs_store_open(r->source, &store, err);
    if (rc < 0)
        return rc;
    efs_store_close(store);
    char *real = realpath(r->source, NULL);
    if (!real || (size_t)snprintf(r->store, sizeof(r->store), "%s", real) >= sizeof(r->store))
        rc = efs_fail(err, real ? -ENAMETOOLONG : -errno, "%s: %s", r->source, strerror(real ? ENAMETOOLONG : errno));
    free(real);
    if (rc == 0 && strchr(r->store, '\n'))
        rc = efs_fail(err, -EINVAL, "%s: a line end is in the path", r->store);
    return rc;
}

/* --budget=8G, --mlock: argp says only that it is not known, not where such options stand. */
static void refuse_options_of_others(int argc, char **argv)
{
    static const char *const ours[] = {"options", "help", "usage", "version"};
    for (int i = 1; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++) {
        size_t bytes = strcspn(argv[i], "=");
        bool known = argv[i][1] != '-'; /* a letter */
        for (size_t o = 0; o < sizeof(ours) / sizeof(ours[0]); o++)
            known = known || strncmp(argv[i] + 2, ours[o], bytes - 2) == 0;
        if (!known) {
            fprintf(stderr,
                    "expertctl run: %s is no option of run: those of the mount stand behind -o, as -o budget=8G, those "
                    "of the program behind it\n",
                    argv[i]);
            exit(EXIT_USAGE);
        }
        if (strcmp(argv[i], "-o") == 0 || (argv[i][1] == '-' && !argv[i][bytes] && argv[i][2] == 'o'))
            i++; /* what belongs to it */
    }
}

static int run_run(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = run_parse,
        .args_doc = "STORE|MOUNT -- PROGRAM [ARGUMENT...]",
        .doc = "Run PROGRAM on a store, or on a mount: llama.cpp computes on the experts as the store has them, and "
               "plain programs read files. {} in its arguments is the path of the mount, {gguf} that of the GGUF file "
               "in it; a store is mounted for that, as long as the program runs. Without them, and without -o, the "
               "program itself opens the store, and is given the plain file.\v"
               "Ends with the status of the program, 128 and the signal that ended it, 125 if it was not begun, 126 "
               "and 127 if it could not be executed, or found."};
    struct run r = {.signal_fd = -1, .mount = {.life = -1}};
    struct efs_error err = {""};
    int status = RUN_FAILED;
    refuse_options_of_others(argc, argv);
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &r);
    errint_t rc = run_look(&r, &err);
    if (rc == 0)
        rc = signals_take(&r, &err);
    if (rc == 0 && !r.root && (r.options || run_names_mount(&r))) {
        rc = ctl_run_mount_begin(&r.mount, r.store, r.options, &r.mask, r.signal_fd, &err);
        r.root = r.mount.path;
    }
    if (rc == 0)
        rc = run_expand(&r, &err);
    if (rc == 0)
        rc = run_environment(&r, &err);
    if (rc == 0)
        status = program_run(&r);
    if (rc == -EINTR)
        status = RUN_SIGNAL + r.mount.signal;
    else if (rc < 0)
        ctl_fail(rc, &err);
    ctl_run_mount_end(&r.mount);
    free(r.given_root);
    free(r.options);
    return status;
}

const struct ctl_command ctl_run = {"run", "run a program, such as llama.cpp, on a store or a mount", run_run};
