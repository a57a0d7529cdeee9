/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each field of the superblock, of every table and of each codec's header in a chunk gets each of eight other values,
 * with the checksums left as they were (damage) and made right again (a store that somebody forged). What then opens is
 * read whole and in ranges, leased, asked for coded and decoded, and multiplied with.
 *
 * Damage: refused, an error, or the right bytes; never a wrong one. Forged chunks, with the raw_hash left: whatever
 * decodes to other bytes is told by efs_store_verify(). Forged indexes can name other bytes, and nothing in a store can
 * tell: they are counted apart, and must only do no harm. A case that takes too long ends the test with its name.
 *
 * Then what lies beside fields: cuts, sectors, chunks that changed places or came from another store, and several
 * changes at once by chance, from SEED on.
 *
 * EXPERTFS_SWEEP=full takes all records, all chunks, and more of each: more than 100,000 cases. With a directory as
 * argument nothing is tried: some of the stores are left there for a mount, good-N.efs, and N-NNN-damage.efs and
 * N-NNN-forged.efs that were made of it.
 */
#include "codec.h"
#include "fixture.h"
#include "hash.h"
#include "expertfs-pack.h"
#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "sweep_fields.h"
#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define EXPERTS 2
#define INNER 272 /* two spans a tensor: INNER * HIDDEN > EFS_SPAN */
#define HIDDEN 128
#define TOKENS 3
#define ITEMS 64        /* things that are read of a store, at most */
#define ROOM (4u << 20) /* of a file */
#define CASE_SECONDS 60 /* after so many a case hangs */
#define MEMORY_BYTES (1ull << 30)
#define FULL_RECORDS 120 /* of a table; of the strings, whose records are bytes, those at as many places */
#define CHANGES_MOST 6   /* at once */
/* Cases of which one is taken. No multiple of 2: a field's cases are changes, with the checksums left and made right.
 */
#if defined(__SANITIZE_THREAD__)
#define STRIDE 23 /* what becomes of a field is not a matter of threads */
#elif defined(__SANITIZE_ADDRESS__)
#define STRIDE 3
#else
#define STRIDE 1
#endif
#define CHUNK_STRIDE (STRIDE > 3 ? STRIDE : 3) /* each of these is read in all ways, which takes longest */

enum area { SUPERBLOCK, TABLE, CHUNK };
enum outcome { REFUSED, ERROR, RIGHT, FORGED, OUTCOMES };

/* What a store shows, item by item: an error, or the checksum of the bytes. */
struct item {
    errint_t rc;
    uint64_t hash;
};
struct seen {
    unsigned count;
    struct item items[ITEMS];
};

static struct fixture model;
static struct efs_team *team;
static unsigned char *image, *copy, *buffer; /* the good store, one with a change, what is read of a file */
static size_t image_bytes, file_size;        /* file_size: of the file with the tensors */
static struct efs_disk_superblock sb;        /* of image */
static struct seen good;
static float x[TOKENS * HIDDEN];
static uint64_t rnd;
static unsigned cases, taken, samples, packs;
static unsigned long tried; /* in all tests */
static uint64_t seed;
static unsigned long told[3][2][OUTCOMES], verified;
static char case_name[200];
static bool full_tier;
static const char *sample_directory;
static const struct efs_options serving = {.size = sizeof(struct efs_options),
                                           .budget_bytes = 64 << 20,
                                           .workers = 1,
                                           .full_pool = true,
                                           .no_state = true,
                                           .no_direct = true};

static void on_alarm(int signal)
{
    static const char text[] = "hangs: ";
    (void)signal;
    if (write(2, text, sizeof(text) - 1) < 0 || write(2, case_name, strlen(case_name)) < 0 || write(2, "\n", 1) < 0)
        _exit(2);
    _exit(1);
}

/* ---- what is read of a store ---- */

static void add(struct seen *seen, errint_t rc, uint64_t hash)
{
    if (seen->count < ITEMS)
        seen->items[seen->count] = (struct item){rc, rc < 0 ? 0 : hash};
    seen->count++;
}

/* Whole files, and ranges of the first one. */
static void see_files(struct efs *fs, struct seen *seen)
{
    for (uint32_t f = 0; f < efs_file_count(fs) && seen->count < ITEMS; f++) {
        struct efs_file_info info;
        assert_int_equal(efs_file_info(fs, f, &info, sizeof(info)), 0);
        ssize_t n = read_wait(fs, f, NULL, 0, buffer, ROOM);
        uint64_t parts[2] = {efs_hash(info.path, strlen(info.path)), n > 0 ? efs_hash(buffer, (size_t)n) : 0};
        add(seen, n < 0 ? (errint_t)n : 0, efs_hash(parts, sizeof(parts)));
    }
}

