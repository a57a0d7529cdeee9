/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client runtime with an export socket: a thread plays the daemon's part, correctly or not. A request returns the
 * experts' bytes, or an error.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"
#include "fake_daemon.h"
#include "expertfs.h"
#include "expertfs-protocol.h"
#define CALLS(X) X(socket) X(connect) X(eventfd) X(getsockopt) X(send) X(recvmsg)
#include "libc_fault.h"

#define LAYERS 2
#define EXPERTS 8
#define WINDOWS 64u
#define TAGS 256u

static struct fixture model;
static struct fixture_mount mount;

/* ---- daemon side -------------------------------------------------------------------------------------------- */

enum manner {
    GOOD,
    REFUSES,        /* every expert, with an error */
    HANGS_UP,       /* at the first request */
    HANGS_UP_LATER, /* after three experts */
    OTHER_VERSION,
    OTHER_LENGTH,
    OTHER_KIND,
    UNKNOWN_TAG,
    NO_DESCRIPTOR, /* new windows come without one */
    LONG_FILE,     /* longer than its window */
    SHORT_PACKET,
    STRANGE_HEADER, /* the window contains no valid expert */
    POSITIVE_ERROR,
    MANNERS,
    ALWAYS_NEW /* correct, but every expert has a new window number */
};

struct window {
    int fd;
    uint8_t *data;
    bool told;
    uint32_t tag; /* of the expert in it; TAGS: none */
};

struct end {
    struct fake_daemon mount; /* must be the first member */
    enum manner manner;
    uint32_t window_base; /* number of windows[0] */
    struct window windows[WINDOWS];
    _Atomic uint32_t handed, wrong, connections, forgotten; /* wrong: protocol violations by the client */
    _Atomic uint64_t reported;                              /* the last count of slots on a device */
};

static void reply(const struct end *s, int fd, struct efs_export_answer answer, int with)
{
    answer.head = (struct efs_export_head){s->manner == OTHER_LENGTH ? 8 : sizeof(answer),
                                           EFS_EXPORT_VERSION + (s->manner == OTHER_VERSION),
                                           s->manner == OTHER_KIND ? 77 : EFS_EXPORT_ANSWER, 1};
    answer.tag += s->manner == UNKNOWN_TAG ? 100 : 0;
    fake_daemon_send(fd, &answer, s->manner == SHORT_PACKET ? sizeof(answer) - 8 : sizeof(answer), with);
}

static void hand_out(struct end *s, int fd, uint32_t layer, uint32_t expert, uint32_t tag)
{
    uint32_t number = layer * EXPERTS + expert, w = 0;
    struct efs_export_answer answer = {.tag = tag, .window_bytes = s->mount.window_bytes};
    answer.error = s->manner == REFUSES ? -EBUSY : s->manner == POSITIVE_ERROR ? 5 : 0;
    while (w < WINDOWS && s->windows[w].tag != TAGS)
        w++;
    if (answer.error || w == WINDOWS) {
        answer.error = answer.error ? answer.error : -ENOMEM;
        reply(s, fd, answer, -1);
        return;
    }
    struct window *window = &s->windows[w];
    memcpy(window->data, mount.files[number], mount.file_bytes[number]);
    if (s->manner == STRANGE_HEADER)
        memset(window->data, 0x7b, 64);
    window->tag = tag;
    answer.window = s->manner == ALWAYS_NEW ? s->window_base + s->handed : s->window_base + w;
    answer.file_bytes = s->manner == LONG_FILE ? s->mount.window_bytes + 1 : mount.file_bytes[number];
    s->handed++;
    reply(s, fd, answer, window->told || s->manner == NO_DESCRIPTOR ? -1 : window->fd);
    window->told = s->manner != ALWAYS_NEW;
}

static void release_pages(struct end *s, uint32_t tag)
{
    for (uint32_t w = 0; w < WINDOWS; w++)
        if (s->windows[w].tag == tag) {
            memset(s->windows[w].data, 0xee, s->mount.window_bytes); /* the client must not read it any more */
            s->windows[w].tag = TAGS;
        }
}

