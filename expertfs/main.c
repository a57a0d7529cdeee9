/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - expertfs STORE MOUNTPOINT: the command line, foreground or background, exit status (0, 1, 2: usage). */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "background.h"
#include "expertfs-private.h"
#include "log.h"
#include "log_queue.h"
#include "mount.h"
#include "mount_helper.h"
#include "mountpoint.h"
#include "serve.h"

#define EXIT_USAGE 2

enum { KEY_LOG = 256, KEY_LOG_LEVEL };

static const struct argp_option argp_options[] = {
    {"foreground", 'f', NULL, 0, "stay in the foreground, messages to stderr", 0},
    {"debug", 'd', NULL, 0, "print every request; implies -f", 0},
    {"log", KEY_LOG, "FILE", 0, "append messages to FILE, not to syslog or stderr", 0},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "log only error, warning or info (info)", 0},
    {NULL, 'o', "OPTION[,OPTION...]", 0, "options in mount(8) style, see below", 0},
    {NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

/* NAME=VALUE as of -o; the value may contain commas. */
static void parse_named(struct argp_state *state, const char *name, const char *value)
{
    struct efs_error err = {.text = ""};
    if (efsd_options_set(state->input, name, value, &err))
        argp_failure(state, EXIT_USAGE, 0, "%s", err.text);
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct efsd_options *options = state->input;
    struct efs_error err = {.text = ""};
    switch (key) {
    case 'f':
        options->foreground = true;
        return 0;
    case 'd':
        options->debug = options->foreground = true;
        return 0;
    case KEY_LOG:
        parse_named(state, "log", value);
        return 0;
    case KEY_LOG_LEVEL:
        parse_named(state, "log_level", value);
        return 0;
    case 'o':
        if (efsd_options_parse(options, value, &err))
            argp_failure(state, EXIT_USAGE, 0, "%s", err.text);
        return 0;
    case 'h':
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            argp_error(state, "too many arguments: %s", value);
        *(state->arg_num ? &options->mountpoint : &options->store) = strdup(value);
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "a store and a mountpoint are needed");
        if (efsd_options_check(options, &err))
            argp_failure(state, EXIT_USAGE, 0, "%s", err.text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Appends the list of -o options, from the table that parses them, to the help of argp. */
static char *help_filter(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    char *list = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&list, &bytes);
    if (!out)
        return NULL;
    efsd_options_help(out);
    fclose(out);
    return list;
}

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "expertfs %s (libfuse %s)\n", efs_version(), fuse_pkgversion());
}

/* Makes *path absolute, because the daemon changes to "/". If path does not exist, err has its name followed by
 * `wanted`. */
static errint_t make_absolute(char **path, bool source, const char *wanted, struct efs_error *err)
{
    char *absolute;
    errint_t rc = source ? efs_source_path(*path, &absolute, err) : efs_absolute_path(*path, &absolute, err);
    if (rc == -ENOTCONN)
        return efsd_mountpoint_dead(*path, err);
    if (rc == -ENOENT)
        return efs_fail(err, rc, "%s: %s%s", *path, strerror(-rc), wanted);
    if (rc < 0)
        return rc;
    free(*path);
    *path = absolute;
    return 0;
}

static int report_failure(const struct efs_error *err, int status_fd)
{
    if (status_fd >= 0)
        efsd_background_failed(status_fd, err->text);
    if (status_fd < 0 || efsd_log_queue_has_file())
        efsd_log(EFS_LOG_ERROR, "%s", err->text);
    return EXIT_FAILURE;
}

/* Opens closed standard descriptors on /dev/null: otherwise the FUSE device could get one of their numbers, and receive
 * messages or be closed when the daemon detaches from its terminal. Ignores SIGXFSZ, so that memfds over the limit of
 * file sizes (ulimit -f) cause an error instead of a signal. */
static void prepare_process(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(EXIT_FAILURE);
    signal(SIGXFSZ, SIG_IGN);
}

/* Hint for a store that does not exist. */
static const char *store_hint(const char *store)
{
    char *begun;
    bool reclaimed = asprintf(&begun, "%s.reclaim", store) >= 0;
    if (reclaimed) {
        reclaimed = access(begun, F_OK) == 0;
        free(begun);
    }
    return reclaimed ? "\nhint: mkexpertfs --reclaim has begun it, and --resume goes on"
                     : "\nhint: make the store first, with mkexpertfs";
}

/* The absolute path of what may not exist yet. */
static errint_t find_later(char **path, struct efs_error *err)
{
    char *absolute = NULL, *here = *path && **path != '/' ? getcwd(NULL, 0) : NULL;
    if (!*path || **path == '/')
        return 0;
    if (!here || asprintf(&absolute, "%s/%s", here, *path) < 0)
        absolute = NULL;
    free(here);
    if (!absolute)
        return efs_fail(err, -ENOMEM, "%s: cannot find this path", *path);
    free(*path);
    *path = absolute;
    return 0;
}

