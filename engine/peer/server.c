/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - a server of products: accepts connections, and answers each request by the vectors of its experts, without
 * adding them up.
 *
 * One thread accepts; each connection has a thread, which holds the server's lock while it computes, so that requests
 * run one after the other on all threads of the team. A connection that sends something wrong is closed.
 */
#include "expertfs-peer.h"

#include "deadline.h"
#include "device_ops.h"
#include "ffn.h"
#include "matvec.h"
#include "peer_ops.h"
#include "peer_address.h"
#include "server_products.h"
#include "sys.h"
#include "thread.h"
#include "tls.h"
#include "wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 64u
#define HELLO_MS 10000 /* for TLS and HELLO */
#define BODY_MS 30000  /* from the head of a message to its end, and for sending an answer */

struct layer { /* a run of the list of experts */
    const struct efs_listed_expert *expert;
    uint32_t count;
};

struct connection {
    LIST_ENTRY(connection) all;
    struct efs_peer_server *server;
    pthread_t thread;
    int fd;
    bool ended; /* its thread is to be joined */
};

struct efs_peer_server {
    struct efs_client *client;
    struct efs_team *team;
    struct efs_peer_key key;
    struct efs_wire_hello welcome;
    struct efs_listed_expert *experts;
    struct layer *layers;
    uint32_t layer_count;
    int listener, stop; /* stop: an eventfd, readable at the end */
    pthread_t thread;
    pthread_mutex_t lock;    /* connections, stats */
    pthread_mutex_t running; /* held while a request is computed */
    LIST_HEAD(, connection) connections;
    unsigned count;
    struct efs_peer_server_stats stats;
};

/* ---- the layers of the store ---- */

static errint_t list_layers(struct efs_peer_server *s, struct efs_error *err)
{
    uint32_t count = 0;
    errint_t rc = efs_client_experts(s->client, &s->experts, &count, err);
    if (rc < 0)
        return rc;
    s->layers = efs_sys_calloc(count ? count : 1, sizeof(*s->layers));
    if (!s->layers)
        return efs_fail(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_listed_expert *e = &s->experts[i];
        struct layer *last = s->layer_count ? &s->layers[s->layer_count - 1] : NULL;
        if (last && last->expert->layer == e->layer && strcmp(last->expert->stack, e->stack) == 0)
            last->count++;
        else
            s->layers[s->layer_count++] = (struct layer){e, 1};
    }
    return 0;
}

static const struct layer *find_layer(const struct efs_peer_server *s, const struct efs_wire_request *request)
{
    for (uint32_t i = 0; i < s->layer_count; i++)
        if (s->layers[i].expert->layer == request->layer && strcmp(s->layers[i].expert->stack, request->stack) == 0)
            return &s->layers[i];
    return NULL;
}

/* Sets the bits of the experts of a layer that are in memory. */
static void write_held(struct efs_peer_server *s, const struct layer *layer, uint8_t *held)
{
    for (uint32_t i = 0; i < layer->count && layer->expert[i].expert < EFS_WIRE_LAYER; i++) {
        const struct efs_expert_key key =
            efs_expert_key(layer->expert[i].stack, layer->expert[i].layer, layer->expert[i].expert);
        if (i == layer->expert[i].expert && strchr("FC", efs_client_state(s->client, &key)))
            held[i / 8] |= (uint8_t)(1u << i % 8);
    }
}

/* ---- a request ---- */