static uint32_t first_file; /* the one with the tensors */
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
        errint_t rc = efs_expert_info(fs, efs_id(e), &expert, sizeof(expert));
        if (rc == 0)
            rc = efs_file_info(fs, expert.file, &info, sizeof(info));
        if (rc == 0)
            rc = lease_wait(fs, expert.file, &lease);
        add(seen, rc, rc == 0 ? efs_hash(efs_lease_data(lease), info.bytes) : 0);
        if (lease)
            efs_lease_release(lease);
    }
}

/* The bytes of a tensor in either form, 0 or the error of decoding them. */
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
    struct efs_request *request = NULL;
    struct efs_error err = {""};
    errint_t begun = efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = form}, &request, &err);
    if (begun == 0)
        efs_request_wait(request);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct efs_tensor *tensors = NULL;
        uint64_t hash = 0;
        uint32_t count = 0;
        errint_t rc = begun < 0 ? begun : efs_request_tensors(request, e, &tensors, &count);
        if (rc == 0)
            rc = expert_hash(tensors, count, &hash);
        add(seen, rc, hash);
    }
    if (begun == 0)
        efs_request_release(request);
}

static void see_product(struct efs *fs, struct seen *seen)
{
    static const uint32_t token[TOKENS] = {0, 1, 2};
    static const float weight[TOKENS] = {0.5f, 0.25f, 1.0f};
    static float y[TOKENS * HIDDEN];
    const struct efs_route_to to[EXPERTS] = {{{0}, TOKENS, token, weight}, {{1}, TOKENS - 1, token, weight}};
    const struct efs_mixture m = {.size = sizeof(struct efs_mixture),
                                  .expert_bytes = sizeof(struct efs_route_to),
                                  .experts = to,
                                  .expert_count = EXPERTS,
                                  .activation = EFS_ACTIVATION_F32,
                                  .x = x,
                                  .tokens = TOKENS,
                                  .hidden = HIDDEN,
                                  .x_stride = HIDDEN,
                                  .y_stride = HIDDEN,
                                  .y = y,
                                  .form = EFS_FORM_CODED};
    struct efs_error err = {""};
    memset(y, 0, sizeof(y));
    errint_t rc = efs_expert_ffn(fs, team, &m, &err);
    add(seen, rc, efs_hash(y, sizeof(y)));
}

/* All of it; what comes first finds the memory empty, so each has its turn. Items keep their places. */
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

/* ---- a store that was changed ---- */

static void write_store(const char *path, const unsigned char *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, 0), bytes);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    close(fd);
}

/* The checksums of tables and superblock are made those of what is there. */
static void seal(void)
{
    struct efs_disk_superblock s;
    uint64_t hashes[EFS_TABLE_COUNT];
    memcpy(&s, copy, sizeof(s));
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        struct efs_disk_table *table = &s.tables[t];
        if (table->offset <= image_bytes && table->bytes <= image_bytes - table->offset)
            table->hash = efs_hash(copy + table->offset, table->bytes);
        hashes[t] = table->hash;
    }
    s.content_hash = efs_hash(hashes, sizeof(hashes));
    s.hash = efs_hash(&s, offsetof(struct efs_disk_superblock, hash));
    memcpy(copy, &s, sizeof(s));
}

static struct efs_disk_shard *shard_at(unsigned char *store, uint32_t i)
{
    return (struct efs_disk_shard *)(void *)(store + sb.tables[EFS_TABLE_SHARDS].offset) + i;
}

static errint_t verify_store(void)
{
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    errint_t rc = efs_store_open(model.store, &store, &err);
    if (rc < 0)
        return rc;
    rc = efs_store_verify(store, true, 1, NULL, NULL, NULL, &damaged, &err);
    efs_store_close(store);
    verified++;
    return rc;
}

static bool known_error(errint_t rc, bool forged)
{
    if (rc == -EUCLEAN || rc == -EIO)
        return true;
    /* an index that says other things can ask for what there is not, or what nobody can multiply */
    return forged && (rc == -EINVAL || rc == -ENOENT || rc == -EOPNOTSUPP || rc == -ENODATA || rc == -EISDIR);
}

