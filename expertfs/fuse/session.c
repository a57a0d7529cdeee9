/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - the connection to the kernel: mount, INIT exchange, receiving threads.
 *
 * The FUSE device is non-blocking, and receiving threads wait for it and for stop_fd, so that they can be stopped at
 * any time without signals and without closing the device. Each has its own epoll instance, with EPOLLEXCLUSIVE: with
 * poll() a request would wake all threads.
 */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"
#include "ops.h"

/* The kernel requires space for a write of max_write; untouched pages take no memory. */
#define RECEIVE_BYTES (EFSD_IO_BYTES + 65536u)
#define RECEIVE_KEPT_BYTES (16u << 10) /* pages of a receiver's buffer that stay after a request */
#define INIT_SECONDS 30

static void eventfd_notify(int fd)
{
    uint64_t one = 1;
    if (write(fd, &one, sizeof(one)) < 0)
        efsd_log(EFS_LOG_ERROR, "eventfd: %s", strerror(errno));
}

static errint_t session_new(struct efsd *daemon, struct efs_error *err)
{
    const struct efsd_options *options = &daemon->options;
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    char fixed[128];
    char *list = NULL, *name = NULL;
    /* ro: the kernel refuses tuning; default_permissions only if the mount is restricted: see readonly_ops.c */
    snprintf(fixed, sizeof(fixed), "%s,nosuid,nodev,max_read=%u%s", options->read_only ? "ro" : "rw", EFSD_IO_BYTES,
             daemon->restricted ? ",default_permissions" : "");
    bool ok = asprintf(&name, "fsname=%s", options->fsname ? options->fsname : options->store) >= 0 &&
              fuse_opt_add_opt(&list, fixed) == 0 && fuse_opt_add_opt_escaped(&list, name) == 0 &&
              fuse_opt_add_opt(&list, "subtype=expertfs") == 0;
    ok = ok && (!options->mount || fuse_opt_add_opt(&list, options->mount) == 0) &&
         fuse_opt_add_arg(&args, "expertfs") == 0 && fuse_opt_add_arg(&args, "-o") == 0 &&
         fuse_opt_add_arg(&args, list) == 0 && (!options->debug || fuse_opt_add_arg(&args, "-d") == 0);
    efsd_log_mute_fuse(true);
    if (ok)
        daemon->session = fuse_session_new(&args, &efsd_ops, sizeof(efsd_ops), daemon);
    fuse_opt_free_args(&args);
    free(list);
    free(name);
    if (!daemon->session) {
        char why[512];
        efsd_log_last_fuse(why, sizeof(why));
        efsd_log_mute_fuse(false);
        return efs_fail(err, ok ? -EINVAL : -ENOMEM, "cannot set up FUSE: %s", ok ? why : "no memory");
    }
    efsd_log_mute_fuse(false);
    return 0;
}

errint_t efsd_session_check(const struct efsd *daemon, struct efs_error *err)
{
    const char *path = daemon->options.mountpoint;
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        errint_t rc = -errno;
        struct efs_store *store; /* a fault of the store is what the caller can mend */
        errint_t unread = efs_store_open(daemon->options.store, &store, err);
        if (unread)
            return unread;
        efs_store_close(store);
        return efs_fail(err, rc, "cannot mount on %s: /dev/fuse: %s%s", path, strerror(-rc),
                        rc == -ENOENT || rc == -ENODEV ? "\nhint: load the kernel module: modprobe fuse"
                        : rc == -EACCES
                            ? "\nhint: root lets users open it: chmod 666 /dev/fuse (a udev rule makes that "
                              "permanent)"
                        : rc == -EPERM ? "\nhint: a container must be given the device"
                                       : "");
    }
    close(fd);
    if (!efsd_kernel_privileged() && access(path, W_OK) && errno == EACCES)
        return efs_fail(err, -EACCES, "cannot mount on %s: you may not write there\nhint: make a folder of your own",
                        path);
    return 0;
}

/* The reason why a mount failed: one found by efsd_session_check(), else the last message of libfuse or fusermount3. */
static errint_t session_mount_failed(const struct efsd *daemon, struct efs_error *err)
{
    char why[512];
    efsd_log_last_fuse(why, sizeof(why));
    errint_t rc = efsd_session_check(daemon, err);
    return rc ? rc
              : efs_fail(err, -EPERM, "cannot mount on %s: %s", daemon->options.mountpoint,
                         *why ? why : "fusermount3 refused; its message is above");
}

/* Receives one request and processes it. 1: done, 0: no request, -ENODEV: unmounted, or -errno. */
static int session_take_request(struct efsd *daemon, void *memory)
{
    ssize_t n = read(daemon->fuse_fd, memory, RECEIVE_BYTES);
    if (n < 0) {
        /* ENOENT: the request was aborted before it was read */
        return errno == EAGAIN ? 0 : errno == EINTR || errno == ENOENT ? 1 : -errno;
    }
    struct fuse_buf buf = {.size = (size_t)n, .mem = memory};
    efsd_kernel_request(daemon, memory, (size_t)n);
    fuse_session_process_buf(daemon->session, &buf);
    if (n > RECEIVE_KEPT_BYTES) /* a write to a control file, of up to RECEIVE_BYTES */
        madvise((uint8_t *)memory + RECEIVE_KEPT_BYTES, RECEIVE_BYTES - RECEIVE_KEPT_BYTES, MADV_DONTNEED);
    return 1;
}

