/* SPDX-License-Identifier: Apache-2.0 */
/* store_sweep.c - see store_sweep.h. */
#include "store_sweep.h"

#include "codec.h"
#include "hash.h"
#include "expertfs-pack.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "patience.h"
#include "sync_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define EXPERTS 2
#define TOKENS 3
#define ITEMS 64        /* results of reading one store, at most */
#define ROOM (4u << 20) /* largest read, bytes */

/* Results of reading a store: for each item an error, or the checksum of the bytes. */
struct item {
    errint_t rc;
    uint64_t hash;
};
struct seen {
    unsigned count;
    struct item items[ITEMS];
};

struct store_sweep sweep;

static struct efs_team *team;
static unsigned char *buffer; /* ROOM bytes */
static size_t file_size;      /* bytes of model.safetensors */
static struct seen good;
static float x[TOKENS * SWEEP_HIDDEN];
static unsigned taken;      /* cases since the store was packed */
static unsigned long tried; /* cases in all tests */
static const struct efs_options serving = {
    .budget_bytes = 64 << 20, .workers = 1, .full_pool = true, .no_state = true, .store_direct = EFS_STORE_DIRECT_OFF};

static void on_alarm(int signal)
{
    static const char text[] = "hangs: ";
    (void)signal;
    if (write(2, text, sizeof(text) - 1) < 0 || write(2, sweep.case_name, strlen(sweep.case_name)) < 0 ||
        write(2, "\n", 1) < 0)
        _exit(2);
    _exit(1);
}

/* ---- reading a store ---- */

static void add(struct seen *seen, errint_t rc, uint64_t hash)
{
    if (seen->count < ITEMS)
        seen->items[seen->count] = (struct item){rc, rc < 0 ? 0 : hash};
    seen->count++;
}

/* Reads each file whole. */
static void see_files(struct efs *fs, struct seen *seen)
{
    for (uint32_t f = 0; f < efs_file_count(fs) && seen->count < ITEMS; f++) {
        const struct efs_file_info info = fixture_file_info(fs, f);
        ssize_t n = read_wait(fs, f, NULL, 0, buffer, ROOM);
        uint64_t parts[2] = {efs_hash(info.path, strlen(info.path)), n > 0 ? efs_hash(buffer, (size_t)n) : 0};
        add(seen, n < 0 ? (errint_t)n : 0, efs_hash(parts, sizeof(parts)));
    }
}

static uint32_t first_file; /* model.safetensors */
static void see_ranges(struct efs *fs, struct seen *seen)
{
    uint64_t state = 5;
    for (int i = 0; i < 8; i++) {
        uint64_t offset = fixture_random(&state) % file_size;
        size_t bytes = 1 + fixture_random(&state) % (i % 2 ? 100 : 60000);
        ssize_t n = read_wait(fs, first_file, NULL, offset, buffer, bytes);
        add(seen, n < 0 ? (errint_t)n : 0, n > 0 ? efs_hash(buffer, (size_t)n) : 0);
    }
}

static void see_leases(struct efs *fs, struct seen *seen)
{
    for (uint32_t e = 0; e < EXPERTS; e++) {
        struct efs_expert_info expert;
        struct efs_file_info info;
        struct efs_lease *lease = NULL;
        errint_t rc = efs_expert_info(fs, efs_id(e), &expert);
        if (rc == 0)
            rc = efs_file_info(fs, expert.file, &info);
        if (rc == 0)
            rc = lease_wait(fs, expert.file, &lease);
        add(seen, rc, rc == 0 ? efs_hash(lease_data(lease), info.bytes) : 0);
        if (lease)
            efs_lease_release(lease);
    }
}

/* The checksum of a tensor, coded or decoded. 0, or the error of the decoder. */
static errint_t tensor_hash(const struct efs_tensor *t, uint64_t *hash)
{
    if (t->data) {
        *hash = efs_hash(t->data, t->bytes);
        return 0;
    }
    size_t used = 0;
    for (uint32_t s = 0; s < t->shard_count; s++) {
        const struct efs_coded_shard *c = &t->shards[s];
        struct efs_shard_view view = {
            .format = c->codec == EFS_CODEC_NONE ? EFS_FORMAT_BYTES : efs_object_format(t->dtype, EFS_CHOOSE_CASCADE),
            .codec = c->codec,
            .elements = c->elements,
            .e = c->e,
            .sm = c->sm,
            .e_bytes = c->e_bytes,
            .sm_bytes = c->sm_bytes};
        struct efs_codec_scratch *scratch = NULL;
        size_t bytes = c->elements * efs_format_bytes(view.format);
        assert_true(bytes <= ROOM - used);
        assert_int_equal(efs_codec_scratch_new(t->shard_elements, &scratch), 0);
        errint_t rc = efs_shard_decode(&view, 0, c->elements, buffer + used, false, scratch);
        efs_codec_scratch_free(scratch);
        if (rc < 0)
            return rc;
        used += bytes;
    }
    *hash = efs_hash(buffer, used);
    return 0;
}