/* Serves a connection until the client hangs up or the manner requires to. */
static void serve_one(struct end *s, int fd)
{
    union {
        struct efs_export_ask ask;
        struct efs_export_device device;
    } packet;
    bool used[TAGS] = {false};
    ssize_t n;
    while ((n = recv(fd, &packet, sizeof(packet), 0)) > 0) {
        const struct efs_export_ask ask = packet.ask;
        if (ask.head.kind == EFS_EXPORT_DEVICE) {
            s->wrong += n != sizeof(packet.device) || ask.head.bytes != sizeof(packet.device) || ask.head.count != 1 ||
                        ask.head.version != EFS_EXPORT_VERSION || packet.device.wait_ns != ~packet.device.slots;
            s->reported = packet.device.slots;
            continue;
        }
        s->wrong += ask.head.version != EFS_EXPORT_VERSION || ask.head.bytes != (size_t)n;
        s->wrong += ask.head.count > EFS_EXPORT_ITEMS ||
                    (size_t)n != offsetof(struct efs_export_ask, item) + ask.head.count * sizeof(ask.item[0]);
        if (ask.head.kind == EFS_EXPORT_ASK && s->manner == HANGS_UP)
            return;
        if (ask.head.kind == EFS_EXPORT_UNMAPPED) {
            s->wrong += ask.head.count == 0 ||
                        (s->manner != ALWAYS_NEW && s->manner != NO_DESCRIPTOR && s->manner != LONG_FILE);
            s->forgotten += ask.head.count;
            for (uint32_t i = 0; i < ask.head.count && i < EFS_EXPORT_ITEMS; i++)
                if (ask.item[i].tag - s->window_base < WINDOWS)
                    s->windows[ask.item[i].tag - s->window_base].told = false;
            continue;
        }
        for (uint32_t i = 0; i < ask.head.count && s->wrong == 0; i++) {
            uint32_t tag = ask.item[i].tag;
            bool cancel = ask.head.kind == EFS_EXPORT_CANCEL;
            s->wrong += tag >= TAGS || (!cancel && used[tag] != (ask.head.kind == EFS_EXPORT_DROP));
            if (s->wrong)
                break;
            if (cancel) {
                used[tag] = false;
                release_pages(s, tag);
                reply(s, fd, (struct efs_export_answer){.tag = tag, .error = -ECANCELED}, -1);
                continue;
            }
            if (ask.head.kind == EFS_EXPORT_DROP) {
                used[tag] = false;
                release_pages(s, tag);
                continue;
            }
            uint32_t before = s->handed;
            hand_out(s, fd, ask.layer, ask.item[i].expert, tag);
            used[tag] = s->handed > before;
            if (s->manner == HANGS_UP_LATER && s->handed == 3)
                return;
        }
    }
}

static _Thread_local bool is_mount_end;

static void serve(struct fake_daemon *end, int fd)
{
    struct end *s = (struct end *)end;
    is_mount_end = true;
    s->connections++;
    serve_one(s, fd);
    for (uint32_t w = 0; w < WINDOWS; w++) { /* as after an unmount: the windows keep their contents */
        s->windows[w].told = false;
        s->windows[w].tag = TAGS;
    }
    s->window_base += WINDOWS;
}

static void begin_end(struct end *s, enum manner manner)
{
    *s = (struct end){.manner = manner, .window_base = 1};
    fake_daemon_start(&s->mount, &model, &mount, serve);
    for (uint32_t w = 0; w < WINDOWS; w++) {
        struct window *window = &s->windows[w];
        *window = (struct window){.fd = memfd_create("window", MFD_CLOEXEC), .tag = TAGS};
        assert_int_equal(ftruncate(window->fd, (off_t)s->mount.window_bytes), 0);
        window->data = mmap(NULL, s->mount.window_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, window->fd, 0);
        assert_ptr_not_equal(window->data, MAP_FAILED);
    }
}