/* Every 131st, so that all fields have their turn with all changes. */
static void leave_sample(bool forged)
{
    char path[400];
    if (cases % 131 != 0)
        return;
    snprintf(path, sizeof(path), "%s/%u-%03u-%s.efs", sample_directory, packs, samples++, forged ? "forged" : "damage");
    write_store(path, copy, image_bytes);
}

/* The copy, cut to so many bytes, as a store. strict: wrong bytes are a failure, whoever made the checksums. */
static enum outcome try_copy(size_t bytes, bool forged, bool strict)
{
    struct efs_error err = {""};
    struct efs *fs;
    struct seen seen;
    unsigned errors = 0, wrong = 0;
    taken++;
    tried++;
    alarm(CASE_SECONDS);
    write_store(model.store, copy, bytes);
    errint_t rc = efs_open(model.store, &serving, &fs, &err);
    if (rc < 0) {
        if (rc != -EUCLEAN && rc != -EPROTONOSUPPORT)
            fail_msg("%s: refused with %d, %s", case_name, rc, err.text);
        return REFUSED;
    }
    see(fs, &seen, taken);
    efs_close(fs);
    wrong = seen.count != good.count;
    for (unsigned i = 0; i < seen.count && i < good.count; i++) {
        const struct item *item = &seen.items[i];
        if (item->rc < 0 && !known_error(item->rc, forged))
            fail_msg("%s: item %u fails with %d", case_name, i, item->rc);
        errors += item->rc < 0;
        wrong += item->rc == 0 && item->hash != good.items[i].hash;
    }
    if (wrong && (strict || !forged))
        fail_msg("%s: %u of %u items are wrong, %u are errors", case_name, wrong, seen.count, errors);
    return wrong ? FORGED : errors ? ERROR : RIGHT;
}

/* One change: bytes at `at` get a value. shard: whose chunk it is in, for the area CHUNK. */
static void try_change(enum area area, const char *name, int table, uint32_t shard, bool sm, size_t at, unsigned bytes,
                       unsigned how, bool forged)
{
    uint64_t value = 0;
    if (cases++ % (full_tier || sample_directory ? 1 : area == CHUNK ? CHUNK_STRIDE : STRIDE) != 0)
        return;
    memcpy(copy, image, image_bytes);
    memcpy(&value, copy + at, bytes);
    value = sweep_changed(value, bytes, how, fixture_random(&rnd));
    memcpy(copy + at, &value, bytes);
    struct efs_disk_shard *s = shard_at(copy, shard);
    if (forged && area == CHUNK) {
        if (sm)
            s->sm_hash = efs_hash(copy + s->sm_offset, s->sm_bytes);
        else
            s->e_hash = efs_hash(copy + s->e_offset, s->e_bytes);
    }
    if (forged)
        seal();
    if (memcmp(copy, image, image_bytes) == 0) /* it was so before */
        return;
    if (sample_directory) {
        leave_sample(forged);
        return;
    }
    snprintf(case_name, sizeof(case_name), "%s at %zu, %s, checksums %s", name, at, sweep_change_names[how],
             forged ? "made right" : "left");
    bool strict = area == SUPERBLOCK || table == EFS_TABLE_PARTS || table == EFS_TABLE_SHARDS;
    enum outcome outcome = try_copy(image_bytes, forged, strict);
    told[area][forged][outcome]++;
    if (!forged && outcome != (area == CHUNK ? ERROR : REFUSED))
        fail_msg("%s: damage was not noticed", case_name);
    if (area == CHUNK && outcome == FORGED && verify_store() != -EUCLEAN)
        fail_msg("%s: verify finds nothing wrong", case_name);
    if (outcome == RIGHT && strcmp(name, "shard.raw_hash") == 0 && verify_store() != -EUCLEAN)
        fail_msg("%s: verify does not look at it", case_name);
}

static void try_field(enum area area, const char *name, int table, uint32_t shard, bool sm, size_t at, unsigned bytes)
{
    for (unsigned how = 0; how < SWEEP_CHANGES; how++)
        for (int forged = 0; forged < 2; forged++)
            try_change(area, name, table, shard, sm, at, bytes, how, forged);
}

/* ---- the store ---- */

static unsigned weights_seed = 7;

