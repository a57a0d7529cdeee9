/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Odd checkpoints (random_checkpoint.h), served with random options, settings and calls: every call returns the right
 * bytes or an error, also if the store has no view, no experts, no tensors with bytes, no plan or no full pool.
 *
 * Store i is drawn from SEED + i (default 1); EXPERTFS_FUZZ_CASES is the number of stores. A failure prints both.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "test.h"
#include "codec.h"
#include "crash_report.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "policy.h"
#include "random_checkpoint.h"
#include "sync_calls.h"

#define CASES 80u
#define STEPS 40u
#define HELD 4u
#define NEEDS 8u
#define MIB (1ull << 20)

/* A thread that reads the weights in a loop during the steps. */
struct reader {
    struct session *session;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint wrong;
};

/* A read without a waiter until the store is closed. */
struct pending {
    sem_t done;
    unsigned char data[20000];
};

/* An open store and the test's resources in it. */
struct session {
    const struct random_checkpoint *checkpoint;
    uint64_t *state;
    struct efs *fs;
    bool full_pool;
    struct efs_codec_scratch *scratch;
    struct efs_stream *streams[2];
    struct held {
        struct efs_client_request *request;
        struct efs_need needs[NEEDS];
        uint32_t count;
        bool dropped[NEEDS];
    } held[HELD];
    struct efs_lease *leases[HELD];
    uint32_t leased[HELD]; /* file of each lease */
    struct efs_client *client;
    struct efs_team *team;
    struct reader reader;
    struct pending pending[HELD];
    unsigned pending_count;
};

static uint64_t seed_at; /* seed of the current store */
static unsigned long steps_done, errors_seen, runs_done;

static unsigned below(struct session *s, unsigned n)
{
    return draw_below(s->state, n);
}

static bool once_in(struct session *s, unsigned n)
{
    return draw_once_in(s->state, n);
}

/* A number of an expert, a file or a layer, usually an existing one. */
static uint32_t draw_number(struct session *s, uint32_t count)
{
    static const uint32_t edge_values[] = {0, 1, INT32_MAX, UINT32_MAX - 1, UINT32_MAX};
    unsigned how = below(s, 30);
    return how < 3 || count == 0 ? (how == 0 ? count : edge_values[below(s, 5)]) : below(s, count);
}

/* ---- right bytes ------------------------------------------------------------------------------------------------ */

static struct efs_expert_info expert_info(struct session *s, uint32_t expert)
{
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(s->fs, efs_id(expert), &info), 0);
    return info;
}

/* The checkpoint's bytes of a tensor, or those of the expert's slice of a fused tensor. */
static const unsigned char *tensor_raw(struct session *s, const char *name, uint32_t expert, uint64_t bytes)
{
    const struct random_tensor *t = random_checkpoint_tensor(s->checkpoint, name);
    assert_non_null(t);
    if (t->bytes == bytes)
        return t->raw;
    assert_int_equal(t->bytes, bytes * t->shape[0]);
    assert_true(expert < t->shape[0]);
    return t->raw + expert * bytes;
}

static void check_tensor(struct session *s, uint32_t expert, const struct efs_tensor *t)
{
    const unsigned char *raw = tensor_raw(s, t->name, expert, t->bytes);
    if (t->data) {
        assert_memory_equal(t->data, raw, t->bytes);
        return;
    }
    enum efs_format format = efs_object_format(t->dtype, EFS_CHOOSE_AUTO);
    unsigned char *got = malloc(t->bytes + 1), *at = got;
    assert_non_null(got);
    for (uint32_t i = 0; i < t->shard_count; i++) {
        const struct efs_coded_shard *x = &t->shards[i];
        const struct efs_shard_view v = {
            x->codec ? format : EFS_FORMAT_BYTES, x->codec, x->elements, x->e, x->sm, x->e_bytes, x->sm_bytes};
        assert_int_equal(efs_shard_decode(&v, 0, x->elements, at, false, s->scratch), 0);
        at += x->elements * efs_format_bytes(v.format);
    }
    assert_int_equal(at - got, t->bytes);
    assert_memory_equal(got, raw, t->bytes);
    free(got);
}

