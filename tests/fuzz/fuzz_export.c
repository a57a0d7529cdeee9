/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_export.c - any packets sent by a client to the socket of a mount: the daemon answers or disconnects, and holds
 * nothing for the client after a hang-up. Runs the daemon's socket on an engine with a small store, without a mount.
 *
 * Input: packets: kind, flags (1: without a valid header in front; 2: first read all answers that have arrived), 2
 * bytes of length, and the packet after its header.
 */
#include "daemon.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "expertfs-stats.h"
#include "export.h"
#include "fuzz.h"
#include "fuzz_packets.h"
#include "small_source.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define PACKETS_MOST 64u
#define GONE_SECONDS 240

static char scratch[] = "/tmp/expertfs-fuzz-XXXXXX";
static struct efsd *daemon_;

static void make_daemon(void)
{
    const struct efs_pack_options packing = {.threads = 1, .shard_elements = 8192, .force = true};
    const struct efs_options options = {.budget_bytes = 64 << 20,
                                        .workers = 1,
                                        .no_state = true,
                                        .store_direct = EFS_STORE_DIRECT_OFF,
                                        .full_pool = true,
                                        .exports = true};
    struct efs_pack_report report;
    struct efs_error err = {""};
    char source[64], store[64];
    fuzz_folder(scratch);
    make_source(scratch, source, sizeof(source));
    snprintf(store, sizeof(store), "%s/small.efs", scratch);
    CHECK(efs_pack(source, store, &packing, &report, &err) == 0);
    CHECK(setenv("EXPERTFS_RUN", scratch, 1) == 0);
    daemon_ = calloc(1, sizeof(*daemon_));
    CHECK(daemon_ && efs_open(store, &options, &daemon_->fs, &err) == 0);
    daemon_->uid = geteuid();
    daemon_->expert_count = efs_expert_count(daemon_->fs);
    daemon_->kernel.passthrough = true;
    pthread_mutex_init(&daemon_->tuning.lock, NULL);
    for (uint32_t e = 0; e < daemon_->expert_count; e++) {
        struct efs_expert_info expert;
        struct efs_file_info file;
        CHECK(efs_expert_info(daemon_->fs, efs_id(e), &expert) == 0 &&
              efs_file_info(daemon_->fs, expert.file, &file) == 0 &&
              efsd_tree_add(&daemon_->tree, file.path, EFSD_EXPERT, expert.file, e, file.bytes) == 0);
    }
    CHECK(efsd_tree_build(&daemon_->tree, &err) == 0 && efsd_opens_init(daemon_) == 0);
    daemon_->unsent_max = efsd_export_unsent_max(0);
    CHECK(efsd_export_open(daemon_, &daemon_->export, &err) == 0 && efsd_export_start(daemon_->export) == 0);
}

static int connect_client(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", efsd_export_address(daemon_->export));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

/* Receives all packets that have arrived, checks their lengths and closes their descriptors. false: the daemon has hung
 * up. */
static bool take_answers(int fd, int milliseconds)
{
    static union {
        struct efs_export_head head;
        uint8_t room[EFS_EXPORT_MESSAGE_BYTES];
    } packet;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (poll(&wait, 1, milliseconds) > 0) {
        struct iovec part = {.iov_base = &packet, .iov_len = sizeof(packet)};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        CHECK(!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
        for (size_t at = 0; at < (size_t)n;) {
            const struct efs_export_head *head = (const void *)(packet.room + at);
            CHECK(at % 8 == 0 && (size_t)n - at >= sizeof(*head) && head->bytes >= sizeof(*head) &&
                  head->bytes <= (size_t)n - at && head->version == EFS_EXPORT_VERSION);
            at += head->bytes;
        }
        const struct cmsghdr *with = CMSG_FIRSTHDR(&message);
        if (with) {
            int given;
            CHECK(with->cmsg_type == SCM_RIGHTS && with->cmsg_len == CMSG_LEN(sizeof(int)));
            memcpy(&given, CMSG_DATA(with), sizeof(given));
            close(given);
        }
    }
    return true;
}

static void send_all(int fd, const uint8_t *data, size_t size)
{
    static uint8_t packet[sizeof(struct efs_export_head) + UINT16_MAX];
    for (unsigned n = 0; size >= 4 && n < PACKETS_MOST; n++) {
        size_t bytes = (size_t)data[2] | (size_t)data[3] << 8, left = size - 4;
        bytes = bytes < left ? bytes : left;
        struct efs_export_head head = {.bytes = (uint32_t)(sizeof(head) + bytes),
                                       .version = EFS_EXPORT_VERSION,
                                       .kind = data[0] % (EFS_EXPORT_KINDS + 2u)};
        head.count = fuzz_items(head.kind, head.bytes);
        size_t begin = data[1] & 1 ? 0 : sizeof(head);
        memcpy(packet, &head, begin);
        memcpy(packet + begin, data + 4, bytes);
        if ((data[1] & 2 && !take_answers(fd, 1)) || send(fd, packet, begin + bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return;
        data += 4 + bytes;
        size -= 4 + bytes;
    }
}

/* Within GONE_SECONDS after the hang-up, the daemon must release everything that the client held. */
static void check_nothing_held(void)
{
    struct efs_stats stats;
    bool held = true;
    for (unsigned i = 0; held && i < GONE_SECONDS * 1000; i++) {
        efs_stats(daemon_->fs, &stats);
        held = stats.leased_experts > 0 || stats.coded_experts > 0 || stats.inflight > 0;
        if (held)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK(!held);
}

/* Called by libFuzzer and mutate.c. Discards stderr: the daemon logs a line for each invalid client. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = fopen("/dev/null", "w");
    CHECK(stderr);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1 << 17)
        return 0;
    if (!daemon_)
        make_daemon();
    int fd = connect_client();
    send_all(fd, data, size);
    shutdown(fd, SHUT_WR);
    while (take_answers(fd, GONE_SECONDS * 1000)) {
    }
    close(fd);
    check_nothing_held();
    return 0;
}
