/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client runtime with a socket that exports coded experts: a thread plays the daemon's part, correctly or not. A
 * request returns chunks inside of their windows, or an error.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"
#include "expertfs-protocol.h"
#include "fake_daemon.h"

#define EXPERTS 8u
#define SHARD 4096u /* elements */
#define TENSORS 3u
#define TAGS 64u
#define NO_TAG UINT32_MAX

static struct fixture model;
static struct fixture_mount mount;

enum manner {
    GOOD,
    IN_PARTS, /* packets of 1000 bytes */
    CHANGED,  /* a byte of layout or places, at change, is overwritten */
    FULL,     /* full experts in place of coded ones */
    REFUSES,
    NO_WINDOW,
    NO_LAYOUT,
    SHORT_WINDOW,  /* shorter than window_bytes */
    PART_MISSING,  /* the second packet */
    PART_TOO_LONG, /* 8 bytes more per packet */
    TOO_MUCH,      /* total is UINT32_MAX */
    UNKNOWN_TAG,
    HANGS_UP,
    MANNERS,
    LOSES_WINDOWS, /* correct, but the first descriptor of each window cannot be mapped */
    LOSES_WINDOWS_FULL,
    ANY_IS_LATE, /* answers the first request only after the second, and in full form */
    CANCELLED,   /* answers the first request only when it is cancelled, before it confirms that */
    NO_ROOM,     /* holds back the last expert of a request until a drop, and reports the request as oversize */
    NO_ROOM_BAD, /* the same with an invalid packet */
    NO_ROOM_FITS /* after a drop the last one fits, and comes a little later */
};

struct end {
    struct fake_daemon mount; /* must be the first member */
    enum manner manner;
    size_t change;
    uint8_t with;
    uint32_t late[EXPERTS], late_count; /* CANCELLED: experts of the first request */
    bool has[EXPERTS], lost[EXPERTS];   /* window was sent; was sent unusable */
    _Atomic uint32_t asked, layouts, dropped;
};

/* ---- replies ------------------------------------------------------------------------------------------------ */

static size_t header_bytes(uint32_t expert)
{
    uint64_t length;
    memcpy(&length, mount.files[expert], 8);
    return (size_t)length + 8;
}

/* Writes the layout of the expert's file, whose three tensors have the same size: raw shards of SHARD elements, one
 * extent per tensor. Returns its size. */
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

static void reply_parts(const struct end *s, int fd, uint32_t tag, uint32_t layout, const uint8_t *body, uint32_t total)
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
            fake_daemon_send(fd, &packet, packet.head.bytes, -1);
    }
}

static void hand_out(struct end *s, int fd, uint32_t expert, uint32_t tag, bool with_layout)
{
    uint8_t *body = calloc(1, 65536);
    bool loses = s->manner == LOSES_WINDOWS || s->manner == LOSES_WINDOWS_FULL, send = !loses || !s->has[expert];
    bool in_vain = s->manner == SHORT_WINDOW || (loses && !s->lost[expert]);
    struct efs_export_answer answer = {.head = {sizeof(answer), EFS_EXPORT_VERSION, EFS_EXPORT_WINDOW, 1},
                                       .window = expert + 1,
                                       .window_bytes = in_vain ? 2 * s->mount.window_bytes : s->mount.window_bytes};
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
        ftruncate(window, (off_t)s->mount.window_bytes) < 0)
        abort();
    if (s->manner == FULL || s->manner == LOSES_WINDOWS_FULL || s->manner == REFUSES) {
        answer.head.kind = EFS_EXPORT_ANSWER;
        answer.tag = tag;
        answer.file_bytes = mount.file_bytes[expert];
        answer.error = s->manner == REFUSES ? -EBUSY : 0;
    }
    if (answer.head.kind == EFS_EXPORT_ANSWER || (s->manner != NO_WINDOW && send))
        fake_daemon_send(fd, &answer, sizeof(answer), s->manner == REFUSES || !send ? -1 : window);
    close(window);
    s->has[expert] = s->lost[expert] = true;
    if (answer.head.kind == EFS_EXPORT_WINDOW)
        reply_parts(s, fd, tag, (uint32_t)layout, body, (uint32_t)total);
    free(body);
}