static void write_sources(void)
{
    static char names[EXPERTS * 3][96];
    static const char *const roles[] = {"gate_proj", "up_proj", "down_proj"};
    struct fixture_tensor tensors[EXPERTS * 3 + 4];
    unsigned n = 0;
    for (; n < EXPERTS * 3; n++) {
        bool down = n % 3 == 2;
        snprintf(names[n], sizeof(names[n]), "model.layers.0.mlp.experts.%u.%s.weight", n / 3, roles[n % 3]);
        tensors[n] = (struct fixture_tensor){
            names[n], "BF16", 2, {down ? HIDDEN : INNER, down ? INNER : HIDDEN}, 2 * INNER * HIDDEN};
    }
    tensors[n++] = (struct fixture_tensor){"model.embed_tokens.weight", "F16", 2, {50, HIDDEN}, 100 * HIDDEN};
    tensors[n++] = (struct fixture_tensor){"model.eight.weight", "F8_E4M3", 2, {50, HIDDEN}, 50 * HIDDEN};
    tensors[n++] = (struct fixture_tensor){"model.norm.weight", "F32", 1, {129}, 516};
    tensors[n++] = (struct fixture_tensor){"model.numbers", "U8", 1, {8191}, 8191};
    fixture_safetensors(&model, "model.safetensors", tensors, n, weights_seed);
}

static void pack(enum efs_codec_choice codec, uint32_t shard_elements)
{
    struct efs_pack_options options = {.size = sizeof(struct efs_pack_options),
                                       .codec = codec,
                                       .threads = 2,
                                       .shard_elements = shard_elements,
                                       .force = true};
    struct efs *fs;
    struct efs_error err = {""};
    fixture_pack(&model, &options);
    free(image);
    free(copy);
    image = fixture_read(model.store, &image_bytes);
    copy = malloc(image_bytes + 4096);
    assert_non_null(copy);
    memcpy(&sb, image, sizeof(sb));
    memset(told, 0, sizeof(told));
    cases = taken = 0, rnd = 11;
    if (efs_open(model.store, &serving, &fs, &err) < 0)
        fail_msg("%s", err.text);
    for (uint32_t f = 0; f < efs_file_count(fs); f++) {
        struct efs_file_info info;
        assert_int_equal(efs_file_info(fs, f, &info, sizeof(info)), 0);
        if (strcmp(info.path, "model.safetensors") == 0)
            first_file = f;
    }
    fixture_check_files(&model, fs);
    see(fs, &good, 0);
    efs_close(fs);
    for (unsigned i = 0; i < good.count; i++)
        assert_int_equal(good.items[i].rc, 0);
    assert_true(good.count < ITEMS);
    if (sample_directory) {
        char path[400];
        snprintf(path, sizeof(path), "%s/good-%u.efs", sample_directory, ++packs);
        write_store(path, image, image_bytes);
    }
}

static void tell(const char *what)
{
    static const char *const areas[] = {"superblock", "tables", "chunks"};
    for (int a = 0; a < 3; a++)
        for (int f = 0; f < 2; f++) {
            const unsigned long *n = told[a][f];
            if (n[REFUSED] + n[ERROR] + n[RIGHT] + n[FORGED] > 0)
                print_message("%s, %s, checksums %s: %lu refused, %lu errors, %lu right, %lu other bytes\n", what,
                              areas[a], f ? "made right" : "left", n[REFUSED], n[ERROR], n[RIGHT], n[FORGED]);
        }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    assert_true((uint64_t)usage.ru_maxrss * 1024 < MEMORY_BYTES);
}

/* The first shard of that codec with as many bytes of signs and mantissas. */
static uint32_t find_shard(uint32_t codec, uint32_t sm_bytes)
{
    for (uint32_t i = 0; i < sb.tables[EFS_TABLE_SHARDS].count; i++)
        if (shard_at(image, i)->codec == codec && shard_at(image, i)->sm_bytes >= sm_bytes)
            return i;
    fail_msg("no shard of codec %u", codec);
    return 0;
}

/* ---- the tests ---- */