/* Runs whole experts. vectors: room for [pairs][hidden]. */
static errint_t run_experts(struct efs_peer_server *s, const struct efs_wire_work *work, float *vectors,
                            struct efs_error *err)
{
    const struct efs_wire_request *r = &work->head;
    struct efs_route_to *routes = efs_sys_calloc(r->experts, sizeof(*routes));
    float **rows = efs_sys_calloc(r->experts, sizeof(*rows));
    errint_t rc = routes && rows ? 0 : efs_fail(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0, pair = 0; rc == 0 && i < r->experts; pair += work->expert[i++].count) {
        routes[i] = (struct efs_route_to){
            .expert = work->expert[i].expert, .count = work->expert[i].count, .token = work->token + pair};
        rows[i] = vectors + (size_t)pair * r->hidden;
    }
    const struct efs_mixture m = {.expert_count = r->experts,
                                  .experts = routes,
                                  .hidden_act = r->hidden_act[0] ? r->hidden_act : NULL,
                                  .layout = r->layout,
                                  .activation = (enum efs_activation)r->activation,
                                  .x = work->x,
                                  .tokens = r->tokens,
                                  .hidden = r->hidden,
                                  .x_stride = r->hidden,
                                  .form = EFS_FORM_ANY};
    const struct efs_ffn_source from = {
        .client = s->client, .stack = r->stack, .layer = r->layer, .counted = true, .rows = rows};
    if (rc == 0)
        rc = efs_ffn_run(&from, s->team, &m, err);
    free(routes);
    free(rows);
    return rc;
}

/* Runs it. vectors: room for [pairs][rows]. */
static errint_t run(struct efs_peer_server *s, const struct efs_wire_work *work, float *vectors)
{
    struct efs_error why = {""};
    pthread_mutex_lock(&s->running);
    errint_t rc = work->head.matrix[0][0] ? efs_server_products(s->client, s->team, work, vectors)
                                          : run_experts(s, work, vectors, &why);
    pthread_mutex_unlock(&s->running);
    return rc;
}

static errint_t send_answer(struct efs_tls *tls, const void *body, size_t bytes)
{
    const struct efs_wire_head head = {EFS_WIRE_ANSWER, (uint32_t)bytes};
    const struct timespec until = efs_from_now(BODY_MS * INT64_C(1000000));
    errint_t rc = efs_tls_send(tls, &head, sizeof(head), &until);
    return rc < 0 ? rc : efs_tls_send(tls, body, bytes, &until);
}

static bool are_held(const struct efs_wire_work *work, const uint8_t *held, uint32_t wide)
{
    for (uint32_t i = 0; i < work->head.experts; i++) {
        const uint32_t e = work->expert[i].expert;
        if (e < wide && !(held[e / 8] >> e % 8 & 1))
            return false;
    }
    return true;
}

/* Answers a request; one for an expert that would have to be read at once, by what is in memory: the caller reads as
 * soon. An error means that the connection ends. */
static errint_t answer(struct efs_peer_server *s, struct efs_tls *tls, const void *body, size_t bytes)
{
    struct efs_wire_work work;
    errint_t rc = efs_wire_take_request(body, bytes, &work);
    if (rc < 0)
        return rc;
    const struct layer *layer = find_layer(s, &work.head);
    const uint32_t wide = layer ? layer->count < EFS_WIRE_LAYER ? layer->count : EFS_WIRE_LAYER : 0;
    size_t room = efs_wire_answer_bytes(wide, work.head.pairs, work.head.rows);
    uint8_t *out = efs_sys_calloc(1, room);
    if (!out)
        return -ENOMEM;
    struct efs_wire_answer a = {work.head.id, 0, wide, work.head.pairs, work.head.rows};
    uint8_t *held = out + sizeof(a);
    rc = layer ? 0 : -ENOENT;
    if (layer) {
        write_held(s, layer, held);
        rc = are_held(&work, held, wide) ? run(s, &work, (float *)(held + efs_wire_held_bytes(wide))) : -ENODATA;
    }
    if (rc == -ENODATA) {
        a.error = ENODATA;
        a.pairs = 0;
        room = efs_wire_answer_bytes(wide, 0, work.head.rows);
    } else if (rc < 0) {
        a = (struct efs_wire_answer){.id = work.head.id, .error = (uint32_t)-rc};
        room = sizeof(a);
    }
    memcpy(out, &a, sizeof(a));
    pthread_mutex_lock(&s->lock);
    s->stats.requests += rc == 0;
    s->stats.failed += rc < 0 && rc != -ENODATA;
    s->stats.vectors += rc == 0 ? work.head.pairs : 0;
    pthread_mutex_unlock(&s->lock);
    rc = send_answer(tls, out, room);
    free(out);
    return rc;
}