static errint_t expert_hash(const struct efs_tensor *tensors, uint32_t count, uint64_t *hash)
{
    for (uint32_t t = 0; t < count; t++) {
        uint64_t parts[12] = {*hash, efs_hash(tensors[t].name, strlen(tensors[t].name)), tensors[t].dtype};
        memcpy(&parts[3], tensors[t].shape, sizeof(tensors[t].shape));
        errint_t rc = tensor_hash(&tensors[t], &parts[11]);
        if (rc < 0)
            return rc;
        *hash = efs_hash(parts, sizeof(parts));
    }
    return 0;
}

static void see_request(struct efs *fs, struct seen *seen, enum efs_form form)
{
    const struct efs_need needs[EXPERTS] = {{0, 1}, {1, 1}};
    struct efs_client_request *request = NULL;
    struct efs_error err = {""};
    errint_t begun = efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = form}, &request, &err);
    if (begun == 0)
        efs_client_wait(request);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct efs_tensor *tensors = NULL;
        uint64_t hash = 0;
        uint32_t count = 0;
        errint_t rc = begun < 0 ? begun : efs_client_tensors(request, e, &tensors, &count);
        if (rc == 0)
            rc = expert_hash(tensors, count, &hash);
        add(seen, rc, hash);
    }
    if (begun == 0)
        efs_client_release(request);
}

static void see_product(struct efs *fs, struct seen *seen)
{
    static const uint32_t token[TOKENS] = {0, 1, 2};
    static const float weight[TOKENS] = {0.5f, 0.25f, 1.0f};
    static float y[TOKENS * SWEEP_HIDDEN];
    const struct efs_route_to to[EXPERTS] = {{0, TOKENS, token, weight}, {1, TOKENS - 1, token, weight}};
    const struct efs_mixture m = {.experts = to,
                                  .expert_count = EXPERTS,
                                  .activation = EFS_ACTIVATION_F32,
                                  .x = x,
                                  .tokens = TOKENS,
                                  .hidden = SWEEP_HIDDEN,
                                  .x_stride = SWEEP_HIDDEN,
                                  .y_stride = SWEEP_HIDDEN,
                                  .y = y,
                                  .form = EFS_FORM_CODED};
    struct efs_error err = {""};
    memset(y, 0, sizeof(y));
    errint_t rc = fixture_ffn(fs, team, &m, &err);
    add(seen, rc, efs_hash(y, sizeof(y)));
}

/* All kinds of access. The first one starts with an empty cache, so `turn` rotates their order. The order of the items
 * does not depend on turn. */
static void see(struct efs *fs, struct seen *seen, unsigned turn)
{
    struct seen parts[6] = {0};
    for (unsigned i = 0; i < 6; i++) {
        unsigned p = (i + turn) % 6;
        switch (p) {
        case 0:
            see_files(fs, &parts[p]);
            break;
        case 1:
            see_ranges(fs, &parts[p]);
            break;
        case 2:
            see_leases(fs, &parts[p]);
            break;
        case 3:
            see_request(fs, &parts[p], EFS_FORM_CODED);
            break;
        case 4:
            see_request(fs, &parts[p], EFS_FORM_FULL);
            break;
        default:
            see_product(fs, &parts[p]);
            break;
        }
    }
    seen->count = 0;
    for (unsigned p = 0; p < 6; p++)
        for (unsigned i = 0; i < parts[p].count; i++)
            add(seen, parts[p].items[i].rc, parts[p].items[i].hash);
}

/* ---- changed stores ---- */

void sweep_write(const char *path, const unsigned char *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, 0), bytes);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    close(fd);
}

struct efs_disk_shard *sweep_shard(unsigned char *store, uint32_t i)
{
    return (struct efs_disk_shard *)(void *)(store + sweep.sb.tables[EFS_TABLE_SHARDS].offset) + i;
}

errint_t sweep_verify(void)
{
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    errint_t rc = efs_store_open(sweep.model.store, &store, &err);
    if (rc < 0)
        return rc;
    rc = efs_store_verify(store, true, 1, NULL, NULL, NULL, &damaged, &err);
    efs_store_close(store);
    return rc;
}

static bool known_error(errint_t rc, bool forged)
{
    if (rc == -EUCLEAN || rc == -EIO)
        return true;
    /* a forged index can name experts and files that do not exist, or tensors that cannot be computed */
    return forged && (rc == -EINVAL || rc == -ENOENT || rc == -EOPNOTSUPP || rc == -ENODATA || rc == -EISDIR);
}

bool sweep_in_slice(void)
{
    static unsigned long cases;
    return cases++ % sweep.slices == sweep.slice;
}

