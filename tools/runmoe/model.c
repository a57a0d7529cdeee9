/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - what a model is made of: config.json and the tensors of its safetensors files, read once, but for experts:
 * these stay in the library until a layer asks for them. */
#include "model.h"

#include "expertfs-private.h"
#include "read_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (4u << 20)
#define NO_LAYER UINT32_MAX

/* ---- files of a store or a mount ---- */

/* A file that is open: of the store in this process, or of the mount. */
struct source {
    struct efs *fs;
    uint32_t file;
    struct efs_stream *stream;
    int fd;
    uint64_t bytes;
};

static errint_t source_open_file(const struct model *m, const char *path, struct source *s, struct efs_error *err)
{
    char whole[PATH_MAX];
    struct stat st;
    snprintf(whole, sizeof(whole), "%s/%s", m->mountpoint, path);
    s->fd = open(whole, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return efs_fail(err, -errno, "%s: %s", whole, strerror(errno));
    s->bytes = (uint64_t)st.st_size;
    return 0;
}

static errint_t source_open(const struct model *m, const char *path, struct source *s, struct efs_error *err)
{
    struct efs_file_info info;
    *s = (struct source){.fs = m->fs, .fd = -1};
    if (!m->fs)
        return source_open_file(m, path, s, err);
    while (s->file < efs_file_count(m->fs) &&
           (efs_file_info(m->fs, s->file, &info, sizeof(info)) < 0 || strcmp(info.path, path) != 0))
        s->file++;
    if (s->file == efs_file_count(m->fs))
        return efs_fail(err, -ENOENT, "the store has no %s", path);
    s->bytes = info.bytes;
    return efs_stream_new(m->fs, EFS_STREAM_SEQUENTIAL, &s->stream) < 0 ? efs_fail(err, -ENOMEM, "no memory") : 0;
}

static void source_close(struct source *s)
{
    efs_stream_free(s->stream);
    if (s->fd >= 0)
        close(s->fd);
}

/* All of these bytes. */
static errint_t source_read(const struct source *s, uint64_t offset, uint8_t *to, size_t bytes)
{
    if (s->fs)
        return tools_read_wait(s->fs, s->file, s->stream, offset, to, bytes);
    for (ssize_t got; bytes; offset += (uint64_t)got, to += got, bytes -= (size_t)got) {
        got = pread(s->fd, to, bytes, (off_t)offset);
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
    }
    return 0;
}

/* All of a file, into memory that the caller frees. */
static errint_t read_file(const struct model *m, const char *path, void **data, uint64_t *bytes, struct efs_error *err)
{
    struct source s;
    errint_t rc = source_open(m, path, &s, err);
    uint8_t *to = rc == 0 ? malloc(s.bytes + 1) : NULL;
    if (rc == 0 && !to)
        rc = efs_fail(err, -ENOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)s.bytes);
    for (uint64_t at = 0; rc == 0 && at < s.bytes; at += READ_BYTES) {
        rc = source_read(&s, at, to + at, s.bytes - at < READ_BYTES ? (size_t)(s.bytes - at) : READ_BYTES);
        if (rc < 0)
            efs_fail(err, rc, "%s at %llu: %s", path, (unsigned long long)at, strerror(-rc));
    }
    source_close(&s);
    if (rc < 0) {
        free(to);
        return rc;
    }
    *data = to;
    *bytes = s.bytes;
    return 0;
}

/* ---- tensors ---- */

static errint_t tensor_at(const void *data, uint64_t bytes, const json_t *entry, struct matrix *matrix)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t rows = 1, columns = (uint64_t)json_integer_value(json_array_get(shape, json_array_size(shape) - 1));
    if (json_array_size(shape) == 2)
        rows = (uint64_t)json_integer_value(json_array_get(shape, 0));
    else if (json_array_size(shape) != 1)
        return -EUCLEAN;
    uint64_t first = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    matrix->bf16 = dtype && strcmp(dtype, "BF16") == 0;
    if (!dtype || (!matrix->bf16 && strcmp(dtype, "F32") != 0) || rows != matrix->rows || columns != matrix->columns)
        return -EUCLEAN;
    if (first > bytes || rows * columns * (matrix->bf16 ? 2 : 4) > bytes - first)
        return -EUCLEAN;
    matrix->data = (const uint8_t *)data + first;
    return 0;
}

