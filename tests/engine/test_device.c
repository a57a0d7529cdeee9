/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU code on the first graphics processor, if there is one, and else on the fake driver: the kernels against the
 * CPU for every format, size and kind of symbols and for damaged chunks; experts in device memory against the full
 * form; mixtures against the CPU. EXPERTFS_CUDA names the driver, as for the library.
 */

#include "../kernels/cases.h"
#include "device_internal.h"
#include "expertfs-compute.h"
#include "fixture_mount.h"

#include <dlfcn.h>
#include <math.h>

#define MIB (1ull << 20)
#define GUARD 256u /* bytes after each output that must not change */
#define POISON 0x5c

static bool real; /* a graphics processor */
static struct efs_driver cu;
static efs_cu_context context;
static efs_cu_function decode, recover;
static efs_cu_stream stream;

static void check(efs_cu_result result)
{
    if (result)
        fail_msg("%s (%d)", efs_driver_error(&cu, result), result);
}

/* ---- kernels ---- */

struct shard_case {
    enum efs_format format;
    size_t n, e_bytes;
    uint8_t *chunk, *e, *sm, *raw; /* host; each freed by cases_free() */
    bool damaged;
};

static struct shard_case *cases;
static size_t case_count, case_room;

static struct shard_case *case_add(void)
{
    if (case_count == case_room) {
        case_room = 2 * case_room + 64;
        cases = realloc(cases, case_room * sizeof(*cases));
        assert_non_null(cases);
    }
    memset(&cases[case_count], 0, sizeof(*cases));
    return &cases[case_count++];
}

static void cases_free(void)
{
    for (size_t i = 0; i < case_count; i++) {
        free(cases[i].chunk);
        free(cases[i].e);
        free(cases[i].sm);
        free(cases[i].raw);
    }
    case_count = 0;
}

static void *bytes_new(size_t bytes)
{
    void *made = malloc(bytes + 1);
    assert_non_null(made);
    return made;
}

/* Elements with these symbols as exponents and random SM, coded. */
static struct shard_case *case_symbols(enum efs_format format, enum symbol_kind kind, size_t n, uint64_t *rng)
{
    struct shard_case *c = case_add();
    const unsigned symbols = format_symbols(format);
    const size_t sm_bytes = efs_sm_bytes(format, n);
    c->format = format;
    c->n = n;
    c->e = bytes_new(n);
    c->sm = bytes_new(sm_bytes);
    c->raw = bytes_new(n * efs_format_bytes(format));
    c->chunk = bytes_new(efs_cascade_bound(n));
    for (size_t i = 0; i < n; i++)
        c->e[i] = (uint8_t)(symbol_of(kind, i, n, rng) % symbols);
    for (size_t i = 0; i < sm_bytes; i++)
        c->sm[i] = (uint8_t)random_u64(rng);
    efs_merge(format, c->e, c->sm, n, c->raw);
    efs_split(format, c->raw, n, c->e, c->sm); /* padding of planes is zero */
    c->e_bytes = efs_cascade_encode(c->e, n, c->chunk, coder_scratch());
    return c;
}

