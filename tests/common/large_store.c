/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large_store.c - see large_store.h. Runs the packer's plan, encoder and index on a catalogue without files; this file
 * generates the bytes that the packer would read from the sources.
 */
#include "large_store.h"

#include "hash.h"
#include "kernels.h"
#include "pack.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MATRICES 3u

struct making {
    const struct large_store *store;
    struct efs_catalog catalog;
    char **headers; /* of each file: its header, or all of config.json */
    uint64_t *header_bytes;
    struct efs_index plan;
    struct efs_store_writer writer;
    struct efs_codec_scratch *scratch;
    double *entropy_bits;
    uint8_t *raw, *chunks;
};

/* ---- weights --------------------------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Exponents that halve in frequency below 2^-6, all signs and mantissas: similar to trained weights. */
static void fill_bf16(uint64_t seed, size_t elements, uint16_t *out)
{
    uint64_t key = mixed(seed + 1);
    for (size_t i = 0; i < elements; i++) {
        uint64_t r = mixed(key + i * UINT64_C(0x9e3779b97f4a7c15));
        unsigned exponent = 121u - (unsigned)__builtin_ctzll(r | 1u << 20);
        out[i] = (uint16_t)((r >> 56 & 0x80u) << 8 | exponent << 7 | (r >> 32 & 0x7fu));
    }
}

uint64_t large_store_matrix_bytes(const struct large_store *store)
{
    return (uint64_t)store->hidden * store->inner * 2;
}

void large_store_matrix(const struct large_store *store, uint32_t layer, uint32_t expert, uint32_t matrix, void *out)
{
    uint64_t distinct = ((uint64_t)layer * store->experts + expert) % store->distinct;
    fill_bf16(distinct * MATRICES + matrix, (size_t)store->hidden * store->inner, out);
}

/* ---- catalogue without files ------------------------------------------------------------------------------------- */

/* Aborts if the allocation failed. */
static void *must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static char *text_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *text_of(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    return must(text);
}

static struct efs_source_file *add_file(struct making *m)
{
    struct efs_catalog *c = &m->catalog;
    c->files[c->file_count] = (struct efs_source_file){.has_tensors = true};
    return &c->files[c->file_count++];
}

/* offset is relative to the file's data; put_header() adds the size of the header. */
static void add_tensor(struct making *m, char *name, uint64_t rows, uint64_t columns, uint32_t expert)
{
    struct efs_catalog *c = &m->catalog;
    uint64_t bytes = rows * columns * 2;
    if (c->files[c->file_count - 1].bytes + bytes > m->store->file_bytes)
        add_file(m);
    struct efs_source_file *file = &c->files[c->file_count - 1];
    c->tensors[c->tensor_count++] = (struct efs_source_tensor){
        .name = name,
        .dtype = EFS_DTYPE_BF16,
        .tensor_class = expert == EFS_NONE ? EFS_CLASS_DENSE : EFS_CLASS_EXPERT,
        .file = (uint32_t)c->file_count - 1,
        .dims = rows == 1 ? 1 : 2,
        .shape = {rows == 1 ? columns : rows, rows == 1 ? 0 : columns},
        .offset = file->bytes,
        .bytes = bytes,
        .expert_first = expert == EFS_NONE ? 0 : expert,
    };
    file->bytes += bytes;
}

#define LAYER_TENSORS(experts) (3u + MATRICES * (experts))

