/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - loads a model: config.json and all tensors of its safetensors files except experts, which the library reads
 * when a layer requests them. */
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
#define ALIGN 64u /* alignment of a tensor in memory */

/* ---- files of a store or a mount ---- */

/* An open file of the store, if fs is set, or of the mount. */
struct source {
    struct efs *fs;
    uint32_t file;
    struct efs_stream *stream;
    int fd;
    uint64_t bytes;
    char path[PATH_MAX]; /* "": no file is open */
};

static void source_close(struct source *s)
{
    if (s->fd >= 0)
        close(s->fd);
    efs_stream_free(s->stream);
    *s = (struct source){.fd = -1};
}

/* Opens a file and closes the previous one; does nothing if it is open already. -ENOENT: no such file. */
static errint_t source_open(const struct model *m, const char *path, struct source *s, struct efs_error *err)
{
    char whole[2 * PATH_MAX];
    struct efs_file_info info;
    struct stat st;
    if (strcmp(s->path, path) == 0)
        return 0;
    source_close(s);
    s->fs = m->fs;
    if (m->fs) {
        while (s->file < efs_file_count(m->fs) &&
               (efs_file_info(m->fs, s->file, &info) < 0 || strcmp(info.path, path) != 0))
            s->file++;
        if (s->file == efs_file_count(m->fs))
            return efs_fail(err, -ENOENT, "the store has no %s", path);
        s->bytes = info.bytes;
        if (efs_stream_new(m->fs, EFS_STREAM_SEQUENTIAL, &s->stream) < 0)
            return efs_fail(err, -ENOMEM, "no memory");
    } else {
        snprintf(whole, sizeof(whole), "%s/%s", m->mountpoint, path);
        s->fd = open(whole, O_RDONLY | O_CLOEXEC);
        if (s->fd < 0 || fstat(s->fd, &st) != 0)
            return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
        s->bytes = (uint64_t)st.st_size;
    }
    snprintf(s->path, sizeof(s->path), "%s", path);
    return 0;
}

/* Reads exactly that many bytes. */
static errint_t source_read(const struct source *s, uint64_t offset, uint8_t *to, size_t bytes, struct efs_error *err)
{
    errint_t rc = 0;
    for (size_t got; rc == 0 && bytes; offset += got, to += got, bytes -= got) {
        got = bytes < READ_BYTES ? bytes : READ_BYTES;
        if (s->fs) {
            rc = tools_read_wait(s->fs, s->file, s->stream, offset, to, got);
        } else {
            ssize_t n = pread(s->fd, to, got, (off_t)offset);
            rc = n < 0 ? -errno : n == 0 ? -EIO : 0;
            got = n > 0 ? (size_t)n : 0;
        }
    }
    return rc < 0 ? efs_fail(err, rc, "%s at %llu: %s", s->path, (unsigned long long)offset, strerror(-rc)) : 0;
}

/* Reads a whole file into *text, ended by a NUL, which the caller frees even after an error. */
static errint_t source_read_file(const struct model *m, const char *path, struct source *s, char **text,
                                 struct efs_error *err)
{
    errint_t rc = source_open(m, path, s, err);
    *text = rc == 0 ? calloc(s->bytes + 1, 1) : NULL;
    if (rc == 0 && !*text)
        rc = efs_fail(err, -ENOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)s->bytes);
    return rc == 0 ? source_read(s, 0, (uint8_t *)*text, s->bytes, err) : rc;
}

/* ---- headers ---- */

/* State of loading. rc and err keep the first error; later calls do nothing then. */
struct loader {
    struct model *model;
    struct source source;
    json_t *map;     /* {tensor: file} of the index; NULL: no index */
    json_t *tensors; /* header entries of tensors not loaded yet, with "file" and "begin", the offset of the data */
    uint64_t expert_matrices; /* in the files */
    errint_t rc;
    struct efs_error *err;
};

/* The files with the tensors as {path: true}: those of the index, or model.safetensors without one. Sets l->rc and
 * l->map. */
static json_t *weight_files(struct loader *l)
{
    char *text = NULL;
    json_t *files = json_object(), *root = NULL, *file;
    const char *name;
    l->rc = source_read_file(l->model, "model.safetensors.index.json", &l->source, &text, l->err);
    if (l->rc == 0 && !(root = efs_json_python(text, l->source.bytes, l->err)))
        l->rc = -EUCLEAN;
    l->map = json_incref(json_object_get(root, "weight_map"));
    json_object_foreach(l->map, name, file) if (json_is_string(file))
        json_object_set_new(files, json_string_value(file), json_true());
    if (l->rc == -ENOENT) {
        json_object_set_new(files, "model.safetensors", json_true());
        l->rc = 0;
    }
    free(text);
    json_decref(root);
    return files;
}

