/* SPDX-License-Identifier: Apache-2.0 */
/* export.c - see export.h: the listening socket, and the export thread, which receives packets of clients. */
#include "export_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "log.h"
#include "expertfs-stats.h"

#define EXPERTS_SHARE 16u   /* of the budget, at most for requests */
#define EXPERTS_BYTES 2560u /* of memory for an expert of a request */
#define EXPERTS_LEAST 256u
#define SEND_BYTES (256 << 10)
#define PAUSE_MS 200

/* ---- the thread --------------------------------------------------------------------------------------------- */

static void export_listen(struct efsd_export *h, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = &h->socket};
    epoll_ctl(h->epoll, EPOLL_CTL_MOD, h->socket.listening, &event);
    h->paused = !on;
}

/* No descriptor is left for a new connection. If it were left in the backlog, epoll_wait() would return again at once,
 * and the client would wait forever. So it is accepted with a descriptor reserved for this, and disconnected. If this
 * fails, too, the listening socket is not polled for PAUSE_MS. */
static void export_refuse(struct efsd_export *h)
{
    if (h->spare >= 0)
        close(h->spare);
    int fd = accept4(h->socket.listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    bool none = fd < 0 && errno != EAGAIN && errno != ECONNABORTED;
    if (fd >= 0)
        efsd_export_close(h, fd);
    h->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (none || h->spare < 0)
        export_listen(h, false);
    efsd_log(EFS_LOG_WARNING, "the export socket refuses clients: no file descriptor is left (RLIMIT_NOFILE)");
}

/* The limit of experts in requests, by the budget. */
static uint32_t export_experts_max(const struct efsd_export *h)
{
    struct efs_stats stats;
    efs_stats(h->daemon->fs, &stats);
    const uint64_t most = stats.budget_bytes / EXPERTS_SHARE / EXPERTS_BYTES;
    return most < EXPERTS_LEAST ? EXPERTS_LEAST : most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

/* Whether the process at the other end is in this group. */
static bool export_peer_is_in(int fd, const struct ucred *who, gid_t group)
{
    socklen_t bytes = 0;
    bool is_in = who->gid == group;
    if (is_in || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || errno != ERANGE) /* or it has none */
        return is_in;
    gid_t *groups = malloc(bytes);
    if (groups && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) == 0)
        for (size_t i = 0; i < bytes / sizeof(*groups); i++)
            is_in = is_in || groups[i] == group;
    free(groups);
    return is_in;
}

/* The socket serves the users who can read the mount: its owner and root; with allow_other those whom the mode of its
 * files permits. */
static bool export_may_connect(const struct efsd_export *h, int fd, struct ucred *who)
{
    const struct efsd *daemon = h->daemon;
    socklen_t room = sizeof(*who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &room))
        return false;
    if (who->uid == daemon->uid || who->uid == 0)
        return true;
    return daemon->allow_other && daemon->mode & (export_peer_is_in(fd, who, daemon->gid) ? S_IRGRP : S_IROTH);
}

/* A connection, which is closed unless this process may connect. */
static void export_add(struct efsd_export *h, int fd, bool may, const struct ucred *who)
{
    const int bytes = SEND_BYTES;
    struct efsd_export_client *s = may && h->client_count < EFSD_SOCKET_CLIENTS ? calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        efsd_export_close(h, fd);
        if (may)
            efsd_log(EFS_LOG_WARNING, "the export socket refuses a client: %s",
                     h->client_count < EFSD_SOCKET_CLIENTS ? "no memory" : "too many are connected");
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    *s = (struct efsd_export_client){.export = h,
                                     .fd = fd,
                                     .user = who->uid,
                                     .pid = who->pid,
                                     .connected = time(NULL),
                                     .holder = efs_holder_new(),
                                     .references = 1};
    s->queued_end = &s->queued;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    const uint32_t experts_max = export_experts_max(h);
    pthread_mutex_lock(&h->lock);
    struct efsd_export_client **at = &h->clients; /* oldest first: efsd_export_stop() disconnects in this order */
    while (*at)
        at = &(*at)->next;
    *at = s;
    h->client_count++;
    h->experts_max = experts_max;
    h->pending_max = experts_max < EFS_EXPORT_TAGS ? experts_max : EFS_EXPORT_TAGS;
    pthread_mutex_unlock(&h->lock);
    efsd_count(&h->daemon->counters.handout_clients, 1);
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event))
        efsd_export_client_end(s);
}

static void export_accept(struct efsd_export *h)
{
    struct ucred who;
    int fd = accept4(h->socket.listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        bool may = export_may_connect(h, fd, &who);
        export_add(h, fd, may, &who);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        export_refuse(h);
    }
}

/* A descriptor that was taken from a process of this user. */
struct efsd_taken {
    int fd;
    uid_t user;
};

static bool has_option(int fd, int option, int wanted)
{
    int value;
    socklen_t bytes = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 && value == wanted;
}

static void export_add_taken(struct efsd_export *h)
{
    const int no = 0;
    struct efsd_taken taken;
    struct ucred who = {0};
    if (read(h->taken[0], &taken, sizeof(taken)) != (ssize_t)sizeof(taken))
        return;
    bool may =
        has_option(taken.fd, SO_DOMAIN, AF_UNIX) && has_option(taken.fd, SO_TYPE, SOCK_SEQPACKET) &&
        has_option(taken.fd, SO_ACCEPTCONN, 0) && export_may_connect(h, taken.fd, &who) && who.uid == taken.user &&
        fcntl(taken.fd, F_SETFL, O_NONBLOCK) == 0 &&
        (!h->socket.refuses_descriptors || setsockopt(taken.fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) == 0);
    export_add(h, taken.fd, may, &who);
}