/* Checks a safetensors file of the view: its tensors are contiguous and have the checkpoint's bytes. */
static void check_view_file(struct session *s, uint32_t expert, const unsigned char *file, size_t bytes)
{
    static const char type[] = "\":{\"dtype\":\"", place[] = "\"data_offsets\":[";
    uint64_t header, end = 0;
    assert_true(bytes >= 8);
    memcpy(&header, file, sizeof(header));
    assert_true(header <= bytes - 8);
    const unsigned char *data = file + 8 + header;
    char *text = strndup((const char *)file + 8, header);
    assert_non_null(text);
    for (char *at = text; (at = strstr(at, type)); at++) {
        unsigned long long from, to;
        const char *offsets = strstr(at, place);
        assert_non_null(offsets);
        assert_int_equal(sscanf(offsets + sizeof(place) - 1, "%llu,%llu]", &from, &to), 2);
        assert_true(from == end && from <= to && to <= bytes - 8 - header);
        *at = '\0';
        assert_memory_equal(data + from, tensor_raw(s, strrchr(text, '"') + 1, expert, to - from), to - from);
        *at = '"';
        end = to;
    }
    free(text);
    assert_int_equal(end, bytes - 8 - header);
}

/* Reads a whole file, and checks it if the test knows its contents. NULL: error. The caller frees the result. */
static unsigned char *whole_file(struct session *s, uint32_t file, const struct efs_file_info *info)
{
    unsigned char *data = malloc(info->bytes + 1);
    assert_non_null(data);
    ssize_t n = read_wait(s->fs, file, s->streams[below(s, 2)], 0, data, info->bytes + 1);
    if (n < 0) {
        errors_seen++;
        free(data);
        return NULL;
    }
    assert_int_equal(n, info->bytes);
    if (info->kind == EFS_FILE_CHECKPOINT) {
        char path[2000];
        size_t bytes;
        snprintf(path, sizeof(path), "%s/%s", s->checkpoint->fixture.source, info->path);
        unsigned char *want = fixture_read(path, &bytes);
        assert_int_equal(bytes, info->bytes);
        assert_memory_equal(data, want, bytes);
        free(want);
    } else if (info->kind == EFS_FILE_EXPERT) {
        check_view_file(s, expert_info(s, info->expert.number).expert, data, info->bytes);
    }
    return data;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static void step_read(struct session *s)
{
    struct efs_file_info info;
    unsigned char byte;
    uint32_t file = draw_number(s, efs_file_count(s->fs));
    if (efs_file_info(s->fs, file, &info) < 0) {
        assert_true(read_wait(s->fs, file, NULL, 0, &byte, 1) < 0);
        return;
    }
    unsigned char *whole = whole_file(s, file, &info);
    if (!whole)
        return;
    for (unsigned i = below(s, 4); i > 0; i--) {
        uint64_t offset = info.bytes ? fixture_random(s->state) % (info.bytes + 10) : below(s, 3);
        size_t bytes = once_in(s, 2) ? below(s, 5000) : below(s, 300000);
        unsigned char *part = malloc(bytes + 1);
        assert_non_null(part);
        ssize_t n = read_wait(s->fs, file, s->streams[below(s, 2)], offset, part, bytes);
        uint64_t want = offset >= info.bytes ? 0 : info.bytes - offset < bytes ? info.bytes - offset : bytes;
        errors_seen += n < 0;
        if (n >= 0) {
            assert_int_equal(n, want);
            assert_memory_equal(part, whole + (want ? offset : 0), want);
        }
        free(part);
    }
    free(whole);
}

static void lease_check(struct session *s, unsigned slot)
{
    struct efs_file_info info;
    assert_int_equal(efs_file_info(s->fs, s->leased[slot], &info), 0);
    check_view_file(s, expert_info(s, info.expert.number).expert, lease_data(s->leases[slot]), info.bytes);
    unsigned char *file = whole_file(s, s->leased[slot], &info);
    if (file)
        assert_memory_equal(lease_data(s->leases[slot]), file, info.bytes);
    free(file);
}

static void step_lease(struct session *s)
{
    unsigned slot = below(s, HELD);
    if (s->leases[slot]) {
        lease_check(s, slot);
        efs_lease_release(s->leases[slot]);
        s->leases[slot] = NULL;
        return;
    }
    s->leased[slot] = draw_number(s, efs_file_count(s->fs));
    if (lease_wait(s->fs, s->leased[slot], &s->leases[slot]) < 0) {
        errors_seen++;
        assert_null(s->leases[slot]);
        return;
    }
    assert_true(s->full_pool);
    lease_check(s, slot);
    int fd = efs_lease_fd(s->leases[slot]);
    assert_true(fd >= 0 || fd == -EBUSY);
}

/* Experts of a layer; rarely of several layers, or none. */
static uint32_t draw_needs(struct session *s, struct efs_need needs[NEEDS])
{
    uint32_t all = efs_expert_count(s->fs), first = draw_number(s, all), count = 0;
    uint32_t most = 1 + below(s, NEEDS);
    for (uint32_t i = 0; count < most && i < most; i++) {
        uint32_t expert = once_in(s, 50) ? draw_number(s, all) : first + i;
        if (first < all && expert < all && !once_in(s, 50) &&
            expert_info(s, expert).layer != expert_info(s, first).layer)
            break;
        needs[count++] = (struct efs_need){expert, once_in(s, 50) ? 0 : 1 + below(s, 20)};
    }
    return once_in(s, 60) ? 0 : count;
}

static void request_check_item(struct session *s, struct held *h, uint32_t i)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    const struct efs_expert_info expert = expert_info(s, h->needs[i].expert);
    uint64_t raw = 0;
    assert_int_equal(efs_client_tensors(h->request, i, &tensors, &count), 0);
    for (uint32_t t = 0; t < count; t++) {
        check_tensor(s, expert.expert, &tensors[t]);
        raw += tensors[t].bytes;
    }
    assert_int_equal(raw, expert.raw_bytes);
    if (efs_request_form(h->request, i) == EFS_FORM_CODED) {
        struct efs_export_layout *layout;
        struct efs_export_place *places;
        size_t bytes;
        assert_int_equal(efs_request_layout(h->request, i, &layout, &bytes), 0);
        assert_int_equal(layout->tensors, count);
        free(layout);
        if (efs_request_places(h->request, i, &places, &count) == 0)
            free(places);
    } else {
        struct efs_window window;
        if (efs_request_window(h->request, i, &window) == 0 &&
            efs_request_open_window(h->request, i, window.number, &window) == 0) {
            assert_true(window.fd >= 0);
            close(window.fd);
        }
    }
}