static void add_layer(struct making *m, uint32_t layer)
{
    static const char *const names[MATRICES] = {"gate", "up", "down"};
    const struct large_store *s = m->store;
    add_tensor(m, text_of("model.layers.%u.input_layernorm.weight", layer), 1, s->hidden, EFS_NONE);
    add_tensor(m, text_of("model.layers.%u.mlp.gate.weight", layer), s->experts, s->hidden, EFS_NONE);
    for (uint32_t e = 0; e < s->experts; e++)
        for (uint32_t p = 0; p < MATRICES; p++)
            add_tensor(m, text_of("model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, e, names[p]),
                       p < 2 ? s->inner : s->hidden, p < 2 ? s->hidden : s->inner, layer * s->experts + e);
    add_tensor(m, text_of("model.layers.%u.post_attention_layernorm.weight", layer), 1, s->hidden, EFS_NONE);
}

/* Write the header of a file with tensors [first, end) and make their offsets relative to the start of the file. */
static void put_header(struct making *m, uint32_t file, size_t first, size_t end)
{
    struct efs_catalog *c = &m->catalog;
    size_t room = 64 + (end - first) * 256, used = 8;
    char *text = must(calloc(room, 1));
    used += (size_t)snprintf(text + used, room - used, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t t = first; t < end; t++) {
        const struct efs_source_tensor *x = &c->tensors[t];
        char shape[64];
        snprintf(shape, sizeof(shape), x->dims == 1 ? "%" PRIu64 : "%" PRIu64 ",%" PRIu64, x->shape[0], x->shape[1]);
        used +=
            (size_t)snprintf(text + used, room - used,
                             ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                             x->name, shape, x->offset, x->offset + x->bytes);
    }
    text[used++] = '}';
    while (used % 8)
        text[used++] = ' ';
    uint64_t length = used - 8;
    memcpy(text, &length, 8);
    for (size_t t = first; t < end; t++)
        c->tensors[t].offset += used;
    c->files[file].bytes += used;
    m->headers[file] = text;
    m->header_bytes[file] = used;
}

/* Name the files and write the headers of those with tensors. config.json is first in the order of names. */
static void name_files(struct making *m)
{
    struct efs_catalog *c = &m->catalog;
    c->files[0].path = text_of("config.json");
    for (uint32_t f = 1, first = 0, at = 0; f < c->file_count; f++, first = at) {
        c->files[f].path = text_of("model-%05u-of-%05zu.safetensors", f, c->file_count - 1);
        while (at < c->tensor_count && c->tensors[at].file == f)
            at++;
        put_header(m, f, first, at);
    }
}

static void make_catalog(struct making *m)
{
    const struct large_store *s = m->store;
    struct efs_catalog *c = &m->catalog;
    const size_t tensors = (size_t)s->layers * LAYER_TENSORS(s->experts), files = tensors + 2; /* at most */
    c->tensors = must(calloc(tensors, sizeof(*c->tensors)));
    c->files = must(calloc(files, sizeof(*c->files)));
    c->experts = must(calloc((size_t)s->layers * s->experts, sizeof(*c->experts)));
    m->headers = must(calloc(files, sizeof(*m->headers)));
    m->header_bytes = must(calloc(files, sizeof(*m->header_bytes)));
    c->family = text_of("qwen-moe");
    c->root = text_of("large");
    m->headers[0] = text_of("{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "
                            "\"hidden_size\": %u, \"moe_intermediate_size\": %u, \"num_experts\": %u, "
                            "\"num_hidden_layers\": %u}\n",
                            s->hidden, s->inner, s->experts, s->layers);
    m->header_bytes[0] = strlen(m->headers[0]);
    *add_file(m) = (struct efs_source_file){.bytes = m->header_bytes[0]};
    add_file(m);
    for (uint32_t l = 0; l < s->layers; l++) {
        for (uint32_t e = 0; e < s->experts; e++)
            c->experts[c->expert_count++] =
                (struct efs_source_expert){.stack = text_of("%s", ""), .layer = l, .expert = e};
        add_layer(m, l);
    }
    name_files(m);
}

/* ---- chunks ---------------------------------------------------------------------------------------------------- */

/* Write the raw bytes of an object to m->raw. */
static void fill_object(struct making *m, uint32_t object)
{
    const struct efs_disk_object *o = &m->plan.objects[object];
    const struct efs_disk_group *g = &m->plan.groups[o->group];
    if (g->kind == EFS_GROUP_BLOB)
        memcpy(m->raw, m->headers[m->plan.origins[object].file] + m->plan.origins[object].offset, (size_t)o->bytes);
    else if (g->kind == EFS_GROUP_EXPERT)
        large_store_matrix(m->store, g->layer, g->expert, object - g->object_first, m->raw);
    else
        fill_bf16(~(uint64_t)object, (size_t)o->bytes / 2, (uint16_t *)(void *)m->raw);
}

static errint_t write_chunk(struct making *m, const uint8_t *chunk, size_t bytes, uint64_t *offset, uint64_t *hash,
                            struct efs_error *err)
{
    *offset = bytes ? m->writer.offset : 0;
    *hash = bytes ? efs_hash(chunk, bytes) : 0;
    return bytes ? efs_store_writer_append(&m->writer, chunk, bytes, err) : 0;
}

/* Code a group and append its chunks: all E-chunks, then all SM-chunks. */
static errint_t write_group(struct making *m, uint32_t group, struct efs_error *err)
{
    struct efs_index *plan = &m->plan;
    const struct efs_disk_group *g = &plan->groups[group];
    size_t e_at = 0, sm_at = 0, half = (size_t)EFS_RUN_BYTES + (4u << 20);
    errint_t rc = 0;
    for (uint32_t o = g->object_first; o < g->object_first + g->object_count; o++) {
        const struct efs_disk_object *x = &plan->objects[o];
        size_t width = efs_format_bytes((enum efs_format)x->format);
        fill_object(m, o);
        for (uint32_t s = x->shard_first; s < x->shard_first + x->shard_count; s++) {
            struct efs_disk_shard *shard = &plan->shards[s];
            size_t elements = efs_index_shard_elements(plan, o, s);
            const uint8_t *raw = m->raw + (size_t)(s - x->shard_first) * plan->shard_elements * width;
            struct efs_shard_coded coded;
            rc = efs_shard_encode((enum efs_format)x->format, EFS_CHOOSE_CASCADE, raw, elements, m->chunks + e_at,
                                  m->chunks + half + sm_at, &coded, m->scratch);
            if (rc < 0)
                return efs_fail(err, rc, "cannot code: %s", strerror(-rc));
            *shard = (struct efs_disk_shard){.e_bytes = (uint32_t)coded.e_bytes,
                                             .sm_bytes = (uint32_t)coded.sm_bytes,
                                             .codec = coded.codec,
                                             .raw_hash = efs_hash(raw, elements * width)};
            e_at += coded.e_bytes;
            sm_at += coded.sm_bytes;
        }
    }
    e_at = sm_at = 0;
    uint32_t first = plan->objects[g->object_first].shard_first;
    const struct efs_disk_object *last = &plan->objects[g->object_first + g->object_count - 1];
    uint32_t end = last->shard_first + last->shard_count;
    for (uint32_t s = first; s < end && rc == 0; s++) {
        struct efs_disk_shard *x = &plan->shards[s];
        rc = write_chunk(m, m->chunks + e_at, x->e_bytes, &x->e_offset, &x->e_hash, err);
        e_at += x->e_bytes;
    }
    for (uint32_t s = first; s < end && rc == 0; s++) {
        struct efs_disk_shard *x = &plan->shards[s];
        rc = write_chunk(m, m->chunks + half + sm_at, x->sm_bytes, &x->sm_offset, &x->sm_hash, err);
        sm_at += x->sm_bytes;
    }
    return rc;
}

/* Give the shards of group the chunks of the group that was coded. */
static void share(struct efs_index *plan, uint32_t group, uint32_t coded)
{
    const struct efs_disk_group *a = &plan->groups[group], *b = &plan->groups[coded];
    for (uint32_t o = 0; o < a->object_count; o++) {
        const struct efs_disk_object *x = &plan->objects[a->object_first + o], *y = &plan->objects[b->object_first + o];
        memcpy(&plan->shards[x->shard_first], &plan->shards[y->shard_first], x->shard_count * sizeof(plan->shards[0]));
    }
}

/* Pad to a page; if `place` is further, leave a hole up to the page boundary at or after it. */
static errint_t go_to(struct making *m, uint64_t place, struct efs_error *err)
{
    errint_t rc = efs_store_writer_page(&m->writer, err);
    if (rc == 0 && efs_page_up(place) > m->writer.offset)
        rc = efs_store_writer_hole(&m->writer, efs_page_up(place), err);
    return rc;
}

static errint_t write_groups(struct making *m, struct efs_error *err)
{
    const struct large_store *s = m->store;
    uint64_t all = (uint64_t)s->layers * s->experts, distinct = s->distinct < all ? s->distinct : all, begin = 0;
    uint64_t spread = s->spread_bytes;
    errint_t rc = 0;
    for (uint32_t g = 0; g < distinct && rc == 0; g++) {
        if (g == 1 && spread == 0) /* default: the size of the first expert's chunks, times all experts */
            spread = (m->writer.offset - begin) * all;
        begin = g ? begin : m->writer.offset;
        rc = go_to(m, begin + spread / distinct * g, err);
        if (rc == 0)
            rc = write_group(m, g, err);
    }
    for (uint64_t g = distinct; g < all; g++)
        share(&m->plan, (uint32_t)g, (uint32_t)(g % distinct));
    if (rc == 0)
        rc = go_to(m, begin + spread, err);
    for (uint32_t g = (uint32_t)all; g < m->plan.group_count && rc == 0; g++)
        rc = write_group(m, g, err);
    return rc;
}

static size_t largest_object(const struct efs_index *plan)
{
    uint64_t most = 1;
    for (uint32_t o = 0; o < plan->object_count; o++)
        most = plan->objects[o].bytes > most ? plan->objects[o].bytes : most;
    return (size_t)most;
}

static errint_t write_store(struct making *m, const char *path, struct efs_error *err)
{
    struct efs_pack_report *report = must(calloc(1, sizeof(*report)));
    size_t matrix = (size_t)large_store_matrix_bytes(m->store);
    make_catalog(m);
    errint_t rc = efs_index_plan(&m->plan, &m->catalog, EFS_CHOOSE_CASCADE, EFS_SHARD_ELEMENTS_DEFAULT, err);
    if (rc == 0 && (matrix * MATRICES > EFS_RUN_BYTES || largest_object(&m->plan) > EFS_RUN_BYTES))
        rc = efs_fail(err, -E2BIG, "%s: an expert and a file's header may take %u MiB", path, EFS_RUN_BYTES >> 20);
    if (rc == 0) {
        m->raw = must(malloc(largest_object(&m->plan) + matrix));
        m->chunks = must(malloc(2 * ((size_t)EFS_RUN_BYTES + (4u << 20))));
        m->entropy_bits = must(calloc(m->plan.object_count, sizeof(double)));
        if (efs_codec_scratch_new(EFS_SHARD_ELEMENTS_DEFAULT, &m->scratch) < 0)
            abort();
        rc = efs_store_writer_open(&m->writer, path, true, err);
    }
    if (rc == 0)
        rc = write_groups(m, err);
    if (rc == 0) {
        efs_pack_report(&m->plan, m->entropy_bits, report);
        rc = efs_pack_index(&m->plan, &m->writer, report, err);
    }
    if (rc == 0)
        rc = efs_store_writer_commit(&m->writer, err);
    free(report);
    return rc;
}

errint_t large_store_write(const char *path, const struct large_store *store, struct efs_error *err)
{
    struct making m = {.store = store, .writer = {.dir = -1, .file = {.fd = -1}}};
    if (store->layers == 0 || store->experts == 0 || store->distinct == 0 || store->hidden == 0 || store->inner == 0 ||
        (uint64_t)store->layers * store->experts > 1u << 24)
        return efs_fail(err, -EINVAL, "%s: no such checkpoint", path);
    errint_t rc = write_store(&m, path, err);
    efs_store_writer_close(&m.writer);
    for (size_t f = 0; f < m.catalog.file_count; f++)
        free(m.headers[f]);
    free(m.headers);
    free(m.header_bytes);
    efs_catalog_free(&m.catalog);
    efs_index_free(&m.plan);
    efs_codec_scratch_free(m.scratch);
    free(m.entropy_bits);
    free(m.raw);
    free(m.chunks);
    return rc;
}
