/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c - see model_config.h. */
#include "model_config.h"

#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUMBER_MAX (UINT64_C(1) << 32) /* above it is no size of a model; products of four do not overflow a double */
#define LAYERS_MAX 1024u               /* of a list; longer ones are no list of layers */

/* What keys and values of layers are made of; 0: not told. */
struct attention {
    uint64_t heads, kv_heads, key, value;                   /* key, value: elements of a head */
    uint64_t window_kv_heads, window_key, window_value;     /* the same of layers with a window, where they differ */
    uint64_t latent;                                        /* elements of a layer in place of them (MLA) */
    uint64_t window, pattern;                               /* tokens; the last of so many layers has none */
    uint32_t kv_heads_count, windowed_count;                /* in the lists */
    uint64_t kv_heads_of[LAYERS_MAX], windowed[LAYERS_MAX]; /* of each layer; windowed: 0, 1 */
};

static errint_t no_number(const char *name, struct efs_error *err)
{
    return efs_fail(err, -EUCLEAN, "%s: no number that a model can have", name);
}

/* Has the layer a window? By the list of layers, or by the pattern. */
static bool attention_windowed(const struct attention *a, uint64_t layer)
{
    if (a->windowed_count)
        return a->window && layer < a->windowed_count && a->windowed[layer];
    return a->window && a->pattern && layer % a->pattern < a->pattern - 1;
}

static errint_t config_derive(struct tools_model_config *c, struct attention *a, struct efs_error *err)
{
    double all = 0, windowed = 0;
    if (!a->key && a->heads)
        a->key = c->hidden / a->heads;
    if (!a->value)
        a->value = a->key;
    if (!a->kv_heads)
        a->kv_heads = a->heads;
    const double window_layer = (double)(a->window_kv_heads ? a->window_kv_heads : a->kv_heads);
    const double window_head =
        (double)((a->window_key ? a->window_key : a->key) + (a->window_value ? a->window_value : a->value));
    const double head = (double)(a->key + a->value);
    const uint64_t layers = c->layers < LAYERS_MAX ? c->layers : LAYERS_MAX;
    for (uint64_t l = 0; l < layers; l++) {
        const bool listed = l < a->kv_heads_count;
        if (a->latent)
            all += (double)a->latent;
        else if (attention_windowed(a, l))
            windowed += (listed ? (double)a->kv_heads_of[l] : window_layer) * window_head;
        else
            all += (listed ? (double)a->kv_heads_of[l] : (double)a->kv_heads) * head;
    }
    if (layers < c->layers) /* no model has so many */
        all += (double)(c->layers - layers) * (a->latent ? (double)a->latent : (double)a->kv_heads * head);
    if (all >= 9e15 || windowed >= 9e15)
        return no_number("heads and their sizes", err);
    c->kv_elements = (uint64_t)all;
    c->window_elements = (uint64_t)windowed;
    c->window = windowed > 0 ? a->window : 0;
    return 0;
}

/* ---- config.json ---- */

/* The first of these that is told. *odd: the name of one that cannot be. */
static uint64_t json_number(const json_t *json, const char *const *names, const char **odd)
{
    for (; *names; names++) {
        const json_t *value = json_object_get(json, *names);
        double number = json_is_number(value) ? json_number_value(value) : 0;
        if (number >= 1 && number <= (double)NUMBER_MAX)
            return (uint64_t)number;
        if (number != 0)
            *odd = *names;
    }
    return 0;
}
#define NUMBER(...) json_number(json, (const char *const[]){__VA_ARGS__, NULL}, odd)

/* Which layers have a window: only a list says so. Some models name a window that no layer uses. */
static void json_windows(const json_t *json, struct attention *a, const char **odd)
{
    const json_t *types = json_object_get(json, "layer_types");
    bool chunked = false;
    for (size_t l = 0; l < json_array_size(types) && l < LAYERS_MAX; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        const bool chunks = type && strcmp(type, "chunked_attention") == 0;
        a->windowed[a->windowed_count++] = chunks || (type && strcmp(type, "sliding_attention") == 0);
        chunked = chunked || chunks;
    }
    if (a->windowed_count)
        a->window = chunked ? NUMBER("attention_chunk_size") : NUMBER("sliding_window");
}