static void request_end(struct session *s, struct held *h)
{
    uint32_t index;
    errint_t status;
    int rc;
    while ((rc = efs_client_wait_any(h->request, 1, &index, &status)) == 1) {
        errors_seen += status < 0;
        if (status < 0 || h->dropped[index])
            continue;
        request_check_item(s, h, index);
        h->dropped[index] = once_in(s, 3);
        if (h->dropped[index])
            efs_client_drop(h->request, index);
    }
    efs_client_release(h->request);
    h->request = NULL;
}

static void step_request(struct session *s)
{
    static const enum efs_form forms[] = {EFS_FORM_FULL, EFS_FORM_CODED, EFS_FORM_ANY};
    struct efs_error err = {""};
    struct held *h = &s->held[below(s, HELD)];
    if (h->request) {
        request_end(s, h);
        return;
    }
    memset(h, 0, sizeof(*h));
    h->count = draw_needs(s, h->needs);
    const struct efs_request_how how = {.form = forms[below(s, 3)]};
    errint_t rc = once_in(s, 5) ? efs_experts_want(s->fs, h->needs, h->count, &err)
                                : efs_request_submit(s->fs, h->needs, h->count, &how, &h->request, &err);
    if (rc < 0) {
        errors_seen++;
        assert_string_not_equal(err.text, "");
        return;
    }
    if (h->request && once_in(s, 2))
        assert_true(efs_client_wait(h->request) <= 0);
}