static void end_end(struct end *s)
{
    fake_daemon_stop(&s->mount);
    for (uint32_t w = 0; w < WINDOWS; w++) {
        munmap(s->windows[w].data, s->mount.window_bytes);
        close(s->windows[w].fd);
    }
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static struct efs_client *open_client(void)
{
    return fixture_client(mount.directory, NULL);
}

static _Atomic unsigned wrong_bytes; /* experts with wrong bytes */

/* Requests experts and checks their bytes. false: an error or wrong bytes. It does not fail the test itself, because it
 * also runs on other threads. */
static bool ask(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count, bool wait)
{
    struct efs_need needs[EXPERTS];
    struct efs_client_request *r;
    const struct efs_tensor *tensors;
    uint32_t index, tensor_count, told = 0;
    bool good = true;
    errint_t status;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){(first + 3 * i) % EXPERTS, i + 1};
    if (efs_client_begin(client, "", layer, needs, count, EFS_FORM_FULL, &r, NULL) < 0)
        return false;
    struct pollfd event = {.fd = count % 2 ? efs_client_event(r) : -1,
                           .events = POLLIN}; /* odd counts wait with poll() */
    while (wait && good && (event.fd < 0 || poll(&event, 1, PATIENCE_MS) == 1) &&
           efs_client_wait_any(r, event.fd < 0 ? PATIENCE_MS : 0, &index, &status) == 1 && status == 0) {
        uint32_t number = layer * EXPERTS + needs[index].expert;
        size_t at = mount.file_bytes[number];
        good = efs_client_tensors(r, index, &tensors, &tensor_count) == 0 && tensor_count == 3;
        for (uint32_t i = 0; good && i < 3; i++)
            at -= tensors[i].bytes;
        for (uint32_t i = 0; good && i < 3; at += tensors[i++].bytes) {
            good = memcmp(tensors[i].data, mount.files[number] + at, tensors[i].bytes) == 0;
            wrong_bytes += !good;
        }
        if (++told % 2)
            efs_client_drop(r, index);
    }
    efs_client_release(r);
    return good && (!wait || told == count);
}

static void report(struct efs_client *client, uint64_t slots)
{
    struct efs_export_device device = {.slots = slots, .wait_ns = ~slots};
    efs_client_report_device(client, &device);
}

static void check_manner(enum manner manner, bool good)
{
    struct end s;
    begin_end(&s, manner);
    struct efs_client *client = open_client();
    for (uint32_t round = 0; round < 40; round++) {
        assert_true(ask(client, round % LAYERS, round, 1 + round % EXPERTS, true) || !good);
        bool some = ask(client, round % LAYERS, round + 1, 1 + round % 3, round % 5 != 0); /* some without a wait */
        assert_true(some || !good);
        report(client, round);
    }
    assert_true(ask(client, 0, 0, 1, true) || !good); /* the mount has received what was sent before it */
    assert_int_equal(wrong_bytes, 0);
    assert_true(s.reported == 39 || !good);
    efs_client_close(client);
    assert_int_equal(s.connections, 1);
    assert_int_equal(s.wrong, 0);
    assert_true(!good || s.handed > 40);
    end_end(&s);
}

TEST(test_good)
{
    check_manner(GOOD, true);
}

TEST(test_bad)
{
    for (enum manner manner = REFUSES; manner < MANNERS; manner++)
        check_manner(manner, false);
}

/* The client unmaps the oldest of windows that are not reused, and reports that to the mount. */
TEST(test_forgotten)
{
    struct end s;
    begin_end(&s, ALWAYS_NEW);
    struct efs_client *client = open_client();
    for (uint32_t round = 0; s.handed < 9000; round++)
        assert_true(ask(client, round % LAYERS, round, EXPERTS, true));
    efs_client_close(client);
    assert_int_equal(s.wrong, 0);
    assert_in_range(s.forgotten, 9000 - 8192 - EFS_EXPORT_ITEMS, 9100 - 8192);
    end_end(&s);
}

struct crowd {
    struct efs_client *client;
    uint32_t number;
    bool good;
};