static errint_t tensor_find(const void *data, uint64_t bytes, const json_t *tensors, const char *name, uint32_t rows,
                            uint32_t columns, struct matrix *matrix, struct efs_error *err)
{
    const json_t *entry = json_object_get(tensors, name);
    *matrix = (struct matrix){.rows = rows, .columns = columns};
    if (!entry)
        return efs_fail(err, -ENOENT, "the model has no tensor %s", name);
    if (tensor_at(data, bytes, entry, matrix) < 0)
        return efs_fail(err, -EUCLEAN, "%s: should be %u x %u of BF16 or F32", name, rows, columns);
    return 0;
}

/* ---- weights ---- */

/* The tensors while the layers are put together. The first error stays. */
struct loader {
    struct model *model;
    json_t *tensors; /* as in a safetensors header; data_offsets are into model->dense */
    json_t *left;    /* {name: true}: those that nothing has taken yet */
    errint_t rc;
    struct efs_error *err;
};

static struct matrix loader_take(struct loader *l, uint32_t layer, const char *tensor, uint32_t rows, uint32_t columns)
{
    char name[256];
    struct matrix matrix = {0};
    if (layer == NO_LAYER)
        snprintf(name, sizeof(name), "%s", tensor);
    else
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, tensor);
    if (l->rc == 0)
        l->rc = tensor_find(l->model->dense, l->model->dense_bytes, l->tensors, name, rows, columns, &matrix, l->err);
    json_object_del(l->left, name);
    return matrix;
}

/* A vector as floats, owned. */
static float *loader_take_vector(struct loader *l, uint32_t layer, const char *tensor, uint32_t count)
{
    struct matrix matrix = loader_take(l, layer, tensor, 1, count);
    float *vector = l->rc == 0 ? calloc(count, sizeof(*vector)) : NULL;
    if (vector)
        matrix_row(&matrix, 0, vector);
    else if (l->rc == 0)
        l->rc = -ENOMEM;
    return vector;
}

static void loader_take_layer(struct loader *l, uint32_t n)
{
    const struct config *c = &l->model->config;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    bool bias = c->attention_bias;
    l->model->layers[n] = (struct layer){
        .attention_norm = loader_take_vector(l, n, "input_layernorm.weight", c->hidden),
        .q_norm = loader_take_vector(l, n, "self_attn.q_norm.weight", c->head_dim),
        .k_norm = loader_take_vector(l, n, "self_attn.k_norm.weight", c->head_dim),
        .ffn_norm = loader_take_vector(l, n, "post_attention_layernorm.weight", c->hidden),
        .q_bias = bias ? loader_take_vector(l, n, "self_attn.q_proj.bias", q) : NULL,
        .k_bias = bias ? loader_take_vector(l, n, "self_attn.k_proj.bias", kv) : NULL,
        .v_bias = bias ? loader_take_vector(l, n, "self_attn.v_proj.bias", kv) : NULL,
        .o_bias = bias ? loader_take_vector(l, n, "self_attn.o_proj.bias", c->hidden) : NULL,
        .q = loader_take(l, n, "self_attn.q_proj.weight", q, c->hidden),
        .k = loader_take(l, n, "self_attn.k_proj.weight", kv, c->hidden),
        .v = loader_take(l, n, "self_attn.v_proj.weight", kv, c->hidden),
        .o = loader_take(l, n, "self_attn.o_proj.weight", c->hidden, q),
        .router = loader_take(l, n, "mlp.gate.weight", c->experts, c->hidden),
    };
}

/* A matrix of an expert that the router can choose. */
static bool is_expert_matrix(const struct config *c, const char *name)
{
    uint32_t layer, expert;
    int end = 0;
    if (sscanf(name, "model.layers.%" SCNu32 ".mlp.experts.%" SCNu32 ".%n", &layer, &expert, &end) != 2 || !end)
        return false;
    const char *matrix = name + end;
    return layer < c->layers && expert < c->experts &&
           (strcmp(matrix, "gate_proj.weight") == 0 || strcmp(matrix, "up_proj.weight") == 0 ||
            strcmp(matrix, "down_proj.weight") == 0);
}

/* Takes the experts that the router can choose; those of a mount are checked when they are asked for. */
static errint_t take_experts(struct loader *l)
{
    const struct config *c = &l->model->config;
    uint64_t found = 0;
    struct efs_expert_id id;
    for (uint32_t n = 0; l->model->fs && n < c->layers; n++)
        for (uint32_t e = 0; e < c->experts; e++)
            found += efs_expert_find(l->model->fs, "", n, e, &id) == 0;
    if (l->model->fs && found != (uint64_t)c->layers * c->experts)
        return efs_fail(l->err, -EINVAL, "the store has %llu experts, %u layers of %u are needed",
                        (unsigned long long)found, c->layers, c->experts);
    return 0;
}