static void step_set(struct session *s)
{
    const char *const settings[][6] = {
        {"budget", "128M", "48M", "512M", "1", "20G"},
        {"pools", "FCSE", "C", "SE", "F", "x"},
        {"plan", "auto", "F=10:C=70:S=10:E=10", "F=100", "E=1", "F=101"},
        {"policy", "zipmoe", "lru", efs_policy_name(below(s, EFS_POLICY_KINDS)), "fifo", "none"},
        {"goal", "io", "makespan", "", "io", "makespan"},
        {"prefetch", "off", "on", "off", "on", "always:share=20"},
        {"nothing", "1", "", "auto", "0", "x"},
    };
    const char *const *x = settings[below(s, sizeof(settings) / sizeof(settings[0]))], *value = x[1 + below(s, 5)];
    struct efs_error err = {""};
    char text[256];
    uint64_t held;
    errint_t rc = efs_set(s->fs, x[0], value, &held, &err);
    errors_seen += rc < 0;
    if (rc < 0)
        assert_string_not_equal(err.text, "");
    else
        assert_int_equal(efs_get(s->fs, x[0], text, sizeof(text)), 0);
}

static void step_pin(struct session *s)
{
    struct efs_error err = {""};
    uint32_t expert = draw_number(s, efs_expert_count(s->fs));
    errint_t rc = efs_pin(s->fs, efs_id(expert), once_in(s, 3), "FC-x"[below(s, 20) ? below(s, 3) : 3], &err);
    errors_seen += rc < 0;
    if (rc < 0)
        assert_string_not_equal(err.text, "");
}

/* Stack of an expert's name: "encoder" for "encoder-L03/E017". */
static void expert_stack(const struct efs_expert_info *expert, char stack[64])
{
    const char *slash = strchr(expert->name, '/'),
               *dash = slash ? memrchr(expert->name, '-', (size_t)(slash - expert->name)) : NULL;
    snprintf(stack, 64, "%.*s", dash ? (int)(dash - expert->name) : 0, expert->name);
}

static void step_routing(struct session *s)
{
    uint32_t experts[NEEDS], all = efs_expert_count(s->fs), first = draw_number(s, all);
    const struct efs_expert_info info = first < all ? expert_info(s, first) : (struct efs_expert_info){.layer = first};
    char stack[64] = "";
    if (first < all)
        expert_stack(&info, stack);
    struct efs_routing routing = {
        .stack = stack, .layer = info.layer, .sequence = below(s, 3), .experts = experts, .count = below(s, NEEDS)};
    for (uint32_t i = 0; i < routing.count; i++)
        experts[i] = info.expert + i;
    errors_seen += efs_routing_submit(s->fs, below(s, 2), once_in(s, 2), &routing, NULL) < 0;
}

static void step_look(struct session *s)
{
    static const char *const texts[] = {"plan", "profile", "memory", "predict", "trace", "other"};
    char *text;
    size_t bytes;
    struct efs_stats stats;
    struct efs_pool_info pool;
    if (efs_describe(s->fs, texts[below(s, 6)], &text, &bytes) == 0)
        free(text);
    if (efs_pool_info(s->fs, "FCSEMx"[below(s, 6)], &pool) == 0)
        assert_true(pool.experts <= efs_expert_count(s->fs));
    efs_stats(s->fs, &stats);
    for (uint32_t e = 0; e < efs_expert_count(s->fs); e++) {
        struct efs_file_info info;
        const struct efs_expert_info expert = expert_info(s, e);
        assert_int_equal(expert.file == UINT32_MAX, efs_view_hidden(s->fs));
        if (expert.file != UINT32_MAX) {
            assert_int_equal(efs_file_info(s->fs, expert.file, &info), 0);
            assert_int_equal(info.kind, EFS_FILE_EXPERT);
            assert_int_equal(efs_file_holds_expert(s->fs, expert.file, 0, UINT64_MAX), expert.raw_bytes != 0);
        }
    }
}

