/* handout.c - see handout.h: the socket, and the thread that receives what clients ask. */
#include "handout_core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"

#define SESSIONS 16u
#define SEND_BYTES (256 << 10)

/* ---- the thread --------------------------------------------------------------------------------------------- */

static void greet(struct efsd_handout *h)
{
    int fd = accept4(h->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), bytes = SEND_BYTES;
    if (fd < 0) {
        return;
    }
    struct ucred who;
    socklen_t room = sizeof(who);
    bool may = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &room) == 0 && (who.uid == h->daemon->uid || who.uid == 0);
    struct efsd_session *s = may && h->session_count < SESSIONS ? calloc(1, sizeof(*s)) : NULL;
    if (!s) {
        close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    *s = (struct efsd_session){.handout = h, .fd = fd, .user = who.uid, .references = 1};
    s->late_end = &s->late;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    pthread_mutex_lock(&h->lock);
    s->next = h->sessions;
    h->sessions = s;
    h->session_count++;
    pthread_mutex_unlock(&h->lock);
    efsd_count(&h->daemon->counters.handout_clients, 1);
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event)) {
        efsd_handout_end(s);
    }
}

static void *run(void *arg)
{
    struct efsd_handout *h = arg;
    struct epoll_event event;
    for (;;) { /* one at a time: what one event ends is not in a list of others */
        int n = epoll_wait(h->epoll, &event, 1, -1);
        if (n < 0 && errno != EINTR) {
            return NULL;
        }
        if (n < 1) {
            continue;
        }
        if (event.data.ptr == &h->stop) {
            return NULL;
        }
        if (event.data.ptr == &h->listening) {
            greet(h);
            continue;
        }
        struct efsd_session *s = event.data.ptr;
        if (event.events & EPOLLOUT) {
            efsd_handout_flush(s);
        }
        if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            efsd_handout_receive(s);
        }
    }
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */

static errint_t watch(const struct efsd_handout *h, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    return epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

/* A name that nobody can have taken before us: processes of other users could listen there. */
static errint_t listen_somewhere(struct efsd_handout *h)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t number;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        return -EIO;
    }
    int bytes =
        snprintf(h->address, sizeof(h->address), "expertfs-%d-%016llx", (int)getpid(), (unsigned long long)number);
    memcpy(address.sun_path + 1, h->address, (size_t)bytes);
    h->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    if (h->listening < 0 || bind(h->listening, (struct sockaddr *)&address, length) || listen(h->listening, 16)) {
        return -errno;
    }
    return 0;
}

static errint_t find_nodes(struct efsd_handout *h)
{
    const struct efsd_tree *tree = &h->daemon->tree;
    h->nodes = calloc((size_t)h->daemon->expert_count + 1, sizeof(*h->nodes));
    for (uint32_t i = 0; h->nodes && i < tree->count; i++) {
        if (tree->nodes[i].kind == EFSD_EXPERT) {
            h->nodes[tree->nodes[i].expert] = i;
        }
    }
    return h->nodes ? 0 : -ENOMEM;
}

errint_t efsd_handout_start(struct efsd *daemon, struct efsd_handout **handout)
{
    *handout = NULL;
    if (!daemon->kernel.passthrough) { /* there is no full pool, or nobody may have it */
        return 0;
    }
    struct efsd_handout *h = calloc(1, sizeof(*h));
    if (!h) {
        return -ENOMEM;
    }
    *h = (struct efsd_handout){.daemon = daemon, .listening = -1};
    pthread_mutex_init(&h->lock, NULL);
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->stop = eventfd(0, EFD_CLOEXEC);
    errint_t rc = h->epoll < 0 || h->stop < 0 ? -errno : find_nodes(h);
    if (!rc) {
        rc = listen_somewhere(h);
    }
    if (!rc) {
        rc = watch(h, h->stop, &h->stop);
    }
    if (!rc) {
        rc = watch(h, h->listening, &h->listening);
    }
    if (!rc) {
        rc = -pthread_create(&h->thread, NULL, run, h);
        h->started = rc == 0;
    }
    if (rc) {
        efsd_handout_free(h);
        return rc;
    }
    pthread_setname_np(h->thread, "efs-handout");
    *handout = h;
    return 0;
}

void efsd_handout_stop(struct efsd_handout *h)
{
    const uint64_t one = 1;
    if (!h || !h->started) {
        return;
    }
    h->started = write(h->stop, &one, sizeof(one)) != (ssize_t)sizeof(one);
    pthread_join(h->thread, NULL);
    /* What clients hold stays as it is until the engine ends: they may be reading it. */
    pthread_mutex_lock(&h->lock);
    for (struct efsd_session *s = h->sessions; s; s = s->next) {
        shutdown(s->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->lock);
}

void efsd_handout_free(struct efsd_handout *h)
{
    if (!h) {
        return;
    }
    while (h->sessions) {
        struct efsd_session *s = h->sessions;
        h->sessions = s->next;
        for (uint32_t tag = 0; tag < s->tags; tag++) {
            free(s->held[tag]);
        }
        close(s->fd);
        efsd_session_unref(s);
    }
    const int all[] = {h->listening, h->epoll, h->stop};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] >= 0) {
            close(all[i]);
        }
    }
    pthread_mutex_destroy(&h->lock);
    free(h->nodes);
    free(h);
}

const char *efsd_handout_address(const struct efsd_handout *h)
{
    return h ? h->address : "-";
}
