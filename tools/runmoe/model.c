/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - what a model is made of: config.json and dense.safetensors of the store, read once; its experts stay in
 * the library until a layer asks for them. */
#include "model.h"

#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (4u << 20)
#define NO_LAYER UINT32_MAX

/* ---- files of a store or a mount ---- */

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    errint_t error;
};

static void read_done(void *arg, errint_t error, size_t bytes)
{
    (void)bytes;
    struct waiting *w = arg;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->error = error;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

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
    struct waiting w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};
    for (ssize_t got; !s->fs && bytes; offset += (uint64_t)got, to += got, bytes -= (size_t)got) {
        got = pread(s->fd, to, bytes, (off_t)offset);
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
    }
    if (!s->fs)
        return 0;
    efs_read(s->fs, s->file, s->stream, offset, to, bytes, read_done, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.changed, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.error;
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

static errint_t tensor_at(const void *file, uint64_t bytes, uint64_t begin, const json_t *entry, struct matrix *matrix)
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
    if (first > bytes - begin || rows * columns * (matrix->bf16 ? 2 : 4) > bytes - begin - first)
        return -EUCLEAN;
    matrix->data = (const uint8_t *)file + begin + first;
    return 0;
}

static json_t *header_read(const void *file, uint64_t bytes, uint64_t *begin)
{
    uint64_t length = 0;
    if (bytes < 8)
        return NULL;
    memcpy(&length, file, 8);
    if (length > bytes - 8)
        return NULL;
    *begin = 8 + length;
    return json_loadb((const char *)file + 8, length, 0, NULL);
}

static errint_t tensor_find(const void *file, uint64_t bytes, uint64_t begin, const json_t *tensors, const char *name,
                            uint32_t rows, uint32_t columns, struct matrix *matrix, struct efs_error *err)
{
    const json_t *entry = json_object_get(tensors, name);
    *matrix = (struct matrix){.rows = rows, .columns = columns};
    if (!entry)
        return efs_fail(err, -ENOENT, "the model has no tensor %s", name);
    if (tensor_at(file, bytes, begin, entry, matrix) < 0)
        return efs_fail(err, -EUCLEAN, "%s: should be %u x %u of BF16 or F32", name, rows, columns);
    return 0;
}

/* ---- config.json ---- */

static errint_t config_read(const struct model *m, struct config *c, struct efs_error *err)
{
    void *text = NULL;
    uint64_t bytes = 0;
    errint_t rc = read_file(m, "config.json", &text, &bytes, err);
    if (rc < 0)
        return rc;
    json_error_t where;
    json_t *root = efs_json_python(text, bytes, NULL);
    free(text);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    int tied = 0, step = 1;
    double epsilon = 1e-6, base = 1e6;
    int renormalise = 1, layers, experts, chosen, hidden, inner, heads, kv_heads, head_dim, vocab;
    if (!type || strcmp(type, "qwen3_moe") != 0)
        rc = efs_fail(err, -EINVAL, "config.json: model_type is %s; only qwen3_moe runs", type ? type : "not there");
    else if (json_unpack_ex(root, &where, 0, "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s?b, s?b, s?i, s?F, s?F}",
                            "num_hidden_layers", &layers, "num_experts", &experts, "num_experts_per_tok", &chosen,
                            "hidden_size", &hidden, "moe_intermediate_size", &inner, "num_attention_heads", &heads,
                            "num_key_value_heads", &kv_heads, "head_dim", &head_dim, "vocab_size", &vocab,
                            "norm_topk_prob", &renormalise, "tie_word_embeddings", &tied, "decoder_sparse_step", &step,
                            "rms_norm_eps", &epsilon, "rope_theta", &base))
        rc = efs_fail(err, -EINVAL, "config.json: %s", where.text);
    else if (layers < 1 || layers > 1024 || experts < 1 || experts > 4096 || chosen < 1 || chosen > experts ||
             hidden < 1 || hidden > 65536 || inner < 1 || inner > 262144 || kv_heads < 1 || heads < 1 ||
             heads > 65536 || heads % kv_heads || head_dim < 2 || head_dim > 1024 || head_dim % 2 || vocab < 1 ||
             vocab > 10000000)
        rc = efs_fail(err, -EINVAL, "config.json: invalid sizes");
    else if (tied || step != 1 || json_array_size(json_object_get(root, "mlp_only_layers")) ||
             json_is_object(json_object_get(root, "rope_scaling")))
        rc = efs_fail(err, -EINVAL,
                      "config.json: tied embeddings, dense layers and scaled RoPE are not supported by this example");
    else
        *c = (struct config){(uint32_t)layers, (uint32_t)experts, (uint32_t)chosen,   (uint32_t)hidden,
                             (uint32_t)inner,  (uint32_t)heads,   (uint32_t)kv_heads, (uint32_t)head_dim,
                             (uint32_t)vocab,  renormalise != 0,  (float)epsilon,     (float)base};
    json_decref(root);
    return rc;
}

