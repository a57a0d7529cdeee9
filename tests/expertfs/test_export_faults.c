/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each system call of the daemon's socket fails in turn: a client gets its experts' bytes, an error or a closed
 * connection, and never hangs. The next client is served normally, and no lease or descriptor is left. The daemon's
 * socket runs over an engine and a small store, as in the fuzzer; the wrappers precede the C library's functions and
 * fail in the daemon's threads only.
 */
#include "test.h"
#include "../fuzz/fuzz_export.c"

#include "export_internal.h"
#include "fixture.h"

#include <arpa/inet.h>

#define CALLS(X) X(accept4) X(epoll_ctl) X(epoll_wait) X(getsockopt) X(setsockopt) X(recv) X(sendmsg)
#include "libc_fault.h"

#include <sys/epoll.h>
#include <sys/mman.h>

static pthread_t tests_thread;

static bool libc_fault_exempt(void)
{
    return pthread_equal(pthread_self(), tests_thread);
}

LIBC_FAULT(int, accept4, (int fd, struct sockaddr *address, socklen_t *room, int flags), (fd, address, room, flags))
LIBC_FAULT(int, epoll_ctl, (int epoll, int what, int fd, struct epoll_event *event), (epoll, what, fd, event))
LIBC_FAULT(int, epoll_wait, (int epoll, struct epoll_event *events, int most, int milliseconds),
           (epoll, events, most, milliseconds))
LIBC_FAULT(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *room), (fd, level, name, value, room))
LIBC_FAULT(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t bytes),
           (fd, level, name, value, bytes))
LIBC_FAULT(ssize_t, recv, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags))
LIBC_FAULT(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))

/* ---- a client ---- */

static uint8_t *files[SMALL_EXPERTS];
static size_t file_bytes[SMALL_EXPERTS];

static void read_done(void *arg, errint_t error, size_t bytes)
{
    *(_Atomic ssize_t *)arg = error ? error : (ssize_t)bytes;
}

static void learn_files(void)
{
    for (uint32_t e = 0; e < SMALL_EXPERTS; e++) {
        struct efs_expert_info expert;
        struct efs_file_info file;
        _Atomic ssize_t came = INTPTR_MAX;
        assert_int_equal(efs_expert_info(daemon_->fs, efs_id(e), &expert), 0);
        assert_int_equal(efs_file_info(daemon_->fs, expert.file, &file), 0);
        file_bytes[e] = file.bytes;
        files[e] = malloc(file.bytes);
        assert_non_null(files[e]);
        efs_read(daemon_->fs, expert.file, NULL, 0, files[e], file.bytes, read_done, &came);
        while (came == INTPTR_MAX)
            sched_yield();
        assert_int_equal(came, file.bytes);
    }
}

static void ask(int fd, uint32_t kind, uint32_t form)
{
    struct efs_export_ask packet = {.form = form};
    packet.head = (struct efs_export_head){(uint32_t)offsetof(struct efs_export_ask, item) +
                                               SMALL_EXPERTS * (uint32_t)sizeof(packet.item[0]),
                                           EFS_EXPORT_VERSION, kind, SMALL_EXPERTS};
    for (uint32_t e = 0; e < SMALL_EXPERTS; e++) {
        packet.item[e].expert = e;
        packet.item[e].tokens = 1;
        packet.item[e].tag = e + form * SMALL_EXPERTS;
    }
    send(fd, &packet, packet.head.bytes, MSG_NOSIGNAL);
}

struct window {
    uint32_t number;
    void *data;
    size_t bytes;
};

