/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client runtime beside a socket that hands coded experts out: a thread here stands for the mount's end. Whatever
 * it tells, a request gives the chunks that it was told of, inside of their windows, or an error.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "test.h"
#include "expertfs-protocol.h"
#include "fixture_mount.h"

#define EXPERTS 8u
#define SHARD 4096u /* elements */
#define TENSORS 3u
#define TAGS 64u

static struct fixture model;
static struct fixture_mount mount;

enum manner {
    GOOD,
    IN_PARTS, /* of a few bytes */
    CHANGED,  /* a byte of what is told, at change, is another */
    FULL,     /* in place of coded */
    REFUSES,
    NO_WINDOW,
    NO_LAYOUT,
    SHORT_WINDOW,  /* shorter than it is said to be */
    PART_MISSING,  /* one in the middle */
    PART_TOO_LONG, /* of more than there is */
    TOO_MUCH,      /* is said to come */
    UNKNOWN_TAG,
    HANGS_UP,
    MANNERS,
    LOSES_WINDOWS, /* good, but the first descriptor of each window is of no use */
    LOSES_WINDOWS_FULL,
    ANY_IS_LATE, /* and full then: once something else is asked for */
    NO_ROOM,     /* for the last that is asked for until another is dropped, and says so of waits */
    NO_ROOM_BAD  /* the same in a packet that makes no sense */
};

struct mount_end {
    enum manner manner;
    int listening;
    int window;
    size_t window_bytes;
    size_t change;
    uint8_t with;
    bool has[EXPERTS], lost[EXPERTS];                      /* windows that were sent, and first in vain */
    _Atomic uint32_t waits, asked, layouts, dropped, told; /* told: of experts that the client has */
    pthread_t thread;
    char path[900];
};

/* ---- what is told ------------------------------------------------------------------------------------------- */

static size_t header_bytes(uint32_t expert)
{
    uint64_t length;
    memcpy(&length, mount.files[expert], 8);
    return (size_t)length + 8;
}

/* Of the expert's file, whose tensors are three of the same size: each cut in shards that are there as they are, one
 * extent a tensor. */
static size_t layout_make(uint32_t expert, uint8_t *out)
{
    size_t header = header_bytes(expert), tensor = (mount.file_bytes[expert] - header) / TENSORS;
    uint32_t each = (uint32_t)((tensor / 2 + SHARD - 1) / SHARD);
    const struct efs_export_layout head = {.file_bytes = mount.file_bytes[expert],
                                           .header_bytes = (uint32_t)header,
                                           .tensors = TENSORS,
                                           .extents = TENSORS,
                                           .shards = TENSORS * each,
                                           .shard_elements = SHARD};
    uint8_t *at = out;
    memcpy(at, &head, sizeof(head));
    at += sizeof(head);
    memcpy(at, mount.files[expert], header);
    at += (header + 7) / 8 * 8;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct efs_export_layout_tensor one = {header + t * tensor, each, 0};
        memcpy(at, &one, sizeof(one));
        at += sizeof(one);
    }
    for (uint32_t i = 0; i < TENSORS * each; i++) {
        uint32_t s = i % each;
        uint64_t left = tensor / 2 - (uint64_t)s * SHARD;
        const struct efs_export_layout_shard one = {.elements = left < SHARD ? left : SHARD,
                                                    .extent = i / each,
                                                    .sm_at = s * SHARD * 2,
                                                    .sm_bytes = (uint32_t)(2 * (left < SHARD ? left : SHARD))};
        memcpy(at, &one, sizeof(one));
        at += sizeof(one);
    }
    return (size_t)(at - out);
}

static void reply(int fd, const void *packet, size_t bytes, int with)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *)(uintptr_t)packet, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (with >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &with, sizeof(with));
    }
    sendmsg(fd, &message, MSG_NOSIGNAL);
}

static void reply_parts(const struct mount_end *s, int fd, uint32_t tag, uint32_t layout, const uint8_t *body,
                        uint32_t total)
{
    uint32_t step = s->manner == IN_PARTS || s->manner == PART_MISSING ? 1000 : EFS_EXPORT_PART_BYTES;
    for (uint32_t at = 0; at < total; at += step) {
        struct efs_export_coded packet = {.tag = tag + (s->manner == UNKNOWN_TAG ? TAGS : 0),
                                          .layout_bytes = layout,
                                          .at = at,
                                          .total = s->manner == TOO_MUCH ? UINT32_MAX : total};
        uint32_t part = total - at < step ? total - at : step;
        memcpy(packet.part, body + at, part);
        if (s->manner == PART_TOO_LONG)
            part += 8;
        packet.head = (struct efs_export_head){(uint32_t)offsetof(struct efs_export_coded, part) + part,
                                               EFS_EXPORT_VERSION, EFS_EXPORT_CODED, part};
        if (s->manner != PART_MISSING || at != step)
            reply(fd, &packet, packet.head.bytes, -1);
    }
}