/* Whether name is that of a matrix of an expert that the router can choose. */
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

/* Whether a tensor of the file is the model's: the index names the file, or no file before has the tensor. */
static bool is_of_file(const struct loader *l, const char *name, const char *path)
{
    const char *file = json_string_value(json_object_get(l->map, name));
    return file ? strcmp(file, path) == 0 : !json_object_get(l->tensors, name);
}

/* Opens a safetensors file and reads its header. NULL: l->rc is set. */
static json_t *loader_header(struct loader *l, const char *path, uint64_t *begin)
{
    uint64_t length = 0;
    char *text = NULL;
    json_t *header = NULL;
    l->rc = source_open(l->model, path, &l->source, l->err);
    if (l->rc == 0 && l->source.bytes >= 8)
        l->rc = source_read(&l->source, 0, (uint8_t *)&length, 8, l->err);
    if (l->rc == 0 && length <= l->source.bytes - 8 && (text = malloc(length + 1)) &&
        source_read(&l->source, 8, (uint8_t *)text, length, l->err) == 0)
        header = json_loadb(text, length, 0, NULL);
    if (l->rc == 0 && !header)
        l->rc = efs_fail(l->err, -EUCLEAN, "%s: cannot be read as safetensors", path);
    free(text);
    *begin = 8 + length;
    return header;
}

/* Reads a tensor of the open file; the caller frees it. NULL: it is not there, or l->rc is set. */
static uint8_t *loader_bytes(struct loader *l, const json_t *entry, uint64_t begin, size_t *bytes)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_int_t first = json_integer_value(json_array_get(offsets, 0)),
                     end = json_integer_value(json_array_get(offsets, 1));
    if (l->rc < 0 || first < 0 || end <= first || (uint64_t)end > l->source.bytes - begin)
        return NULL;
    *bytes = (size_t)(end - first);
    uint8_t *data = malloc(*bytes);
    l->rc = data ? source_read(&l->source, begin + (uint64_t)first, data, *bytes, l->err)
                 : efs_fail(l->err, -ENOMEM, "no memory for %zu bytes", *bytes);
    return data;
}

/*
 * Compares an expert's matrix of a weight file with that of the expert that the library reads: a folder may have
 * several models with the same names, and their files are chosen here by the index, when it was packed by the packer.
 * Of a file all experts are the store's or none, so one is compared.
 */
static void loader_check_expert(struct loader *l, const char *path, const char *name, const json_t *entry,
                                uint64_t begin)
{
    char expert[64];
    uint32_t layer = 0, number = 0;
    uint64_t expert_begin;
    size_t bytes = 0, expert_bytes = 0;
    sscanf(name, "model.layers.%" SCNu32 ".mlp.experts.%" SCNu32, &layer, &number);
    uint8_t *data = loader_bytes(l, entry, begin, &bytes), *expert_data = NULL;
    snprintf(expert, sizeof(expert), "experts/L%02u/E%03u.safetensors", layer, number);
    json_t *header = l->rc == 0 ? loader_header(l, expert, &expert_begin) : NULL;
    if (header)
        expert_data = loader_bytes(l, json_object_get(header, name), expert_begin, &expert_bytes);
    if (l->rc == 0 && (!data || !expert_data || bytes != expert_bytes || memcmp(data, expert_data, bytes) != 0))
        l->rc = efs_fail(l->err, -ESTALE,
                         "%s: the store has other experts\nhint: pack the files of this model without those of another",
                         path);
    json_decref(header);
    free(expert_data);
    free(data);
}

/* Adds the tensors of a file, except experts', to l->tensors. */
static void loader_add_tensors(struct loader *l, const char *path)
{
    uint64_t begin;
    const char *name, *sample = NULL;
    json_t *header = loader_header(l, path, &begin), *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0 || !is_of_file(l, name, path))
            continue;
        if (is_expert_matrix(&l->model->config, name)) {
            sample = sample ? sample : name;
            l->expert_matrices++;
            continue;
        }
        json_object_set_new(entry, "file", json_string(path));
        json_object_set_new(entry, "begin", json_integer((json_int_t)begin));
        json_object_set(l->tensors, name, entry);
    }
    if (sample && l->rc == 0)
        loader_check_expert(l, path, sample, json_object_get(header, sample), begin);
    json_decref(header);
}