static void superblock_and_tables(void **state)
{
    (void)state;
    pack(EFS_CHOOSE_CASCADE, 16384);
    for (size_t i = 0; i < SWEEP_COUNT(superblock_fields); i++)
        try_field(SUPERBLOCK, superblock_fields[i].name, -1, 0, false, superblock_fields[i].offset,
                  superblock_fields[i].bytes);
    for (size_t t = 0; t < EFS_TABLE_PLACES; t++)
        for (size_t i = 0; i < SWEEP_COUNT(table_fields); i++)
            try_field(SUPERBLOCK, table_fields[i].name, -1, 0, false,
                      offsetof(struct efs_disk_superblock, tables) + t * sizeof(struct efs_disk_table) +
                          table_fields[i].offset,
                      table_fields[i].bytes);
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        uint32_t count = sb.tables[t].count, records = full_tier ? FULL_RECORDS : t == EFS_TABLE_REPORT ? 2 : 3;
        for (uint32_t r = 0; r < records && r < count; r++) {
            uint32_t record = count <= records ? r : (uint32_t)((uint64_t)r * (count - 1) / (records - 1));
            size_t at = sb.tables[t].offset + (size_t)record * sb.tables[t].record_bytes;
            for (size_t i = 0; i < record_fields[t].count; i++) {
                const struct sweep_field *f = &record_fields[t].fields[i];
                if (at + f->offset + f->bytes <= sb.tables[t].offset + sb.tables[t].bytes)
                    try_field(TABLE, f->name, t, 0, false, at + f->offset, f->bytes);
            }
        }
    }
    tell("fields");
}

/* Header, spans and places of the code of one shard's chunks. */
static void cascade_chunk(uint32_t i, size_t code_step, size_t sm_step)
{
    const struct efs_disk_shard *s = shard_at(image, i);
    uint32_t spans;
    memcpy(&spans, image + s->e_offset + 4, sizeof(spans));
    assert_true(spans > 0 && spans < 1000);
    for (size_t f = 0; f < SWEEP_COUNT(cascade_chunk_fields); f++)
        try_field(CHUNK, cascade_chunk_fields[f].name, -1, i, false, s->e_offset + cascade_chunk_fields[f].offset,
                  cascade_chunk_fields[f].bytes);
    for (uint32_t span = 0; span < spans; span++)
        for (size_t f = 0; f < SWEEP_COUNT(cascade_span_fields); f++)
            try_field(CHUNK, cascade_span_fields[f].name, -1, i, false,
                      s->e_offset + SWEEP_CASCADE_SPANS + span * SWEEP_CASCADE_SPAN + cascade_span_fields[f].offset,
                      cascade_span_fields[f].bytes);
    size_t code = SWEEP_CASCADE_SPANS + spans * SWEEP_CASCADE_SPAN;
    for (size_t at = code; at < s->e_bytes; at += code_step)
        try_field(CHUNK, "cascade code", -1, i, false, s->e_offset + at, 1);
    try_field(CHUNK, "cascade slack", -1, i, false, s->e_offset + s->e_bytes - 8, 8);
    for (size_t at = 0; at < s->sm_bytes; at += sm_step)
        try_field(CHUNK, "signs and mantissas", -1, i, true, s->sm_offset + at, 1);
}

static void cascade_chunks(void **state)
{
    (void)state;
    pack(EFS_CHOOSE_CASCADE, 65536);
    uint32_t first = find_shard(EFS_CODEC_CASCADE, INNER * HIDDEN);
    cascade_chunk(first, full_tier ? 97 : 1499, full_tier ? 1021 : 8191);
    for (uint32_t i = 0; full_tier && i < sb.tables[EFS_TABLE_SHARDS].count; i++)
        if (i != first && shard_at(image, i)->codec == EFS_CODEC_CASCADE)
            cascade_chunk(i, 499, 2039);
    tell("cascade");
    assert_true(STRIDE > 3 || sample_directory || told[CHUNK][true][ERROR] > 50);
}

/* The other codecs: what leads the frame or block, byte by byte, and places in it. */
static void other_chunks(void **state)
{
    (void)state;
    static const struct {
        enum efs_codec_choice choice;
        uint32_t codec;
        const char *name;
    } codecs[] = {{EFS_CHOOSE_ZSTD, EFS_CODEC_ZSTD, "zstd"}, {EFS_CHOOSE_LZ4, EFS_CODEC_LZ4, "lz4"}};
    for (size_t c = 0; c < SWEEP_COUNT(codecs); c++) {
        pack(codecs[c].choice, 65536);
        uint32_t i = find_shard(codecs[c].codec, INNER * HIDDEN);
        const struct efs_disk_shard *s = shard_at(image, i);
        try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset, 4);
        for (size_t at = 0; at < (full_tier ? 200 : 24); at++)
            try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + at, 1);
        for (size_t at = 24; at < s->e_bytes; at += full_tier ? 499 : 4999)
            try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + at, 1);
        try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + s->e_bytes - 4, 4);
        tell(codecs[c].name);
    }
}