static size_t room(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t case_out_bytes(const struct shard_case *c)
{
    return c->n * efs_format_bytes(c->format);
}

/* Runs the kernel on all cases at once; then every output must have the right bytes, and no byte after it may have
 * changed. A damaged chunk has the status that the CPU returns. */
static void cases_run(bool decoding)
{
    size_t in_bytes = 0, out_bytes = 0, at = 0, out_at = 0;
    for (size_t i = 0; i < case_count; i++) {
        const struct shard_case *c = &cases[i];
        in_bytes += room(decoding ? c->e_bytes : c->n) + room(efs_sm_bytes(c->format, c->n));
        out_bytes += room(case_out_bytes(c)) + GUARD;
    }
    uint8_t *in = bytes_new(in_bytes), *out = bytes_new(out_bytes);
    struct efs_gpu_shard *shards = calloc(case_count, sizeof(*shards));
    efs_cu_address in_there, out_there, shards_there;
    uint32_t most = 0;
    assert_non_null(shards);
    check(cu.memory_alloc(&in_there, in_bytes));
    check(cu.memory_alloc(&out_there, out_bytes));
    check(cu.memory_alloc(&shards_there, case_count * sizeof(*shards)));
    memset(in, 0xee, in_bytes);
    memset(out, POISON, out_bytes);
    for (size_t i = 0; i < case_count; i++) {
        const struct shard_case *c = &cases[i];
        const size_t sm_bytes = efs_sm_bytes(c->format, c->n);
        shards[i] = (struct efs_gpu_shard){.e = (const uint8_t *)(uintptr_t)(in_there + at),
                                           .dst = (uint8_t *)(uintptr_t)(out_there + out_at),
                                           .e_bytes = (uint32_t)(decoding ? c->e_bytes : c->n),
                                           .elements = (uint32_t)c->n,
                                           .format = (uint32_t)c->format};
        memcpy(in + at, decoding ? c->chunk : c->e, shards[i].e_bytes);
        at += room(shards[i].e_bytes);
        shards[i].sm = (const uint8_t *)(uintptr_t)(in_there + at);
        memcpy(in + at, c->sm, sm_bytes);
        at += room(sm_bytes);
        out_at += room(case_out_bytes(c)) + GUARD;
        most = c->n > most ? (uint32_t)c->n : most;
    }
    check(cu.copy_in(in_there, in, in_bytes, stream));
    check(cu.copy_in(out_there, out, out_bytes, stream));
    check(cu.copy_in(shards_there, shards, case_count * sizeof(*shards), stream));
    check(efs_driver_launch_shards(&cu, decoding ? decode : recover, decoding, shards_there, (uint32_t)case_count,
                                   most + EFS_SPAN, stream)); /* more blocks than any shard has */
    check(cu.copy_out(out, out_there, out_bytes, stream));
    check(cu.copy_out(shards, shards_there, case_count * sizeof(*shards), stream));
    check(cu.stream_synchronize(stream));
    out_at = 0;
    for (size_t i = 0; i < case_count; i++) {
        const struct shard_case *c = &cases[i];
        const size_t bytes = case_out_bytes(c);
        if (decoding && shards[i].status != (c->damaged ? EFS_GPU_DAMAGED : EFS_GPU_OK))
            fail_msg("case %zu: format %d, %zu elements: status %u", i, c->format, c->n, shards[i].status);
        if (!c->damaged && memcmp(out + out_at, c->raw, bytes) != 0)
            fail_msg("case %zu: format %d, %zu elements: other bytes", i, c->format, c->n);
        for (size_t k = bytes; k < room(bytes) + GUARD; k++)
            if (out[out_at + k] != POISON && (k >= bytes + 16 || !c->damaged))
                fail_msg("case %zu: format %d, %zu elements: byte %zu after the output changed", i, c->format, c->n,
                         k - bytes);
        out_at += room(bytes) + GUARD;
    }
    check(cu.memory_free(in_there));
    check(cu.memory_free(out_there));
    check(cu.memory_free(shards_there));
    free(in);
    free(out);
    free(shards);
}

static const enum efs_format formats[] = {EFS_FORMAT_BYTES, EFS_FORMAT_BF16, EFS_FORMAT_F16,
                                          EFS_FORMAT_F32,   EFS_FORMAT_E4M3, EFS_FORMAT_E5M2};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

TEST(kernels)
{
    static const size_t all[] = {1, 3, 255, 2049, 8191, 8192, 8193, 16384, 32768, 40000, 100001, 131072},
                        few[] = {1, 8193, 40000};
    static const enum symbol_kind few_kinds[] = {SYMBOLS_WEIGHTS, SYMBOLS_TRIPLES, SYMBOLS_UNIFORM};
    const size_t *sizes = real ? all : few, size_count = real ? sizeof(all) / sizeof(all[0]) : 3;
    uint64_t rng = 5;
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t k = 0; k < (real ? SYMBOLS_KINDS : 3); k++)
            for (size_t s = 0; s < size_count; s++)
                case_symbols(formats[f], real ? (enum symbol_kind)k : few_kinds[k], sizes[s], &rng);
    cases_run(true);
    cases_run(false);
    cases_free();
}