static void step_client(struct session *s)
{
    struct efs_client_request *request;
    struct efs_need needs[NEEDS];
    struct efs_error err = {""};
    char stack[64] = "";
    uint32_t all = efs_expert_count(s->fs), count = draw_needs(s, needs), layer = below(s, 100), index;
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].expert >= all)
            continue;
        const struct efs_expert_info info = expert_info(s, needs[i].expert);
        expert_stack(&info, stack);
        layer = info.layer;
        needs[i].expert = info.expert;
    }
    errint_t status,
        rc = efs_client_begin(s->client, stack, layer, needs, count, (enum efs_form)below(s, 6), &request, &err);
    if (rc < 0) {
        errors_seen++;
        assert_string_not_equal(err.text, "");
        return;
    }
    while (efs_client_wait_any(request, 1, &index, &status) == 1) {
        const struct efs_tensor *tensors;
        uint32_t tensor_count;
        errors_seen += status < 0;
        if (status == 0)
            assert_int_equal(efs_client_tensors(request, index, &tensors, &tensor_count), 0);
        for (uint32_t t = 0; status == 0 && t < tensor_count; t++)
            check_tensor(s, needs[index].expert, &tensors[t]);
        efs_client_drop(request, index);
    }
    efs_client_release(request);
}

/* Computes experts of a layer: full and coded give the same bits, or an error. */
static void step_run(struct session *s)
{
    float x[4 * RANDOM_HIDDEN], y[2][4 * RANDOM_HIDDEN], weights[4] = {1, 2, 3, 4};
    const uint32_t tokens[] = {0, 1, 2, 3}, all = efs_expert_count(s->fs), first = draw_number(s, all);
    const struct efs_route_to routes[] = {{first, 4, tokens, weights}, {first + 1, 2, tokens, weights}};
    errint_t rc[2];
    for (unsigned i = 0; i < 4 * RANDOM_HIDDEN; i++)
        x[i] = (float)below(s, 100) / 50 - 1;
    for (unsigned coded = 0; coded < 2; coded++) {
        const struct efs_mixture mixture = {.expert_count = first + 1 < all ? 1 + (first & 1) : 1,
                                            .experts = routes,
                                            .x = x,
                                            .tokens = 4,
                                            .hidden = RANDOM_HIDDEN,
                                            .x_stride = RANDOM_HIDDEN,
                                            .y_stride = RANDOM_HIDDEN,
                                            .y = y[coded],
                                            .form = coded ? EFS_FORM_CODED : EFS_FORM_FULL};
        struct efs_error err = {""};
        rc[coded] = fixture_ffn(s->fs, s->team, &mixture, &err);
        errors_seen += rc[coded] < 0;
        if (rc[coded] < 0)
            assert_string_not_equal(err.text, "");
    }
    runs_done += rc[0] == 0 && rc[1] == 0;
    if (rc[0] == 0 && rc[1] == 0)
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
}

static void read_pending_done(void *arg, errint_t error, size_t bytes)
{
    struct pending *p = arg;
    (void)error, (void)bytes;
    sem_post(&p->done);
}

static void step_read_later(struct session *s)
{
    if (s->pending_count == HELD)
        return;
    struct pending *p = &s->pending[s->pending_count++];
    sem_init(&p->done, 0, 0);
    efs_read(s->fs, draw_number(s, efs_file_count(s->fs)), NULL, below(s, 100000), p->data, sizeof(p->data),
             read_pending_done, p);
}

static void *reader_run(void *arg)
{
    struct reader *reader = arg;
    const struct session *s = reader->session;
    uint64_t state = seed_at;
    unsigned char *data = malloc(200000);
    while (data && !atomic_load(&reader->stop)) {
        struct efs_file_info info;
        unsigned number;
        uint32_t file = draw_below(&state, efs_file_count(s->fs));
        if (efs_file_info(s->fs, file, &info) < 0 || sscanf(info.path, "weights-%u.safetensors", &number) != 1)
            continue;
        const struct random_source *source = &s->checkpoint->source[number];
        uint64_t offset = fixture_random(&state) % source->bytes;
        size_t bytes = draw_below(&state, 200000);
        bytes = bytes < source->bytes - offset ? bytes : source->bytes - offset;
        ssize_t n = read_wait(s->fs, file, NULL, offset, data, bytes);
        if (n >= 0 && ((size_t)n != bytes || memcmp(data, source->data + offset, bytes) != 0))
            atomic_fetch_add(&reader->wrong, 1);
    }
    free(data);
    return NULL;
}

