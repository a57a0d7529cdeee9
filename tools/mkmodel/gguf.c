/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf.c - the tensors and the tokenizer as one GGUF file, or a split one, as llama.cpp's converter would write it: the
 * experts of a layer stacked in one tensor, norms and routers in F32, and for Mixtral the rows of q and k in the order
 * of the interleaved rotation. The weights are those of the safetensors of the same seed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

#define GGUF_ALIGNMENT 32u

enum { TYPE_U16 = 2, TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9 };
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };

/* The header while it grows. */
struct text {
    char *data;
    size_t bytes, room;
    bool failed;
    uint64_t keys; /* key-value pairs so far */
};

static void put(struct text *text, const void *data, size_t bytes)
{
    if (text->failed)
        return;
    if (text->bytes + bytes > text->room) {
        size_t room = 2 * (text->bytes + bytes) + 4096;
        char *more = realloc(text->data, room);
        if (!more) {
            text->failed = true;
            return;
        }
        text->data = more;
        text->room = room;
    }
    if (bytes)
        memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
}

static void put_u32(struct text *text, uint32_t value)
{
    put(text, &value, 4);
}

static void put_u64(struct text *text, uint64_t value)
{
    put(text, &value, 8);
}

static void put_string(struct text *text, const char *string)
{
    put_u64(text, strlen(string));
    put(text, string, strlen(string));
}

/* A key, with the architecture before it if it begins with a dot, and the type of its value. */
static void put_key(struct text *text, const char *architecture, const char *key, uint32_t type)
{
    char whole[128];
    snprintf(whole, sizeof(whole), "%s%s", key[0] == '.' ? architecture : "", key);
    put_string(text, whole);
    put_u32(text, type);
    text->keys++;
}

static void put_array(struct text *text, const char *key, uint32_t type, uint64_t count)
{
    put_key(text, "", key, TYPE_ARRAY);
    put_u32(text, type);
    put_u64(text, count);
}

static void put_string_key(struct text *text, const char *key, const char *value)
{
    put_key(text, "", key, TYPE_STRING);
    put_string(text, value);
}

static void put_general(struct text *text, const struct mk_model *model, const char *architecture)
{
    static const uint32_t file_types[MK_DTYPES] = {[MK_BF16] = 32, [MK_F16] = 1, [MK_F32] = 0};
    char name[128];
    snprintf(name, sizeof(name), "mkmodel %s seed %llu", model->family->name, (unsigned long long)model->seed);
    put_string_key(text, "general.architecture", architecture);
    put_string_key(text, "general.type", "model");
    put_string_key(text, "general.name", name);
    put_key(text, "", "general.file_type", TYPE_U32);
    put_u32(text, file_types[model->dtype]);
    put_key(text, "", "general.quantization_version", TYPE_U32);
    put_u32(text, 2);
    put_key(text, "", "general.alignment", TYPE_U32);
    put_u32(text, GGUF_ALIGNMENT);
}

static void put_sizes(struct text *text, const struct mk_model *model, const char *architecture)
{
    bool qwen = model->family == &mk_family_qwen3;
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {".block_count", model->layers},
        {".context_length", model->context},
        {".embedding_length", model->hidden},
        {".feed_forward_length", model->dense_intermediate},
        {".attention.head_count", model->heads},
        {".attention.head_count_kv", model->kv_heads},
        {".attention.key_length", model->head_dim},
        {".attention.value_length", model->head_dim},
        {".expert_count", model->experts},
        {".expert_used_count", model->experts_per_token},
        {".vocab_size", model->vocab},
        {qwen ? ".expert_feed_forward_length" : ".rope.dimension_count", qwen ? model->intermediate : model->head_dim},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        put_key(text, architecture, numbers[i].key, TYPE_U32);
        put_u32(text, numbers[i].value);
    }
    float base = 1e6f, epsilon = qwen ? 1e-6f : 1e-5f;
    put_key(text, architecture, ".rope.freq_base", TYPE_F32);
    put(text, &base, 4);
    put_key(text, architecture, ".attention.layer_norm_rms_epsilon", TYPE_F32);
    put(text, &epsilon, 4);
}