/* Requests both forms of both experts and reads the answers. Returns the number of correct ones; -1: disconnected. */
static int run_client(int fd, const char *what)
{
    union packet {
        struct efs_export_head head;
        struct efs_export_answer answer;
        struct efs_export_coded coded;
    };
    _Alignas(8) static uint8_t bytes[EFS_EXPORT_MESSAGE_BYTES];
    ssize_t at = 0, end = 0;
    struct window windows[16];
    uint32_t window_count = 0, answered = 0, right = 0;
    bool gone = false;
    ask(fd, EFS_EXPORT_ASK, 0);
    ask(fd, EFS_EXPORT_ASK, 1);
    while (answered < 2 * SMALL_EXPERTS && !gone) {
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
        const struct cmsghdr *with = NULL;
        if (at == end) {
            if (poll(&wait, 1, GONE_SECONDS * 1000) != 1)
                fail_msg("%s: nothing comes any more", what);
            end = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
            at = 0;
            gone = end <= 0;
            with = gone ? NULL : CMSG_FIRSTHDR(&message);
        }
        const union packet *packet = (const void *)(bytes + at);
        at += gone ? 0 : packet->head.bytes;
        if (with) {
            int given;
            memcpy(&given, CMSG_DATA(with), sizeof(given));
            struct window *w = &windows[window_count++];
            assert_true(window_count <= 16);
            *w = (struct window){packet->answer.window, NULL, packet->answer.window_bytes};
            w->data = mmap(NULL, w->bytes, PROT_READ, MAP_SHARED, given, 0);
            assert_ptr_not_equal(w->data, MAP_FAILED);
            close(given);
        }
        if (gone || packet->head.kind == EFS_EXPORT_WINDOW)
            continue;
        if (packet->head.kind == EFS_EXPORT_CODED) {
            bool last = packet->coded.at + packet->head.count == packet->coded.total;
            answered += last;
            right += last;
            continue;
        }
        assert_int_equal(packet->head.kind, EFS_EXPORT_ANSWER);
        answered++;
        uint32_t e = packet->answer.tag;
        if (packet->answer.error) {
            assert_true(packet->answer.error < 0);
            continue;
        }
        assert_true(e < SMALL_EXPERTS);
        assert_int_equal(packet->answer.file_bytes, file_bytes[e]);
        const struct window *in = NULL;
        for (uint32_t w = 0; w < window_count; w++)
            in = windows[w].number == packet->answer.window ? &windows[w] : in;
        assert_non_null(in);
        assert_memory_equal(in->data, files[e], file_bytes[e]);
        right++;
    }
    ask(fd, EFS_EXPORT_DROP, 0);
    ask(fd, EFS_EXPORT_DROP, 1);
    shutdown(fd, SHUT_WR);
    while (take_answers(fd, GONE_SECONDS * 1000)) {
    }
    close(fd);
    while (window_count-- > 0)
        munmap(windows[window_count].data, windows[window_count].bytes);
    check_nothing_held();
    return gone ? -1 : (int)right;
}

static void check_served(void)
{
    assert_int_equal(run_client(connect_client(), "no fault"), 2 * SMALL_EXPERTS);
}