/* The store may have experts of files that are not the model's: without an index, all but model.safetensors. */
static void loader_check_all_experts(struct loader *l)
{
    const struct config *c = &l->model->config;
    const uint64_t all = (uint64_t)c->layers * c->experts * 3;
    if (l->rc == 0 && l->expert_matrices < all)
        l->rc = efs_fail(l->err, -ESTALE,
                         "the model's files have %" PRIu64 " of %" PRIu64
                         " matrices of experts, the store has experts of other files\n"
                         "hint: pack the files of this model without those of another",
                         l->expert_matrices, all);
}

/* ---- weights ---- */

/* Allocates memory that model_close() frees. */
static void *loader_memory(struct loader *l, size_t bytes)
{
    struct model *m = l->model;
    void **all = reallocarray(m->weights, m->weight_count + 1, sizeof(*all));
    m->weights = all ? all : m->weights;
    void *memory = all ? aligned_alloc(ALIGN, (bytes / ALIGN + 1) * ALIGN) : NULL;
    if (memory)
        m->weights[m->weight_count++] = memory;
    else
        l->rc = efs_fail(l->err, -ENOMEM, "no memory for %zu bytes", bytes);
    return memory;
}

/* Reads a BF16 or F32 tensor of this size and removes it from l->tensors. layer NO_LAYER: tensor is the full name. */
static struct matrix loader_read(struct loader *l, uint32_t layer, const char *tensor, uint32_t rows, uint32_t columns)
{
    char name[256];
    struct matrix matrix = {.rows = rows, .columns = columns};
    if (l->rc < 0)
        return matrix;
    if (layer == NO_LAYER)
        snprintf(name, sizeof(name), "%s", tensor);
    else
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, tensor);
    json_t *entry = json_object_get(l->tensors, name), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype")),
               *file = json_string_value(json_object_get(entry, "file"));
    size_t dims = json_array_size(shape), bytes;
    if (!entry || !file) {
        l->rc = efs_fail(l->err, -ENOENT, "the model has no tensor %s", name);
        return matrix;
    }
    matrix.bf16 = dtype && strcmp(dtype, "BF16") == 0;
    bytes = (size_t)rows * columns * (matrix.bf16 ? 2 : 4);
    json_int_t first = json_integer_value(json_array_get(offsets, 0)),
               end = json_integer_value(json_array_get(offsets, 1)),
               begin = json_integer_value(json_object_get(entry, "begin"));
    if (!dtype || (!matrix.bf16 && strcmp(dtype, "F32") != 0) || (dims != 1 && dims != 2) ||
        (dims == 2 && json_integer_value(json_array_get(shape, 0)) != rows) || (dims == 1 && rows != 1) ||
        json_integer_value(json_array_get(shape, dims - 1)) != columns || first < 0 || end - first != (json_int_t)bytes)
        l->rc = efs_fail(l->err, -EUCLEAN, "%s: should be %u x %u of BF16 or F32", name, rows, columns);
    if (l->rc == 0)
        l->rc = source_open(l->model, file, &l->source, l->err);
    if (l->rc == 0 && (uint64_t)end > l->source.bytes - (uint64_t)begin)
        l->rc = efs_fail(l->err, -EUCLEAN, "%s: %s: lies behind the end of the file", file, name);
    uint8_t *data = l->rc == 0 ? loader_memory(l, bytes) : NULL;
    if (data)
        l->rc = source_read(&l->source, (uint64_t)(begin + first), data, bytes, l->err);
    matrix.data = data;
    json_object_del(l->tensors, name);
    return matrix;
}

/* Reads a vector and converts it to floats. */
static const float *loader_read_vector(struct loader *l, uint32_t layer, const char *tensor, uint32_t count)
{
    struct matrix matrix = loader_read(l, layer, tensor, 1, count);
    float *vector = l->rc == 0 ? loader_memory(l, count * sizeof(*vector)) : NULL;
    if (vector)
        matrix_row(&matrix, 0, vector);
    return vector;
}