/* ---- a connection ---- */

/* Receives a head; waits for its start without a limit. */
static errint_t receive_head(const struct connection *c, struct efs_tls *tls, struct efs_wire_head *head)
{
    struct pollfd fds[] = {{.fd = c->fd, .events = POLLIN}, {.fd = c->server->stop, .events = POLLIN}};
    while (efs_tls_pending(tls) == 0) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return -errno;
        if (fds[1].revents)
            return -ECANCELED;
        if (fds[0].revents)
            break;
    }
    const struct timespec until = efs_from_now(BODY_MS * INT64_C(1000000));
    return efs_tls_receive(tls, head, sizeof(*head), &until);
}

static errint_t greet(struct efs_peer_server *s, struct efs_tls *tls, const struct timespec *until)
{
    struct {
        struct efs_wire_head head;
        struct efs_wire_hello hello;
    } got, sent = {{EFS_WIRE_WELCOME, sizeof(sent.hello)}, s->welcome};
    errint_t rc = efs_tls_receive(tls, &got, sizeof(got), until);
    if (rc == 0 && (got.head.kind != EFS_WIRE_HELLO || got.head.bytes != sizeof(got.hello) ||
                    got.hello.version != EFS_WIRE_VERSION))
        return -EBADMSG;
    if (rc == 0) /* the caller reads from it that the store is another one */
        rc = efs_tls_send(tls, &sent, sizeof(sent), until);
    return rc == 0 && got.hello.store != s->welcome.store ? -ESTALE : rc;
}

static void serve(const struct connection *c, struct efs_tls *tls)
{
    struct efs_peer_server *s = c->server;
    struct efs_wire_head head;
    errint_t rc;
    while ((rc = receive_head(c, tls, &head)) == 0) {
        if (head.kind != EFS_WIRE_REQUEST || head.bytes < sizeof(struct efs_wire_request) ||
            head.bytes > EFS_WIRE_BYTES)
            rc = -EBADMSG;
        void *body = rc == 0 ? efs_sys_malloc(head.bytes) : NULL;
        const struct timespec until = efs_from_now(BODY_MS * INT64_C(1000000));
        if (rc == 0 && !body)
            rc = -ENOMEM;
        else if (rc == 0 && efs_tls_receive(tls, body, head.bytes, &until) < 0)
            rc = -EBADMSG; /* half a message */
        if (rc == 0)
            rc = answer(s, tls, body, head.bytes);
        free(body);
        if (rc < 0)
            break;
    }
    pthread_mutex_lock(&s->lock);
    s->stats.bad += rc == -EBADMSG;
    pthread_mutex_unlock(&s->lock);
}

