/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_fixture.h - shared by the tests of peers: a key, a caller with nothing in memory whose measured times send
 * every expert to its peer, a server, and a peer that lies.
 */
#ifndef EFS_TEST_PEER_FIXTURE_H
#define EFS_TEST_PEER_FIXTURE_H

#include "ffn_fixture.h"

#include "counts.h"
#include "deadline.h"
#include "matvec.h"
#include "peer_address.h"
#include "peer_ops.h"
#include "peers.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char key_path[320];

static inline void write_key(const char *path, const char *digits, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", digits);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

#define KEY "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

/* A caller with nothing in memory, whose measured times send every expert to the peer at once. */
struct caller {
    struct served s;
    struct efs_peers *peers;
};

static inline struct efs_peer_stats stats_of(const struct caller *c)
{
    struct efs_peer_stats stats;
    efs_client_peer_stats(c->s.client, &stats);
    return stats;
}

static inline struct caller call_of(const struct checkpoint *from, unsigned port, const char *key)
{
    struct caller c = {.s = {.fs = open_store(from, 128 * MIB)}};
    struct efs_error err = {""};
    const struct efs_peer_ops *ops;
    char address[40];
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_int_equal(efs_client_new(c.s.fs, &c.s.client, NULL), 0);
    assert_int_equal(efs_team_new(2, &c.s.team), 0);
    if (efs_client_peers(c.s.client, address, key, &err) < 0)
        fail_msg("%s", err.text);
    c.peers = efs_client_peers_of(c.s.client, &ops);
    return c;
}

static inline void prefer_peer(const struct caller *c, double seconds)
{
    pthread_mutex_lock(&c->peers->lock);
    c->peers->read_s = 1000;
    c->peers->read_ns = efs_now_ns();
    c->peers->peer[0].measured.seconds = seconds;
    c->peers->peer[0].used_ns = efs_now_ns();
    pthread_mutex_unlock(&c->peers->lock);
}

static inline void wait_ready(const struct caller *c)
{
    while (stats_of(c).ready == 0)
        poll(NULL, 0, 2);
}

/* ---- servers ---- */

struct host {
    struct served s;
    struct efs_peer_server *server;
};

static inline void load_all(struct host *h)
{
    const struct efs_need needs[EXPERTS] = {
        {.expert = 0, .tokens = 1}, {.expert = 1, .tokens = 1}, {.expert = 2, .tokens = 1}};
    struct efs_client_request *request;
    assert_int_equal(efs_client_begin(h->s.client, "", 0, needs, EXPERTS, EFS_FORM_CODED, &request, NULL), 0);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
}

/* With nothing in memory. */
static inline struct host serve_peers_cold(const struct checkpoint *from, const char *key)
{
    struct host h = {.s = serve_of(from, EFS_CHOOSE_CASCADE, 1)};
    struct efs_error err = {""};
    if (efs_peer_serve(h.s.client, "127.0.0.1:0", key, 2, &h.server, &err) < 0)
        fail_msg("%s", err.text);
    return h;
}

static inline struct host serve_peers_of(const struct checkpoint *from, const char *key)
{
    struct host h = serve_peers_cold(from, key);
    load_all(&h);
    return h;
}

static inline struct efs_peer_server_stats served_by(const struct host *h)
{
    struct efs_peer_server_stats stats;
    efs_peer_server_stats(h->server, &stats);
    return stats;
}

static inline void host_end(struct host *h)
{
    efs_peer_server_end(h->server);
    serve_end(&h->s);
}

/* ---- a peer that lies ---- */

enum lie { NOT_FINITE, OTHER_NUMBER, SHORT, LONG, ERROR, LATE, CLOSED, OTHER_KIND, OTHER_ROWS, NO_DATA, NO_LIE };

struct liar {
    int listener;
    enum lie lie;
    uint64_t hash;
};

static inline void lie_about(struct efs_tls *tls, const struct efs_wire_work *work, enum lie lie)
{
    const size_t bytes = efs_wire_answer_bytes(EXPERTS, work->head.pairs, work->head.rows);
    uint8_t *body = calloc(1, bytes);
    const struct efs_wire_answer a = {.id = work->head.id + (lie == OTHER_NUMBER),
                                      .error = lie == ERROR     ? ENOENT
                                               : lie == NO_DATA ? ENODATA
                                                                : 0, /* but vectors follow */
                                      .layer_experts = EXPERTS,
                                      .pairs = work->head.pairs,
                                      .rows = work->head.rows - (lie == OTHER_ROWS)};
    struct efs_wire_head head = {lie == OTHER_KIND ? EFS_WIRE_WELCOME : EFS_WIRE_ANSWER,
                                 (uint32_t)(lie == ERROR  ? sizeof(a)
                                            : lie == LONG ? UINT32_MAX
                                                          : bytes)};
    const uint32_t nan = 0x7fc00000;
    assert_non_null(body);
    memcpy(body, &a, sizeof(a));
    if (lie == NOT_FINITE)
        memcpy(body + bytes - 4, &nan, 4);
    efs_tls_send(tls, &head, sizeof(head), NULL);
    efs_tls_send(tls, body, lie == SHORT ? bytes - 4 : head.bytes < bytes ? head.bytes : bytes, NULL);
    free(body);
}

static inline void *liar_thread(void *arg)
{
    struct liar *liar = arg;
    struct {
        struct efs_wire_head head;
        struct efs_wire_hello hello;
    } hello, welcome = {{EFS_WIRE_WELCOME, sizeof(welcome.hello)}, {.version = EFS_WIRE_VERSION, .store = liar->hash}};
    struct efs_wire_head head;
    struct efs_peer_key key;
    struct efs_tls *tls;
    struct efs_wire_work work;
    struct pollfd fd = {.fd = liar->listener, .events = POLLIN};
    poll(&fd, 1, -1);
    int connection = accept4(liar->listener, NULL, NULL, SOCK_NONBLOCK);
    assert_int_equal(efs_peer_key_read(key_path, &key, NULL), 0);
    assert_int_equal(efs_tls_new(connection, true, &key, NULL, &tls, NULL), 0);
    int no_delay = 0; /* else each answer, which is two records, takes 40 ms */
    assert_int_equal(getsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &no_delay, &(socklen_t){sizeof(no_delay)}), 0);
    assert_int_not_equal(no_delay, 0);
    assert_int_equal(efs_tls_receive(tls, &hello, sizeof(hello), NULL), 0);
    assert_int_equal(efs_tls_send(tls, &welcome, sizeof(welcome), NULL), 0);
    assert_int_equal(efs_tls_receive(tls, &head, sizeof(head), NULL), 0);
    void *body = malloc(head.bytes);
    assert_int_equal(efs_tls_receive(tls, body, head.bytes, NULL), 0);
    assert_int_equal(efs_wire_take_request(body, head.bytes, &work), 0);
    if (liar->lie != LATE && liar->lie != CLOSED)
        lie_about(tls, &work, liar->lie);
    if (liar->lie != CLOSED) /* until the caller has given it up */
        efs_tls_receive(tls, &head, sizeof(head), NULL);
    free(body);
    efs_tls_free(tls);
    close(connection);
    return NULL;
}