static void hand_out(struct mount_end *s, int fd, uint32_t expert, uint32_t tag, bool with_layout)
{
    uint8_t *body = calloc(1, 65536);
    bool loses = s->manner == LOSES_WINDOWS || s->manner == LOSES_WINDOWS_FULL, send = !loses || !s->has[expert];
    bool in_vain = s->manner == SHORT_WINDOW || (loses && !s->lost[expert]);
    struct efs_export_answer answer = {.head = {sizeof(answer), EFS_EXPORT_VERSION, EFS_EXPORT_WINDOW, 1},
                                       .window = expert + 1,
                                       .window_bytes = in_vain ? 2 * s->window_bytes : s->window_bytes};
    size_t layout = with_layout && s->manner != NO_LAYOUT ? layout_make(expert, body) : 0;
    size_t header = header_bytes(expert), tensor = (mount.file_bytes[expert] - header) / TENSORS;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct efs_export_place place = {.sm_window = expert + 1, .sm_offset = header + t * tensor};
        memcpy(body + layout + t * sizeof(place), &place, sizeof(place));
    }
    size_t total = layout + TENSORS * sizeof(struct efs_export_place);
    if (s->manner == CHANGED)
        body[s->change % total] = s->with;
    int window = memfd_create("window", MFD_CLOEXEC);
    if (pwrite(window, mount.files[expert], mount.file_bytes[expert], 0) < 0 ||
        ftruncate(window, (off_t)s->window_bytes) < 0)
        abort();
    if (s->manner == FULL || s->manner == LOSES_WINDOWS_FULL || s->manner == REFUSES) {
        answer.head.kind = EFS_EXPORT_ANSWER;
        answer.tag = tag;
        answer.file_bytes = mount.file_bytes[expert];
        answer.error = s->manner == REFUSES ? -EBUSY : 0;
    }
    if (answer.head.kind == EFS_EXPORT_ANSWER || (s->manner != NO_WINDOW && send))
        reply(fd, &answer, sizeof(answer), s->manner == REFUSES || !send ? -1 : window);
    close(window);
    s->has[expert] = s->lost[expert] = true;
    if (answer.head.kind == EFS_EXPORT_WINDOW)
        reply_parts(s, fd, tag, (uint32_t)layout, body, (uint32_t)total);
    free(body);
}

/* First of a wait that there is not. */
static void tell_stuck(struct mount_end *s, int fd, const struct efs_export_wait *wait)
{
    struct efs_export_wait stuck = {
        .head = {offsetof(struct efs_export_wait, tag), EFS_EXPORT_VERSION, EFS_EXPORT_STUCK, s->manner == NO_ROOM_BAD},
        .number = wait->number + 7};
    s->waits++;
    reply(fd, &stuck, stuck.head.bytes, -1);
    stuck.number = wait->number;
    if (s->waits > 1)
        reply(fd, &stuck, stuck.head.bytes, -1);
}