static void put_tokenizer(struct text *text, const struct mk_tokenizer *tokenizer)
{
    put_string_key(text, "tokenizer.ggml.model", "gpt2");
    put_string_key(text, "tokenizer.ggml.pre", "gpt-2");
    put_array(text, "tokenizer.ggml.tokens", TYPE_STRING, tokenizer->count);
    for (uint32_t t = 0; t < tokenizer->count; t++)
        put_string(text, tokenizer->tokens[t]);
    put_array(text, "tokenizer.ggml.token_type", TYPE_I32, tokenizer->count);
    for (uint32_t t = 0; t < tokenizer->count; t++)
        put_u32(text, t < tokenizer->special                 ? TOKEN_NORMAL
                      : t < tokenizer->special + MK_SPECIALS ? TOKEN_CONTROL
                                                             : TOKEN_UNUSED);
    put_array(text, "tokenizer.ggml.merges", TYPE_STRING, tokenizer->merges);
    for (uint32_t m = 0; m < tokenizer->merges; m++) {
        char merge[256];
        snprintf(merge, sizeof(merge), "%s %s", tokenizer->tokens[tokenizer->pairs[m][0]],
                 tokenizer->tokens[tokenizer->pairs[m][1]]);
        put_string(text, merge);
    }
    static const char *const ends[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        put_key(text, "", ends[i], TYPE_U32);
        put_u32(text, tokenizer->special + MK_END_OF_TEXT);
    }
    put_key(text, "", "tokenizer.ggml.add_bos_token", TYPE_BOOL);
    put(text, "", 1);
    put_string_key(text, "tokenizer.chat_template", mk_chat_template);
}

/* The GGUF name of a tensor. */
static void gguf_name(const struct mk_tensor *tensor, char *name, size_t room)
{
    static const char *const names[MK_ROLES] = {[MK_EMBED] = "token_embd",
                                                [MK_FINAL_NORM] = "output_norm",
                                                [MK_HEAD] = "output",
                                                [MK_ATTENTION_NORM] = "attn_norm",
                                                [MK_Q] = "attn_q",
                                                [MK_K] = "attn_k",
                                                [MK_V] = "attn_v",
                                                [MK_O] = "attn_output",
                                                [MK_Q_NORM] = "attn_q_norm",
                                                [MK_K_NORM] = "attn_k_norm",
                                                [MK_FFN_NORM] = "ffn_norm",
                                                [MK_ROUTER] = "ffn_gate_inp",
                                                [MK_EXPERT_GATE] = "ffn_gate_exps",
                                                [MK_EXPERT_UP] = "ffn_up_exps",
                                                [MK_EXPERT_DOWN] = "ffn_down_exps"};
    bool whole = tensor->role == MK_EMBED || tensor->role == MK_FINAL_NORM || tensor->role == MK_HEAD;
    if (whole)
        snprintf(name, room, "%s.weight", names[tensor->role]);
    else
        snprintf(name, room, "blk.%u.%s.weight", tensor->layer, names[tensor->role]);
}

static bool is_expert(const struct mk_tensor *tensor)
{
    return tensor->role == MK_EXPERT_GATE || tensor->role == MK_EXPERT_UP || tensor->role == MK_EXPERT_DOWN;
}

/* Add a tensor under its GGUF name; an expert's becomes the stack of all of them, with its own key so far. */
static int add_tensor(const struct mk_model *model, const struct mk_tensor *tensor, struct mk_plan *gguf)
{
    char name[128];
    gguf_name(tensor, name, sizeof(name));
    uint32_t parts = is_expert(tensor) ? model->experts : 1;
    struct mk_tensor *added = mk_plan_new(gguf, name, parts);
    if (!added)
        return -ENOMEM;
    struct mk_tensor copy = *tensor;
    copy.name = added->name;
    copy.keys = added->keys;
    copy.keys[0] = tensor->keys[0];
    copy.parts = parts;
    if (tensor->dims == 1 || tensor->role == MK_ROUTER) {
        copy.dtype = MK_F32;
        copy.bytes = copy.rows * copy.columns * 4;
    }
    if (is_expert(tensor)) {
        copy.dims = 3;
        copy.shape[0] = parts;
        copy.shape[1] = tensor->rows;
        copy.shape[2] = tensor->columns;
        copy.bytes = parts * tensor->bytes;
    }
    if (model->family == &mk_family_mixtral && (tensor->role == MK_Q || tensor->role == MK_K))
        copy.rope_rows = model->head_dim;
    *added = copy;
    return 0;
}