/* A tensor that nothing takes is a part of the model that would be left out of what is run. */
static errint_t check_left(const struct loader *l, const struct ignored *ignored)
{
    struct names names = {.count = 0};
    const char *name;
    json_t *value;
    json_object_foreach(l->left, name, value) if (!is_ignored(ignored, name)) names_add(&names, name);
    names_end(&names);
    return names.count ? efs_fail(l->err, -EINVAL,
                                  "tensors that qwen3_moe has no use for: %s; --ignore NAME runs without", names.text)
                       : 0;
}

#define INDEX_NAME "model.safetensors.index.json"
#define ALIGN 64u /* of a tensor in memory */

/* {path: true} of the files that have the tensors: those of the index, or the only one. NULL: with err. */
static json_t *weight_files(const struct model *m, struct efs_error *err)
{
    void *text = NULL;
    uint64_t bytes = 0;
    json_t *files = json_object();
    errint_t rc = read_file(m, INDEX_NAME, &text, &bytes, err);
    if (rc == -ENOENT) {
        json_object_set_new(files, "model.safetensors", json_true());
        return files;
    }
    const char *name;
    json_t *root = rc < 0 ? NULL : efs_json_python(text, bytes, err), *file;
    json_object_foreach(json_object_get(root, "weight_map"), name, file) if (json_is_string(file))
        json_object_set_new(files, json_string_value(file), json_true());
    free(text);
    json_decref(root);
    if (!root) {
        json_decref(files);
        return NULL;
    }
    return files;
}

/* The header of a safetensors file, and where its data begins. */
static json_t *header_read(const struct source *s, const char *path, uint64_t *begin, struct efs_error *err)
{
    uint64_t length = 0;
    json_t *header = NULL;
    errint_t rc = s->bytes < 8 ? -EUCLEAN : source_read(s, 0, (uint8_t *)&length, 8);
    char *text = rc == 0 && length <= s->bytes - 8 ? malloc(length + 1) : NULL;
    if (text && source_read(s, 8, (uint8_t *)text, length) == 0)
        header = json_loadb(text, length, 0, NULL);
    free(text);
    *begin = 8 + length;
    if (!header)
        efs_fail(err, -EUCLEAN, "%s: cannot be read as safetensors", path);
    return header;
}

/* Note the tensors of a file that are no expert's, with their places in the file and in memory. */
static errint_t loader_note(struct loader *l, const char *path)
{
    struct model *m = l->model;
    struct source s;
    uint64_t begin = 0;
    errint_t rc = source_open(m, path, &s, l->err);
    json_t *header = rc == 0 ? header_read(&s, path, &begin, l->err) : NULL, *entry;
    const char *name;
    rc = rc == 0 && !header ? -EUCLEAN : rc;
    json_object_foreach(header, name, entry)
    {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        uint64_t first = (uint64_t)json_integer_value(json_array_get(offsets, 0)),
                 end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
        if (rc < 0 || strcmp(name, "__metadata__") == 0 || is_expert_matrix(&m->config, name))
            continue;
        if (first > end || end > s.bytes - begin) {
            rc = efs_fail(l->err, -EUCLEAN, "%s: %s: lies behind the end of the file", path, name);
            continue;
        }
        uint64_t at = (m->dense_bytes + ALIGN - 1) / ALIGN * ALIGN;
        m->dense_bytes = at + end - first;
        json_object_set_new(entry, "file", json_string(path));
        json_object_set_new(entry, "first", json_integer((json_int_t)(begin + first)));
        json_object_set_new(entry, "data_offsets", json_pack("[I, I]", (json_int_t)at, (json_int_t)m->dense_bytes));
        json_object_set(l->tensors, name, entry);
        json_object_set_new(l->left, name, json_true());
    }
    json_decref(header);
    source_close(&s);
    return rc;
}

/* Read the tensors that are noted, file by file. */
static errint_t loader_fill(struct loader *l)
{
    struct source s = {.fd = -1};
    const char *name, *opened = "";
    json_t *entry;
    errint_t rc = 0;
    json_object_foreach(l->tensors, name, entry)
    {
        const char *path = json_string_value(json_object_get(entry, "file"));
        const json_t *places = json_object_get(entry, "data_offsets");
        uint64_t first = (uint64_t)json_integer_value(json_object_get(entry, "first")),
                 begin = (uint64_t)json_integer_value(json_array_get(places, 0)),
                 end = (uint64_t)json_integer_value(json_array_get(places, 1));
        if (strcmp(path, opened) != 0) {
            source_close(&s);
            rc = source_open(l->model, path, &s, l->err);
            opened = path;
        }
        if (rc < 0)
            break;
        for (uint64_t at = begin; rc == 0 && at < end; at += READ_BYTES)
            rc = source_read(&s, first + (at - begin), (uint8_t *)l->model->dense + at,
                             end - at < READ_BYTES ? end - at : READ_BYTES);
        if (rc < 0) {
            efs_fail(l->err, rc, "%s: %s: %s", path, name, strerror(-rc));
            break;
        }
    }
    source_close(&s);
    return rc;
}