errint_t tools_model_config_json(const char *text, size_t bytes, struct tools_model_config *config,
                                 struct efs_error *err)
{
    struct efs_error why;
    json_t *whole = efs_json_python(text, bytes, &why);
    const char *odd_name = NULL, **odd = &odd_name;
    *config = (struct tools_model_config){0};
    if (!whole)
        return efs_fail(err, -EUCLEAN, "config.json: %s", why.text);
    const json_t *json = json_object_get(whole, "text_config"); /* of models that see, too */
    if (!json_is_object(json))
        json = whole;
    config->chosen = NUMBER("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk");
    config->layers = NUMBER("num_hidden_layers", "n_layer", "num_layers");
    config->hidden = NUMBER("hidden_size", "d_model", "n_embd");
    config->vocab = NUMBER("vocab_size");
    config->context = NUMBER("max_position_embeddings", "n_positions");
    struct attention attention = {.heads = NUMBER("num_attention_heads", "n_head", "num_heads"),
                                  .window_kv_heads = NUMBER("num_key_value_heads"),
                                  .window_key = NUMBER("head_dim", "d_kv"),
                                  .kv_heads = NUMBER("num_global_key_value_heads", "num_key_value_heads"),
                                  .key = NUMBER("global_head_dim", "head_dim", "d_kv"),
                                  .latent = NUMBER("kv_lora_rank")};
    attention.window_value = attention.window_key;
    if (attention.latent)
        attention.latent += NUMBER("qk_rope_head_dim");
    json_windows(json, &attention, odd);
    errint_t rc = config_derive(config, &attention, err);
    if (odd_name)
        rc = no_number(odd_name, err);
    json_decref(whole);
    return rc;
}

/* ---- GGUF ---- */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };
static const uint8_t type_bytes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct gguf {
    tools_read_at_fn *read_at;
    void *arg;
    uint64_t at, bytes; /* next to read; of the file */
    uint8_t piece[65536];
    uint64_t piece_at;
    size_t piece_bytes;
    errint_t error; /* the first; then all that is read is 0 */
    uint64_t list[LAYERS_MAX];
    char text[64]; /* of the last string, cut */
    struct attention attention;
};

static void gguf_skip(struct gguf *g, uint64_t bytes)
{
    if (g->error == 0 && bytes > g->bytes - g->at)
        g->error = -EUCLEAN;
    if (g->error == 0)
        g->at += bytes;
}

static void gguf_take(struct gguf *g, void *to, size_t bytes)
{
    memset(to, 0, bytes);
    uint64_t at = g->at;
    gguf_skip(g, bytes);
    while (g->error == 0 && bytes) {
        if (at < g->piece_at || at >= g->piece_at + g->piece_bytes) {
            g->piece_at = at;
            g->piece_bytes = g->bytes - at < sizeof(g->piece) ? (size_t)(g->bytes - at) : sizeof(g->piece);
            if ((g->error = g->read_at(g->arg, at, g->piece, g->piece_bytes)) < 0)
                break;
        }
        size_t from = (size_t)(at - g->piece_at), n = g->piece_bytes - from < bytes ? g->piece_bytes - from : bytes;
        memcpy(to, g->piece + from, n);
        to = (uint8_t *)to + n;
        at += n;
        bytes -= n;
    }
}

static uint64_t gguf_number(struct gguf *g, uint32_t type)
{
    uint8_t raw[8] = {0};
    uint64_t number = 0;
    gguf_take(g, raw, type_bytes[type]);
    for (unsigned i = type_bytes[type]; i-- > 0;)
        number = number << 8 | raw[i];
    bool is_signed = type == I8 || type == I16 || type == I32 || type == I64;
    if (is_signed && raw[type_bytes[type] - 1] & 0x80)
        return UINT64_MAX; /* below 0: as little a size as what is too large */
    return type == F32 || type == F64 ? 0 : number;
}

static uint64_t gguf_length(struct gguf *g)
{
    uint64_t low = gguf_number(g, U32), high = gguf_number(g, U32);
    if (high)
        g->error = g->error ? g->error : -EUCLEAN; /* longer than any file of ours: also keeps products small */
    return low;
}