static void loader_read_layer(struct loader *l, uint32_t n)
{
    const struct config *c = &l->model->config;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    l->model->layers[n] = (struct layer){
        .attention_norm = loader_read_vector(l, n, "input_layernorm.weight", c->hidden),
        .q_norm = loader_read_vector(l, n, "self_attn.q_norm.weight", c->head_dim),
        .k_norm = loader_read_vector(l, n, "self_attn.k_norm.weight", c->head_dim),
        .ffn_norm = loader_read_vector(l, n, "post_attention_layernorm.weight", c->hidden),
        .q = loader_read(l, n, "self_attn.q_proj.weight", q, c->hidden),
        .k = loader_read(l, n, "self_attn.k_proj.weight", kv, c->hidden),
        .v = loader_read(l, n, "self_attn.v_proj.weight", kv, c->hidden),
        .o = loader_read(l, n, "self_attn.o_proj.weight", c->hidden, q),
        .router = loader_read(l, n, "mlp.gate.weight", c->experts, c->hidden),
    };
}

static void loader_read_all(struct loader *l, const char *const *ignored)
{
    struct model *m = l->model;
    const struct config *c = &m->config;
    m->embedding = loader_read(l, NO_LAYER, "model.embed_tokens.weight", c->vocab, c->hidden);
    m->head = c->tied ? m->embedding : loader_read(l, NO_LAYER, "lm_head.weight", c->vocab, c->hidden);
    m->final_norm = loader_read_vector(l, NO_LAYER, "model.norm.weight", c->hidden);
    m->layers = calloc(c->layers, sizeof(*m->layers));
    if (l->rc == 0 && !m->layers)
        l->rc = efs_fail(l->err, -ENOMEM, "no memory");
    for (uint32_t n = 0; l->rc == 0 && n < c->layers; n++)
        loader_read_layer(l, n);
    /* A tensor that is not loaded means that the model has a part that would not be run. */
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(l->tensors, next, name, value) if (is_ignored(ignored, name))
        json_object_del(l->tensors, name);
    const char *left = json_object_iter_key(json_object_iter(l->tensors));
    if (l->rc == 0 && left)
        l->rc =
            efs_fail(l->err, -EINVAL,
                     "qwen3_moe has no use for the tensor %s, and for %zu more\nhint: --ignore=NAME runs without it",
                     left, json_object_size(l->tensors) - 1);
}

static errint_t model_load(struct model *m, const char *const *ignored, struct efs_error *err)
{
    struct loader l = {.model = m, .source.fd = -1, .tensors = json_object(), .err = err};
    char *text;
    json_t *files = NULL, *value;
    const char *path;
    l.rc = source_read_file(m, "config.json", &l.source, &text, err);
    if (l.rc == 0)
        l.rc = config_parse(text, l.source.bytes, ignored, &m->config, err);
    free(text);
    if (l.rc == 0)
        files = weight_files(&l);
    json_object_foreach(files, path, value) if (l.rc == 0) loader_add_tensors(&l, path);
    loader_check_all_experts(&l);
    if (l.rc == 0)
        loader_read_all(&l, ignored);
    source_close(&l.source);
    json_decref(files);
    json_decref(l.map);
    json_decref(l.tensors);
    if (l.rc < 0) {
        const struct efs_error why = *err;
        efs_fail(err, l.rc, "%s: %s", m->mountpoint, why.text);
    }
    return l.rc;
}

/* Reserves the size of the dense weights, which will be in memory, within the budget. */
static errint_t reserve_dense(const char *store, struct efs_client_options *options, struct efs_error *err)
{
    struct efs_store *looked;
    struct efs_store_info info;
    errint_t rc = efs_store_open(store, &looked, err);
    if (rc < 0)
        return rc;
    efs_store_info(looked, &info);
    options->reserved_bytes = info.source_bytes - info.expert_raw_bytes;
    efs_store_close(looked);
    return 0;
}

errint_t model_open(const char *path, struct efs_client_options *options, const char *const *ignored,
                    struct model *model, struct efs_error *err)
{
    struct stat st;
    *model = (struct model){.mountpoint = path};
    bool mount = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    errint_t rc = mount ? 0 : reserve_dense(path, options, err);
    if (rc == 0)
        rc = efs_client_open(path, options, &model->client, err);
    if (rc == 0) {
        model->fs = efs_client_fs(model->client);
        rc = model_load(model, ignored, err);
    }
    if (rc < 0)
        model_close(model);
    return rc;
}

void model_close(struct model *m)
{
    efs_client_close(m->client);
    for (size_t i = 0; i < m->weight_count; i++)
        free(m->weights[i]);
    free(m->weights);
    free(m->layers);
    *m = (struct model){0};
}