/* The daemon's thread may be about to close the last client's socket. */
static void check_open_fds(unsigned fds)
{
    for (unsigned i = 0; i < GONE_SECONDS * 100 && fixture_open_fds() != fds; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(fixture_open_fds(), fds);
}

/* Each call fails in turn, with the `many` - 1 calls after it. */
static void sweep(enum call call, int error, unsigned many)
{
    unsigned fds = fixture_open_fds(), nth = 1, cut = 0;
    for (bool hit = true; hit; nth += hit) {
        libc_fault_plan(call, nth, nth + many - 1, error);
        int right = run_client(connect_client(), libc_fault_names[call]);
        hit = libc_fault_plans[call].hits > 0;
        libc_fault_plan(call, 0, 0, 0);
        assert_true(hit || right == 2 * SMALL_EXPERTS);
        cut += right < 0;
        check_served();
        assert_true(nth < 200);
    }
    print_message("%s with %s, %u times: %u places, cut off in %u\n", libc_fault_names[call], strerror(error), many,
                  nth - 1, cut);
    assert_true(nth > 1);
    check_open_fds(fds);
}

TEST(every_call)
{
    static const struct {
        enum call call;
        int errors[5];
    } all[] = {{CALL_accept4, {EMFILE, ENOMEM, ECONNABORTED, EINTR}},
               {CALL_epoll_ctl, {ENOMEM, ENOSPC}},
               {CALL_epoll_wait, {EINTR}},
               {CALL_getsockopt, {ENOMEM}},
               {CALL_setsockopt, {ENOMEM}},
               {CALL_recv, {EINTR, EAGAIN, ECONNRESET, ENOMEM}},
               {CALL_sendmsg, {EAGAIN, ENOBUFS, ETOOMANYREFS, EPIPE, ENOMEM}}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (size_t e = 0; e < 5 && all[i].errors[e]; e++)
            for (unsigned many = 1; many <= 2; many++)
                sweep(all[i].call, all[i].errors[e], many);
}

/* The socket has no room for an answer, and the epoll_ctl that would wait for room fails. */
TEST(full_socket_without_epoll)
{
    unsigned fds = fixture_open_fds();
    for (unsigned nth = 1; nth <= 4; nth++) {
        libc_fault_plan(CALL_sendmsg, nth, nth, EAGAIN);
        libc_fault_plan(CALL_epoll_ctl, 2, 2, ENOMEM); /* the first adds the client */
        run_client(connect_client(), "sendmsg and epoll_ctl");
        libc_fault_plan(CALL_sendmsg, 0, 0, 0);
        libc_fault_plan(CALL_epoll_ctl, 0, 0, 0);
        check_served();
    }
    check_open_fds(fds);
}

#define QUEUED_TAGS 1200u /* of which the client's socket holds some 300 */

static void send_tags(int fd, uint32_t kind, uint32_t first, uint32_t count, uint32_t expert)
{
    struct efs_export_ask packet = {.form = EFS_FORM_FULL};
    packet.head =
        (struct efs_export_head){(uint32_t)(offsetof(struct efs_export_ask, item) + count * sizeof(packet.item[0])),
                                 EFS_EXPORT_VERSION, kind, count};
    for (uint32_t i = 0; i < count; i++) {
        packet.item[i].expert = expert + i;
        packet.item[i].tokens = 1;
        packet.item[i].tag = first + i;
    }
    assert_int_equal(send(fd, &packet, packet.head.bytes, MSG_NOSIGNAL), packet.head.bytes);
}

/* Waits until QUEUED_TAGS full experts were requested since `before` and none is being loaded. */
static void wait_for_leases(uint64_t before)
{
    struct efs_stats stats;
    for (unsigned i = 0; i < GONE_SECONDS * 100; i++) {
        efs_stats(daemon_->fs, &stats);
        if (stats.leases == before + QUEUED_TAGS && stats.inflight == 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("not all requests were answered");
}

/* Answers that wait for room in the client's socket leave the queue when their tags are dropped or cancelled: those
 * that were dropped are not sent, and of those that were cancelled nothing comes after ECANCELED. */
TEST(dropped_while_queued)
{
    static uint8_t answered[QUEUED_TAGS], cancelled[QUEUED_TAGS];
    struct efs_stats stats;
    struct efs_export_answer answer = {.tag = 0};
    uint32_t unsent = 0;
    int fd = connect_client();
    efs_stats(daemon_->fs, &stats);
    for (uint32_t tag = 0; tag < QUEUED_TAGS; tag += SMALL_EXPERTS)
        send_tags(fd, EFS_EXPORT_ASK, tag, SMALL_EXPERTS, 0);
    wait_for_leases(stats.leases);
    for (uint32_t tag = 0; tag < QUEUED_TAGS; tag += 40) { /* 20 of 40 are dropped, the other ones cancelled */
        send_tags(fd, EFS_EXPORT_DROP, tag, 20, 0);
        send_tags(fd, EFS_EXPORT_CANCEL, tag + 20, 20, 0);
    }
    check_nothing_held();                                         /* all packets so far were handled */
    send_tags(fd, EFS_EXPORT_ASK, QUEUED_TAGS, 1, SMALL_EXPERTS); /* there is no such expert */
    while (answer.tag != QUEUED_TAGS) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, GONE_SECONDS * 1000), 1);
        assert_int_equal(recv(fd, &answer, sizeof(answer), 0), sizeof(answer));
        assert_int_equal(answer.head.kind, EFS_EXPORT_ANSWER);
        if (answer.tag == QUEUED_TAGS)
            break;
        assert_true(answer.tag < QUEUED_TAGS && !cancelled[answer.tag]);
        assert_true(answer.error == 0 || answer.error == -ECANCELED);
        (answer.error ? cancelled : answered)[answer.tag]++;
    }
    for (uint32_t tag = 0; tag < QUEUED_TAGS; tag++) {
        assert_true(answered[tag] <= 1);
        assert_int_equal(cancelled[tag], tag % 40 >= 20);
        unsent += !answered[tag];
    }
    print_message("%u of %u answers were not sent\n", unsent, QUEUED_TAGS);
    assert_true(unsent > 0);
    close(fd);
    check_nothing_held();
    check_served();
}

/* ---- descriptors that a client sends along ---- */

#define LINGER_SECONDS (4 * GONE_SECONDS)

/* A socket whose close blocks for LINGER_SECONDS, as its data is not read; *peer: its other end, which ends that. */
static int lingering_socket(int *peer)
{
    const struct linger linger = {1, LINGER_SECONDS};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    static const char data[1 << 16];
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &bytes), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
    *peer = accept(listening, NULL, NULL);
    close(listening);
    assert_true(*peer >= 0);
    while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    return fd;
}

