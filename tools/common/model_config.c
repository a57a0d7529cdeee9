/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c - see model_config.h. */
#include "model_config.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX (UINT64_C(1) << 32) /* above it is no size of a model; products of four do not overflow a double */

/* What keys and values of a layer are made of; 0: not told. */
struct attention {
    uint64_t heads, kv_heads, key, value; /* key, value: elements of a head */
    uint64_t kv_heads_total;              /* of all layers, where they differ */
    uint64_t latent;                      /* elements of a layer in place of them (MLA) */
};

static errint_t no_number(const char *name, struct efs_error *err)
{
    return efs_fail(err, -EUCLEAN, "%s: no number that a model can have", name);
}

static errint_t config_derive(struct tools_model_config *c, struct attention a, struct efs_error *err)
{
    if (!a.key && a.heads)
        a.key = c->hidden / a.heads;
    if (!a.value)
        a.value = a.key;
    if (!a.kv_heads)
        a.kv_heads = a.heads;
    double heads = a.kv_heads_total ? (double)a.kv_heads_total : (double)c->layers * (double)a.kv_heads;
    double elements = a.latent ? (double)c->layers * (double)a.latent : heads * (double)(a.key + a.value);
    if (elements >= 9e15)
        return no_number("heads and their sizes", err);
    c->kv_elements = (uint64_t)elements;
    return 0;
}

bool tools_gguf_is_projector(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strstr(slash ? slash + 1 : path, "mmproj") != NULL;
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
#define NUMBER(...) json_number(json, (const char *const[]){__VA_ARGS__, NULL}, &odd)

errint_t tools_model_config_json(const char *text, size_t bytes, struct tools_model_config *config,
                                 struct efs_error *err)
{
    json_error_t where;
    json_t *whole = json_loadb(text, bytes, 0, &where);
    const char *odd = NULL;
    *config = (struct tools_model_config){0};
    if (!whole)
        return efs_fail(err, -EUCLEAN, "config.json: line %d: %s", where.line, where.text);
    const json_t *json = json_object_get(whole, "text_config"); /* of models that see, too */
    if (!json_is_object(json))
        json = whole;
    config->chosen = NUMBER("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk");
    config->layers = NUMBER("num_hidden_layers", "n_layer", "num_layers");
    config->hidden = NUMBER("hidden_size", "d_model", "n_embd");
    config->vocab = NUMBER("vocab_size");
    config->context = NUMBER("max_position_embeddings", "n_positions");
    struct attention attention = {.heads = NUMBER("num_attention_heads", "n_head", "num_heads"),
                                  .kv_heads = NUMBER("num_key_value_heads"),
                                  .key = NUMBER("head_dim", "d_kv"),
                                  .latent = NUMBER("kv_lora_rank")};
    if (attention.latent)
        attention.latent += NUMBER("qk_rope_head_dim");
    errint_t rc = config_derive(config, attention, err);
    if (odd)
        rc = no_number(odd, err);
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

/* A key's text, cut to room. */
static void gguf_key(struct gguf *g, char *key, size_t room)
{
    uint64_t length = gguf_length(g);
    size_t taken = length < room ? (size_t)length : room - 1;
    gguf_take(g, key, taken);
    key[taken] = '\0';
    gguf_skip(g, length - taken);
}

/* A value: a number, or of an array of numbers their sum, in *number; in *length how many there are. */
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
            } else if (*length > 4096) { /* no list of layers */
                gguf_skip(g, *length * type_bytes[of]);
                break;
            } else {
                if (__builtin_add_overflow(*number, gguf_number(g, of), number))
                    *number = UINT64_MAX;
            }
        }
    } else if (type == STRING) {
        gguf_skip(g, gguf_length(g));
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

errint_t tools_model_config_gguf(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes,
                                 struct tools_model_config *config, struct efs_error *err)
{
    struct gguf *g = calloc(1, sizeof(*g));
    struct attention attention = {0};
    char magic[4], key[128];
    *config = (struct tools_model_config){0};
    if (!g)
        return efs_fail(err, -ENOMEM, "no memory");
    g->read_at = read_at;
    g->arg = arg;
    g->bytes = file_bytes;
    gguf_take(g, magic, sizeof(magic));
    uint64_t version = gguf_number(g, U32);
    gguf_length(g); /* tensors */
    uint64_t count = gguf_length(g);
    if (g->error == 0 && (memcmp(magic, "GGUF", 4) != 0 || version < 2 || version > 3))
        g->error = -EUCLEAN;
    errint_t rc = 0;
    for (uint64_t i = 0; i < count && g->error == 0 && rc == 0; i++) {
        uint64_t number, length;
        gguf_key(g, key, sizeof(key));
        uint32_t type = (uint32_t)gguf_number(g, U32);
        gguf_value(g, type, &number, &length);
        static const char *const names[] = {".expert_used_count",    ".block_count",
                                            ".embedding_length",     ".context_length",
                                            ".attention.head_count", ".attention.head_count_kv",
                                            ".attention.key_length", ".attention.value_length"};
        uint64_t *const places[] = {&config->chosen,  &config->layers,     &config->hidden, &config->context,
                                    &attention.heads, &attention.kv_heads, &attention.key,  &attention.value};
        if (strcmp(key, "tokenizer.ggml.tokens") == 0)
            config->vocab = length;
        if (length && ends_with(key, ".attention.head_count_kv")) {
            attention.kv_heads_total = number;
            rc = number > NUMBER_MAX ? no_number(key, err) : 0;
        }
        for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
            if (!length && ends_with(key, names[n])) {
                *places[n] = number;
                rc = number > NUMBER_MAX ? no_number(key, err) : 0;
            }
    }
    if (g->error < 0)
        rc = g->error == -EUCLEAN ? efs_fail(err, -EUCLEAN, "no GGUF file of version 2 or 3, or damaged")
                                  : efs_fail(err, g->error, "%s", strerror(-g->error));
    free(g);
    return rc < 0 ? rc : config_derive(config, attention, err);
}