static void serve_one(struct mount_end *s, int fd)
{
    union {
        struct efs_export_ask ask;
        struct efs_export_wait wait;
    } packet;
    struct efs_export_ask ask;
    uint32_t late_tag = EFS_EXPORT_NOTIFY, late_expert = 0;
    while (recv(fd, &packet, sizeof(packet), 0) > 0) {
        ask = packet.ask;
        if (ask.head.kind == EFS_EXPORT_WAIT) {
            tell_stuck(s, fd, &packet.wait);
            continue;
        }
        for (uint32_t i = 0; i < ask.head.count && ask.head.kind != EFS_EXPORT_LIST; i++) {
            uint32_t tag = ask.item[i].tag;
            if (s->manner >= NO_ROOM && ask.head.kind == EFS_EXPORT_ASK && i + 1 == ask.head.count && i > 0) {
                late_tag = tag & ~EFS_EXPORT_WITH_LAYOUT;
                late_expert = ask.item[i].expert;
                continue;
            }
            if (s->manner >= NO_ROOM && ask.head.kind == EFS_EXPORT_DROP && late_tag != EFS_EXPORT_NOTIFY) {
                hand_out(s, fd, late_expert, late_tag, true);
                late_tag = EFS_EXPORT_NOTIFY;
            }
            if (s->manner == ANY_IS_LATE && ask.head.kind == EFS_EXPORT_ASK && late_tag == EFS_EXPORT_NOTIFY) {
                late_tag = tag & ~EFS_EXPORT_WITH_LAYOUT;
                late_expert = ask.item[i].expert;
                continue;
            }
            if (s->manner == ANY_IS_LATE && ask.head.kind == EFS_EXPORT_ASK) {
                s->manner = FULL;
                hand_out(s, fd, late_expert, late_tag, false);
                s->manner = GOOD;
            }
            if (ask.head.kind == EFS_EXPORT_UNMAPPED && tag - 1 < EXPERTS)
                s->has[tag - 1] = false;
            if (ask.head.kind == EFS_EXPORT_DROP)
                s->dropped++;
            if (ask.head.kind == EFS_EXPORT_ASK && tag == EFS_EXPORT_NOTIFY)
                s->told++;
            if (ask.head.kind != EFS_EXPORT_ASK || tag == EFS_EXPORT_NOTIFY)
                continue;
            if (s->manner == HANGS_UP)
                return;
            s->asked++;
            s->layouts += tag & EFS_EXPORT_WITH_LAYOUT ? 1 : 0;
            hand_out(s, fd, ask.item[i].expert, tag & ~EFS_EXPORT_WITH_LAYOUT, tag & EFS_EXPORT_WITH_LAYOUT);
        }
    }
}

static void *serve(void *arg)
{
    struct mount_end *s = arg;
    int fd;
    while ((fd = accept(s->listening, NULL, NULL)) >= 0) {
        serve_one(s, fd);
        close(fd);
    }
    return NULL;
}

static void begin_end(struct mount_end *s, enum manner manner, const char *coded)
{
    static unsigned number;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[1024];
    *s = (struct mount_end){.manner = manner};
    for (uint32_t e = 0; e < mount.experts; e++)
        s->window_bytes = mount.file_bytes[e] > s->window_bytes ? mount.file_bytes[e] : s->window_bytes;
    s->window_bytes = (s->window_bytes + 4095) / 4096 * 4096;
    snprintf(s->path, sizeof(s->path), "%s/end-%u", model.directory, number);
    int folder = open(model.directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/end-%u", folder, number++);
    s->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listening, (struct sockaddr *)&address, sizeof(address)), 0);
    close(folder);
    assert_int_equal(listen(s->listening, 4), 0);
    int bytes = snprintf(text, sizeof(text), "address: %s\ncoded: %s\n", s->path, coded);
    fixture_mount_file(&mount, ".expertfs/handout", text, (size_t)bytes);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void end_end(struct mount_end *s)
{
    shutdown(s->listening, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listening);
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static struct efs_client *open_client(uint64_t keep_bytes)
{
    const struct efs_client_options options = {.keep_bytes = keep_bytes, .threads = 4};
    return fixture_client(mount.directory, &options);
}

static volatile uint64_t sink;

/* Every chunk can be read. */
static void touch(const struct efs_tensor *tensors, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t i = 0; i < tensors[t].shard_count; i++) {
            const struct efs_coded_shard *shard = &tensors[t].shards[i];
            for (size_t at = 0; at < shard->e_bytes; at++)
                sink += shard->e[at];
            for (size_t at = 0; at < shard->sm_bytes; at++)
                sink += shard->sm[at];
        }
}

/* The chunks of an expert are its tensors. */
static void check_coded(uint32_t expert, const struct efs_tensor *tensors, uint32_t count)
{
    const uint8_t *at = mount.files[expert] + header_bytes(expert);
    assert_int_equal(count, TENSORS);
    for (uint32_t t = 0; t < count; t++) {
        assert_null(tensors[t].data);
        assert_int_equal(tensors[t].shard_elements, SHARD);
        assert_int_equal(tensors[t].dtype, EFS_DTYPE_BF16);
        for (uint32_t i = 0; i < tensors[t].shard_count; i++) {
            const struct efs_coded_shard *shard = &tensors[t].shards[i];
            assert_null(shard->e);
            assert_int_equal(shard->sm_bytes, 2 * shard->elements);
            assert_memory_equal(shard->sm, at, shard->sm_bytes);
            at += shard->sm_bytes;
        }
    }
    assert_ptr_equal(at, mount.files[expert] + mount.file_bytes[expert]);
}

