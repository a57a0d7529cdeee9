/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_client.c - any packets sent by a mount to a client of the library. The client requests experts and receives
 * them, or errors, from the packets or from the experts' files. Every address that it returns is inside a mapping.
 *
 * Input: 1 byte with the request, then packets: kind, flags (1: with a descriptor of an expert's file; 2: with two; 3:
 * the second one is a socket; 4: without a valid header in front), 2 bytes of length, and the packet after its header.
 */
#include "expertfs.h"
#include "fuzz.h"
#include "fuzz_packets.h"
#include "small_source.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define EXPERTS 4u
#define WINDOW_BYTES 8192u
#define PACKETS_MOST 64u

static char scratch[] = "/tmp/expertfs-fuzz-XXXXXX", mount[64];
static int listening = -1, window_fd;

static void make_mount(void)
{
    static const char header[] = "{\"up\":{\"dtype\":\"BF16\",\"shape\":[8,16],\"data_offsets\":[0,256]}}  ";
    uint8_t file[8 + sizeof(header) - 1 + 256];
    uint64_t length = sizeof(header) - 1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[128], text[160];
    fuzz_folder(scratch);
    snprintf(mount, sizeof(mount), "%s/mnt", scratch);
    CHECK(mkdir(mount, 0700) == 0);
    static const char *const folders[] = {"/.expertfs", "/experts", "/experts/L00"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++) {
        snprintf(path, sizeof(path), "%s%s", mount, folders[i]);
        CHECK(mkdir(path, 0700) == 0);
    }
    memcpy(file, &length, 8);
    memcpy(file + 8, header, sizeof(header) - 1);
    memset(file + 8 + sizeof(header) - 1, 0x3c, 256);
    for (unsigned e = 0; e < EXPERTS; e++) {
        snprintf(path, sizeof(path), "%s/experts/L00/E%03u.safetensors", mount, e);
        write_file(path, file, sizeof(file));
    }
    snprintf(path, sizeof(path), "%s/.expertfs/version", mount);
    int bytes = snprintf(text, sizeof(text), "version: 0\nsocket_protocol: %u\n", EFS_EXPORT_VERSION);
    write_file(path, text, (size_t)bytes);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", scratch);
    bytes = snprintf(text, sizeof(text), "address: %s\n", address.sun_path);
    snprintf(path, sizeof(path), "%s/.expertfs/handout", mount);
    write_file(path, text, (size_t)bytes);
    listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(listening >= 0 && bind(listening, (struct sockaddr *)&address, sizeof(address)) == 0 &&
          listen(listening, 4) == 0);
    window_fd = memfd_create("window", MFD_CLOEXEC);
    CHECK(window_fd >= 0 && write(window_fd, file, sizeof(file)) == (ssize_t)sizeof(file) &&
          ftruncate(window_fd, WINDOW_BYTES) == 0);
}

static void send_packet(int fd, const uint8_t *packet, size_t bytes, unsigned how)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)packet, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    unsigned count = how % 4;
    if (count) {
        const int fds[3] = {window_fd, count == 3 ? listening : window_fd, window_fd};
        count = count == 1 ? 1 : 2;
        memset(&control, 0, sizeof(control));
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
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
        size_t begin = data[1] & 4 ? 0 : sizeof(head);
        memcpy(packet, &head, begin);
        memcpy(packet + begin, data + 4, bytes);
        send_packet(fd, packet, begin + bytes, data[1]);
        data += 4 + bytes;
        size -= 4 + bytes;
    }
}

static uint64_t sum(const void *data, uint64_t bytes)
{
    const uint8_t *at = data;
    uint64_t all = 0;
    for (uint64_t i = 0; i < bytes; i++)
        all += at[i];
    return all;
}

/* Read all bytes of an expert's tensors. */
static uint64_t touch(struct efs_client_request *request, uint32_t index)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    uint64_t all = 0;
    CHECK(efs_client_tensors(request, index, &tensors, &count) == 0);
    for (uint32_t t = 0; t < count; t++) {
        all += strlen(tensors[t].name) + (tensors[t].data ? sum(tensors[t].data, tensors[t].bytes) : 0);
        for (uint32_t s = 0; s < tensors[t].shard_count; s++) {
            const struct efs_coded_shard *shard = &tensors[t].shards[s];
            all += (shard->e ? sum(shard->e, shard->e_bytes) : 0) + (shard->sm ? sum(shard->sm, shard->sm_bytes) : 0);
        }
    }
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum efs_form forms[] = {EFS_FORM_FULL, EFS_FORM_CODED, EFS_FORM_ANY};
    if (size < 1 || size > 1 << 17)
        return 0;
    if (listening < 0)
        make_mount();
    const uint32_t count = 1 + data[0] / 3 % EXPERTS;
    struct efs_need needs[EXPERTS];
    struct efs_client *client;
    struct efs_client_request *request;
    struct efs_error err = {""};
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){.expert = i, .tokens = 1};
    CHECK(efs_client_open(mount, NULL, &client, &err) == 0);
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(efs_client_begin(client, "", 0, needs, count, forms[data[0] % 3], &request, &err) == 0);
    send_all(fd, data + 1, size - 1);
    shutdown(fd, SHUT_WR); /* then every expert without an answer fails */
    for (uint32_t told = 0; told < count; told++) {
        uint32_t index = count;
        errint_t status = 1;
        CHECK(efs_client_wait_any(request, 240000, &index, &status) == 1);
        CHECK(index < count && status <= 0);
        if (status == 0)
            CHECK(touch(request, index) != UINT64_MAX); /* always true; keeps the reads */
        if (told % 2)
            efs_client_drop(request, index);
    }
    efs_client_release(request);
    efs_client_close(client);
    close(fd);
    return 0;
}
