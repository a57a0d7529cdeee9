/* SPDX-License-Identifier: Apache-2.0 */
/* fake_daemon.c - see fake_daemon.h. */
#include "fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

void fake_daemon_send(int fd, const void *packet, size_t bytes, int with)
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

static void *serve(void *arg)
{
    struct fake_daemon *daemon = arg;
    int fd;
    while ((fd = accept(daemon->listening, NULL, NULL)) >= 0) {
        daemon->serve(daemon, fd);
        close(fd);
    }
    return NULL;
}

void fake_daemon_start(struct fake_daemon *daemon, const struct fixture *model, const struct fixture_mount *mount,
                       void (*serve_one)(struct fake_daemon *daemon, int fd))
{
    static const char long_name[] = "a folder with a name that makes the path of the socket much longer than the one "
                                    "hundred and eight bytes of an address";
    static unsigned number;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[400], text[1024];
    *daemon = (struct fake_daemon){.serve = serve_one};
    for (uint32_t e = 0; e < mount->experts; e++)
        daemon->window_bytes =
            mount->file_bytes[e] > daemon->window_bytes ? mount->file_bytes[e] : daemon->window_bytes;
    daemon->window_bytes = (daemon->window_bytes + 4095) / 4096 * 4096;
    snprintf(folder, sizeof(folder), "%s/%s", model->directory, number % 2 ? long_name : ".");
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    int below = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/daemon-%u", below, number);
    daemon->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(daemon->listening, (struct sockaddr *)&address, sizeof(address)), 0);
    close(below);
    assert_int_equal(listen(daemon->listening, 4), 0);
    int bytes = snprintf(text, sizeof(text), "address: %s/daemon-%u\n", folder, number++);
    fixture_mount_file(mount, ".expertfs/handout", text, (size_t)bytes);
    assert_int_equal(pthread_create(&daemon->thread, NULL, serve, daemon), 0);
}

void fake_daemon_stop(struct fake_daemon *daemon)
{
    shutdown(daemon->listening, SHUT_RDWR);
    pthread_join(daemon->thread, NULL);
    close(daemon->listening);
}
