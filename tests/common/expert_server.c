/* SPDX-License-Identifier: Apache-2.0 */
/* expert_server.c - see expert_server.h. */
#include "expert_server.h"

#include "fake_daemon.h"
#include "file_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CONNECTIONS 256u

static uint32_t windows; /* the last number */

static void answer(int fd, enum efs_export_kind kind, uint32_t tag, errint_t error, uint64_t bytes, int with)
{
    const struct efs_export_answer packet = {
        .head = {sizeof(packet), EFS_EXPORT_VERSION, kind, 1},
        .tag = tag,
        .error = error,
        .window = with < 0 ? 0 : ++windows,
        .once = kind == EFS_EXPORT_ANSWER && with >= 0,
        .window_bytes = bytes,
        .file_bytes = bytes,
    };
    fake_daemon_send(fd, &packet, sizeof(packet), with);
}

/* The layout of a file, one shard a tensor in one extent, and its place in the window. Returns its size. */
static size_t describe(const struct efs_file_layout *layout, const uint8_t *file, uint8_t *out, uint32_t *layout_bytes)
{
    const size_t header = (layout->header_bytes + 7) / 8 * 8;
    struct efs_export_layout head = {.file_bytes = layout->file_bytes,
                                     .header_bytes = (uint32_t)layout->header_bytes,
                                     .tensors = layout->tensor_count,
                                     .extents = 1,
                                     .shards = layout->tensor_count};
    const struct efs_export_place place = {.sm_window = windows};
    uint8_t *tensor = out + sizeof(head) + header;
    uint8_t *shard = tensor + layout->tensor_count * sizeof(struct efs_export_layout_tensor);
    memcpy(out + sizeof(head), file, layout->header_bytes);
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        const struct efs_source_tensor *t = &layout->list.entries[i].tensor;
        const struct efs_export_layout_tensor one = {t->offset, 1, 0};
        const struct efs_export_layout_shard all = {
            .elements = t->bytes, .sm_at = (uint32_t)t->offset, .sm_bytes = (uint32_t)t->bytes};
        head.shard_elements = t->bytes > head.shard_elements ? (uint32_t)t->bytes : head.shard_elements;
        memcpy(tensor + i * sizeof(one), &one, sizeof(one));
        memcpy(shard + i * sizeof(all), &all, sizeof(all));
    }
    memcpy(out, &head, sizeof(head));
    shard += layout->tensor_count * sizeof(struct efs_export_layout_shard);
    *layout_bytes = (uint32_t)(shard - out);
    memcpy(shard, &place, sizeof(place));
    return *layout_bytes + sizeof(place);
}

static void hand_out_coded(int fd, uint32_t tag, int with, uint64_t bytes)
{
    struct efs_file_layout *layout = NULL;
    static struct efs_export_coded packet;
    uint8_t *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, with, 0);
    errint_t rc = file == MAP_FAILED ? -ENOMEM : efs_layout_read(file, bytes, &layout);
    if (rc < 0) {
        answer(fd, EFS_EXPORT_ANSWER, tag & ~EFS_EXPORT_WITH_LAYOUT, rc, 0, -1);
        return;
    }
    answer(fd, EFS_EXPORT_WINDOW, 0, 0, bytes, with);
    memset(&packet, 0, sizeof(packet));
    size_t all = describe(layout, file, packet.part, &packet.layout_bytes);
    const uint8_t *part = packet.part;
    if (!(tag & EFS_EXPORT_WITH_LAYOUT)) {
        part += packet.layout_bytes;
        all -= packet.layout_bytes;
        memmove(packet.part, part, all);
        packet.layout_bytes = 0;
    }
    packet.tag = tag & ~EFS_EXPORT_WITH_LAYOUT;
    packet.total = (uint32_t)all;
    packet.head = (struct efs_export_head){(uint32_t)(offsetof(struct efs_export_coded, part) + all),
                                           EFS_EXPORT_VERSION, EFS_EXPORT_CODED, (uint32_t)all};
    fake_daemon_send(fd, &packet, packet.head.bytes, -1);
    efs_layout_free(layout);
    munmap(file, bytes);
}

static void hand_out(const char *directory, int fd, const struct efs_export_ask *ask, uint32_t expert, uint32_t tag)
{
    char path[500];
    struct stat st = {.st_size = 0};
    snprintf(path, sizeof(path), "%s/experts/%s%sL%02u/E%03u.safetensors", directory, ask->stack,
             *ask->stack ? "-" : "", ask->layer, expert);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st) < 0)
        answer(fd, EFS_EXPORT_ANSWER, tag & ~EFS_EXPORT_WITH_LAYOUT, -errno, 0, -1);
    else if ((ask->form & ~EFS_EXPORT_MORE) == EFS_FORM_FULL)
        answer(fd, EFS_EXPORT_ANSWER, tag, 0, (uint64_t)st.st_size, file);
    else
        hand_out_coded(fd, tag, file, (uint64_t)st.st_size);
    if (file >= 0)
        close(file);
}

/* Serves one packet. false: the connection has ended. */
static bool serve(const char *directory, int fd)
{
    static struct efs_export_ask ask;
    if (recv(fd, &ask, sizeof(ask), 0) <= 0)
        return false;
    for (uint32_t i = 0; i < ask.head.count; i++)
        if (ask.head.kind == EFS_EXPORT_ASK)
            hand_out(directory, fd, &ask, ask.item[i].expert, ask.item[i].tag);
        else if (ask.head.kind == EFS_EXPORT_CANCEL)
            answer(fd, EFS_EXPORT_ANSWER, ask.item[i].tag, -ECANCELED, 0, -1);
    return true;
}

static void run(const char *directory, int listening)
{
    struct pollfd all[CONNECTIONS] = {{.fd = listening, .events = POLLIN}};
    unsigned count = 1;
    while (poll(all, count, -1) > 0) {
        for (unsigned i = count; i-- > 1;)
            if (all[i].revents && !serve(directory, all[i].fd)) {
                close(all[i].fd);
                all[i] = all[--count];
            }
        if (all[0].revents && count < CONNECTIONS)
            all[count++] = (struct pollfd){.fd = accept(listening, NULL, NULL), .events = POLLIN};
    }
}

pid_t expert_server_start(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[400], text[500];
    int below = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/server", below);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listening, CONNECTIONS), 0);
    close(below);
    snprintf(path, sizeof(path), "%s/.expertfs/handout", directory);
    snprintf(text, sizeof(text), "address: %s/server\n", directory);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    pid_t server = fork();
    assert_true(server >= 0);
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(directory, listening);
        _exit(1);
    }
    close(listening);
    return server;
}

void expert_server_stop(pid_t server)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}