static void *receiver_memory(void)
{
    void *memory = mmap(NULL, RECEIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* The kernel sends INIT first, and no other request before the reply. */
static errint_t session_exchange_init(struct efsd *daemon, struct efs_error *err)
{
    void *memory = receiver_memory();
    int rc = memory ? 0 : -ENOMEM;
    for (time_t begin = time(NULL); rc >= 0 && !daemon->kernel.answered;) {
        struct pollfd device = {.fd = daemon->fuse_fd, .events = POLLIN};
        rc = poll(&device, 1, 1000) < 0 && errno != EINTR ? -errno : session_take_request(daemon, memory);
        if (fuse_session_exited(daemon->session))
            rc = -EPROTO;
        else if (rc == 0 && time(NULL) - begin > INIT_SECONDS)
            rc = -ETIMEDOUT;
    }
    if (memory)
        munmap(memory, RECEIVE_BYTES);
    if (rc < 0)
        return efs_fail(err, rc, "FUSE INIT failed: %s", strerror(-rc));
    return 0;
}

errint_t efsd_session_mount(struct efsd *daemon, struct efs_error *err)
{
    errint_t rc = session_new(daemon, err);
    if (rc)
        return rc;
    efsd_log_mute_fuse(true);
    bool mounted = fuse_session_mount(daemon->session, daemon->options.mountpoint) == 0;
    rc = mounted ? 0 : session_mount_failed(daemon, err);
    efsd_log_mute_fuse(false);
    if (rc) {
        fuse_session_destroy(daemon->session);
        daemon->session = NULL;
        return rc;
    }
    rc = efsd_kernel_attach(daemon);
    efsd_session_identify(daemon);
    int flags = fcntl(daemon->fuse_fd, F_GETFL);
    if (!rc && (flags < 0 || fcntl(daemon->fuse_fd, F_SETFL, flags | O_NONBLOCK) < 0))
        rc = -errno;
    if (rc)
        efs_fail(err, rc, "cannot use the FUSE device: %s", strerror(-rc));
    else
        rc = session_exchange_init(daemon, err);
    if (rc) {
        efsd_session_detach(daemon);
        efsd_session_end(daemon);
        return rc;
    }
    efsd_kernel_probe(daemon);
    return 0;
}

/* Returns an epoll descriptor for stop_fd, and for requests for which no other thread was woken; or -errno. */
static int receiver_epoll_new(const struct efsd *daemon)
{
    struct epoll_event request = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = daemon->fuse_fd};
    struct epoll_event stop = {.events = EPOLLIN, .data.fd = daemon->stop_fd};
    int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, daemon->fuse_fd, &request) < 0 ||
        epoll_ctl(fd, EPOLL_CTL_ADD, daemon->stop_fd, &stop) < 0) {
        int rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    return fd;
}

/* 1: there may be a request, 0: stop, or -errno. */
static int receiver_wait(const struct efsd *daemon, int wait)
{
    struct epoll_event events[2];
    int n = epoll_wait(wait, events, 2, -1);
    for (int i = 0; i < n; i++)
        if (events[i].data.fd == daemon->stop_fd)
            return 0;
    return n < 0 && errno != EINTR ? -errno : 1;
}

/* A receiving thread and its resources. main owns the array. */
struct efsd_receiver {
    struct efsd *daemon;
    pthread_t id;
    void *memory; /* RECEIVE_BYTES, for one request */
    int wait;     /* its epoll descriptor */
};

static void *receiver_run(void *arg)
{
    struct efsd_receiver *receiver = arg;
    struct efsd *daemon = receiver->daemon;
    int rc = 1;
    while (rc > 0 && !fuse_session_exited(daemon->session)) {
        rc = session_take_request(daemon, receiver->memory);
        if (rc == 0)
            rc = receiver_wait(daemon, receiver->wait);
    }
    if (rc < 0 && rc != -ENODEV)
        efsd_log(EFS_LOG_ERROR, "reading from the FUSE device: %s", strerror(-rc));
    eventfd_notify(daemon->ended_fd);
    return NULL;
}

static void receiver_free(struct efsd_receiver *receiver)
{
    if (receiver->wait >= 0)
        close(receiver->wait);
    if (receiver->memory)
        munmap(receiver->memory, RECEIVE_BYTES);
}

/* Allocates all resources of the thread, so that it cannot fail after the mount is reported as ready. */
static errint_t receiver_start(struct efsd *daemon, struct efsd_receiver *receiver)
{
    *receiver =
        (struct efsd_receiver){.daemon = daemon, .memory = receiver_memory(), .wait = receiver_epoll_new(daemon)};
    int rc = !receiver->memory ? -ENOMEM : receiver->wait < 0 ? receiver->wait : 0;
    if (rc == 0)
        rc = efs_thread_start(receiver_run, receiver, "efs-receive", &receiver->id);
    if (rc < 0)
        receiver_free(receiver);
    return rc;
}

errint_t efsd_session_start(struct efsd *daemon, struct efs_error *err)
{
    daemon->receivers = calloc(daemon->threads, sizeof(*daemon->receivers));
    if (!daemon->receivers)
        return efs_fail(err, -ENOMEM, "no memory for %u receiving threads", daemon->threads);
    for (; daemon->started_threads < daemon->threads; daemon->started_threads++) {
        errint_t rc = receiver_start(daemon, &daemon->receivers[daemon->started_threads]);
        if (rc < 0) {
            efs_fail(err, rc, "cannot start receiving thread %u of %u: %s", daemon->started_threads + 1,
                     daemon->threads, strerror(-rc));
            efsd_session_stop(daemon);
            return rc;
        }
    }
    return 0;
}

void efsd_session_stop(struct efsd *daemon)
{
    eventfd_notify(daemon->stop_fd);
    for (unsigned i = 0; i < daemon->started_threads; i++) {
        pthread_join(daemon->receivers[i].id, NULL);
        receiver_free(&daemon->receivers[i]);
    }
    free(daemon->receivers);
    daemon->receivers = NULL;
    daemon->started_threads = 0;
}