static void *connection_thread(void *arg)
{
    struct connection *c = arg;
    struct efs_peer_server *s = c->server;
    struct efs_error ignored;
    struct efs_tls *tls;
    const struct timespec until = efs_from_now(HELLO_MS * INT64_C(1000000));
    errint_t rc = efs_tls_new(c->fd, true, &s->key, &until, &tls, &ignored);
    if (rc == 0)
        rc = greet(s, tls, &until);
    pthread_mutex_lock(&s->lock);
    s->stats.refused += rc < 0;
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        serve(c, tls);
    pthread_mutex_lock(&s->lock);
    efs_tls_free(tls);
    close(c->fd);
    c->ended = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Joins the threads of connections that have ended; all: of all connections. */
static void join(struct efs_peer_server *s, bool all)
{
    pthread_mutex_lock(&s->lock);
    for (struct connection *c = LIST_FIRST(&s->connections), *next; c; c = next) {
        next = LIST_NEXT(c, all);
        if (!all && !c->ended)
            continue;
        LIST_REMOVE(c, all);
        s->count--;
        pthread_mutex_unlock(&s->lock);
        pthread_join(c->thread, NULL);
        free(c);
        pthread_mutex_lock(&s->lock);
        next = LIST_FIRST(&s->connections);
    }
    pthread_mutex_unlock(&s->lock);
}

/* false: a connection waits, and cannot be accepted now. */
static bool accept_one(struct efs_peer_server *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    join(s, false);
    if (fd < 0)
        return false;
    pthread_mutex_lock(&s->lock);
    struct connection *c = s->count < CONNECTIONS ? efs_sys_calloc(1, sizeof(*c)) : NULL;
    if (c) {
        *c = (struct connection){.server = s, .fd = fd};
        if (efs_thread_start(connection_thread, c, "efs-peer", &c->thread) < 0) {
            free(c);
            c = NULL;
        }
    }
    if (c) {
        LIST_INSERT_HEAD(&s->connections, c, all);
        s->count++;
        s->stats.connections++;
    } else {
        s->stats.refused++;
        close(fd);
    }
    pthread_mutex_unlock(&s->lock);
    return true;
}

static void *accept_thread(void *arg)
{
    struct efs_peer_server *s = arg;
    struct pollfd fds[] = {{.fd = s->listener, .events = POLLIN}, {.fd = s->stop, .events = POLLIN}};
    while (!fds[1].revents)
        if (poll(fds, 2, -1) > 0 && fds[0].revents && !accept_one(s))
            poll(&fds[1], 1, 100); /* no more descriptors */
    return NULL;
}

/* ---- start and end ---- */

errint_t efs_peer_serve(struct efs_client *client, const char *listen_on, const char *key_file, unsigned threads,
                        struct efs_peer_server **out, struct efs_error *err)
{
    *out = NULL;
    struct efs_peer_server *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return efs_fail(err, -ENOMEM, "no memory");
    *s = (struct efs_peer_server){.client = client, .listener = -1, .stop = -1};
    s->welcome.version = EFS_WIRE_VERSION;
    strncpy(s->welcome.order, efs_matvec_order() ? efs_matvec_order() : "", sizeof(s->welcome.order) - 1);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->running, NULL);
    errint_t rc = efs_client_check(client, err);
    if (rc == 0)
        rc = efs_client_hash(client, &s->welcome.store, err);
    if (rc == 0)
        rc = efs_peer_key_read(key_file, &s->key, err);
    if (rc == 0)
        rc = list_layers(s, err);
    if (rc == 0)
        rc = efs_team_new(threads, &s->team);
    if (rc == 0)
        rc = s->stop = eventfd(0, EFD_CLOEXEC);
    if (rc >= 0)
        rc = efs_peer_listen(listen_on, &s->listener, err);
    if (rc == 0)
        rc = efs_thread_start(accept_thread, s, "efs-peers", &s->thread);
    if (rc < 0) {
        s->thread = 0;
        efs_peer_server_end(s);
        return err && !err->text[0] ? efs_fail(err, rc, "%s: %s", listen_on, strerror(-rc)) : rc;
    }
    *out = s;
    return 0;
}

unsigned efs_peer_server_port(const struct efs_peer_server *server)
{
    return efs_peer_port(server->listener);
}

void efs_peer_server_stats(struct efs_peer_server *server, struct efs_peer_server_stats *stats)
{
    pthread_mutex_lock(&server->lock);
    *stats = server->stats;
    pthread_mutex_unlock(&server->lock);
}

void efs_peer_server_end(struct efs_peer_server *s)
{
    const uint64_t one = 1;
    if (!s)
        return;
    if (s->thread) {
        ssize_t n = write(s->stop, &one, sizeof(one));
        (void)n;
        pthread_join(s->thread, NULL);
        pthread_mutex_lock(&s->lock);
        for (struct connection *c = LIST_FIRST(&s->connections); c; c = LIST_NEXT(c, all))
            if (!c->ended)
                shutdown(c->fd, SHUT_RDWR); /* its thread may be in a handshake or in the middle of a message */
        pthread_mutex_unlock(&s->lock);
        join(s, true);
    }
    if (s->listener >= 0)
        close(s->listener);
    if (s->stop >= 0)
        close(s->stop);
    efs_team_free(s->team);
    free(s->layers);
    free(s->experts);
    pthread_mutex_destroy(&s->running);
    pthread_mutex_destroy(&s->lock);
    explicit_bzero(&s->key, sizeof(s->key));
    free(s);
}
