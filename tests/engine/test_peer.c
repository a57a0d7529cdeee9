/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of which a peer computes some experts: the bits are those of a run without peers, for wrong answers and for
 * a peer that ends at any time; a server survives every message. Measured times are set by the tests.
 */
#include "peer_fixture.h"

static struct caller call(unsigned port, const char *key)
{
    return call_of(&model, port, key);
}

static struct host serve_peers(const char *key)
{
    return serve_peers_of(&model, key);
}

/* One mixture of the caller, which must have the bits of a run without peers. */
static void same_bits(const struct caller *c, enum efs_activation a, uint32_t tokens)
{
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    struct efs *plain = open_store(&model, 128 * MIB);
    assert_int_equal(run(plain, 2, EFS_FORM_ANY, a, tokens, want, &err), 0);
    efs_close(plain);
    const struct efs_mixture m = mixture_of(EFS_FORM_ANY, a, tokens, y);
    memset(y, 0, sizeof(y));
    if (efs_client_ffn(c->s.client, c->s.team, "", 0, &m, &err) < 0)
        fail_msg("%s", err.text);
    assert_memory_equal(y, want, sizeof(y));
}

static uint32_t pairs_of(uint32_t tokens)
{
    uint32_t pairs = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t t = 0; t < tokens; t++)
            pairs += chosen(e, t, tokens);
    return pairs;
}

/* A new caller gets all of a mixture from the peer. */
static void peer_computes(const struct host *h)
{
    struct caller c = call(efs_peer_server_port(h->server), key_path);
    wait_ready(&c);
    prefer_peer(&c, 100);
    same_bits(&c, EFS_ACTIVATION_F32, 2);
    assert_int_equal(stats_of(&c).remote, pairs_of(2));
    serve_end(&c.s);
}

/* ---- right answers ---- */

TEST(test_same_bits)
{
    struct host h = serve_peers(key_path);
    static const uint32_t counts[] = {1, 2, 9, TOKENS};
    for (enum efs_activation a = EFS_ACTIVATION_F32; a <= EFS_ACTIVATION_BF16; a++)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct caller c = call(efs_peer_server_port(h.server), key_path);
            wait_ready(&c);
            prefer_peer(&c, 100);
            same_bits(&c, a, counts[i]);
            assert_int_equal(stats_of(&c).remote, pairs_of(counts[i]));
            assert_int_equal(stats_of(&c).failed, 0);
            prefer_peer(&c, 100); /* now it is known which experts the peer holds */
            same_bits(&c, a, counts[i]);
            assert_int_equal(stats_of(&c).remote, 2 * pairs_of(counts[i]));
            serve_end(&c.s);
        }
    assert_int_equal(served_by(&h).bad + served_by(&h).failed, 0);
    host_end(&h);
}

