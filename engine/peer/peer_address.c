/* SPDX-License-Identifier: Apache-2.0 */
/* peer_address.c - see peer_address.h. */
#include "peer_address.h"

#include "deadline.h"
#include "expertfs-private.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct parts {
    char host[256], port[6];
};

static errint_t split(const char *address, struct parts *parts, struct efs_error *err)
{
    const char *colon = strrchr(address, ':'), *host = address;
    size_t bytes = colon ? (size_t)(colon - address) : 0;
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (bytes > 2 && host[0] == '[' && host[bytes - 1] == ']') {
        host++;
        bytes -= 2;
    } else if (memchr(host, ':', bytes)) {
        bytes = 0; /* an IPv6 address without brackets */
    }
    if (bytes == 0 || bytes >= sizeof(parts->host) || colon[1] < '0' || colon[1] > '9' || *end || port > 65535 ||
        strlen(colon + 1) >= sizeof(parts->port))
        return efs_fail(err, -EINVAL, "%s: not HOST:PORT", address);
    memcpy(parts->host, host, bytes);
    parts->host[bytes] = '\0';
    memcpy(parts->port, colon + 1, strlen(colon + 1) + 1);
    return 0;
}

errint_t efs_peer_check(const char *address, struct efs_error *err)
{
    struct parts parts;
    return split(address, &parts, err);
}

static errint_t find(const char *address, int flags, struct addrinfo **found, struct efs_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct parts parts;
    errint_t rc = split(address, &parts, err);
    int not_found = rc == 0 ? getaddrinfo(parts.host, parts.port, &hints, found) : 0;
    return not_found ? efs_fail(err, -EHOSTUNREACH, "%s: %s", address, gai_strerror(not_found)) : rc;
}

errint_t efs_peer_listen(const char *address, int *fd, struct efs_error *err)
{
    const int one = 1;
    struct addrinfo *all = NULL;
    errint_t rc = find(address, AI_PASSIVE, &all, err);
    if (rc < 0)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = all; a && rc < 0; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        rc = *fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
                     bind(*fd, a->ai_addr, a->ai_addrlen) < 0 || listen(*fd, 64) < 0
                 ? -errno
                 : 0;
        if (rc < 0 && *fd >= 0) {
            close(*fd);
            *fd = -1;
        }
    }
    freeaddrinfo(all);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", address, strerror(-rc)) : 0;
}

/* Waits until a connection is established or refused. */
static errint_t connected(int fd, const struct timespec *until)
{
    struct pollfd waits = {.fd = fd, .events = POLLOUT};
    int error = 0, n = efs_poll_until(&waits, 1, until);
    socklen_t bytes = sizeof(error);
    if (n <= 0)
        return n == 0 ? -ETIMEDOUT : -errno;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 ? -errno : -error;
}

errint_t efs_peer_connect(const char *address, const struct timespec *until, int *fd, struct efs_error *err)
{
    struct addrinfo *all = NULL;
    errint_t rc = find(address, 0, &all, err);
    if (rc < 0)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = all; a && rc < 0; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        rc = *fd < 0 ? -errno : connect(*fd, a->ai_addr, a->ai_addrlen) < 0 ? -errno : 0;
        if (rc == -EINPROGRESS)
            rc = connected(*fd, until);
        if (rc < 0 && *fd >= 0)
            close(*fd);
    }
    freeaddrinfo(all);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", address, strerror(-rc)) : 0;
}

unsigned efs_peer_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}