static void send_tag(int fd, enum efs_export_kind kind, uint32_t tag, errint_t error)
{
    const struct efs_export_answer packet = {
        .head = {sizeof(packet), EFS_EXPORT_VERSION, kind, 1}, .tag = tag, .error = error};
    fake_daemon_send(fd, &packet, packet.head.bytes, -1);
}

/* Sends OVERSIZE for a tag that is not used, then for the one that is held back; or a packet without a tag. */
static void tell_oversize(const struct end *s, int fd, uint32_t tag)
{
    struct efs_export_answer packet = {.head = {sizeof(packet), EFS_EXPORT_VERSION, EFS_EXPORT_OVERSIZE, 1},
                                       .tag = tag > 100 ? 1 : 200};
    fake_daemon_send(fd, &packet, packet.head.bytes, -1);
    packet.tag = tag;
    if (s->manner == NO_ROOM_BAD)
        packet.head.bytes = sizeof(packet.head);
    fake_daemon_send(fd, &packet, packet.head.bytes, -1);
}

static void serve_one(struct fake_daemon *end, int fd)
{
    struct end *s = (struct end *)end;
    struct efs_export_ask ask;
    uint32_t late_tag = NO_TAG, late_expert = 0;
    while (recv(fd, &ask, sizeof(ask), 0) > 0) {
        for (uint32_t i = 0; i < ask.head.count; i++) {
            uint32_t tag = ask.item[i].tag;
            if (s->manner >= NO_ROOM && ask.head.kind == EFS_EXPORT_ASK && i + 1 == ask.head.count && i > 0) {
                late_tag = tag & ~EFS_EXPORT_WITH_LAYOUT;
                late_expert = ask.item[i].expert;
                tell_oversize(s, fd, late_tag);
                continue;
            }
            if (s->manner >= NO_ROOM && ask.head.kind == EFS_EXPORT_DROP && late_tag != NO_TAG) {
                if (s->manner == NO_ROOM_FITS) {
                    usleep(20000); /* the client waits already */
                    send_tag(fd, EFS_EXPORT_FITS, late_tag, 0);
                    usleep(20000);
                }
                hand_out(s, fd, late_expert, late_tag, true);
                late_tag = NO_TAG;
            }
            if (ask.head.kind == EFS_EXPORT_REFRESH && tag == late_tag) {
                const struct efs_export_answer packet = {
                    .head = {sizeof(packet), EFS_EXPORT_VERSION, EFS_EXPORT_OVERSIZE, 1}, .tag = tag, .window = 1};
                fake_daemon_send(fd, &packet, packet.head.bytes, -1);
            }
            if (s->manner == CANCELLED && ask.head.kind == EFS_EXPORT_ASK) {
                s->late[s->late_count++] = ask.item[i].expert;
                s->manner = i + 1 == ask.head.count ? GOOD : CANCELLED;
                continue;
            }
            if (ask.head.kind == EFS_EXPORT_CANCEL) {
                if (i < s->late_count)
                    hand_out(s, fd, s->late[i], tag, true);
                send_tag(fd, EFS_EXPORT_ANSWER, tag, -ECANCELED);
            }
            if (s->manner == ANY_IS_LATE && ask.head.kind == EFS_EXPORT_ASK && late_tag == NO_TAG) {
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
            if (ask.head.kind != EFS_EXPORT_ASK)
                continue;
            if (s->manner == HANGS_UP)
                return;
            s->asked++;
            s->layouts += tag & EFS_EXPORT_WITH_LAYOUT ? 1 : 0;
            hand_out(s, fd, ask.item[i].expert, tag & ~EFS_EXPORT_WITH_LAYOUT, tag & EFS_EXPORT_WITH_LAYOUT);
        }
    }
}

static void begin_end(struct end *s, enum manner manner)
{
    *s = (struct end){.manner = manner};
    fake_daemon_start(&s->mount, &model, &mount, serve_one);
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static struct efs_client *open_client(void)
{
    return fixture_client(mount.directory, NULL);
}

static volatile uint64_t sink;

/* Reads every byte of every chunk. */
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

/* Fails unless the chunks have the bytes of the expert's tensors. */
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

/* Requests experts and returns the number of those that succeeded. exact: checks the bytes of coded ones. *status: the
 * result of the begin, or the last error of an expert. */
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
    while (efs_client_wait_any(r, PATIENCE_MS, &index, &rc) == 1) {
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
    struct end s;
    errint_t status;
    for (enum manner manner = GOOD; manner <= IN_PARTS; manner++) {
        begin_end(&s, manner);
        struct efs_client *client = open_client();
        for (uint32_t round = 0; round < 20; round++)
            assert_int_equal(
                ask(client, round, 1 + round % EXPERTS, round % 2 ? EFS_FORM_ANY : EFS_FORM_CODED, true, &status),
                1 + round % EXPERTS);
        assert_int_equal(s.layouts, EXPERTS); /* one for each expert */
        efs_client_close(client);
        fake_daemon_stop(&s.mount);
        assert_int_equal(s.dropped, s.asked);
    }
}

/* EFS_FORM_ANY accepts full experts. EFS_FORM_CODED fails if the mount sends full ones. */
TEST(test_any)
{
    struct end s;
    errint_t status;
    begin_end(&s, FULL);
    struct efs_client *client = open_client();
    for (uint32_t round = 0; round < 5; round++)
        assert_int_equal(ask(client, round, EXPERTS, EFS_FORM_ANY, true, &status), EXPERTS);
    assert_int_equal(ask(client, 0, 2, EFS_FORM_CODED, true, &status), 0);
    assert_int_equal(status, -EIO);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
}

/* With every manner a request returns an error, or the right bytes. */
TEST(test_bad)
{
    for (enum manner manner = REFUSES; manner < MANNERS; manner++) {
        struct end s;
        errint_t status;
        begin_end(&s, manner);
        struct efs_client *client = open_client();
        assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 0);
        assert_int_equal(status, manner == REFUSES        ? -EBUSY
                                 : manner == NO_WINDOW    ? -ENOMEM
                                 : manner == NO_LAYOUT    ? -EUCLEAN
                                 : manner == SHORT_WINDOW ? -ENOMEM
                                                          : -EIO);
        ask(client, 0, EXPERTS, EFS_FORM_ANY, true, &status);
        assert_true(status < 0);
        ask(client, 0, EXPERTS, EFS_FORM_FULL, true, &status);
        assert_true(status < 0);
        efs_client_close(client);
        fake_daemon_stop(&s.mount);
    }
}

/* With one byte changed, chunks are inside of the windows, or the request fails. */
TEST(test_changed)
{
    const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    uint8_t *body = calloc(1, 65536);
    size_t header = (header_bytes(0) + 7) / 8 * 8, head = sizeof(struct efs_export_layout);
    size_t bytes = layout_make(0, body) + TENSORS * sizeof(struct efs_export_place);
    free(body);
    struct end s;
    begin_end(&s, CHANGED);
    for (size_t at = 0; at<bytes; at += at> head + 64 && at < head + header - 8 ? 61 : 1) {
        errint_t status;
        s.change = at;
        s.with = values[at % sizeof(values)];
        struct efs_client *client = open_client();
        ask(client, 0, 1, EFS_FORM_CODED, false, &status);
        efs_client_close(client);
    }
    fake_daemon_stop(&s.mount);
}

/* A window that cannot be mapped fails the experts in it once: the client reports it as unmapped, and the mount sends
 * it again. */
TEST(test_window_lost)
{
    struct end s;
    errint_t status;
    begin_end(&s, LOSES_WINDOWS);
    struct efs_client *client = open_client();
    assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 0);
    assert_int_equal(status, -ENOMEM);
    for (uint32_t round = 0; round < 3; round++)
        assert_int_equal(ask(client, 0, 3, EFS_FORM_CODED, true, &status), 3);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
    begin_end(&s, LOSES_WINDOWS_FULL);
    client = open_client();
    for (uint32_t round = 0; round < 4; round++)
        assert_int_equal(ask(client, 0, 3, EFS_FORM_FULL, true, &status), round ? 3 : 0);
    assert_int_equal(s.asked, 4 * 3); /* the socket stays in use */
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
}