/* Ask for some; how many came. exact: what comes is what it should be. Statuses of others are in *status. */
static uint32_t ask(struct efs_client *client, uint32_t first, uint32_t count, enum efs_form form, bool exact,
                    errint_t *status)
{
    struct efs_need needs[EXPERTS];
    struct efs_client_request *r;
    struct efs_error err = {""};
    const struct efs_tensor *tensors;
    uint32_t index, tensor_count, came = 0, told = 0;
    errint_t rc;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){(first + i) % EXPERTS, i + 1};
    *status = efs_client_begin(client, "", 0, needs, count, form, &r, &err);
    if (*status < 0)
        return 0;
    while (efs_client_wait_any(r, 60000, &index, &rc) == 1) {
        told++;
        if (rc < 0) {
            *status = rc;
            continue;
        }
        came++;
        assert_int_equal(efs_client_tensors(r, index, &tensors, &tensor_count), 0);
        if (tensors[0].data)
            fixture_mount_check(&mount, needs[index].expert, tensors, tensor_count);
        else if (exact)
            check_coded(needs[index].expert, tensors, tensor_count);
        else
            touch(tensors, tensor_count);
        if (index % 2)
            efs_client_drop(r, index);
    }
    assert_int_equal(told, count);
    efs_client_release(r);
    return came;
}

TEST(test_good)
{
    struct mount_end s;
    errint_t status;
    for (enum manner manner = GOOD; manner <= IN_PARTS; manner++) {
        begin_end(&s, manner, "yes");
        struct efs_client *client = open_client(0);
        for (uint32_t round = 0; round < 20; round++)
            assert_int_equal(
                ask(client, round, 1 + round % EXPERTS, round % 2 ? EFS_FORM_ANY : EFS_FORM_CODED, true, &status),
                1 + round % EXPERTS);
        assert_int_equal(s.layouts, EXPERTS); /* each once */
        efs_client_close(client);
        end_end(&s);
        assert_int_equal(s.dropped, s.asked);
    }
}

/* What is kept is used again, and the mount is told of it. */
TEST(test_kept)
{
    struct mount_end s;
    errint_t status;
    begin_end(&s, GOOD, "yes");
    struct efs_client *client = open_client(UINT64_C(1) << 30);
    for (uint32_t round = 0; round < 5; round++)
        assert_int_equal(ask(client, round, EXPERTS, EFS_FORM_CODED, true, &status), EXPERTS);
    assert_int_equal(ask(client, 0, EXPERTS, EFS_FORM_ANY, true, &status), EXPERTS);
    efs_client_close(client);
    end_end(&s);
    assert_int_equal(s.asked, EXPERTS);
    assert_int_equal(s.told, 5 * EXPERTS);
}

/* As the mount likes: full experts are taken, too; who wants them coded is not given others. */
TEST(test_any)
{
    struct mount_end s;
    errint_t status;
    begin_end(&s, FULL, "yes");
    struct efs_client *client = open_client(0);
    for (uint32_t round = 0; round < 5; round++)
        assert_int_equal(ask(client, round, EXPERTS, EFS_FORM_ANY, true, &status), EXPERTS);
    assert_int_equal(ask(client, 0, 2, EFS_FORM_CODED, true, &status), 0);
    assert_int_equal(status, -EIO);
    efs_client_close(client);
    end_end(&s);
}

/* Without a socket that hands coded experts out there are none; any is full then. */
TEST(test_without)
{
    struct mount_end s;
    errint_t status;
    begin_end(&s, FULL, "no");
    struct efs_client *client = open_client(0);
    assert_int_equal(ask(client, 0, 2, EFS_FORM_CODED, true, &status), 0);
    assert_int_equal(status, -EOPNOTSUPP);
    assert_int_equal(ask(client, 0, EXPERTS, EFS_FORM_ANY, true, &status), EXPERTS);
    efs_client_close(client);
    end_end(&s);
}

/* Whatever it does: who wants them coded is told, who takes any gets the files. */
TEST(test_bad)
{
    for (enum manner manner = REFUSES; manner < MANNERS; manner++) {
        struct mount_end s;
        errint_t status;
        begin_end(&s, manner, "yes");
        struct efs_client *client = open_client(0);
        assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 0);
        assert_int_equal(status, manner == REFUSES        ? -EBUSY
                                 : manner == NO_WINDOW    ? -ENOMEM
                                 : manner == NO_LAYOUT    ? -EUCLEAN
                                 : manner == SHORT_WINDOW ? -ENOMEM
                                                          : -EIO);
        assert_int_equal(ask(client, 0, EXPERTS, EFS_FORM_ANY, true, &status), EXPERTS);
        assert_int_equal(ask(client, 0, EXPERTS, EFS_FORM_FULL, true, &status), EXPERTS);
        efs_client_close(client);
        end_end(&s);
    }
}