/* Flipped bits in chunks of every format: as the CPU, the kernel refuses a chunk or decodes the same bytes. */
TEST(damage)
{
    static const enum symbol_kind kinds[] = {SYMBOLS_WEIGHTS, SYMBOLS_TRIPLES, SYMBOLS_DEEP};
    uint64_t rng = 6;
    for (unsigned i = 0; i < (real ? 6000u : 60u); i++) {
        const size_t n = 1 + random_below(&rng, i % 4 ? 9000 : 70000);
        struct shard_case *c = case_symbols(formats[i % FORMATS], kinds[i % 3], n, &rng);
        const uint32_t from = i % 5 == 0 ? 0 : 16, headers = 16 + 36 * (uint32_t)((n + EFS_SPAN - 1) / EFS_SPAN);
        const uint32_t limit = i % 2 ? headers : (uint32_t)c->e_bytes - EFS_CASCADE_SLACK;
        for (unsigned flips = 1 + i % 3; flips > 0; flips--)
            c->chunk[from + random_below(&rng, limit - from)] ^= (uint8_t)(1u << random_below(&rng, 8));
        c->damaged = efs_cascade_merge(c->format, c->chunk, c->e_bytes, c->sm, efs_sm_bytes(c->format, n), 0, n, c->raw,
                                       false, coder_scratch()) != 0;
    }
    cases_run(true);
    cases_free();
}

/* ---- experts ---- */

static struct efs_client *client_new(const char *store, uint64_t budget_bytes)
{
    const struct efs_client_options how = {.budget_bytes = 256 * MIB, .workers = 2, .no_state = true};
    const struct efs_gpu_options gpu = {.budget_bytes = budget_bytes};
    struct efs_client *client = fixture_client(store, &how);
    struct efs_error err = {""};
    if (efs_client_gpu(client, &gpu, &err) < 0)
        fail_msg("%s", err.text);
    return client;
}

/* Fails unless expert `index` of a request has the tensors of the full form. */
static void expert_check(struct efs_client *client, struct efs_client_request *request, uint32_t index, uint32_t layer,
                         uint32_t expert)
{
    const struct efs_tensor *here, *there;
    uint32_t here_count, there_count;
    struct efs_client_request *full = fixture_request_one(client, layer, expert, EFS_FORM_FULL);
    assert_int_equal(efs_client_tensors(full, 0, &here, &here_count), 0);
    assert_int_equal(efs_client_tensors(request, index, &there, &there_count), 0);
    assert_int_equal(here_count, there_count);
    for (uint32_t i = 0; i < here_count; i++) {
        uint8_t *bytes = bytes_new(here[i].bytes);
        assert_string_equal(here[i].name, there[i].name);
        assert_int_equal(here[i].bytes, there[i].bytes);
        assert_int_equal((uintptr_t)there[i].data % 256, 0);
        check(cu.copy_out(bytes, (efs_cu_address)(uintptr_t)there[i].data, here[i].bytes, stream));
        check(cu.stream_synchronize(stream));
        assert_memory_equal(bytes, here[i].data, here[i].bytes);
        free(bytes);
    }
    efs_client_release(full);
}

static struct efs_client_request *request_new(struct efs_client *client, uint32_t layer, uint32_t first, uint32_t count)
{
    struct efs_client_request *request;
    struct efs_need needs[64];
    struct efs_error err = {""};
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){first + i, 1};
    if (efs_client_begin(client, "", layer, needs, count, EFS_FORM_DEVICE, &request, &err) < 0)
        fail_msg("%s", err.text);
    return request;
}

