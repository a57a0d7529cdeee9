/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c - runs one mount: engine, tree, session, until a signal or an unmount ends it. */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "background.h"
#include "control.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "export.h"
#include "log.h"
#include "log_queue.h"
#include "mountpoint.h"
#include "privileges.h"
#include "readers.h"
#include "session.h"

#define BUFFERS_MOST 32u
#define BUFFERS_LEAST 4u
#define RECEIVING_THREADS 9u        /* all but one may wait for the disk in a small read */
#define RECEIVER_BYTES (208u << 10) /* a receiving thread: stack 64 KiB, memory to decode in 112, buffer 16 */
#define THREAD_BYTES (64u << 10)    /* the stack of another thread: main, export, drop, log */
#define NAMES_BYTES (128u << 10)    /* reserved for directories, */
#define NAME_BYTES 224u             /* and per file for the tree */
#define MIB (UINT64_C(1) << 20)

/* Reply buffers: 1/64 of the budget, BUFFERS_LEAST to BUFFERS_MOST. */
static size_t buffer_count(uint64_t budget_bytes)
{
    uint64_t count = budget_bytes / 64 / MIB;
    return (size_t)(count < BUFFERS_LEAST ? BUFFERS_LEAST : count > BUFFERS_MOST ? BUFFERS_MOST : count);
}

/* The budget covers the engine and the daemon: the engine counts the daemon's memory as fixed. */
static errint_t daemon_open_engine(struct efsd *daemon, struct efs_error *err)
{
    const struct efsd_options *options = &daemon->options;
    const uint64_t budget = options->budget_bytes ? options->budget_bytes : efs_auto_budget();
    daemon->buffer_count = buffer_count(budget);
    daemon->unsent_max = efsd_export_unsent_max(budget);
    struct efs_options engine = {
        .budget_bytes = options->budget_bytes,
        .reserved_bytes = efsd_buffers_bytes(daemon->buffer_count) + daemon->threads * RECEIVER_BYTES +
                          4 * THREAD_BYTES + NAMES_BYTES + EFSD_CHARGED_BYTES + daemon->unsent_max,
        .per_file_bytes = NAME_BYTES,
        .workers = (unsigned)options->workers,
        .full_pool = true,
        .prealloc = options->prealloc,
        .no_state = options->no_state,
        .store_direct = (enum efs_store_direct)options->store_direct,
        .local = options->local,
        .local_bytes = options->local_bytes,
        .placement = options->placement,
        .server = options->server,
        .log = efsd_log_line,
        .exports = true,
    };
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        engine.tune[i] = options->tune[i];
    if (!engine.warm)
        engine.warm = efs_tunables[EFS_TUNE_warm].start; /* the engine's own default is off */
    errint_t rc = efs_open(options->store, &engine, &daemon->fs, err);
    if (rc)
        return rc;
    efs_hide_secret(options->store);
    daemon->expert_count = efs_expert_count(daemon->fs);
    efs_store_info(efs_get_store(daemon->fs), &daemon->info);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t hints = i % 2 | (i / 2 % 2 ? EFS_STREAM_MAY_BLOCK : 0) | (i / 4 ? EFS_STREAM_STAYS : 0);
        rc = efs_stream_new(daemon->fs, hints, &daemon->streams[i / 4][i / 2 % 2][i % 2]);
        if (rc)
            return efs_fail(err, rc, "no memory");
    }
    rc = efsd_tuning_init(daemon);
    return rc ? efs_fail(err, rc, "the settings cannot be read: %s", strerror(-rc)) : 0;
}

static errint_t daemon_add_control_files(struct efsd *daemon)
{
    for (uint32_t i = 0; i < EFSD_CONTROL_COUNT; i++) {
        char path[64];
        snprintf(path, sizeof(path), "%s/%s", EFSD_CONTROL_DIRECTORY, efsd_control_name((enum efsd_control)i));
        errint_t rc = efsd_tree_add(&daemon->tree, path, EFSD_CONTROL, i, UINT32_MAX, 0);
        if (rc)
            return rc;
    }
    return 0;
}

/* True if path is the control directory or below it. A checkpoint that contains such a path is served without control
 * files. */