/* A byte is another: chunks inside of the windows, or an error; never anything else. */
TEST(test_changed)
{
    const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    uint8_t *body = calloc(1, 65536);
    size_t header = (header_bytes(0) + 7) / 8 * 8, head = sizeof(struct efs_export_layout);
    size_t bytes = layout_make(0, body) + TENSORS * sizeof(struct efs_export_place);
    free(body);
    struct mount_end s;
    begin_end(&s, CHANGED, "yes");
    for (size_t at = 0; at<bytes; at += at> head + 64 && at < head + header - 8 ? 61 : 1) {
        errint_t status;
        s.change = at;
        s.with = values[at % sizeof(values)];
        struct efs_client *client = open_client(0);
        ask(client, 0, 1, EFS_FORM_CODED, false, &status);
        efs_client_close(client);
    }
    end_end(&s);
}

/* A window that cannot be mapped costs what was to come in it, once: the mount is told, and sends it again. */
TEST(test_window_lost)
{
    struct mount_end s;
    errint_t status;
    begin_end(&s, LOSES_WINDOWS, "yes");
    struct efs_client *client = open_client(0);
    assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 0);
    assert_int_equal(status, -ENOMEM);
    for (uint32_t round = 0; round < 3; round++)
        assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 3);
    efs_client_close(client);
    end_end(&s);
    begin_end(&s, LOSES_WINDOWS_FULL, "yes");
    client = open_client(0);
    for (uint32_t round = 0; round < 4; round++) /* first by their files */
        assert_int_equal(ask(client, 0, 3, EFS_FORM_FULL, true, &status), 3);
    assert_int_equal(s.asked, 4 * 3); /* and the socket is not given up */
    efs_client_close(client);
    end_end(&s);
}

/* Who wants an expert coded does not wait for one that may come full to another. */
TEST(test_any_is_full)
{
    struct mount_end s;
    struct efs_client_request *any, *coded;
    const struct efs_need need = {2, 1};
    const struct efs_tensor *tensors;
    uint32_t count;
    begin_end(&s, ANY_IS_LATE, "yes");
    struct efs_client *client = open_client(0);
    assert_int_equal(efs_client_begin(client, "", 0, &need, 1, EFS_FORM_ANY, &any, NULL), 0);
    assert_int_equal(efs_client_begin(client, "", 0, &need, 1, EFS_FORM_CODED, &coded, NULL), 0);
    assert_int_equal(efs_client_wait(coded), 0);
    assert_int_equal(efs_client_wait(any), 0);
    assert_int_equal(efs_client_tensors(coded, 0, &tensors, &count), 0);
    check_coded(2, tensors, count);
    assert_int_equal(efs_client_tensors(any, 0, &tensors, &count), 0);
    fixture_mount_check(&mount, 2, tensors, count);
    efs_client_release(coded);
    efs_client_release(any);
    efs_client_close(client);
    end_end(&s);
}

/* Who waits for all of what has no room at once is told, and goes on one by one; a mount that says it wrongly is gone.
 */
TEST(test_no_room)
{
    struct mount_end s;
    struct efs_client_request *r;
    const struct efs_need needs[] = {{1, 1}, {3, 1}, {5, 1}};
    uint32_t index;
    errint_t status;
    begin_end(&s, NO_ROOM, "yes");
    struct efs_client *client = open_client(0);
    assert_int_equal(efs_client_begin(client, "", 0, needs, 3, EFS_FORM_CODED, &r, NULL), 0);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    assert_true(s.waits > 1);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    for (uint32_t told = 0; told < 3; told++) {
        assert_int_equal(efs_client_wait_any(r, 60000, &index, &status), 1);
        assert_int_equal(status, 0);
        efs_client_drop(r, index);
    }
    assert_int_equal(efs_client_wait(r), 0);
    efs_client_release(r);
    efs_client_close(client);
    end_end(&s);
    begin_end(&s, NO_ROOM_BAD, "yes");
    client = open_client(0);
    assert_int_equal(efs_client_begin(client, "", 0, needs, 3, EFS_FORM_CODED, &r, NULL), 0);
    assert_int_equal(efs_client_wait(r), -EIO);
    efs_client_release(r);
    efs_client_close(client);
    end_end(&s);
}

static int setup(void **state)
{
    (void)state;
    fixture_mount_begin_moe(&mount, &model, 1, EXPERTS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&mount, &model);
    return 0;
}

TEST_MAIN(setup, teardown)