/* Cut where a table begins or ends, as it is and with a superblock that says so. */
static void cut_at_tables(void **state)
{
    (void)state;
    static const int around[] = {-4096, -65, -64, -1, 0, 1, 63, 64, 4095};
    unsigned refused = 0;
    pack(EFS_CHOOSE_CASCADE, 16384);
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        for (int end = 0; end < 2; end++)
            for (size_t a = 0; a < SWEEP_COUNT(around); a++)
                for (int forged = 0; forged < 2; forged++) {
                    uint64_t bytes =
                        (uint64_t)((int64_t)(sb.tables[t].offset + (end ? sb.tables[t].bytes : 0)) + around[a]);
                    struct efs_disk_superblock *s = (struct efs_disk_superblock *)(void *)copy;
                    if (bytes >= image_bytes)
                        continue;
                    memcpy(copy, image, image_bytes);
                    if (forged) {
                        s->store_bytes = bytes;
                        s->hash = efs_hash(s, offsetof(struct efs_disk_superblock, hash));
                    }
                    snprintf(case_name, sizeof(case_name), "cut to %llu of %zu bytes, superblock %s",
                             (unsigned long long)bytes, image_bytes, forged ? "says so" : "does not");
                    if (try_copy(bytes, forged, true) != REFUSED)
                        fail_msg("%s: was not refused", case_name);
                    refused++;
                }
    for (size_t bytes = 0; full_tier && bytes < image_bytes; bytes += 211) {
        memcpy(copy, image, image_bytes);
        snprintf(case_name, sizeof(case_name), "cut to %zu of %zu bytes", bytes, image_bytes);
        if (try_copy(bytes, false, true) != REFUSED)
            fail_msg("%s: was not refused", case_name);
        refused++;
    }
    print_message("%u cut stores refused\n", refused);
    assert_true(refused > 100);
}

/* Sectors that were lost or written twice, whole pages of zeros, chunks that changed places. */
static void sectors_and_swaps(void **state)
{
    (void)state;
    unsigned n[OUTCOMES] = {0};
    pack(EFS_CHOOSE_CASCADE, 16384);
    const size_t sectors = image_bytes / 512, step = full_tier ? 1 : 5 * STRIDE;
    for (size_t i = 0; i + 1 < sectors; i += step)
        for (int how = 0; how < 3; how++) {
            size_t at = i * 512, bytes = how == 2 ? 4096 : 512;
            if (at + bytes > image_bytes)
                continue;
            memcpy(copy, image, image_bytes);
            if (how == 0)
                memcpy(copy + at + 512, image + at, 512);
            else
                memset(copy + at, 0, bytes);
            snprintf(case_name, sizeof(case_name), "%s at %zu",
                     how == 0   ? "sector written twice"
                     : how == 1 ? "sector of zeros"
                                : "page of zeros",
                     at);
            n[try_copy(image_bytes, false, true)]++;
        }
    uint32_t shards = sb.tables[EFS_TABLE_SHARDS].count, swaps = 0;
    for (uint32_t i = 0; i + 1 < shards; i++)
        for (int sm = 0; sm < 2; sm++) {
            const struct efs_disk_shard *a = shard_at(image, i), *b = shard_at(image, i + 1);
            uint64_t from = sm ? a->sm_offset : a->e_offset, to = sm ? b->sm_offset : b->e_offset;
            size_t bytes = sm ? a->sm_bytes : a->e_bytes, other = sm ? b->sm_bytes : b->e_bytes;
            bytes = bytes < other ? bytes : other;
            if (bytes == 0 || memcmp(image + from, image + to, bytes) == 0)
                continue;
            memcpy(copy, image, image_bytes);
            memcpy(copy + from, image + to, bytes);
            memcpy(copy + to, image + from, bytes);
            snprintf(case_name, sizeof(case_name), "%s-chunks of shards %u and %u swapped", sm ? "SM" : "E", i, i + 1);
            if (try_copy(image_bytes, false, true) != ERROR)
                fail_msg("%s: was not noticed", case_name);
            /* and with the index that goes with it, but raw_hash: the exponents of one with the mantissas of another */
            struct efs_disk_shard *c = shard_at(copy, i), *d = shard_at(copy, i + 1);
            memcpy(copy, image, image_bytes);
            if (a->e_bytes == 0 || b->e_bytes == 0 || a->sm_bytes != b->sm_bytes)
                continue;
            c->e_offset = b->e_offset, c->e_hash = b->e_hash, c->e_bytes = b->e_bytes;
            d->e_offset = a->e_offset, d->e_hash = a->e_hash, d->e_bytes = a->e_bytes;
            seal();
            snprintf(case_name, sizeof(case_name), "index of the E-chunks of shards %u and %u swapped", i, i + 1);
            if (try_copy(image_bytes, true, false) == FORGED && verify_store() != -EUCLEAN)
                fail_msg("%s: verify finds nothing wrong", case_name);
            swaps++;
        }
    print_message("sectors and pages: %u refused, %u errors, %u right; %u swaps\n", n[REFUSED], n[ERROR], n[RIGHT],
                  swaps);
    assert_true(n[REFUSED] > 0 && n[ERROR] > 0 && swaps > 0);
}