TEST(every_type_and_codec)
{
    static const struct {
        const char *dtype;
        unsigned bytes;
    } types[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1}, {"I64", 8}};
    static const enum efs_codec_choice codecs[] = {EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_RAW,
                                                   EFS_CHOOSE_ZSTD};
    static const char *const names[] = {"model.layers.0.mlp.experts.0.gate_proj.weight",
                                        "model.layers.0.mlp.experts.0.up_proj.weight",
                                        "model.layers.0.mlp.experts.0.down_proj.weight"};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        const uint64_t rows[] = {real ? 2048 : 120, 1, 77};
        struct fixture one;
        struct fixture_tensor tensors[3];
        for (unsigned i = 0; i < 3; i++)
            tensors[i] =
                (struct fixture_tensor){names[i], types[t].dtype, 2, {rows[i], 333}, rows[i] * 333 * types[t].bytes};
        fixture_begin(&one);
        fixture_safetensors(&one, "model.safetensors", tensors, 3, (unsigned)t + 3);
        for (size_t c = 0; c < sizeof(codecs) / sizeof(codecs[0]); c++) {
            const struct efs_pack_options options = {
                .threads = 2, .shard_elements = 8192, .force = true, .codec = codecs[c]};
            fixture_pack(&one, &options);
            struct efs_client *client = client_new(one.store, 48 * MIB);
            struct efs_client_request *request = request_new(client, 0, 0, 1);
            assert_int_equal(efs_client_wait(request), 0);
            expert_check(client, request, 0, 0, 0);
            efs_client_release(request);
            efs_client_close(client);
        }
        fixture_end(&one);
    }
}

/* Pool G has room for a few of the experts; they are dropped after work in a stream. */
TEST(experts_under_pressure)
{
    struct fixture model;
    uint64_t rng = 9;
    const unsigned experts = 16, rows = real ? 512 : 64, columns = real ? 1024 : 256;
    const uint64_t expert_bytes = 3ull * rows * columns * 2;
    fixture_store(&model, 2, experts, rows, columns);
    struct efs_client *client = client_new(model.store, 33 * MIB + 12 * (expert_bytes + 4096));
    for (unsigned turn = 0; turn < (real ? 300u : 20u); turn++) {
        const uint32_t layer = turn % 2, count = 1 + random_below(&rng, 8);
        const uint32_t first = random_below(&rng, experts - count + 1);
        struct efs_client_request *request = request_new(client, layer, first, count);
        uint32_t index;
        errint_t status;
        while (efs_client_wait_any(request, PATIENCE_MS, &index, &status) == 1) {
            assert_int_equal(status, 0);
            expert_check(client, request, index, layer, first + index);
            assert_int_equal(efs_client_drop_after(request, index, stream), 0);
        }
        efs_client_release(request);
    }
    struct efs_gpu_stats stats;
    assert_int_equal(efs_client_gpu_stats(client, &stats), 0);
    assert_true(stats.g_evicted > 0 && stats.g_errors == 0 && stats.g_held == 0);
    efs_client_close(client);
    fixture_end(&model);
}

/* ---- mixtures ---- */

#define HIDDEN 512u
#define TOKENS 9u