/* A coded request does not join one that may receive the expert in full form. */
TEST(test_any_is_full)
{
    struct end s;
    const struct efs_need need = {2, 1};
    const struct efs_tensor *tensors;
    uint32_t count;
    begin_end(&s, ANY_IS_LATE);
    struct efs_client *client = open_client();
    struct efs_client_request *any = fixture_request(client, 0, &need, 1, EFS_FORM_ANY);
    struct efs_client_request *coded = fixture_request(client, 0, &need, 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(coded), 0);
    assert_int_equal(efs_client_wait(any), 0);
    assert_int_equal(efs_client_tensors(coded, 0, &tensors, &count), 0);
    check_coded(2, tensors, count);
    assert_int_equal(efs_client_tensors(any, 0, &tensors, &count), 0);
    fixture_mount_check(&mount, 2, tensors, count);
    efs_client_release(coded);
    efs_client_release(any);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
}

/* A wait for all experts of a request fails with -EDEADLK if they have no room at once; the client can take and drop
 * them one by one. An invalid OVERSIZE packet disconnects the mount. */
TEST(test_no_room)
{
    struct end s;
    struct efs_client_request *r;
    const struct efs_need needs[] = {{1, 1}, {3, 1}, {5, 1}};
    uint32_t index;
    errint_t status;
    begin_end(&s, NO_ROOM);
    struct efs_client *client = open_client();
    assert_int_equal(efs_client_begin(client, "", 0, needs, 3, EFS_FORM_CODED, &r, NULL), 0);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    for (uint32_t told = 0; told < 2; told++)
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), 1);
    assert_int_equal(efs_client_wait_any(r, -1, &index, &status), -EDEADLK); /* waits for this thread's drops */
    assert_int_equal(efs_client_wait_any(r, 10, &index, &status), -ETIMEDOUT);
    efs_client_drop(r, index);
    assert_int_equal(efs_client_wait_any(r, -1, &index, &status), 1);
    assert_int_equal(status, 0);
    assert_int_equal(efs_client_wait(r), 0);
    efs_client_release(r);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
    begin_end(&s, NO_ROOM_BAD);
    client = open_client();
    assert_int_equal(efs_client_begin(client, "", 0, needs, 3, EFS_FORM_CODED, &r, NULL), 0);
    assert_int_equal(efs_client_wait(r), -EIO);
    efs_client_release(r);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
}