/* Experts that the peer would have to read are read here; it says which it has. */
TEST(test_peer_without_experts)
{
    struct host h = serve_peers_cold(&model, key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    wait_ready(&c);
    prefer_peer(&c, 100);
    same_bits(&c, EFS_ACTIVATION_F32, 2);
    assert_int_equal(stats_of(&c).remote + stats_of(&c).failed, 0);
    assert_int_equal(stats_of(&c).local, pairs_of(2));
    assert_int_equal(stats_of(&c).ready, 1);
    assert_int_equal(served_by(&h).requests + served_by(&h).failed + served_by(&h).bad, 0);
    const struct efs_peer_layer *layer = efs_peer_layer(&c.peers->peer[0], "", 0, false);
    assert_non_null(layer);
    assert_int_equal(layer->experts, EXPERTS);
    assert_int_equal(layer->held[0], 0);
    serve_end(&c.s);
    load_all(&h);
    peer_computes(&h);
    host_end(&h);
}

/* What names of tensors do not say reaches the peer: its errors are the caller's own. */
TEST(test_activation)
{
    struct host h = serve_peers(key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    static float y[TOKENS * Y_STRIDE];
    struct efs_error err = {""};
    wait_ready(&c);
    struct efs_mixture m = mixture_of(EFS_FORM_ANY, EFS_ACTIVATION_F32, 2, y);
    static const char *const acts[] = {"gelu", "an activation of a long name"};
    for (size_t i = 0; i < 2; i++) {
        prefer_peer(&c, 100);
        m.hidden_act = acts[i];
        assert_int_equal(efs_client_ffn(c.s.client, c.s.team, "", 0, &m, &err), -EOPNOTSUPP);
        assert_non_null(strstr(err.text, "gelu") ? err.text : strstr(err.text, "long name"));
    }
    assert_int_equal(served_by(&h).failed, 1);
    assert_int_equal(stats_of(&c).ready, 1); /* an error is an answer */
    prefer_peer(&c, 100);
    same_bits(&c, EFS_ACTIVATION_F32, 2); /* that layer is not sent for a minute */
    assert_int_equal(served_by(&h).failed + served_by(&h).requests, 1);
    serve_end(&c.s);
    host_end(&h);
}

/* Tokens of an expert may be in any order. */
TEST(test_order_of_tokens)
{
    struct host h = serve_peers(key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    static float want[TOKENS * Y_STRIDE], y[TOKENS * Y_STRIDE];
    static uint32_t token[9];
    static float weight[9];
    struct efs_error err = {""};
    wait_ready(&c);
    struct efs_mixture m = mixture_of(EFS_FORM_ANY, EFS_ACTIVATION_F32, 9, y);
    for (uint32_t t = 0; t < 9; t++) {
        token[t] = 8 - t;
        weight[t] = routes[0].weight[8 - t];
    }
    routes[0].token = token;
    routes[0].weight = weight;
    m.y = want;
    assert_int_equal(fixture_ffn(h.s.fs, h.s.team, &m, &err), 0);
    m.y = y;
    prefer_peer(&c, 100);
    assert_int_equal(efs_client_ffn(c.s.client, c.s.team, "", 0, &m, &err), 0);
    assert_memory_equal(y, want, sizeof(y));
    assert_int_equal(stats_of(&c).remote, pairs_of(9));
    serve_end(&c.s);
    host_end(&h);
}

/* Nothing is measured: the first mixture is run here, then the peer gets one expert. */
TEST(test_measures_first)
{
    struct host h = serve_peers(key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    wait_ready(&c);
    same_bits(&c, EFS_ACTIVATION_F32, 2);
    assert_int_equal(stats_of(&c).remote, 0);
    assert_true(c.peers->read_s > 0);
    same_bits(&c, EFS_ACTIVATION_F32, 2); /* all are in memory */
    assert_int_equal(stats_of(&c).remote, 0);
    assert_true(c.peers->vector_s > 0);
    serve_end(&c.s);
    host_end(&h);
}

/* ---- faults of peers ---- */

TEST(test_server_ends)
{
    struct host h = serve_peers(key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    wait_ready(&c);
    prefer_peer(&c, 100);
    host_end(&h);
    same_bits(&c, EFS_ACTIVATION_F32, 3);
    assert_int_equal(stats_of(&c).failed, 1);
    assert_int_equal(stats_of(&c).ready, 0);
    same_bits(&c, EFS_ACTIVATION_F32, 3); /* left alone for a minute */
    assert_int_equal(stats_of(&c).failed, 1);
    serve_end(&c.s);
}

static void same_bits_of_three(const struct caller *c)
{
    same_bits(c, EFS_ACTIVATION_F32, 3);
}

TEST(test_counts)
{
    counts_of_caller(&model, same_bits_of_three);
}

/* A peer that has the key and answers wrongly, too late or not at all: its experts are read. */
TEST(test_lies)
{
    lies(&model, same_bits_of_three);
}

/* ---- faults of callers ---- */

static int connect_to(const struct host *h)
{
    char address[40];
    int fd;
    snprintf(address, sizeof(address), "127.0.0.1:%u", efs_peer_server_port(h->server));
    assert_int_equal(efs_peer_connect(address, NULL, &fd, NULL), 0);
    return fd;
}

static void wait_for(const struct host *h, uint64_t refused, uint64_t bad)
{
    for (;;) {
        const struct efs_peer_server_stats stats = served_by(h);
        if (stats.refused == refused && stats.bad == bad)
            return;
        assert_true(stats.refused <= refused && stats.bad <= bad);
        poll(NULL, 0, 2);
    }
}

TEST(test_other_key_or_store)
{
    struct host h = serve_peers(key_path);
    char other[340];
    snprintf(other, sizeof(other), "%s-other", key_path);
    write_key(other, "ff0102030405060708090a0b0c0d0e0f", 0600);
    struct caller c = call(efs_peer_server_port(h.server), other);
    wait_for(&h, 1, 0);
    assert_int_equal(stats_of(&c).ready, 0);
    same_bits(&c, EFS_ACTIVATION_F32, 1);
    serve_end(&c.s);
    int fd = connect_to(&h);
    assert_int_equal(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18); /* no TLS */
    wait_for(&h, 2, 0);
    close(fd);
    struct efs_peer_key key;
    struct efs_tls *tls;
    struct {
        struct efs_wire_head head;
        struct efs_wire_hello hello;
    } hello = {{EFS_WIRE_HELLO, sizeof(hello.hello)}, {.version = EFS_WIRE_VERSION, .store = 1}};
    assert_int_equal(efs_peer_key_read(key_path, &key, NULL), 0);
    fd = connect_to(&h);
    assert_int_equal(efs_tls_new(fd, false, &key, NULL, &tls, NULL), 0);
    assert_int_equal(efs_tls_send(tls, &hello, sizeof(hello), NULL), 0);
    wait_for(&h, 3, 0); /* another store */
    efs_tls_free(tls);
    close(fd);
    host_end(&h);
}

/* A connection of a caller that has the key and the store. */
static struct efs_tls *connect_as_caller(const struct host *h, int *fd)
{
    struct efs_peer_key key;
    struct efs_tls *tls;
    uint64_t hash;
    assert_int_equal(efs_client_hash(h->s.client, &hash, NULL), 0);
    assert_int_equal(efs_peer_key_read(key_path, &key, NULL), 0);
    struct {
        struct efs_wire_head head;
        struct efs_wire_hello hello;
    } hello = {{EFS_WIRE_HELLO, sizeof(hello.hello)}, {.version = EFS_WIRE_VERSION, .store = hash}}, welcome;
    *fd = connect_to(h);
    assert_int_equal(efs_tls_new(*fd, false, &key, NULL, &tls, NULL), 0);
    assert_int_equal(efs_tls_send(tls, &hello, sizeof(hello), NULL), 0);
    assert_int_equal(efs_tls_receive(tls, &welcome, sizeof(welcome), NULL), 0);
    return tls;
}

/* Messages that end before their length: each is counted. An end between messages is none. */
TEST(test_half_messages)
{
    struct host h = serve_peers(key_path);
    static const size_t sent[] = {4, 8, 9, 300};
    for (unsigned i = 0; i < 5; i++) {
        int fd;
        struct efs_tls *tls = connect_as_caller(&h, &fd);
        uint8_t message[400] = {0};
        const struct efs_wire_head head = {EFS_WIRE_REQUEST, 1000};
        memcpy(message, &head, sizeof(head));
        if (i < 4)
            assert_int_equal(efs_tls_send(tls, message, sent[i], NULL), 0);
        shutdown(fd, SHUT_RDWR);
        efs_tls_free(tls);
        close(fd);
        wait_for(&h, 0, i < 4 ? i + 1 : 4);
    }
    peer_computes(&h); /* it still serves */
    host_end(&h);
}

/* Forwards a connection, and keeps what the caller has sent. */
struct recorder {
    int listener, server;
    uint8_t bytes[1 << 20];
    size_t count;
};

static void *record(void *arg)
{
    static uint8_t buffer[65536];
    struct recorder *r = arg;
    struct pollfd fds[] = {{.fd = r->listener, .events = POLLIN}, {.fd = r->server, .events = POLLIN}};
    poll(fds, 1, -1);
    fds[0].fd = accept4(r->listener, NULL, NULL, 0);
    for (;;) {
        poll(fds, 2, -1);
        const int from = fds[0].revents ? 0 : 1;
        ssize_t n = recv(fds[from].fd, buffer, sizeof(buffer), 0);
        if (n <= 0)
            break;
        assert_int_equal(send(fds[!from].fd, buffer, (size_t)n, MSG_NOSIGNAL), n);
        if (from == 0 && r->count + (size_t)n <= sizeof(r->bytes)) {
            memcpy(r->bytes + r->count, buffer, (size_t)n);
            r->count += (size_t)n;
        }
    }
    close(fds[0].fd);
    close(r->server);
    return NULL;
}

/* What a caller has sent is worth nothing on another connection. */
TEST(test_replay)
{
    struct host h = serve_peers(key_path);
    static struct recorder r;
    pthread_t thread;
    r.server = connect_to(&h);
    assert_int_equal(efs_peer_listen("127.0.0.1:0", &r.listener, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, record, &r), 0);
    struct caller c = call(efs_peer_port(r.listener), key_path);
    wait_ready(&c);
    prefer_peer(&c, 100);
    same_bits(&c, EFS_ACTIVATION_F32, 2);
    assert_int_equal(stats_of(&c).remote, pairs_of(2));
    serve_end(&c.s);
    pthread_join(thread, NULL);
    close(r.listener);
    assert_int_equal(served_by(&h).requests, 1);
    int fd = connect_to(&h);
    assert_int_equal(send(fd, r.bytes, r.count, MSG_NOSIGNAL), r.count);
    wait_for(&h, 1, 0);
    close(fd);
    assert_int_equal(served_by(&h).requests, 1);
    host_end(&h);
}

/* Messages of a caller that has the key. */
TEST(test_wrong_messages)
{
    struct host h = serve_peers(key_path);
    uint64_t random = 3;
    for (unsigned i = 0; i < 40; i++) {
        int fd;
        struct efs_tls *tls = connect_as_caller(&h, &fd);
        const uint32_t token = 0;
        const struct efs_wire_expert expert = {1, 1};
        struct efs_wire_request r = {.id = 5, .experts = 1, .tokens = 1, .hidden = HIDDEN, .pairs = 1, .rows = HIDDEN};
        uint8_t body[4096] = {0};
        struct efs_wire_head head = {EFS_WIRE_REQUEST, (uint32_t)efs_wire_request_bytes(&r)};
        memcpy(body + sizeof(r), &expert, sizeof(expert));
        memcpy(body + sizeof(r) + sizeof(expert), &token, sizeof(token));
        uint32_t *const fields[] = {&r.experts,    &r.tokens, &r.hidden,  &r.pairs,
                                    &r.activation, &r.rows,   &head.kind, &head.bytes};
        uint32_t *field = fields[i % 8];
        const uint32_t right = *field;
        *field = i < 8 ? UINT32_MAX : i < 16 ? (uint32_t)(right == 0) + 3 : (uint32_t)fixture_random(&random);
        memcpy(body, &r, sizeof(r));
        efs_tls_send(tls, &head, sizeof(head), NULL);
        efs_tls_send(tls, body, head.bytes < sizeof(body) ? head.bytes : sizeof(body), NULL);
        shutdown(fd, SHUT_WR);
        uint8_t byte; /* an answer, or the end */
        while (efs_tls_receive(tls, &byte, 1, NULL) == 0)
            ;
        efs_tls_free(tls);
        close(fd);
    }
    struct caller c = call(efs_peer_server_port(h.server), key_path); /* it still serves */
    wait_ready(&c);
    prefer_peer(&c, 100);
    same_bits(&c, EFS_ACTIVATION_F32, 2);
    assert_int_equal(stats_of(&c).remote, pairs_of(2));
    serve_end(&c.s);
    assert_true(served_by(&h).bad > 20);
    host_end(&h);
}

TEST(test_arguments)
{
    struct served s = serve(EFS_CHOOSE_CASCADE, 1);
    struct efs_error err = {""};
    struct efs_peer_server *server;
    char other[340];
    snprintf(other, sizeof(other), "%s-bad", key_path);
    write_key(other, KEY, 0644);
    assert_int_equal(efs_client_peers(s.client, "127.0.0.1:1", other, &err), -EACCES);
    assert_non_null(strstr(err.text, "chmod 600"));
    write_key(other, "0011zz", 0600);
    assert_int_equal(efs_client_peers(s.client, "127.0.0.1:1", other, &err), -EINVAL);
    assert_int_equal(efs_client_peers(s.client, "127.0.0.1:1", "/nonexistent", &err), -ENOENT);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0); /* is not waited for */
    assert_int_equal(efs_client_peers(s.client, "127.0.0.1:1", other, &err), -EINVAL);
    static const char *const bad[] = {"", "host", "host:", ":1", "host:70000", "::1:5", "host:1x", "a:1,b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(efs_client_peers(s.client, bad[i], key_path, &err), -EINVAL);
    assert_int_equal(efs_client_peers(s.client, "[::1]:1,127.0.0.1:2", key_path, &err), 0);
    assert_int_equal(efs_client_peers(s.client, "127.0.0.1:3", key_path, &err), -EEXIST);
    assert_int_equal(efs_peer_serve(s.client, "nowhere", key_path, 1, &server, &err), -EINVAL);
    assert_null(server);
    serve_end(&s);
}

/* ---- the choice ---- */

static uint32_t choose(struct efs_choose_peer peer, double read_s, uint32_t count, uint32_t of_each)
{
    struct efs_choose_expert experts[8];
    for (uint32_t i = 0; i < count; i++)
        experts[i] = (struct efs_choose_expert){.vectors = of_each, .holders = 1};
    return efs_choose(&peer, 1, read_s, experts, count);
}

TEST(test_choice)
{
    const struct efs_choose_peer unknown = {.ready = true};
    struct efs_choose_peer fast = unknown, slow = unknown, one = unknown, line = unknown;
    efs_choose_measured(&fast, 0.0001, 8);
    efs_choose_measured(&slow, 20, 1);
    efs_choose_measured(&one, 3.5, 1);
    for (unsigned i = 0; i < 104; i++) /* 1 s and .5 s a vector */
        efs_choose_measured(&line, 1 + 0.5 * (i % 8), i % 8);
    assert_int_equal(choose(fast, 0, 8, 1), 0);    /* reading is not measured: all are read */
    assert_int_equal(choose(unknown, 1, 8, 1), 1); /* the peer is not measured: one expert */
    assert_int_equal(choose(fast, 1, 8, 1), 8);
    assert_int_equal(choose(slow, 1, 8, 1), 0); /* slower than reading all */
    assert_int_equal(choose(one, 1, 8, 1), 1);  /* two may take twice as long, while seven are read */
    assert_int_equal(choose(one, 10, 8, 1), 6); /* the two that are read end before the answer */
    assert_true(fabs(efs_choose_seconds(&line, 8) - 5) < 0.2);
    assert_int_equal(choose(line, 1, 8, 1), 5);   /* 3 s there for 4 experts, 4 s here: one more */
    assert_int_equal(choose(line, 1, 8, 100), 0); /* many tokens: reading is sooner */
    struct efs_choose_peer peers[2] = {one, {.seconds = 0.001, .vectors = 1}};
    struct efs_choose_expert e[3] = {{1, 2, 0}, {1, 3, 0}, {1, 0, 0}};
    assert_int_equal(efs_choose(peers, 2, 10, e, 3), 1); /* not ready, or not there */
    assert_int_equal(e[0].peer, EFS_CHOOSE_HERE);
    assert_int_equal(e[1].peer, 0);
    assert_int_equal(e[2].peer, EFS_CHOOSE_HERE);
}

/* ---- peers that are not what they seem, on a clock that the test sets ---- */

/* Seconds of an answer, and of reading an expert, at a time; experts of that mixture, and vectors of each. */
struct world {
    const char *what;
    double (*answer)(double now, unsigned turn, uint32_t vectors);
    double (*read)(double now);
    uint32_t (*vectors)(unsigned turn);
    double most; /* of the time without peers */
};

static double answer_fast(double now, unsigned turn, uint32_t vectors)
{
    (void)now;
    (void)turn;
    return 0.001 + 0.0001 * vectors;
}

static double answer_sometimes_late(double now, unsigned turn, uint32_t vectors)
{
    return turn % 7 == 3 ? 2 : answer_fast(now, turn, vectors);
}

static double answer_late_in_phases(double now, unsigned turn, uint32_t vectors)
{
    return turn / 20 % 2 ? 2 : answer_fast(now, turn, vectors);
}

/* Fast for few vectors. */
static double answer_late_if_large(double now, unsigned turn, uint32_t vectors)
{
    return answer_fast(now, turn, vectors) + (vectors > 16 ? 0.05 * vectors : 0);
}

static double answer_late(double now, unsigned turn, uint32_t vectors)
{
    return 10 + answer_fast(now, turn, vectors);
}

static double read_slow(double now)
{
    (void)now;
    return 0.02;
}

static uint32_t one_vector(unsigned turn)
{
    (void)turn;
    return 1;
}

static uint32_t prompts_between(unsigned turn)
{
    return turn % 50 == 49 ? 200 : 1;
}

#define AT_ONCE 4u

/* The time of 5,000 mixtures of AT_ONCE experts that are missing, as remote.c runs them, and without the peer. */
static double play(const struct world *w, double *alone)
{
    struct efs_choose_peer peer = {.ready = true};
    double now = 0, read_s = 0, busy_until = 0, asked = 0;
    uint32_t asked_vectors = 0;
    *alone = 0;
    for (unsigned turn = 0; turn < 5000; turn++) {
        struct efs_choose_expert experts[AT_ONCE];
        const uint32_t vectors = w->vectors(turn);
        for (uint32_t e = 0; e < AT_ONCE; e++)
            experts[e] = (struct efs_choose_expert){.vectors = vectors, .holders = 1};
        if (asked_vectors && now >= busy_until) { /* the answer of one that was left */
            efs_choose_measured(&peer, busy_until - asked, asked_vectors);
            asked_vectors = 0;
        }
        if (now - asked > 60)
            peer = (struct efs_choose_peer){.ready = true};
        peer.ready = !asked_vectors;
        const uint32_t sent = efs_choose(&peer, 1, read_s, experts, AT_ONCE), here = AT_ONCE - sent;
        const double each = w->read(now),
                     leave = efs_choose_patience(efs_choose_seconds(&peer, sent * vectors), read_s, sent);
        double takes = here * each;
        if (sent) {
            const double answer = w->answer(now, turn, sent * vectors);
            asked = now;
            busy_until = now + answer;
            asked_vectors = sent * vectors;
            takes = takes > answer ? takes : answer > leave ? leave + sent * each : answer;
        }
        if (here)
            efs_choose_average(&read_s, each);
        now += takes;
        *alone += AT_ONCE * each;
    }
    return now;
}

TEST(test_peers_that_change)
{
    static const struct world worlds[] = {
        {"fast", answer_fast, read_slow, one_vector, 0.1},
        {"sometimes late", answer_sometimes_late, read_slow, one_vector, 1.01},
        {"late in phases", answer_late_in_phases, read_slow, one_vector, 1.01},
        {"late with many vectors", answer_late_if_large, read_slow, prompts_between, 1.01},
        {"late", answer_late, read_slow, one_vector, 1.01},
    };
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        double alone, takes = play(&worlds[i], &alone);
        if (takes > worlds[i].most * alone)
            fail_msg("%s: %.2f s, %.2f without peers", worlds[i].what, takes, alone);
    }
}

/* Reading was slow when it was measured, a minute ago: one expert is read, and its time counts. */
TEST(test_reading_is_measured_again)
{
    struct host h = serve_peers(key_path);
    struct caller c = call(efs_peer_server_port(h.server), key_path);
    wait_ready(&c);
    prefer_peer(&c, 100);
    c.peers->read_ns = efs_now_ns() - 61000000000u;
    same_bits(&c, EFS_ACTIVATION_F32, 3);
    assert_true(stats_of(&c).remote > 0 && stats_of(&c).remote < pairs_of(3));
    assert_int_equal(stats_of(&c).remote + stats_of(&c).local, pairs_of(3));
    assert_true(c.peers->read_s < 500);
    serve_end(&c.s);
    host_end(&h);
}

/* No peer is connected: nothing is looked up or measured. */
TEST(test_all_away)
{
    int listener;
    assert_int_equal(efs_peer_listen("127.0.0.1:0", &listener, NULL), 0);
    const unsigned port = efs_peer_port(listener);
    close(listener);
    pack(&model, EFS_CHOOSE_CASCADE);
    struct caller c = call(port, key_path);
    same_bits(&c, EFS_ACTIVATION_F32, 3);
    same_bits(&c, EFS_ACTIVATION_F32, 3);
    assert_true(c.peers->read_s == 0 && c.peers->vector_s == 0);
    assert_int_equal(stats_of(&c).local, 2 * pairs_of(3));
    serve_end(&c.s);
}

/* An answer that does not come in the time of reading: the experts are read, the connection stays. */
TEST(test_leaves_a_late_peer)
{
    struct liar liar = {.lie = LATE};
    pthread_t thread;
    pack(&model, EFS_CHOOSE_CASCADE);
    assert_int_equal(efs_peer_listen("127.0.0.1:0", &liar.listener, NULL), 0);
    struct caller c = call(efs_peer_port(liar.listener), key_path);
    liar.hash = c.peers->hello.store;
    assert_int_equal(pthread_create(&thread, NULL, liar_thread, &liar), 0);
    wait_ready(&c);
    prefer_peer(&c, 0.001);
    c.peers->read_s = 0.01;
    c.peers->late_ns = 3600000000000u;
    same_bits(&c, EFS_ACTIVATION_F32, 3);
    assert_int_equal(stats_of(&c).failed, 1);
    assert_int_equal(stats_of(&c).remote, 0);
    assert_int_equal(stats_of(&c).ready, 1);
    same_bits(&c, EFS_ACTIVATION_F32, 3); /* it is sent no more until it has answered */
    assert_int_equal(stats_of(&c).failed, 1);
    serve_end(&c.s);
    pthread_join(thread, NULL);
    close(liar.listener);
}

TEST_MAIN(setup_peer, teardown)
