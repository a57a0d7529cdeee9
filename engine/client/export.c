/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - see export.h. A tag stands for a file from the ask to the drop, so that an answer always finds the file
 * that it is for. A mount that does not answer as it should is not asked any more: files are opened instead.
 */
#include "export_core.h"

#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- tags --------------------------------------------------------------------------------------------------- */

static bool export_more_tags(struct efs_export *h)
{
    uint32_t room = h->room ? 2 * h->room : 256;
    if (room > EFS_EXPORT_TAGS)
        return false;
    struct efs_expert_file **files = efs_sys_calloc(room, sizeof(*files));
    uint32_t *free_tags = efs_sys_calloc(room, sizeof(*free_tags)), *drops = efs_sys_calloc(room, sizeof(*drops));
    if (!files || !free_tags || !drops) {
        free(files);
        free(free_tags);
        free(drops);
        return false;
    }
    if (h->room) {
        memcpy(files, h->files, h->room * sizeof(*files));
        memcpy(free_tags, h->free_tags, h->free_count * sizeof(*free_tags));
        memcpy(drops, h->drops, h->drop_count * sizeof(*drops));
    }
    free(h->files);
    free(h->free_tags);
    free(h->drops);
    h->files = files;
    h->free_tags = free_tags;
    h->drops = drops;
    for (uint32_t tag = room; tag > h->room; tag--)
        h->free_tags[h->free_count++] = tag - 1;
    h->room = room;
    return true;
}

bool efs_export_take_tag(struct efs_export *h, struct efs_expert_file *file)
{
    if (h->free_count == 0 && !export_more_tags(h))
        return false;
    file->handed = (struct efs_handed){.tag = h->free_tags[--h->free_count]};
    h->files[file->handed.tag] = file;
    return true;
}

void efs_export_drop(struct efs_export *h, struct efs_expert_file *file)
{
    h->files[file->handed.tag] = NULL;
    h->drops[h->drop_count++] = file->handed.tag; /* free when the mount was told */
    if (file->handed.window)
        file->handed.window->users--;
    efs_export_end_coded(&file->handed);
    file->handed = (struct efs_handed){.tag = EFS_NO_TAG};
}

bool efs_export_has_news(const struct efs_export *h)
{
    return (h->drop_count > 0 || h->news_bytes > 0) && !h->lost;
}

bool efs_export_has_orphans(const struct efs_export *h)
{
    for (uint32_t tag = 0; tag < h->room; tag++)
        if (h->files[tag] && h->files[tag]->refs == 0 && h->files[tag]->state == EFS_FILE_OPENING)
            return true;
    return false;
}

bool efs_export_works(const struct efs_export *h)
{
    return h && !h->lost;
}

bool efs_export_hands_out_coded(const struct efs_export *h)
{
    return h && h->coded;
}

/* ---- packets ------------------------------------------------------------------------------------------------ */