static bool is_control_path(const char *path)
{
    size_t n = strlen(EFSD_CONTROL_DIRECTORY);
    return strncmp(path, EFSD_CONTROL_DIRECTORY, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

static errint_t daemon_build_tree(struct efsd *daemon, struct efs_error *err)
{
    uint32_t files = efs_file_count(daemon->fs);
    bool control = true;
    for (uint32_t i = 0; i < files; i++) {
        struct efs_file_info file;
        errint_t rc = efs_file_info(daemon->fs, i, &file);
        if (rc)
            return efs_fail(err, rc, "%s: file %u of %u: %s", daemon->options.store, i, files, strerror(-rc));
        bool expert = file.kind == EFS_FILE_EXPERT && file.expert.number < daemon->expert_count;
        if (file.kind == EFS_FILE_EXPERT && daemon->options.no_experts)
            continue;
        control = control && !is_control_path(file.path);
        rc = efsd_tree_add(&daemon->tree, file.path, expert ? EFSD_EXPERT : EFSD_FILE, i,
                           expert ? file.expert.number : UINT32_MAX, file.bytes);
        if (rc)
            return efs_fail(err, rc, "%s: the name \"%s\": %s", daemon->options.store, file.path, strerror(-rc));
    }
    errint_t rc = control ? daemon_add_control_files(daemon) : 0;
    if (rc)
        return efs_fail(err, rc, "no memory for the names of %u files", files);
    rc = efsd_tree_build(&daemon->tree, err);
    if (rc)
        return rc;
    daemon->generation = (uint32_t)efsd_tree_hash(&daemon->tree, daemon->info.content_hash);
    uint64_t names_bytes = efsd_tree_bytes(&daemon->tree);
    uint64_t said = NAMES_BYTES + (uint64_t)NAME_BYTES * files;
    return efs_reserve(daemon->fs, names_bytes > said ? names_bytes - said : 0, err);
}

/* Users who can read the store can read the mount: the owner is the user who mounts, the permissions of group and other
 * are those of the store. If the store's mode denies its owner, only the owner of the mount has access, because the
 * store's owner would be in group or other here. */
static void daemon_set_owner(struct efsd *daemon)
{
    const unsigned store = daemon->info.mode, all = 0444;
    daemon->uid = geteuid();
    daemon->gid = (gid_t)daemon->info.group;
    daemon->started = time(NULL);
    daemon->mtime = daemon->info.mtime;
    daemon->mode = (mode_t)(0400 | (store & 0400 ? store & 0044 : 0));
    daemon->allow_other = efsd_options_mounts_with(&daemon->options, "allow_other");
    daemon->restricted = daemon->mode != all && daemon->allow_other;
}

/* After INIT: chooses how opens without passthrough are served, and sets path_note. */
static void daemon_choose_path(struct efsd *daemon)
{
    const struct efsd_options *options = &daemon->options;
    const struct efsd_kernel *kernel = &daemon->kernel;
    daemon->direct_io =
        options->direct_io == EFSD_DIRECT_IO_ON || (options->direct_io == EFSD_DIRECT_IO_AUTO && kernel->direct_mmap);
    const char *plain = options->direct_io == EFSD_DIRECT_IO_ON ? "reads go past the page cache"
                        : daemon->direct_io ? "reads go past the page cache unless the files fit into it"
                        : options->direct_io == EFSD_DIRECT_IO_OFF
                            ? "reads go through the page cache: option direct_io=off"
                            : "reads go through the page cache: the kernel cannot map direct_io files (Linux 6.6)";
    snprintf(daemon->path_note, sizeof(daemon->path_note), "%s%s; %s",
             kernel->passthrough ? "open experts are served by the kernel" : "no passthrough: ", kernel->no_passthrough,
             plain);
}

/* An error is only logged: files are served without the socket. */
static void daemon_open_export(struct efsd *daemon)
{
    struct efs_error err = {.text = ""};
    if (efsd_export_open(daemon, &daemon->export, &err))
        efsd_log(EFS_LOG_WARNING, "no socket for clients: %s", err.text);
}

static void daemon_start_export(struct efsd *daemon)
{
    errint_t rc = daemon->export ? efsd_export_start(daemon->export) : 0;
    if (rc)
        efsd_log(EFS_LOG_WARNING, "no socket for clients: %s", strerror(-rc));
    if (rc) {
        efsd_export_free(daemon->export);
        daemon->export = NULL;
    }
    daemon->export_address = efsd_export_address(daemon->export);
    daemon->print_clients = daemon->export ? efsd_export_print_clients : NULL;
    daemon->take_client = daemon->export ? efsd_export_take : NULL;
}

static int caught[2] = {-1, -1}; /* pipe of signal numbers; global because a signal handler writes to it */

static void signal_note(int number)
{
    const int before = errno;
    const char byte = (char)number;
    ssize_t n = write(caught[1], &byte, 1); /* fails if the pipe is full of earlier signals */
    (void)n;
    errno = before;
}

static errint_t daemon_start(struct efsd *daemon, struct efs_error *err)
{
    daemon->threads = RECEIVING_THREADS;
    daemon->stop_fd = eventfd(0, EFD_CLOEXEC);
    daemon->ended_fd = eventfd(0, EFD_CLOEXEC);
    if (daemon->stop_fd < 0 || daemon->ended_fd < 0)
        return efs_fail(err, -errno, "eventfd: %s", strerror(errno));
    int lock;
    errint_t rc = efsd_mountpoint_check(daemon->options.mountpoint, daemon->options.nonempty, &lock, err);
    if (!rc)
        rc = efsd_session_check(daemon, err); /* before the engine measures the disk and the processor */
    if (!rc)
        rc = daemon_open_engine(daemon, err);
    if (!rc)
        rc = daemon_build_tree(daemon, err);
    if (!rc) {
        daemon_set_owner(daemon);
        rc = efsd_buffers_open(&daemon->buffers, daemon->buffer_count);
        if (!rc)
            rc = efsd_opens_init(daemon);
        daemon->print_readers = efsd_readers_print;
        if (rc)
            efs_fail(err, rc, "no memory for %zu reply buffers", daemon->buffer_count);
    }
    if (!rc)
        daemon_open_export(daemon);
    if (!rc && pipe2(caught, O_CLOEXEC | O_NONBLOCK) < 0)
        rc = efs_fail(err, -errno, "pipe: %s", strerror(errno));
    if (!rc) {
        efsd_signals_handle(signal_note);
        if (efsd_log_queue_has_file()) /* also if it is ignored, as by nohup(1) */
            sigaction(SIGHUP, &(struct sigaction){.sa_handler = signal_note, .sa_flags = SA_RESTART}, NULL);
        rc = efsd_session_mount(daemon, err);
    }
    if (lock >= 0)
        close(lock);
    if (rc)
        return rc;
    daemon_choose_path(daemon);
    efsd_raise_readahead(daemon);
    daemon_start_export(daemon);
    return efsd_session_start(daemon, err);
}

/* Reads the signals that were caught. Returns the first that ends the mount, or 0. SIGHUP does where it may be of a
 * terminal that was closed: in the foreground, without a log file to open again. */
static int caught_take(const struct efsd *daemon)
{
    char numbers[64];
    ssize_t n = read(caught[0], numbers, sizeof(numbers));
    for (ssize_t i = 0; i < n; i++)
        if (numbers[i] != SIGHUP || (daemon->options.foreground && !efsd_log_queue_has_file()))
            return numbers[i];
        else
            efsd_log_queue_reopen();
    return 0;
}

/* Returns after a signal or after a receiving thread has exited, as on unmount. */
static void daemon_wait(struct efsd *daemon)
{
    struct pollfd wait[2] = {{.fd = caught[0], .events = POLLIN}, {.fd = daemon->ended_fd, .events = POLLIN}};
    int waited_ms = 0, number = 0;
    efsd_recent_take(daemon);
    while (!number && !wait[1].revents) {
        int ready = poll(wait, 2, EFSD_RECENT_MS);
        if (ready > 0 && wait[0].revents)
            number = caught_take(daemon);
        if (ready != 0)
            continue;
        efsd_recent_take(daemon);
        waited_ms += EFSD_RECENT_MS;
        if (waited_ms >= EFSD_LOG_SUPPRESSED_MS) {
            efsd_log_report_suppressed();
            waited_ms = 0;
        }
    }
    if (number)
        efsd_log(EFS_LOG_INFO, "%s: unmounting %s", strsignal(number), daemon->options.mountpoint);
}

/*
 * The order matters. The mount is detached while receiving threads still serve it: the engine saves its state when it
 * closes, and if the state directory is below the mountpoint, its requests would never be answered. Receiving threads
 * exit before the engine closes, so that no call into it is active. The engine completes what is in flight, so the FUSE
 * device must still be open; then the session ends, and reads of open files fail. Leases are not released before that:
 * the kernel may still serve their pages.
 */
static void daemon_end(struct efsd *daemon)
{
    efsd_session_detach(daemon);
    if (daemon->receivers)
        efsd_session_stop(daemon);
    efsd_export_stop(daemon->export);
    if (daemon->fs) {
        efs_close(daemon->fs);
        daemon->fs = NULL;
    }
    for (uint32_t i = 0; i < 8; i++)
        efs_stream_free(daemon->streams[i / 4][i / 2 % 2][i % 2]);
    efsd_export_free(daemon->export);
    efsd_session_end(daemon);
    efsd_opens_free(daemon);
    efsd_buffers_close(&daemon->buffers);
    efsd_tree_free(&daemon->tree);
    efsd_log_report_suppressed();
    pthread_mutex_destroy(&daemon->tuning.lock);
    efsd_recent_end(daemon);
    if (daemon->stop_fd >= 0)
        close(daemon->stop_fd);
    if (daemon->ended_fd >= 0)
        close(daemon->ended_fd);
    free(daemon);
}

errint_t efsd_serve(const struct efsd_options *options, int status_fd, struct efs_error *err)
{
    struct efsd *daemon = calloc(1, sizeof(*daemon));
    if (!daemon)
        return efs_fail(err, -ENOMEM, "no memory");
    daemon->options = *options;
    daemon->stop_fd = daemon->ended_fd = -1;
    pthread_mutex_init(&daemon->tuning.lock, NULL);

    signal(SIGPIPE, SIG_IGN);
    efsd_session_limit_files();
    errint_t rc = efsd_recent_init(daemon);
    rc = rc ? efs_fail(err, rc, "no memory") : efsd_privileges_drop(err);
    if (!rc && (rc = efsd_log_queue_start()))
        efs_fail(err, rc, "cannot start the thread that writes the log: %s", strerror(-rc));
    if (!rc)
        rc = daemon_start(daemon, err);
    if (!rc) {
        efsd_log(EFS_LOG_INFO, "%s on %s: %s (%s)", options->store, options->mountpoint, efsd_serving_path(daemon),
                 daemon->path_note);
        efsd_log_started();
        if (status_fd >= 0)
            efsd_background_ready(status_fd);
        daemon_wait(daemon);
    }
    daemon_end(daemon);
    return rc;
}