/* A string, cut to room. */
static void gguf_string(struct gguf *g, char *key, size_t room)
{
    uint64_t length = gguf_length(g);
    size_t taken = length < room ? (size_t)length : room - 1;
    gguf_take(g, key, taken);
    key[taken] = '\0';
    gguf_skip(g, length - taken);
}

/* A value: a number in *number, or of an array how long it is in *length, and if its numbers are no more than layers
 * can be, these in g->list. */
static void gguf_value(struct gguf *g, uint32_t type, uint64_t *number, uint64_t *length)
{
    *number = *length = 0;
    if (type == ARRAY) {
        uint32_t of = (uint32_t)gguf_number(g, U32);
        *length = gguf_length(g);
        if (of >= TYPES || of == ARRAY)
            g->error = g->error ? g->error : -EUCLEAN; /* arrays of arrays: no program writes them */
        for (uint64_t i = 0; i < *length && g->error == 0; i++) {
            if (of == STRING) {
                gguf_skip(g, gguf_length(g));
                if (i < LAYERS_MAX)
                    g->list[i] = 0;
            } else if (*length > LAYERS_MAX) {
                gguf_skip(g, *length * type_bytes[of]);
                break;
            } else {
                g->list[i] = gguf_number(g, of);
            }
        }
    } else if (type == STRING) {
        gguf_string(g, g->text, sizeof(g->text));
    } else if (type < TYPES) {
        *number = gguf_number(g, type);
    } else {
        g->error = g->error ? g->error : -EUCLEAN;
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A list of a number for each layer; one that is too long is as if it were not there. */
static errint_t gguf_list(const struct gguf *g, const char *key, uint64_t length, uint64_t *list, uint32_t *count,
                          struct efs_error *err)
{
    *count = length <= LAYERS_MAX ? (uint32_t)length : 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (g->list[i] > NUMBER_MAX)
            return no_number(key, err);
        list[i] = g->list[i];
    }
    return 0;
}

/* One of the numbers that are looked for. */
static errint_t gguf_take_number(struct gguf *g, struct tools_model_config *c, const char *key, uint64_t number,
                                 struct efs_error *err)
{
    struct attention *a = &g->attention;
    const struct {
        const char *name;
        uint64_t *place;
    } numbers[] = {{".expert_used_count", &c->chosen},
                   {".block_count", &c->layers},
                   {".embedding_length", &c->hidden},
                   {".context_length", &c->context},
                   {".attention.head_count", &a->heads},
                   {".attention.head_count_kv", &a->kv_heads},
                   {".attention.key_length", &a->key},
                   {".attention.value_length", &a->value},
                   {".attention.key_length_swa", &a->window_key},
                   {".attention.value_length_swa", &a->window_value},
                   {".attention.sliding_window", &a->window},
                   {".attention.sliding_window_pattern", &a->pattern}};
    for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++)
        if (ends_with(key, numbers[n].name)) {
            *numbers[n].place = number;
            return number > NUMBER_MAX ? no_number(key, err) : 0;
        }
    return 0;
}

/* Where a file does not say which layers have a window, llama.cpp knows it of some models; of others none is assumed.
 */
static void gguf_window(struct attention *a, const char *architecture, bool told)
{
    if (a->pattern || a->windowed_count)
        return;
    if (strcmp(architecture, "gpt-oss") == 0) {
        a->pattern = 2;
    } else if (strcmp(architecture, "llama4") == 0 && (a->window || !told)) {
        a->pattern = 4;
        a->window = 8192;
    }
}

/* At the first of count entries; for free(). NULL: no memory. */
static struct gguf *gguf_begin(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes, uint64_t *count)
{
    struct gguf *g = calloc(1, sizeof(*g));
    char magic[4];
    if (!g)
        return NULL;
    g->read_at = read_at;
    g->arg = arg;
    g->bytes = file_bytes;
    gguf_take(g, magic, sizeof(magic));
    uint64_t version = gguf_number(g, U32);
    gguf_length(g); /* tensors */
    *count = gguf_length(g);
    if (g->error == 0 && (memcmp(magic, "GGUF", 4) != 0 || version < 2 || version > 3))
        g->error = -EUCLEAN;
    return g;
}