/* Paths in the environment that are used when the daemon's directory is "/". */
static errint_t find_variables(struct efs_error *err)
{
    static const struct {
        const char *name;
        bool library; /* without a slash it is no path */
    } list[] = {{"EXPERTFS_STATE", false},
                {"EXPERTFS_PRESSURE", false},
                {"CURL_CA_BUNDLE", false},
                {"EXPERTFS_CURL", true},
                {"EXPERTFS_RADOS", true}};
    errint_t rc = 0;
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]) && !rc; i++) {
        const char *value = getenv(list[i].name);
        if (!value || !*value || *value == '/' || (list[i].library && !strchr(value, '/')))
            continue;
        char *path = strdup(value);
        rc = path ? find_later(&path, err) : efs_fail(err, -ENOMEM, "no memory");
        if (!rc && setenv(list[i].name, path, 1))
            rc = efs_fail(err, -ENOMEM, "no memory");
        free(path);
    }
    return rc;
}

static errint_t find_paths(struct efsd_options *options, struct efs_error *err)
{
    errint_t rc = make_absolute(&options->store, true, store_hint(options->store), err);
    if (!rc)
        efsd_mountpoint_recover(options->mountpoint);
    if (!rc)
        rc = find_later(&options->local, err);
    if (!rc && options->placement && !efs_is_rados(options->placement))
        rc = find_later(&options->placement, err);
    if (!rc)
        rc = find_variables(err);
    if (!rc)
        rc = make_absolute(&options->mountpoint, false, "\nhint: make the directory first (mkdir)", err);
    return rc;
}

/* Parses the command line of expertfs, or of mount.expertfs. Returns false to exit with *status. */
static bool parse_command_line(int argc, char **argv, struct efsd_options *options, int *status)
{
    const struct argp argp = {
        .options = argp_options,
        .parser = parse_option,
        .args_doc = "STORE MOUNTPOINT",
        .doc = "Mount STORE, made by mkexpertfs, or a checkpoint that is not packed (a GGUF or safetensors file, or a "
               "directory of them): the checkpoint's files, byte for byte. STORE may be https://HOST/PATH or "
               "s3://BUCKET/KEY.\v",
        .help_filter = help_filter,
    };
    struct efs_error err = {.text = ""};
    bool fake;
    if (!efsd_mount_helper_called(argv[0])) {
        argp_err_exit_status = EXIT_USAGE;
        argp_program_version_hook = print_version;
        *status = argp_parse(&argp, argc, argv, 0, NULL, options) ? EXIT_USAGE : EXIT_SUCCESS;
        return *status == EXIT_SUCCESS;
    }
    errint_t rc = efsd_mount_helper_parse(argc, argv, options, &fake, &err);
    if (rc)
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, err.text);
    *status = rc ? EXIT_FAILURE : EXIT_SUCCESS;
    return !rc && !fake;
}

static int remount(struct efsd_options *options)
{
    struct efs_error err = {.text = ""};
    efsd_log_open(true);
    errint_t rc = efsd_mountpoint_remount(options, &err);
    efsd_options_free(options);
    return rc ? report_failure(&err, -1) : EXIT_SUCCESS;
}

/* Logs to options->log, if given. */
static errint_t open_log(const struct efsd_options *options, struct efs_error *err)
{
    efsd_log_open(true); /* errors before the fork go to stderr */
    efsd_log_level((enum efs_log_level)options->log_level);
    if (!options->log)
        return 0;
    errint_t rc = efsd_log_queue_file(options->log);
    if (rc)
        return efs_fail(err, rc, "%s: %s", options->log, strerror(-rc));
    efsd_log_open(options->foreground);
    return 0;
}

int main(int argc, char **argv)
{
    prepare_process();
    struct efsd_options options;
    struct efs_error err = {.text = ""};
    int status_fd = -1, status;
    efsd_options_init(&options);
    if (!parse_command_line(argc, argv, &options, &status))
        return status;
    if (options.remount)
        return remount(&options);
    errint_t rc = find_paths(&options, &err);
    closefrom(STDERR_FILENO + 1); /* inherited locks and pipes would stay open until the mount ends */
    errint_t no_log = open_log(&options, rc ? &(struct efs_error){.text = ""} : &err);
    rc = rc ? rc : no_log;
    if (!rc && !options.foreground) {
        rc = efsd_background_begin(&status_fd, &err);
        if (!rc)
            efsd_log_open(false);
    }
    if (!rc)
        rc = efsd_serve(&options, status_fd, &err);
    if (rc)
        rc = report_failure(&err, status_fd);
    efsd_log_queue_flush();
    efsd_options_free(&options);
    return rc;
}