/* ---- weights ---- */

/* The header of dense.safetensors while the layers are put together. The first error stays. */
struct loader {
    struct model *model;
    const json_t *tensors;
    uint64_t begin;
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
        l->rc = tensor_find(l->model->dense, l->model->dense_bytes, l->begin, l->tensors, name, rows, columns, &matrix,
                            l->err);
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
    l->model->layers[n] = (struct layer){
        .attention_norm = loader_take_vector(l, n, "input_layernorm.weight", c->hidden),
        .q_norm = loader_take_vector(l, n, "self_attn.q_norm.weight", c->head_dim),
        .k_norm = loader_take_vector(l, n, "self_attn.k_norm.weight", c->head_dim),
        .ffn_norm = loader_take_vector(l, n, "post_attention_layernorm.weight", c->hidden),
        .q = loader_take(l, n, "self_attn.q_proj.weight", q, c->hidden),
        .k = loader_take(l, n, "self_attn.k_proj.weight", kv, c->hidden),
        .v = loader_take(l, n, "self_attn.v_proj.weight", kv, c->hidden),
        .o = loader_take(l, n, "self_attn.o_proj.weight", c->hidden, q),
        .router = loader_take(l, n, "mlp.gate.weight", c->experts, c->hidden),
    };
}

/* Has the store all experts? Those of a mount are missed when they are asked for. */
static errint_t check_experts(const struct model *m, struct efs_error *err)
{
    uint64_t found = 0;
    struct efs_expert_id id;
    for (uint32_t n = 0; m->fs && n < m->config.layers; n++)
        for (uint32_t e = 0; e < m->config.experts; e++)
            found += efs_expert_find(m->fs, "", n, e, &id) == 0;
    if (!m->fs || found == (uint64_t)m->config.layers * m->config.experts)
        return 0;
    return efs_fail(err, -EINVAL, "the store has %llu experts, %u layers of %u are needed", (unsigned long long)found,
                    m->config.layers, m->config.experts);
}

static errint_t model_load_all(struct model *m, struct efs_error *err)
{
    errint_t rc = config_read(m, &m->config, err);
    if (rc == 0)
        rc = read_file(m, "experts/dense.safetensors", &m->dense, &m->dense_bytes, err);
    if (rc < 0)
        return rc;
    struct loader l = {.model = m, .err = err};
    json_t *tensors = header_read(m->dense, m->dense_bytes, &l.begin);
    l.tensors = tensors;
    m->layers = calloc(m->config.layers, sizeof(*m->layers));
    if (!m->layers || !tensors)
        l.rc = -ENOMEM;
    m->embedding = loader_take(&l, NO_LAYER, "model.embed_tokens.weight", m->config.vocab, m->config.hidden);
    m->head = loader_take(&l, NO_LAYER, "lm_head.weight", m->config.vocab, m->config.hidden);
    m->final_norm = loader_take_vector(&l, NO_LAYER, "model.norm.weight", m->config.hidden);
    for (uint32_t n = 0; m->layers && n < m->config.layers; n++)
        loader_take_layer(&l, n);
    json_decref(tensors);
    return l.rc < 0 ? l.rc : check_experts(m, err);
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

errint_t model_open(const char *path, struct efs_options *options, struct model *model, struct efs_error *err)
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
        rc = model_load_all(model, err);
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
    }
    free(m->layers);
    free(m->final_norm);
    free(m->dense);
    efs_client_close(m->client);
    memset(m, 0, sizeof(*m));
}
