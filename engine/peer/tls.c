/* SPDX-License-Identifier: Apache-2.0 */
/* tls.c - see tls.h. */
#include "tls.h"

#include "deadline.h"
#include "expertfs-private.h"
#include "regular.h"
#include "sys.h"
#include "symbol.h"

#include <ctype.h>
#include <dlfcn.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* TLS 1.3 only, and only keys that both ends had before: no certificates. */
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK"
#define NAME "expertfs"

static struct {
    bool whole; /* all were found */
    __typeof__(&gnutls_init) init;
    __typeof__(&gnutls_deinit) deinit;
    __typeof__(&gnutls_handshake) handshake;
    __typeof__(&gnutls_record_send) record_send;
    __typeof__(&gnutls_record_recv) record_recv;
    __typeof__(&gnutls_record_check_pending) record_check_pending;
    __typeof__(&gnutls_priority_set_direct) priority_set_direct;
    __typeof__(&gnutls_credentials_set) credentials_set;
    __typeof__(&gnutls_transport_set_int2) transport_set_int2;
    __typeof__(&gnutls_auth_get_type) auth_get_type;
    __typeof__(&gnutls_psk_allocate_server_credentials) psk_allocate_server_credentials;
    __typeof__(&gnutls_psk_free_server_credentials) psk_free_server_credentials;
    __typeof__(&gnutls_psk_set_server_credentials_function) psk_set_server_credentials_function;
    __typeof__(&gnutls_psk_allocate_client_credentials) psk_allocate_client_credentials;
    __typeof__(&gnutls_psk_free_client_credentials) psk_free_client_credentials;
    __typeof__(&gnutls_psk_set_client_credentials) psk_set_client_credentials;
    __typeof__(&gnutls_session_set_ptr) session_set_ptr;
    __typeof__(&gnutls_session_get_ptr) session_get_ptr;
    __typeof__(&gnutls_error_is_fatal) error_is_fatal;
    __typeof__(&gnutls_malloc) malloc;
} calls;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void load(void)
{
    const struct {
        const char *name;
        void *call;
    } all[] = {{"gnutls_init", &calls.init},
               {"gnutls_deinit", &calls.deinit},
               {"gnutls_handshake", &calls.handshake},
               {"gnutls_record_send", &calls.record_send},
               {"gnutls_record_recv", &calls.record_recv},
               {"gnutls_record_check_pending", &calls.record_check_pending},
               {"gnutls_priority_set_direct", &calls.priority_set_direct},
               {"gnutls_credentials_set", &calls.credentials_set},
               {"gnutls_transport_set_int2", &calls.transport_set_int2},
               {"gnutls_auth_get_type", &calls.auth_get_type},
               {"gnutls_psk_allocate_server_credentials", &calls.psk_allocate_server_credentials},
               {"gnutls_psk_free_server_credentials", &calls.psk_free_server_credentials},
               {"gnutls_psk_set_server_credentials_function", &calls.psk_set_server_credentials_function},
               {"gnutls_psk_allocate_client_credentials", &calls.psk_allocate_client_credentials},
               {"gnutls_psk_free_client_credentials", &calls.psk_free_client_credentials},
               {"gnutls_psk_set_client_credentials", &calls.psk_set_client_credentials},
               {"gnutls_session_set_ptr", &calls.session_set_ptr},
               {"gnutls_session_get_ptr", &calls.session_get_ptr},
               {"gnutls_error_is_fatal", &calls.error_is_fatal},
               {"gnutls_malloc", &calls.malloc}};
    void *library = dlopen("libgnutls.so.30", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    calls.whole = library != NULL;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        calls.whole = calls.whole && efs_symbol(library, all[i].name, all[i].call, sizeof(calls.init));
}

errint_t efs_tls_load(struct efs_error *err)
{
    pthread_once(&loaded, load);
    return calls.whole ? 0
                       : efs_fail(err, -ENOSYS,
                                  "peers are reached by GnuTLS, which is not installed\nhint: apt install "
                                  "libgnutls30");
}

struct efs_tls {
    int fd;
    gnutls_session_t session;
    gnutls_psk_server_credentials_t server;
    gnutls_psk_client_credentials_t client;
    struct efs_peer_key key;
};

/* ---- the key ---- */

static int digit_of(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : isxdigit(c) ? tolower(c) - 'a' + 10 : -1;
}

errint_t efs_peer_key_read(const char *path, struct efs_peer_key *key, struct efs_error *err)
{
    char text[2 * EFS_PEER_KEY_BYTES + 2] = "";
    struct stat st;
    int fd = efs_regular_open_path(path, &st, err);
    if (fd < 0)
        return fd;
    ssize_t n = efs_sys_pread(fd, text, sizeof(text), 0);
    efs_sys_close(fd);
    if (n < 0)
        return efs_fail(err, (errint_t)n, "%s: %s", path, strerror((int)-n));
    if (st.st_mode & 077)
        return efs_fail(err, -EACCES, "%s: others may read this key\nhint: chmod 600 %s", path, EFS_WORD(path));
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    key->count = 0;
    for (ssize_t i = 0; i + 1 < n && key->count < EFS_PEER_KEY_BYTES; i += 2) {
        const int high = digit_of(text[i]), low = digit_of(text[i + 1]);
        if (high < 0 || low < 0)
            break;
        key->bytes[key->count++] = (uint8_t)(high << 4 | low);
    }
    if (key->count < 16 || 2 * (ssize_t)key->count != n)
        return efs_fail(err, -EINVAL, "%s: not a key of 32 to %u hexadecimal digits\nhint: openssl rand -hex 32 >%s",
                        path, 2 * EFS_PEER_KEY_BYTES, EFS_WORD(path));
    return 0;
}

static int server_key(gnutls_session_t session, const char *name, gnutls_datum_t *key)
{
    const struct efs_tls *tls = calls.session_get_ptr(session);
    if (strcmp(name, NAME) != 0)
        return -1;
    key->data = (*calls.malloc)(tls->key.count); /* GnuTLS frees it */
    key->size = tls->key.count;
    if (!key->data)
        return -1;
    memcpy(key->data, tls->key.bytes, tls->key.count);
    return 0;
}

/* ---- a connection ---- */

/* Waits until the socket can go on after GNUTLS_E_AGAIN. */
static errint_t tls_poll(const struct efs_tls *tls, short events, const struct timespec *until)
{
    struct pollfd fd = {.fd = tls->fd, .events = events};
    int n = efs_poll_until(&fd, 1, until);
    return n > 0 || (n < 0 && errno == EINTR) ? 0 : n == 0 ? -ETIMEDOUT : -errno;
}

static errint_t tls_begin(struct efs_tls *tls, bool server)
{
    const gnutls_datum_t key = {tls->key.bytes, tls->key.count};
    int rc = calls.init(&tls->session, (server ? GNUTLS_SERVER : GNUTLS_CLIENT) | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL |
                                           GNUTLS_NO_TICKETS);
    if (rc == 0)
        rc = calls.priority_set_direct(tls->session, PRIORITY, NULL);
    if (rc == 0 && server && (rc = calls.psk_allocate_server_credentials(&tls->server)) == 0) {
        calls.psk_set_server_credentials_function(tls->server, server_key);
        rc = calls.credentials_set(tls->session, GNUTLS_CRD_PSK, tls->server);
    } else if (rc == 0 && !server && (rc = calls.psk_allocate_client_credentials(&tls->client)) == 0) {
        rc = calls.psk_set_client_credentials(tls->client, NAME, &key, GNUTLS_PSK_KEY_RAW);
        if (rc == 0)
            rc = calls.credentials_set(tls->session, GNUTLS_CRD_PSK, tls->client);
    }
    if (rc == 0) {
        calls.session_set_ptr(tls->session, tls);
        calls.transport_set_int2(tls->session, tls->fd, tls->fd);
    }
    return rc == 0 ? 0 : -ENOMEM;
}

errint_t efs_tls_new(int fd, bool server, const struct efs_peer_key *key, const struct timespec *until,
                     struct efs_tls **out, struct efs_error *err)
{
    const int one = 1;
    *out = NULL;
    errint_t rc = efs_tls_load(err);
    struct efs_tls *tls = rc == 0 ? efs_sys_calloc(1, sizeof(*tls)) : NULL;
    if (!tls)
        return rc < 0 ? rc : efs_fail(err, -ENOMEM, "no memory");
    /* a message is some records, and is waited for: no record waits until the one before is acknowledged */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    tls->fd = fd;
    tls->key = *key;
    rc = tls_begin(tls, server);
    while (rc == 0) {
        int done = calls.handshake(tls->session);
        if (done == 0 && calls.auth_get_type(tls->session) != GNUTLS_CRD_PSK)
            rc = efs_fail(err, -EPROTO, "the other end has agreed on no key");
        if (done == 0)
            break;
        if (done == GNUTLS_E_AGAIN)
            rc = tls_poll(tls, POLLIN, until);
        else if (calls.error_is_fatal(done)) /* a wrong key is found out by the first bytes that it encrypts */
            rc = efs_fail(err, -EACCES, "no TLS with the other end, or it has another key");
    }
    if (rc == -ETIMEDOUT)
        efs_fail(err, rc, "the other end does not answer");
    if (rc < 0) {
        efs_tls_free(tls);
        return rc;
    }
    *out = tls;
    return 0;
}

void efs_tls_free(struct efs_tls *tls)
{
    if (!tls)
        return;
    if (tls->session)
        calls.deinit(tls->session);
    if (tls->server)
        calls.psk_free_server_credentials(tls->server);
    if (tls->client)
        calls.psk_free_client_credentials(tls->client);
    explicit_bzero(&tls->key, sizeof(tls->key));
    free(tls);
}

size_t efs_tls_pending(const struct efs_tls *tls)
{
    return calls.record_check_pending(tls->session);
}

/* What a call that sent or received n bytes means: their number, 0: again, after a wait; or an error. */
static ssize_t tls_moved(const struct efs_tls *tls, ssize_t n, short events, const struct timespec *until)
{
    return n >= 0 ? n : n == GNUTLS_E_AGAIN ? tls_poll(tls, events, until) : n == GNUTLS_E_INTERRUPTED ? 0 : -EIO;
}

errint_t efs_tls_send(struct efs_tls *tls, const void *bytes, size_t count, const struct timespec *until)
{
    for (size_t done = 0; done < count;) {
        ssize_t n = calls.record_send(tls->session, (const uint8_t *)bytes + done, count - done);
        if ((n = tls_moved(tls, n, POLLOUT, until)) < 0)
            return (errint_t)n;
        done += (size_t)n;
    }
    return 0;
}

errint_t efs_tls_receive(struct efs_tls *tls, void *bytes, size_t count, const struct timespec *until)
{
    for (size_t done = 0; done < count;) {
        ssize_t n = calls.record_recv(tls->session, (uint8_t *)bytes + done, count - done);
        n = n == 0 ? -ECONNRESET : tls_moved(tls, n, POLLIN, until);
        if (n < 0)
            return done ? -EBADMSG : (errint_t)n;
        done += (size_t)n;
    }
    return 0;
}