/* All tensors but the experts' into memory. */
static errint_t loader_read(struct loader *l)
{
    json_t *files = weight_files(l->model, l->err), *value;
    const char *path;
    errint_t rc = files ? 0 : -EUCLEAN;
    json_object_foreach(files, path, value) rc = rc < 0 ? rc : loader_note(l, path);
    json_decref(files);
    if (rc == 0 && !(l->model->dense = aligned_alloc(ALIGN, (l->model->dense_bytes / ALIGN + 1) * ALIGN)))
        rc = efs_fail(l->err, -ENOMEM, "no memory for %llu bytes", (unsigned long long)l->model->dense_bytes);
    return rc == 0 ? loader_fill(l) : rc;
}

static errint_t model_load_all(struct model *m, const struct ignored *ignored, struct efs_error *err)
{
    void *text = NULL;
    uint64_t bytes = 0;
    errint_t rc = read_file(m, "config.json", &text, &bytes, err);
    if (rc == 0)
        rc = config_parse(text, bytes, ignored, &m->config, err);
    free(text);
    if (rc < 0)
        return rc;
    struct loader l = {.model = m, .tensors = json_object(), .left = json_object(), .err = err};
    m->layers = calloc(m->config.layers, sizeof(*m->layers));
    l.rc = m->layers ? loader_read(&l) : -ENOMEM;
    m->embedding = loader_take(&l, NO_LAYER, "model.embed_tokens.weight", m->config.vocab, m->config.hidden);
    m->head =
        m->config.tied ? m->embedding : loader_take(&l, NO_LAYER, "lm_head.weight", m->config.vocab, m->config.hidden);
    m->final_norm = loader_take_vector(&l, NO_LAYER, "model.norm.weight", m->config.hidden);
    for (uint32_t n = 0; m->layers && n < m->config.layers; n++)
        loader_take_layer(&l, n);
    if (l.rc == 0)
        l.rc = take_experts(&l);
    if (l.rc == 0)
        l.rc = check_left(&l, ignored);
    json_decref(l.tensors);
    json_decref(l.left);
    return l.rc;
}

/* The dense weights will be in memory, too. */
static errint_t reserve_dense(const char *store, struct efs_options *options, struct efs_error *err)
{
    struct efs_store *looked;
    struct efs_store_info info;
    errint_t rc = efs_store_open(store, &looked, err);
    if (rc < 0)
        return rc;
    efs_store_info(looked, &info, sizeof(info));
    options->reserved_bytes = info.source_bytes - info.expert_raw_bytes;
    efs_store_close(looked);
    return 0;
}

errint_t model_open(const char *path, struct efs_options *options, const struct ignored *ignored, struct model *model,
                    struct efs_error *err)
{
    struct stat st;
    memset(model, 0, sizeof(*model));
    bool mount = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    errint_t rc = mount ? 0 : reserve_dense(path, options, err);
    const struct efs_client_options how = {
        .size = sizeof(struct efs_client_options), .store = options, .keep_bytes = EFS_KEEP_AUTO};
    if (rc == 0)
        rc = efs_client_open(path, &how, &model->client, err);
    if (rc == 0) {
        model->fs = efs_client_fs(model->client);
        model->mountpoint = path;
        rc = model_load_all(model, ignored, err);
    }
    if (rc < 0)
        model_close(model);
    return rc;
}

void model_close(struct model *m)
{
    for (uint32_t n = 0; m->layers && n < m->config.layers; n++) {
        free(m->layers[n].attention_norm);
        free(m->layers[n].q_norm);
        free(m->layers[n].k_norm);
        free(m->layers[n].ffn_norm);
        free(m->layers[n].q_bias);
        free(m->layers[n].k_bias);
        free(m->layers[n].v_bias);
        free(m->layers[n].o_bias);
    }
    free(m->layers);
    free(m->final_norm);
    free(m->dense);
    efs_client_close(m->client);
    memset(m, 0, sizeof(*m));
}