errint_t efsd_export_take(struct efsd_export *h, int fd, uid_t user)
{
    const struct efsd_taken taken = {fd, user};
    if (write(h->taken[1], &taken, sizeof(taken)) == (ssize_t)sizeof(taken))
        return 0;
    efsd_export_close(h, fd);
    return -EAGAIN;
}

static void *export_run(void *arg)
{
    struct efsd_export *h = arg;
    struct epoll_event event;
    for (;;) { /* one event per call, so that no other event refers to a client that was freed */
        int n = epoll_wait(h->epoll, &event, 1, h->paused ? PAUSE_MS : -1);
        if (h->paused && n == 0)
            export_listen(h, true);
        if (n < 0 && errno != EINTR)
            return NULL;
        if (n < 1)
            continue;
        if (event.data.ptr == &h->stop)
            return NULL;
        if (event.data.ptr == &h->timer) {
            efsd_export_timer_ended(h);
            continue;
        }
        if (event.data.ptr == &h->socket) {
            export_accept(h);
            continue;
        }
        if (event.data.ptr == &h->taken) {
            export_add_taken(h);
            continue;
        }
        struct efsd_export_client *s = event.data.ptr;
        if (event.events & EPOLLOUT)
            efsd_export_flush(s);
        if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            efsd_export_client_receive(s);
    }
}

/* ---- start and stop ----------------------------------------------------------------------------------------- */

static errint_t export_watch(const struct efsd_export *h, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    return epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

errint_t efsd_export_open(struct efsd *daemon, struct efsd_export **export, struct efs_error *err)
{
    struct efsd_export *h = calloc(1, sizeof(*h));
    *export = NULL;
    if (!h)
        return efs_fail(err, -ENOMEM, "no memory");
    *h = (struct efsd_export){.daemon = daemon,
                              .unsent_max = daemon->unsent_max,
                              .disk_bytes = EFS_LEAVE_HALF,
                              .socket = {.listening = -1, .base = -1, .directory = -1},
                              .taken = {-1, -1}};
    pthread_mutex_init(&h->lock, NULL);
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->stop = eventfd(0, EFD_CLOEXEC);
    h->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    h->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    errint_t rc = h->epoll < 0 || h->stop < 0 || h->timer < 0 || pipe2(h->taken, O_CLOEXEC | O_NONBLOCK) ? -errno : 0;
    bool reported = false;
    if (!rc) {
        rc = efsd_socket_open(&h->socket, daemon->allow_other, err);
        reported = rc != 0;
    }
    if (!rc)
        rc = export_watch(h, h->stop, &h->stop);
    if (!rc)
        rc = export_watch(h, h->timer, &h->timer);
    if (!rc)
        rc = export_watch(h, h->taken[0], &h->taken);
    if (!rc)
        rc = export_watch(h, h->socket.listening, &h->socket);
    if (rc) {
        efsd_export_free(h);
        return reported ? rc : efs_fail(err, rc, "%s", strerror(-rc));
    }
    *export = h;
    return 0;
}

errint_t efsd_export_start(struct efsd_export *h)
{
    errint_t rc = efs_thread_start(export_run, h, "efs-export", &h->thread);
    h->started = rc == 0;
    if (h->started)
        efs_on_memory_short(h->daemon->fs, efsd_export_memory_short, h);
    return rc;
}

void efsd_export_stop(struct efsd_export *h)
{
    const uint64_t one = 1;
    if (!h || !h->started)
        return;
    h->started = write(h->stop, &one, sizeof(one)) != (ssize_t)sizeof(one);
    pthread_join(h->thread, NULL);
    efs_on_memory_short(h->daemon->fs, NULL, NULL);
    for (struct efsd_export_client *s = h->clients; s; s = s->next)
        efsd_export_client_end_request(s, -ECANCELED);
    /* Experts of clients stay pinned until the engine is closed: clients may be reading them. */
    pthread_mutex_lock(&h->lock);
    for (struct efsd_export_client *s = h->clients; s; s = s->next)
        shutdown(s->fd, SHUT_RDWR);
    pthread_mutex_unlock(&h->lock);
}

void efsd_export_free(struct efsd_export *h)
{
    if (!h)
        return;
    while (h->clients) {
        struct efsd_export_client *s = h->clients;
        h->clients = s->next;
        uint32_t list = 0;
        for (struct efsd_export_item *item; (item = efsd_export_item_pop(s, &list));) {
            const struct efsd_drop drop = efsd_export_item_free(item); /* the engine is closed: nothing to drop */
            efs_request_detach(drop.request, drop.index);
        }
        efsd_export_close(h, s->fd);
        efsd_export_client_unref(s);
    }
    efsd_socket_close(&h->socket);
    struct efsd_taken taken;
    while (h->taken[0] >= 0 && read(h->taken[0], &taken, sizeof(taken)) == (ssize_t)sizeof(taken))
        efsd_export_close(h, taken.fd);
    const int all[] = {h->epoll, h->stop, h->timer, h->spare, h->taken[0], h->taken[1]};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            close(all[i]);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

const char *efsd_export_address(const struct efsd_export *h)
{
    return h ? h->socket.path : "-";
}