static errint_t export_send_packet(const struct efs_export *h, const struct efs_export_head *packet)
{
    ssize_t n;
    do
        n = send(h->fd, packet, packet->bytes, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

void efs_export_do_without(struct efs_mount *m, struct efs_expert_file *file, errint_t error)
{
    efs_export_end_coded(&file->handed);
    file->handed = (struct efs_handed){.tag = EFS_NO_TAG};
    if (file->any)
        efs_file_make_full(m, file);
    if (file->key.coded) {
        file->error = error == -EAGAIN ? -EIO : error;
        efs_file_opened(m, file);
    } else {
        efs_file_queue(m, file);
    }
}

/* The mount is gone, or not what it should be: what it did not answer is opened. */
static void export_lose(struct efs_mount *m)
{
    struct efs_export *h = m->export;
    h->lost = true;
    shutdown(h->fd, SHUT_RDWR);
    for (uint32_t tag = 0; tag < h->room; tag++)
        if (h->files[tag] && h->files[tag]->state == EFS_FILE_OPENING) {
            struct efs_expert_file *file = h->files[tag];
            h->files[tag] = NULL;
            efs_export_do_without(m, file, -EIO);
        }
    efs_mount_wake_open_workers(m);
    efs_full_set_lose(m);
}

/* Lock held: up to a packet of what is to be given back, into *packet; its tags are free once it was sent. */
static bool export_take_drops(struct efs_export *h, struct efs_export_ask *packet)
{
    *packet = efs_export_packet(EFS_EXPORT_DROP);
    while (h->drop_count && packet->head.count < EFS_EXPORT_ITEMS) {
        uint32_t tag = h->drops[--h->drop_count];
        packet->item[packet->head.count++].tag = tag;
        h->free_tags[h->free_count++] = tag; /* asks come behind it: telling is held */
    }
    return packet->head.count > 0;
}

static bool export_take_unmapped(struct efs_export *h, struct efs_export_ask *packet)
{
    *packet = efs_export_packet(EFS_EXPORT_UNMAPPED);
    while (h->unmapped_count)
        packet->item[packet->head.count++].tag = h->unmapped[--h->unmapped_count];
    return packet->head.count > 0;
}

/* As efs_export_send(), whatever the packet is. */
static errint_t export_send_all(struct efs_mount *m, const struct efs_export_head *last)
{
    struct efs_export *h = m->export;
    struct efs_export_ask packet;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    while (
        rc == 0 && !h->lost &&
        (efs_export_take_notified(h, &packet) || export_take_drops(h, &packet) || export_take_unmapped(h, &packet))) {
        pthread_mutex_unlock(&m->lock);
        efs_export_packet_end(&packet);
        rc = export_send_packet(h, &packet.head);
        pthread_mutex_lock(&m->lock);
    }
    if (h->lost)
        rc = -EPIPE;
    if (rc == 0 && last) {
        pthread_mutex_unlock(&m->lock);
        rc = export_send_packet(h, last);
        pthread_mutex_lock(&m->lock);
    }
    if (rc < 0)
        export_lose(m);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

errint_t efs_export_send(struct efs_mount *m, struct efs_export_ask *ask)
{
    if (ask)
        efs_export_packet_end(ask);
    return export_send_all(m, ask ? &ask->head : NULL);
}

errint_t efs_export_send_routing(struct efs_mount *m, const struct efs_export_routing *packet)
{
    return export_send_all(m, &packet->head);
}

errint_t efs_export_send_list(struct efs_mount *m)
{
    const struct efs_export_head list = {sizeof(list), EFS_EXPORT_VERSION, EFS_EXPORT_LIST, 0};
    return export_send_all(m, &list);
}

/* ---- answers ------------------------------------------------------------------------------------------------ */

/* The expert is in the window: its tensors. */
static errint_t export_take_window(struct efs_mount *m, struct efs_expert_file *file,
                                   const struct efs_export_answer *answer, struct efs_export_window *w)
{
    if (answer->file_bytes > w->bytes || answer->file_bytes < 8)
        return -EUCLEAN;
    file->mapped = (struct efs_mapped_file){.fd = -1, .data = w->data, .bytes = (size_t)answer->file_bytes};
    errint_t rc = efs_mapped_tensors(efs_known_find(m, &file->key, file->hash), &file->mapped);
    if (rc < 0) {
        efs_mapped_let_go(&file->mapped);
        return rc;
    }
    if (file->mapped.learned)
        efs_known_add(m, file);
    efs_window_use(m->export, w);
    file->handed.window = w;
    return 0;
}

/* fd: what came with it, or < 0. false: it makes no sense. */
static bool export_take_answer(struct efs_mount *m, const struct efs_export_answer *answer, int fd)
{
    struct efs_export *h = m->export;
    struct efs_expert_file *file = answer->tag < h->room ? h->files[answer->tag] : NULL;
    if (!file || file->state != EFS_FILE_OPENING || answer->error > 0)
        return false;
    if (answer->error == 0 && file->key.coded) {
        if (!file->any || file->handed.body_total)
            return false;
        efs_file_make_full(m, file);
    }
    errint_t rc = answer->error;
    struct efs_export_window *w = rc == 0 ? efs_window_find(h, answer->window) : NULL;
    if (rc == 0 && !w) {
        w = fd < 0 ? NULL : efs_window_map(h, answer, fd);
        if (!w)
            efs_window_miss(h, answer->window);
        rc = w ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = export_take_window(m, file, answer, w);
    if (rc == 0) {
        efs_file_opened(m, file);
        return true;
    }
    if (answer->error == 0) {
        efs_export_drop(h, file);
        efs_mount_wake_reaper(m);
    } else { /* the mount has forgotten the tag */
        h->files[answer->tag] = NULL;
        h->free_tags[h->free_count++] = answer->tag;
    }
    efs_export_do_without(m, file, answer->error); /* its file may be had, or says why not */
    efs_mount_wake_open_workers(m);
    return true;
}

/* What the mount sends. */
union incoming {
    struct efs_export_head head;
    struct efs_export_answer answer;
    struct efs_export_kept kept;
    struct efs_export_coded coded;
};

/* A packet of so many bytes, and what came with it. false: it makes no sense. */
static bool export_take(struct efs_mount *m, const union incoming *packet, size_t bytes, int fd)
{
    const struct efs_export_head *head = &packet->head;
    if (bytes < sizeof(*head) || head->bytes != bytes || head->version != EFS_EXPORT_VERSION)
        return false;
    if (head->kind == EFS_EXPORT_ANSWER)
        return bytes == sizeof(packet->answer) && export_take_answer(m, &packet->answer, fd);
    if (head->kind == EFS_EXPORT_WINDOW)
        return bytes == sizeof(packet->answer) && efs_export_take_place(m->export, &packet->answer, fd);
    if (head->kind == EFS_EXPORT_CODED)
        return head->count <= EFS_EXPORT_PART_BYTES && bytes == offsetof(struct efs_export_coded, part) + head->count &&
               efs_export_take_coded(m, &packet->coded);
    return head->kind == EFS_EXPORT_KEPT && head->count <= EFS_EXPORT_LISTED &&
           bytes == offsetof(struct efs_export_kept, expert) + head->count * sizeof(packet->kept.expert[0]) &&
           memchr(packet->kept.stack, '\0', sizeof(packet->kept.stack)) && efs_full_set_take(m, &packet->kept);
}

/* One packet. -EAGAIN: there is none now. */
static errint_t export_receive_one(struct efs_mount *m)
{
    union incoming packet;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = &packet, .iov_len = sizeof(packet)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(m->export->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    int fd = -1;
    const struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    int fds[sizeof(control) / sizeof(int)], count = 0; /* the room is rounded up: two may fit */
    if (n > 0 && with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS) {
        count = (int)((with->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(with), (size_t)count * sizeof(int));
    }
    if (count == 1)
        fd = fds[0];
    bool good = count <= 1 && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && export_take(m, &packet, (size_t)n, fd);
    for (int i = 0; i < count; i++)
        efs_sys_close(fds[i]);
    return good ? 0 : -EPROTO;
}

static int export_milliseconds_until(const struct timespec *until)
{
    struct timespec now;
    if (!until)
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t left = ((int64_t)until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec + 999999) / 1000000;
    return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

void efs_export_kick(const struct efs_export *h)
{
    const uint64_t one = 1;
    ssize_t n = write(h->nudge, &one, sizeof(one)); /* fails only when it is readable already */
    (void)n;
}

errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until)
{
    struct pollfd wait[2] = {{.fd = m->export->fd, .events = POLLIN}, {.fd = m->export->nudge, .events = POLLIN}};
    m->receiving = true;
    pthread_mutex_unlock(&m->lock);
    int ready = poll(wait, 2, export_milliseconds_until(until));
    if (ready > 0 && wait[1].revents) {
        uint64_t nudges;
        ssize_t n = read(m->export->nudge, &nudges, sizeof(nudges)); /* nobody else reads it */
        (void)n;
    }
    pthread_mutex_lock(&m->lock);
    errint_t rc = 0;
    while (ready > 0 && wait[0].revents && rc == 0 && !m->export->lost)
        rc = export_receive_one(m);
    m->receiving = false;
    if (rc < 0 && rc != -EAGAIN)
        export_lose(m);
    if (m->waiting)
        pthread_cond_broadcast(&m->arrived); /* for them, or to go on receiving */
    return ready == 0 ? -ETIMEDOUT : 0;
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */

/* "address: PATH": the path, or nothing; "coded: yes". */
static void export_read_address(int root, char path[PATH_MAX], bool *coded)
{
    static const char name[] = "address: /";
    char text[PATH_MAX + 64];
    int fd = efs_sys_openat(root, ".expertfs/handout", O_RDONLY | O_NONBLOCK, 0);
    ssize_t n = fd < 0 ? -1 : efs_sys_pread(fd, text, sizeof(text) - 1, 0);
    if (fd >= 0)
        efs_sys_close(fd);
    text[n < 0 ? 0 : n] = '\0';
    char *end = strchr(text, '\n');
    *path = '\0';
    *coded = end && strncmp(end, "\ncoded: yes\n", 12) == 0;
    if (strncmp(text, name, sizeof(name) - 1) == 0 && end && end - text < PATH_MAX) {
        *end = '\0';
        strcpy(path, text + sizeof(name) - 2);
    }
}

/* An address has less room than a path: a long one is reached from its directory. */
static errint_t export_connect_path(int fd, char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int directory = -1;
    if (strlen(path) < sizeof(address.sun_path)) {
        strcpy(address.sun_path, path);
    } else {
        char *slash = strrchr(path, '/');
        *slash = '\0';
        directory = efs_sys_open(path, O_PATH | O_DIRECTORY, 0);
        int n = snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", directory, slash + 1);
        if (directory >= 0 && n >= (int)sizeof(address.sun_path)) {
            efs_sys_close(directory);
            directory = -ENAMETOOLONG;
        }
        if (directory < 0)
            return directory;
    }
    errint_t rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    if (directory >= 0)
        efs_sys_close(directory);
    return rc;
}

/* Is who listens there the one who mounted it, or root? */
static bool export_is_trusted(int fd, int root)
{
    struct ucred who;
    socklen_t room = sizeof(who);
    struct stat st;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &room) == 0 && efs_sys_fstat(root, &st) == 0 &&
           (who.uid == 0 || who.uid == st.st_uid);
}

struct efs_export *efs_export_connect(int root)
{
    char path[PATH_MAX];
    bool coded;
    export_read_address(root, path, &coded);
    if (!*path)
        return NULL;
    struct efs_export *h = efs_sys_calloc(1, sizeof(*h));
    int fd = h ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    if (h)
        h->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0 || h->nudge < 0 || export_connect_path(fd, path) < 0 || !export_is_trusted(fd, root)) {
        if (fd >= 0)
            efs_sys_close(fd);
        if (h && h->nudge >= 0)
            efs_sys_close(h->nudge);
        free(h);
        return NULL;
    }
    h->fd = fd;
    h->coded = coded;
    return h;
}

void efs_export_free(struct efs_export *h)
{
    if (!h)
        return;
    for (uint32_t tag = 0; tag < h->room; tag++)
        if (h->files[tag]) { /* that nobody waited for any more */
            efs_export_end_coded(&h->files[tag]->handed);
            free(h->files[tag]);
        }
    efs_window_unmap_all(h);
    efs_sys_close(h->fd); /* the mount may give the memory to others now */
    efs_sys_close(h->nudge);
    free(h->files);
    free(h->free_tags);
    free(h->drops);
    free(h);
}