/* Sends a packet with a descriptor. */
static ssize_t send_with(int fd, int given)
{
    struct efs_export_ask none = {
        .head = {offsetof(struct efs_export_ask, item), EFS_EXPORT_VERSION, EFS_EXPORT_UNMAPPED, 0}};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec part = {.iov_base = &none, .iov_len = none.head.bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    with->cmsg_level = SOL_SOCKET;
    with->cmsg_type = SCM_RIGHTS;
    with->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(with), &given, sizeof(given));
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* Clients are served while the kernel closes a descriptor that one has sent, and blocks. Linux 6.16 refuses to send
 * it; the second turn is a kernel before that. */
TEST(descriptors_that_block)
{
    struct efsd_socket *listening = &daemon_->export->socket;
    const unsigned fds = fixture_open_fds();
    const int yes = 1, no = 0;
    const bool refuses = listening->refuses_descriptors;
    for (unsigned turn = 0; turn < 2; turn++) {
        int peer, lingering = lingering_socket(&peer);
        if (turn == 1 && refuses)
            assert_int_equal(setsockopt(listening->listening, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &yes, sizeof(yes)),
                             0);
        pthread_mutex_lock(&daemon_->export->lock); /* nothing is received before this thread has closed its own */
        listening->refuses_descriptors = turn == 0 && refuses;
        int fd = connect_client();
        ssize_t sent = send_with(fd, lingering);
        if (sent < 0)
            close(peer); /* else close() would block here */
        close(lingering);
        pthread_mutex_unlock(&daemon_->export->lock);
        check_served();
        assert_true(listening->refuses_descriptors ? sent < 0 : sent > 0);
        if (!listening->refuses_descriptors) { /* it is disconnected */
            char end;
            struct pollfd wait = {.fd = fd, .events = POLLIN};
            assert_int_equal(poll(&wait, 1, GONE_SECONDS * 1000), 1);
            assert_true(recv(fd, &end, 1, 0) <= 0);
            close(peer);
        }
        close(fd);
        check_served();
    }
    if (refuses)
        setsockopt(listening->listening, SOL_SOCKET, 83, &no, sizeof(no));
    pthread_mutex_lock(&daemon_->export->lock);
    listening->refuses_descriptors = refuses;
    pthread_mutex_unlock(&daemon_->export->lock);
    check_open_fds(fds);
}

static int begin(void **state)
{
    (void)state;
    tests_thread = pthread_self();
    make_daemon();
    learn_files();
    check_served();
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < SMALL_EXPERTS; e++)
        free(files[e]);
    return 0;
}

TEST_MAIN(begin, end)