/* The caller computes by compute(), of which the peer gets something and lies; the result must be right. */
static inline void lies(const struct checkpoint *from, void (*compute)(const struct caller *c))
{
    pack(from, EFS_CHOOSE_CASCADE);
    for (enum lie lie = NOT_FINITE; lie < NO_LIE; lie++) {
        struct liar liar = {.lie = lie};
        pthread_t thread;
        assert_int_equal(efs_peer_listen("127.0.0.1:0", &liar.listener, NULL), 0);
        struct caller c = call_of(from, efs_peer_port(liar.listener), key_path);
        liar.hash = c.peers->hello.store;
        assert_int_equal(pthread_create(&thread, NULL, liar_thread, &liar), 0);
        wait_ready(&c);
        const bool late = lie == LATE || lie == SHORT;
        prefer_peer(&c, late ? 0.001 : 100);
        c.peers->late_ns = late ? 100000000 : c.peers->late_ns;
        compute(&c);
        if (stats_of(&c).failed != 1 || stats_of(&c).remote != 0 || stats_of(&c).ready != (lie == ERROR))
            fail_msg("lie %d: %llu failed", (int)lie, (unsigned long long)stats_of(&c).failed);
        serve_end(&c.s);
        pthread_join(thread, NULL);
        close(liar.listener);
    }
}

/* ---- counts ---- */

/* The saved counts of the store that was closed last: each expert in each of `passes`; 0: none were saved. */
static inline void check_counts(uint64_t hash, uint32_t passes)
{
    struct efs_history h;
    char path[4096];
    assert_int_equal(efs_counts_load(hash, 1, EXPERTS, &h, NULL), passes ? 0 : -ENOENT);
    assert_true(passes == 0 || h.passes[0] == passes);
    for (uint32_t e = 0; passes && e < EXPERTS; e++)
        assert_int_equal(h.counts[e], passes);
    efs_history_free(&h);
    assert_int_equal(efs_counts_path(hash, path, sizeof(path), NULL), 0);
    unlink(path);
}

/* A choice of which a peer computes all, then one that it does not answer, then one that is computed here: the caller
 * counts three, the peer none. compute(): one of all experts. */
static inline void counts_of_caller(const struct checkpoint *from, void (*compute)(const struct caller *c))
{
    setenv("EXPERTFS_STATE", from->fixture.directory, 1);
    with_state = true;
    struct host h = serve_peers_of(from, key_path);
    struct caller c = call_of(from, efs_peer_server_port(h.server), key_path);
    const uint64_t hash = c.peers->hello.store;
    with_state = false;
    wait_ready(&c);
    prefer_peer(&c, 100);
    compute(&c);
    assert_true(served_by(&h).requests > 0);
    efs_peer_server_end(h.server);
    prefer_peer(&c, 100);
    compute(&c);
    assert_int_equal(stats_of(&c).failed, 1);
    compute(&c);
    serve_end(&c.s);
    check_counts(hash, 3);
    serve_end(&h.s);
    check_counts(hash, 1); /* load_all() */
}

static inline int setup_peer(void **state)
{
    int rc = setup(state);
    snprintf(key_path, sizeof(key_path), "%s/key", model.fixture.directory);
    write_key(key_path, KEY, 0600);
    return rc;
}

#endif