TEST(mixtures)
{
    static float x[TOKENS * HIDDEN], here[TOKENS * HIDDEN], there[TOKENS * HIDDEN], weight[TOKENS];
    static uint32_t token[8][TOKENS];
    struct efs_route_to routes[8];
    struct efs_team *team;
    struct fixture model;
    uint64_t rng = 3;
    fixture_store(&model, 2, 8, 192, HIDDEN);
    struct efs_client *client = client_new(model.store, 48 * MIB);
    assert_int_equal(efs_team_new(2, &team), 0);
    for (unsigned turn = 0; turn < 12; turn++) {
        const uint32_t tokens = turn % 2 ? TOKENS : 1, layer = turn / 2 % 2;
        for (uint32_t e = 0; e < 8; e++) {
            routes[e] = (struct efs_route_to){e, 0, token[e], weight};
            for (uint32_t t = 0; t < tokens; t++)
                if (tokens == 1 || (t + e) % 3)
                    token[e][routes[e].count++] = t;
        }
        for (uint32_t i = 0; i < tokens * HIDDEN; i++)
            x[i] = (float)random_below(&rng, 2001) / 1000 - 1;
        for (uint32_t t = 0; t < tokens; t++)
            weight[t] = 0.25f + (float)t / 10;
        struct efs_mixture mixture = {.expert_count = 8,
                                      .experts = routes,
                                      .x = x,
                                      .tokens = tokens,
                                      .hidden = HIDDEN,
                                      .x_stride = HIDDEN,
                                      .y_stride = HIDDEN,
                                      .y = here,
                                      .form = EFS_FORM_FULL};
        struct efs_error err = {""};
        if (efs_client_ffn(client, team, "", layer, &mixture, &err) < 0)
            fail_msg("%s", err.text);
        for (unsigned form = 0; form < 2; form++) {
            mixture.form = form ? EFS_FORM_SHARED : EFS_FORM_DEVICE;
            mixture.y = there;
            memset(there, 0x7f, sizeof(there));
            if (efs_client_ffn(client, team, "", layer, &mixture, &err) < 0)
                fail_msg("%s", err.text);
            for (uint32_t t = 0; t < tokens; t++) {
                float most = 0;
                for (uint32_t i = 0; i < HIDDEN; i++)
                    most = fmaxf(most, fabsf(here[t * HIDDEN + i]));
                assert_true(most > 0);
                for (uint32_t i = 0; i < HIDDEN; i++)
                    if (!(fabsf(here[t * HIDDEN + i] - there[t * HIDDEN + i]) <= 1e-5f * most))
                        fail_msg("form %u, token %u, row %u: %g, on the CPU %g", form, t, i,
                                 (double)there[t * HIDDEN + i], (double)here[t * HIDDEN + i]);
            }
        }
    }
    efs_team_free(team);
    efs_client_close(client);
    fixture_end(&model);
}

/* ---- */

static int setup(void **state)
{
    efs_cu_device device;
    efs_cu_module module;
    int count = 0;
    char name[128] = "";
    (void)state;
    check(cu.init(0));
    check(cu.device_count(&count));
    check(cu.device_get(&device, 0));
    check(cu.device_name(name, sizeof(name) - 1, device));
    printf("device: %s\n", name);
    check(cu.context_retain(&context, device));
    check(cu.context_push(context));
    check(cu.module_load(&module, efs_gpu_image));
    check(cu.function_get(&decode, module, "efs_gpu_decode"));
    check(cu.function_set(decode, EFS_CU_FUNCTION_SHARED_BYTES, EFS_GPU_DECODE_SHARED));
    check(cu.function_get(&recover, module, "efs_gpu_recover"));
    check(cu.stream_create(&stream, EFS_CU_STREAM_NON_BLOCKING));
    return 0;
}

/* Opens the driver: the one that EXPERTFS_CUDA names, or that of a graphics processor, or the fake one beside this
 * program. */
static bool driver_open(const char *program)
{
    struct efs_error err = {""};
    int count = 0;
    char fake[4096];
    if (efs_driver_open(&cu, &err) == 0 && cu.init(0) == 0 && cu.device_count(&count) == 0 && count > 0) {
        real = dlsym(cu.library, "fake_cuda_left") == NULL;
        return true;
    }
    efs_driver_close(&cu);
    snprintf(fake, sizeof(fake), "%.*s/libcuda-fake.so", (int)(strrchr(program, '/') - program), program);
    setenv("EXPERTFS_CUDA", fake, 1);
    return efs_driver_open(&cu, &err) == 0;
}

int main(void)
{
    char program[4096] = "";
    if (efs_gpu_image_bytes == 0) {
        printf("the library was built without kernels for graphics processors\n");
        return 77;
    }
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0 || !driver_open(program)) {
        printf("no driver\n");
        return 1;
    }
    return TEST_RUN(setup, NULL);
}