static int add_tensors(const struct mk_model *model, const struct mk_plan *plan, struct mk_plan *gguf)
{
    struct mk_tensor *stacks[MK_ROLES] = {0}; /* of the layer at hand; experts come in order */
    if (plan->count > gguf->room) {           /* so that the stacks stay where they are */
        gguf->tensors = calloc(plan->count, sizeof(*gguf->tensors));
        if (!gguf->tensors)
            return -ENOMEM;
        gguf->room = plan->count;
    }
    for (uint32_t t = 0; t < plan->count; t++) {
        const struct mk_tensor *tensor = &plan->tensors[t];
        if (is_expert(tensor) && tensor->expert) {
            stacks[tensor->role]->keys[tensor->expert] = tensor->keys[0];
            continue;
        }
        int rc = add_tensor(model, tensor, gguf);
        if (rc)
            return rc;
        stacks[tensor->role] = &gguf->tensors[gguf->count - 1];
    }
    return 0;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static void put_tensors(struct text *text, const struct mk_tensor *tensors, uint32_t count)
{
    static const uint32_t types[MK_DTYPES] = {[MK_F32] = 0, [MK_F16] = 1, [MK_BF16] = 30};
    uint64_t offset = 0;
    for (uint32_t t = 0; t < count; t++) {
        const struct mk_tensor *tensor = &tensors[t];
        put_string(text, tensor->name);
        put_u32(text, tensor->dims);
        for (uint32_t d = tensor->dims; d-- > 0;) /* fastest first */
            put_u64(text, tensor->shape[d]);
        put_u32(text, types[tensor->dtype]);
        put_u64(text, offset);
        offset += aligned(tensor->bytes);
    }
}

/* What each file of a split model says of its place. */
static void put_split(struct text *text, uint32_t part, uint32_t parts, uint32_t tensors)
{
    uint16_t number = (uint16_t)part, count = (uint16_t)parts;
    put_key(text, "", "split.no", TYPE_U16);
    put(text, &number, 2);
    put_key(text, "", "split.count", TYPE_U16);
    put(text, &count, 2);
    put_key(text, "", "split.tensors.count", TYPE_I32);
    put_u32(text, tensors);
}

static int put_padding(struct mk_file *file)
{
    uint64_t bytes = aligned(file->bytes) - file->bytes;
    return bytes ? mk_file_literal(file, calloc(1, bytes), bytes) : 0;
}

/* One file: its header in text, to which its tensors are added here, and their data. Takes over the text. */
static int add_file(struct mk_files *files, const char *name, struct text *text, const struct mk_tensor *tensors,
                    uint32_t count)
{
    put_tensors(text, tensors, count);
    if (!text->failed) { /* the counts are known now */
        uint64_t tensor_count = count;
        memcpy(text->data + 8, &tensor_count, 8);
        memcpy(text->data + 16, &text->keys, 8);
    }
    struct mk_file *file = text->failed ? NULL : mk_files_add(files, name);
    if (!file) {
        free(text->data);
        return -ENOMEM;
    }
    int rc = mk_file_literal(file, text->data, text->bytes);
    if (!rc)
        rc = put_padding(file);
    for (uint32_t t = 0; t < count && !rc; t++) {
        rc = mk_file_tensor(file, &tensors[t]);
        if (!rc)
            rc = put_padding(file);
    }
    return rc;
}

static void put_start(struct text *text)
{
    put(text, "GGUF", 4);
    put_u32(text, 3);
    put_u64(text, 0); /* tensors and keys, set at the end */
    put_u64(text, 0);
}

int mk_gguf_files(const struct mk_model *model, const struct mk_plan *plan, const struct mk_tokenizer *tokenizer,
                  struct mk_plan *gguf, struct mk_files *files)
{
    int rc = add_tensors(model, plan, gguf);
    const char *architecture = model->family == &mk_family_qwen3 ? "qwen3moe" : "llama";
    uint64_t limit = model->split ? model->shard_bytes : UINT64_MAX;
    uint32_t parts = mk_plan_shards(gguf, limit);
    if (!rc && parts > UINT16_MAX) /* the format counts parts in 16 bits */
        rc = -EFBIG;
    for (uint32_t part = 0, first = 0; part < parts && !rc; part++) {
        struct text text = {0};
        char name[64] = "model.gguf";
        uint32_t end = mk_plan_shard_end(gguf, first, limit);
        put_start(&text);
        if (part == 0) {
            put_general(&text, model, architecture);
            put_sizes(&text, model, architecture);
            put_tokenizer(&text, tokenizer);
        }
        if (parts > 1) {
            put_split(&text, part, parts, gguf->count);
            snprintf(name, sizeof(name), "model-%05u-of-%05u.gguf", part + 1, parts);
        }
        rc = add_file(files, name, &text, gguf->tensors + first, end - first);
        first = end;
    }
    return rc;
}