/* After drops the rest of a request fits: a wait for all of it waits for that. */
TEST(test_fits_again)
{
    struct end s;
    const struct efs_need needs[] = {{1, 1}, {3, 1}, {5, 1}};
    begin_end(&s, NO_ROOM_FITS);
    struct efs_client *client = open_client();
    struct efs_client_request *r = fixture_request(client, 0, needs, 3, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    uint32_t index;
    errint_t status;
    assert_int_equal(efs_client_wait_any(r, PATIENCE_MS, &index, &status), 1);
    efs_client_drop(r, index);
    assert_int_equal(efs_client_wait(r), 0);
    efs_client_release(r);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
}

/* A request that is released in flight is cancelled. Answers to it that come before the confirmation are ignored, and
 * its tags are not used until then. */
TEST(test_cancelled)
{
    struct end s;
    const struct efs_need needs[] = {{1, 1}, {3, 1}, {5, 1}};
    errint_t status;
    begin_end(&s, CANCELLED);
    struct efs_client *client = open_client();
    efs_client_release(fixture_request(client, 0, needs, 3, EFS_FORM_CODED));
    for (uint32_t round = 0; round < 3; round++)
        assert_int_equal(ask(client, round, EXPERTS, EFS_FORM_CODED, true, &status), EXPERTS);
    assert_int_equal(s.late_count, 3);
    assert_int_equal(s.asked, 3 * EXPERTS);
    efs_client_close(client);
    fake_daemon_stop(&s.mount);
    assert_int_equal(s.dropped, 3 * EXPERTS);
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