static void *run_crowd(void *arg)
{
    struct crowd *c = arg;
    c->good = true;
    for (uint32_t round = 0; round < 150; round++) {
        c->good &= ask(c->client, (round + c->number) % LAYERS, round * (c->number + 1), 1 + round % 4, round % 7 != 0);
        report(c->client, round);
    }
    return NULL;
}

/* Threads share a client: one receives for all, and may drop an expert that another one waits for. */
static void crowded(enum manner manner)
{
    const bool good = manner == GOOD;
    struct end s;
    struct crowd crowd[6];
    pthread_t threads[6];
    begin_end(&s, manner);
    struct efs_client *client = open_client();
    for (uint32_t i = 0; i < 6; i++) {
        crowd[i] = (struct crowd){.client = client, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_crowd, &crowd[i]), 0);
    }
    for (uint32_t i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_true(crowd[i].good || !good);
    }
    assert_true(ask(client, 0, 0, EXPERTS, true) || !good);
    assert_int_equal(wrong_bytes, 0);
    efs_client_close(client);
    assert_int_equal(s.wrong, 0);
    end_end(&s);
}

TEST(test_threads)
{
    crowded(GOOD);
    crowded(REFUSES);
    crowded(HANGS_UP_LATER);
}

static int setup(void **state)
{
    (void)state;
    fixture_mount_begin_moe(&mount, &model, LAYERS, EXPERTS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&mount, &model);
    return 0;
}

/* ---- failing calls of the client ------------------------------------------------------------------------------ */

static bool libc_fault_exempt(void)
{
    return is_mount_end;
}

LIBC_FAULT(ssize_t, send, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags))
LIBC_FAULT(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
LIBC_FAULT(int, connect, (int fd, const struct sockaddr *address, socklen_t bytes), (fd, address, bytes))
LIBC_FAULT(int, eventfd, (unsigned count, int flags), (count, flags))
LIBC_FAULT(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *room), (fd, level, name, value, room))
LIBC_FAULT(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))

static void sweep(enum call call, int error)
{
    unsigned nth = 1, fds = fixture_open_fds();
    for (bool hit = true; hit; nth += hit) {
        struct end s;
        begin_end(&s, GOOD);
        libc_fault_plan(call, nth, nth, error);
        struct efs_client *client;
        errint_t opened = efs_client_open(mount.directory, NULL, &client, NULL);
        assert_true(opened == 0 || (error != EINTR && opened < 0));
        bool good = opened == 0;
        for (uint32_t round = 0; opened == 0 && round < 4; round++)
            good &= ask(client, round % LAYERS, round, 2 + round % 2, true);
        efs_client_close(client);
        hit = libc_fault_plans[call].hits > 0;
        if (wrong_bytes || (!good && (!hit || error == EINTR)))
            fail_msg("%s %u, %s: an expert is wrong, or does not come", libc_fault_names[call], nth, strerror(error));
        libc_fault_plan(call, 0, 0, 0);
        end_end(&s);
        assert_int_equal(s.wrong, 0);
        assert_true(hit || s.handed > 0); /* the last round has no failing call */
        assert_int_equal(fixture_open_fds(), fds);
        assert_true(nth < 200);
    }
    print_message("%s with %s: %u places\n", libc_fault_names[call], strerror(error), nth - 1);
    assert_true(nth > 1);
}

/* The client is not opened, or a request returns the right bytes or an error. */
TEST(test_failing_calls)
{
    static const struct {
        enum call call;
        int errors[3];
    } all[] = {{CALL_socket, {EMFILE}},
               {CALL_connect, {ECONNREFUSED, EAGAIN}},
               {CALL_eventfd, {EMFILE}},
               {CALL_getsockopt, {ENOMEM}},
               {CALL_send, {EINTR, ENOBUFS, EPIPE}},
               {CALL_recvmsg, {EINTR, ENOMEM, ECONNRESET}}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (size_t e = 0; e < 3 && all[i].errors[e]; e++)
            sweep(all[i].call, all[i].errors[e]);
}

TEST_MAIN(setup, teardown)