/* Of a model in parts: one that is not the first, by its name? */
static bool name_is_later_part(const char *name)
{
    static const char form[] = "-00001-of-00002.gguf";
    size_t length = strlen(name);
    unsigned part, parts;
    return length > strlen(form) && sscanf(name + length - strlen(form), "-%5u-of-%5u.gguf", &part, &parts) == 2 &&
           part != 1;
}

bool tools_gguf_is_model(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char magic[4], key[128];
    uint64_t count;
    if (file_bytes < sizeof(magic) || read_at(arg, 0, magic, sizeof(magic)) < 0 || memcmp(magic, "GGUF", 4) != 0)
        return false;
    struct gguf *g = gguf_begin(read_at, arg, file_bytes, &count);
    bool model = true, typed = false, numbered = false;
    for (uint64_t i = 0; g && i < count && g->error == 0 && model; i++) {
        uint64_t number, length;
        gguf_string(g, key, sizeof(key));
        uint32_t type = (uint32_t)gguf_number(g, U32);
        gguf_value(g, type, &number, &length);
        if (strcmp(key, "general.type") == 0 && type == STRING) {
            typed = true;
            model = strcmp(g->text, "model") == 0;
        } else if (strcmp(key, "general.architecture") == 0 && type == STRING) {
            model = strcmp(g->text, "clip") != 0; /* projectors of before there were types */
        } else if (strcmp(key, "split.no") == 0) {
            numbered = true;
            model = number == 0;
        }
    }
    free(g);
    return model && (typed || !strstr(name, "mmproj")) && (numbered || !name_is_later_part(name));
}

static errint_t read_fd(void *arg, uint64_t offset, void *to, size_t bytes)
{
    ssize_t n = pread(*(const int *)arg, to, bytes, (off_t)offset);
    return n < 0 ? -errno : (size_t)n == bytes ? 0 : -EUCLEAN;
}

bool tools_gguf_file_is_model(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool model = fd >= 0 && fstat(fd, &st) == 0 && tools_gguf_is_model(read_fd, &fd, (uint64_t)st.st_size, path);
    if (fd >= 0)
        close(fd);
    return model;
}

errint_t tools_model_config_gguf(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes,
                                 struct tools_model_config *config, struct efs_error *err)
{
    uint64_t count;
    struct gguf *g = gguf_begin(read_at, arg, file_bytes, &count);
    char key[128], architecture[128] = "";
    bool window_told = false;
    *config = (struct tools_model_config){0};
    if (!g)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = 0;
    struct attention *a = &g->attention;
    for (uint64_t i = 0; i < count && g->error == 0 && rc == 0; i++) {
        uint64_t number, length;
        gguf_string(g, key, sizeof(key));
        uint32_t type = (uint32_t)gguf_number(g, U32);
        gguf_value(g, type, &number, &length);
        if (strcmp(key, "tokenizer.ggml.tokens") == 0)
            config->vocab = length;
        else if (!length)
            rc = gguf_take_number(g, config, key, number, err);
        else if (ends_with(key, ".attention.head_count_kv"))
            rc = gguf_list(g, key, length, a->kv_heads_of, &a->kv_heads_count, err);
        else if (ends_with(key, ".attention.sliding_window_pattern"))
            rc = gguf_list(g, key, length, a->windowed, &a->windowed_count, err);
        window_told = window_told || ends_with(key, ".attention.sliding_window");
        if (ends_with(key, ".block_count"))
            snprintf(architecture, sizeof(architecture), "%.*s", (int)(strlen(key) - strlen(".block_count")), key);
    }
    if (g->error < 0)
        rc = g->error == -EUCLEAN ? efs_fail(err, -EUCLEAN, "no GGUF file of version 2 or 3, or damaged")
                                  : efs_fail(err, g->error, "%s", strerror(-g->error));
    gguf_window(a, architecture, window_told);
    if (rc == 0)
        rc = config_derive(config, a, err);
    free(g);
    return rc;
}