static void step_any(struct session *s)
{
    static void (*const steps[])(struct session *) = {
        step_read, step_read, step_request, step_request, step_request, step_lease, step_lease,     step_set,
        step_set,  step_pin,  step_routing, step_look,    step_client,  step_run,   step_read_later};
    steps[below(s, sizeof(steps) / sizeof(steps[0]))](s);
    steps_done++;
}

/* ---- a store ---------------------------------------------------------------------------------------------------- */

static const char *one_of(struct session *s, const char *const *texts, unsigned count)
{
    unsigned n = below(s, 2 * count);
    return n < count ? texts[n] : NULL;
}
#define ONE_OF(...)                                                                                                    \
    one_of(s, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static bool session_open(struct session *s)
{
    static const uint64_t budgets[] = {1, 30 * MIB, 40 * MIB, 64 * MIB, 128 * MIB, 128 * MIB, 300 * MIB};
    struct efs_error err = {""};
    const struct efs_options options = {.workers = 1 + below(s, 3),
                                        .budget_bytes = budgets[below(s, 7)],
                                        .full_pool = !once_in(s, 4),
                                        .lease_wait = once_in(s, 2),
                                        .prealloc = once_in(s, 8),
                                        .store_direct = once_in(s, 3) ? EFS_STORE_DIRECT_OFF : EFS_STORE_DIRECT_AUTO,
                                        .policy = ONE_OF(efs_policy_name(below(s, EFS_POLICY_KINDS))),
                                        .pools = ONE_OF("C", "FCSE", "SE"),
                                        .plan = ONE_OF("F=50:C=50", "C=100", "S=30:E=30"),
                                        .goal = ONE_OF("io", "makespan"),
                                        .prefetch = "on",
                                        .no_state = !once_in(s, 4),
                                        .warm = once_in(s, 2) ? "always" : "off",
                                        .exports = once_in(s, 2)};
    s->full_pool = options.full_pool;
    errint_t rc = efs_open(s->checkpoint->fixture.store, &options, &s->fs, &err);
    if (rc < 0) {
        if (rc != -EOPNOTSUPP || !options.prefetch) /* no experts to predict */
            assert_int_equal(rc, -ENOMEM);          /* below the floor */
        assert_string_not_equal(err.text, "");
        errors_seen++;
        return false;
    }
    for (uint32_t hints = 0; hints < 2; hints++)
        assert_int_equal(efs_stream_new(s->fs, hints, &s->streams[hints]), 0);
    assert_int_equal(efs_view_hidden(s->fs), s->checkpoint->hidden);
    assert_int_equal(efs_client_new(s->fs, &s->client, &err), 0);
    assert_int_equal(efs_team_new(2, &s->team), 0);
    if (once_in(s, 3)) {
        s->reader.session = s;
        assert_int_equal(pthread_create(&s->reader.thread, NULL, reader_run, &s->reader), 0);
    }
    return true;
}

static void session_close(struct session *s)
{
    if (s->reader.session) {
        atomic_store(&s->reader.stop, true);
        pthread_join(s->reader.thread, NULL);
        assert_int_equal(s->reader.wrong, 0);
    }
    efs_client_close(s->client);
    efs_team_free(s->team);
    for (unsigned i = 0; i < HELD; i++)
        if (s->held[i].request)
            request_end(s, &s->held[i]);
    for (unsigned i = 0; i < HELD; i++)
        if (s->leases[i] && once_in(s, 2))
            efs_lease_release(s->leases[i]);
    efs_close(s->fs);
    for (unsigned i = 0; i < s->pending_count; i++) {
        sem_wait(&s->pending[i].done);
        sem_destroy(&s->pending[i].done);
    }
    for (unsigned i = 0; i < 2; i++)
        efs_stream_free(s->streams[i]);
}

static void run_store(uint64_t seed)
{
    uint64_t state = seed;
    struct random_checkpoint checkpoint;
    random_checkpoint_begin(&checkpoint, &state);
    setenv("EXPERTFS_STATE", checkpoint.fixture.directory, 1);
    for (unsigned opens = 1 + draw_below(&state, 2); opens > 0; opens--) { /* the second loads the saved state */
        struct session *session = calloc(1, sizeof(*session));
        assert_non_null(session);
        session->checkpoint = &checkpoint;
        session->state = &state;
        assert_int_equal(efs_codec_scratch_new(1u << 16, &session->scratch), 0);
        if (session_open(session)) {
            for (unsigned i = 0; i < STEPS; i++)
                step_any(session);
            session_close(session);
        }
        efs_codec_scratch_free(session->scratch);
        free(session);
    }
    random_checkpoint_end(&checkpoint);
}

/* ---- regressions ------------------------------------------------------------------------------------------------ */

static struct efs *open_small_experts(struct fixture *model, const struct efs_options *options)
{
    static const struct fixture_tensor tensors[] = {
        {"model.layers.0.mlp.experts.0.up_proj.weight", "BF16", 2, {64, 64}, 8192},
        {"model.layers.0.mlp.experts.1.up_proj.weight", "BF16", 2, {64, 64}, 8192},
        {"model.layers.0.mlp.experts.2.up_proj.weight", "BF16", 2, {64, 64}, 8192},
        {"model.layers.1.mlp.experts.0.up_proj.weight", "BF16", 2, {64, 64}, 8192},
    };
    fixture_begin(model);
    fixture_safetensors(model, "model.safetensors", tensors, 4, 3);
    fixture_pack(model, NULL);
    return fixture_open(model, *options);
}

/* A layer with fewer experts than the widest one: experts that it does not have do not count as missing in memory. */
TEST(test_narrow_layer)
{
    struct fixture model;
    struct efs_pool_info missing;
    struct efs *fs = open_small_experts(&model, &(struct efs_options){.budget_bytes = 64 * MIB, .no_state = true});
    assert_int_equal(efs_pool_info(fs, 'M', &missing), 0);
    assert_int_equal(missing.experts, 4);
    efs_close(fs);
    fixture_end(&model);
}

/* A pool with room for thousands of copies of each expert: prealloc creates at most 300 memory files. */
TEST(test_prealloc)
{
    struct fixture model;
    unsigned before = fixture_open_fds();
    struct efs *fs = open_small_experts(
        &model, &(struct efs_options){
                    .budget_bytes = 128 * MIB, .full_pool = true, .prealloc = true, .plan = "F=100", .no_state = true});
    assert_in_range(fixture_open_fds(), before, before + 300);
    efs_close(fs);
    assert_int_equal(fixture_open_fds(), before);
    fixture_end(&model);
}

/* ---- reports of failures ---------------------------------------------------------------------------------------- */

static void tell(void)
{
    char text[200];
    int n = snprintf(text, sizeof(text), "SEED=%llu EXPERTFS_FUZZ_CASES=1 engine/test_random_checkpoints repeats it\n",
                     (unsigned long long)seed_at);
    if (write(2, text, (size_t)n) < 0)
        _exit(1);
}

static int tell_failed(void **state)
{
    (void)state;
    alarm(0);
    if (seed_at)
        tell();
    return 0;
}

static void run_store_in_time(uint64_t seed)
{
    seed_at = seed;
    alarm(PATIENCE_SECONDS);
    run_store(seed);
    alarm(0);
}

TEST_WITH(test_random, NULL, tell_failed)
{
    static const uint64_t found[] = {1014}; /* out-of-bounds access in efs_prefetcher_submit(), seen under ASan */
    const char *given = getenv("SEED"), *cases = getenv("EXPERTFS_FUZZ_CASES");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    unsigned long count = cases ? strtoul(cases, NULL, 10) : CASES;
    crash_report(tell);
    for (size_t i = 0; !given && i < sizeof(found) / sizeof(found[0]); i++)
        run_store_in_time(found[i]);
    for (unsigned long i = 0; i < count; i++)
        run_store_in_time(seed + i);
    seed_at = 0;
    print_message("SEED=%llu: %lu stores, %lu steps, %lu errors, %lu run\n", (unsigned long long)seed, count,
                  steps_done, errors_seen, runs_done);
}

TEST_MAIN(NULL, NULL)