enum sweep_outcome sweep_try(size_t bytes, bool forged, bool strict)
{
    struct efs_error err = {""};
    struct efs *fs;
    struct seen seen;
    unsigned errors = 0, wrong = 0;
    taken++;
    tried++;
    alarm(PATIENCE_SECONDS);
    sweep_write(sweep.model.store, sweep.copy, bytes);
    errint_t rc = efs_open(sweep.model.store, &serving, &fs, &err);
    if (rc < 0) {
        if (rc != -EUCLEAN && rc != -EPROTONOSUPPORT)
            fail_msg("%s: refused with %d, %s", sweep.case_name, rc, err.text);
        return REFUSED;
    }
    see(fs, &seen, taken);
    efs_close(fs);
    wrong = seen.count != good.count;
    for (unsigned i = 0; i < seen.count && i < good.count; i++) {
        const struct item *item = &seen.items[i];
        if (item->rc < 0 && !known_error(item->rc, forged))
            fail_msg("%s: item %u fails with %d", sweep.case_name, i, item->rc);
        errors += item->rc < 0;
        wrong += item->rc == 0 && item->hash != good.items[i].hash;
    }
    if (wrong && (strict || !forged))
        fail_msg("%s: %u of %u items are wrong, %u are errors", sweep.case_name, wrong, seen.count, errors);
    return wrong ? FORGED : errors ? ERROR : RIGHT;
}

/* ---- the good store ---- */

void sweep_write_sources(unsigned weights_seed)
{
    static char names[EXPERTS * 3][96];
    static const char *const roles[] = {"gate_proj", "up_proj", "down_proj"};
    struct fixture_tensor tensors[EXPERTS * 3 + 4];
    unsigned n = 0;
    for (; n < EXPERTS * 3; n++) {
        bool down = n % 3 == 2;
        snprintf(names[n], sizeof(names[n]), "model.layers.0.mlp.experts.%u.%s.weight", n / 3, roles[n % 3]);
        tensors[n] = (struct fixture_tensor){names[n],
                                             "BF16",
                                             2,
                                             {down ? SWEEP_HIDDEN : SWEEP_INNER, down ? SWEEP_INNER : SWEEP_HIDDEN},
                                             2 * SWEEP_INNER * SWEEP_HIDDEN};
    }
    tensors[n++] =
        (struct fixture_tensor){"model.embed_tokens.weight", "F16", 2, {50, SWEEP_HIDDEN}, 100 * SWEEP_HIDDEN};
    tensors[n++] = (struct fixture_tensor){"model.eight.weight", "F8_E4M3", 2, {50, SWEEP_HIDDEN}, 50 * SWEEP_HIDDEN};
    tensors[n++] = (struct fixture_tensor){"model.norm.weight", "F32", 1, {129}, 516};
    tensors[n++] = (struct fixture_tensor){"model.numbers", "U8", 1, {8191}, 8191};
    fixture_safetensors(&sweep.model, "model.safetensors", tensors, n, weights_seed);
}

void sweep_pack(enum efs_codec_choice codec, uint32_t shard_elements)
{
    struct efs_pack_options options = {.codec = codec, .threads = 2, .shard_elements = shard_elements, .force = true};
    fixture_pack(&sweep.model, &options);
    free(sweep.image);
    free(sweep.copy);
    sweep.image = fixture_read(sweep.model.store, &sweep.image_bytes);
    sweep.copy = calloc(1, sweep.image_bytes + 4096);
    assert_non_null(sweep.copy);
    memcpy(&sweep.sb, sweep.image, sizeof(sweep.sb));
    taken = 0;
    struct efs *fs = fixture_open(&sweep.model, serving);
    first_file = fixture_file_named(fs, "model.safetensors");
    fixture_check_files(&sweep.model, fs);
    see(fs, &good, 0);
    efs_close(fs);
    for (unsigned i = 0; i < good.count; i++)
        assert_int_equal(good.items[i].rc, 0);
    assert_true(good.count < ITEMS);
}

int sweep_setup(void **state)
{
    (void)state;
    fixture_begin(&sweep.model);
    sweep_write_sources(SWEEP_SEED);
    fixture_file(&sweep.model, "config.json", "{\"model_type\": \"qwen3_moe\"}\n", 28);
    fixture_file(&sweep.model, "sub/empty.txt", "", 0);
    free(fixture_weights(&sweep.model, &file_size));
    buffer = malloc(ROOM);
    assert_true(buffer && efs_team_new(2, &team) == 0);
    uint64_t random = 1;
    for (unsigned i = 0; i < TOKENS * SWEEP_HIDDEN; i++)
        x[i] = (float)(fixture_random(&random) % 2000) / 1000.0f - 1.0f;
    const char *tier = getenv("EXPERTFS_SWEEP");
    sweep.full_tier = tier && strcmp(tier, "full") == 0;
    const char *slice = getenv("EXPERTFS_SLICE");
    sweep.slices = 1;
    if (slice && (sscanf(slice, "%u/%u", &sweep.slice, &sweep.slices) != 2 || sweep.slice >= sweep.slices))
        fail_msg("EXPERTFS_SLICE=%s is not SLICE/SLICES", slice);
    const char *given = getenv("SEED");
    sweep.seed = given ? strtoull(given, NULL, 10) : 1;
    signal(SIGALRM, on_alarm);
    return 0;
}

int sweep_teardown(void **state)
{
    (void)state;
    alarm(0);
    print_message("%lu stores were tried\n", tried);
    efs_team_free(team);
    fixture_end(&sweep.model);
    free(sweep.image);
    free(sweep.copy);
    free(buffer);
    return 0;
}