/* Chunks of another store of the same tensors, in the place of ours: as they are; and with their checksums, which
 * leaves raw_hash to tell. */
static void chunks_of_another_store(void **state)
{
    (void)state;
    unsigned wrong = 0, forged = 0;
    pack(EFS_CHOOSE_CASCADE, 16384);
    size_t theirs_bytes;
    weights_seed = 8;
    write_sources();
    fixture_pack(&model, &(struct efs_pack_options){.size = sizeof(struct efs_pack_options),
                                                    .codec = EFS_CHOOSE_CASCADE,
                                                    .shard_elements = 16384,
                                                    .force = true});
    unsigned char *theirs = fixture_read(model.store, &theirs_bytes);
    weights_seed = 7;
    write_sources();
    struct efs_disk_superblock other;
    memcpy(&other, theirs, sizeof(other));
    assert_int_equal(other.tables[EFS_TABLE_SHARDS].count, sb.tables[EFS_TABLE_SHARDS].count);
    const struct efs_disk_shard *rows =
        (const struct efs_disk_shard *)(const void *)(theirs + other.tables[EFS_TABLE_SHARDS].offset);
    for (uint32_t i = 0; i < sb.tables[EFS_TABLE_SHARDS].count; i += full_tier ? 1 : STRIDE)
        for (int sm = 0; sm < 2; sm++)
            for (int made_right = 0; made_right < 2; made_right++) {
                const struct efs_disk_shard *a = shard_at(image, i), *b = &rows[i];
                size_t room = sm ? a->sm_bytes : a->e_bytes, bytes = sm ? b->sm_bytes : b->e_bytes;
                const unsigned char *from = theirs + (sm ? b->sm_offset : b->e_offset);
                uint64_t to = sm ? a->sm_offset : a->e_offset;
                if (bytes > room)
                    bytes = room;
                if (bytes == 0 || memcmp(image + to, from, bytes) == 0)
                    continue;
                if (made_right && bytes < (sm ? b->sm_bytes : b->e_bytes))
                    continue;
                memcpy(copy, image, image_bytes);
                memcpy(copy + to, from, bytes);
                struct efs_disk_shard *c = shard_at(copy, i);
                if (made_right && sm)
                    c->sm_hash = b->sm_hash;
                else if (made_right)
                    c->e_hash = b->e_hash, c->e_bytes = b->e_bytes;
                if (made_right)
                    seal();
                snprintf(case_name, sizeof(case_name), "%s-chunk of shard %u of another store, checksum %s",
                         sm ? "SM" : "E", i, made_right ? "too" : "left");
                enum outcome outcome = try_copy(image_bytes, made_right, false);
                if (!made_right && outcome != ERROR)
                    fail_msg("%s: was not noticed", case_name);
                if (outcome == FORGED && verify_store() != -EUCLEAN)
                    fail_msg("%s: verify finds nothing wrong", case_name);
                wrong += !made_right;
                forged += outcome == FORGED;
            }
    free(theirs);
    print_message("%u chunks of another store were noticed; %u with its checksums, by verify\n", wrong, forged);
    assert_true(wrong > 0 && forged > 0);
}

/* Up to CHANGES_MOST fields or bytes at once, anywhere, checksums left or made right. */
static void many_changes(void **state)
{
    (void)state;
    static const enum efs_codec_choice choices[] = {EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4};
    unsigned n[2][OUTCOMES] = {{0}};
    const unsigned each = full_tier ? 20000 : 450 / STRIDE;
    for (size_t codec = 0; codec < SWEEP_COUNT(choices); codec++) {
        pack(choices[codec], 16384);
        for (unsigned i = 0; i < each; i++) {
            uint64_t state_of_case = seed + i, forged = i % 2;
            unsigned changes = 1 + (unsigned)(fixture_random(&state_of_case) % CHANGES_MOST);
            memcpy(copy, image, image_bytes);
            for (unsigned c = 0; c < changes; c++) {
                uint64_t where = fixture_random(&state_of_case), value = 0;
                unsigned bytes = 1u << fixture_random(&state_of_case) % 4;
                size_t first = 0, room = image_bytes; /* anywhere; or, more often, in a table or a shard's E-chunk */
                if (where % 4 == 1) {
                    const struct efs_disk_table *t = &sb.tables[where / 4 % EFS_TABLE_COUNT];
                    first = t->offset, room = t->bytes;
                } else if (where % 4 > 1) {
                    const struct efs_disk_shard *s =
                        shard_at(image, (uint32_t)(where / 4 % sb.tables[EFS_TABLE_SHARDS].count));
                    first = s->e_offset, room = s->e_bytes < 256 ? s->e_bytes : 256;
                }
                if (room < 8)
                    continue;
                size_t at = first + fixture_random(&state_of_case) % (room - 7);
                memcpy(&value, copy + at, bytes);
                value = sweep_changed(value, bytes, (unsigned)(fixture_random(&state_of_case) % SWEEP_CHANGES),
                                      fixture_random(&state_of_case));
                memcpy(copy + at, &value, bytes);
            }
            for (uint32_t s = 0; forged && s < sb.tables[EFS_TABLE_SHARDS].count; s++) {
                struct efs_disk_shard *d = shard_at(copy, s); /* what it names may be anywhere by now */
                if (d->e_offset <= image_bytes && d->e_bytes <= image_bytes - d->e_offset)
                    d->e_hash = efs_hash(copy + d->e_offset, d->e_bytes);
                if (d->sm_offset <= image_bytes && d->sm_bytes <= image_bytes - d->sm_offset)
                    d->sm_hash = efs_hash(copy + d->sm_offset, d->sm_bytes);
            }
            if (forged)
                seal();
            snprintf(case_name, sizeof(case_name), "%u changes, codec %zu, case %u, SEED=%llu", changes, codec, i,
                     (unsigned long long)seed);
            n[forged][try_copy(image_bytes, forged, false)]++;
        }
    }
    for (int forged = 0; forged < 2; forged++)
        print_message("many changes, checksums %s: %u refused, %u errors, %u right, %u other bytes\n",
                      forged ? "made right" : "left", n[forged][REFUSED], n[forged][ERROR], n[forged][RIGHT],
                      n[forged][FORGED]);
    print_message("%lu stores were tried\n", tried);
    assert_int_equal(n[0][FORGED], 0);
}

static int setup(void **state)
{
    (void)state;
    fixture_begin(&model);
    write_sources();
    fixture_file(&model, "config.json", "{\"model_type\": \"qwen3_moe\"}\n", 28);
    fixture_file(&model, "sub/empty.txt", "", 0);
    char path[400];
    snprintf(path, sizeof(path), "%s/model.safetensors", model.source);
    free(fixture_read(path, &file_size));
    buffer = malloc(ROOM);
    assert_true(buffer && efs_team_new(2, &team) == 0);
    uint64_t random = 1;
    for (unsigned i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(fixture_random(&random) % 2000) / 1000.0f - 1.0f;
    const char *tier = getenv("EXPERTFS_SWEEP");
    full_tier = tier && strcmp(tier, "full") == 0;
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 10) : 1;
    signal(SIGALRM, on_alarm);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    alarm(0);
    efs_team_free(team);
    fixture_end(&model);
    free(image);
    free(copy);
    free(buffer);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest fields[] = {
        cmocka_unit_test(superblock_and_tables),
        cmocka_unit_test(cascade_chunks),
        cmocka_unit_test(other_chunks),
    };
    const struct CMUnitTest tests[] = {
        fields[0],
        fields[1],
        fields[2],
        cmocka_unit_test(cut_at_tables),
        cmocka_unit_test(sectors_and_swaps),
        cmocka_unit_test(chunks_of_another_store),
        cmocka_unit_test(many_changes),
    };
    sample_directory = argc > 1 ? argv[1] : NULL;
    return sample_directory ? cmocka_run_group_tests(fields, setup, teardown)
                            : cmocka_run_group_tests(tests, setup, teardown);
}
