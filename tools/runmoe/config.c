/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the keys of config.json, in one table: what is read, what has no effect here, what must have one value. */
#include "config.h"
#include "expertfs-private.h"

#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MORE_BYTES 32u /* that names_end() needs */

enum effect {
    KEY_COUNT,    /* a whole number from least to most, into a uint32_t */
    KEY_REAL,     /* a number from least to most, into a double */
    KEY_FLAG,     /* true or false, into a bool */
    KEY_ONE,      /* this value, or a list of it */
    KEY_ROPE,     /* an object of such keys, or rope_theta: rope_parse() */
    KEY_HARMLESS, /* read by training, tokenizers or generation, or by what another key turns off */
};

struct key {
    const char *name;
    enum effect effect;
    size_t offset;
    double least, most;
    const char *one; /* in JSON */
};

#define COUNT(name, member, least, most)                                                                               \
    {                                                                                                                  \
        name, KEY_COUNT, offsetof(struct config, member), least, most, NULL                                            \
    }
#define FLAG(name, member)                                                                                             \
    {                                                                                                                  \
        name, KEY_FLAG, offsetof(struct config, member), 0, 0, NULL                                                    \
    }
#define ONE(name, value)                                                                                               \
    {                                                                                                                  \
        name, KEY_ONE, 0, 0, 0, value                                                                                  \
    }
#define HARMLESS(name)                                                                                                 \
    {                                                                                                                  \
        name, KEY_HARMLESS, 0, 0, 0, NULL                                                                              \
    }

static const struct key keys[] = {
    COUNT("head_dim", head_dim, 2, HEAD_DIM_MAX),
    COUNT("hidden_size", hidden, 1, 65536),
    COUNT("max_position_embeddings", trained_positions, 1, UINT32_MAX),
    COUNT("moe_intermediate_size", inner, 1, 262144),
    COUNT("num_attention_heads", heads, 1, 65536),
    COUNT("num_experts", experts, 1, 4096),
    COUNT("num_experts_per_tok", chosen, 1, 4096),
    COUNT("num_hidden_layers", layers, 1, 1024),
    COUNT("num_key_value_heads", kv_heads, 1, 65536),
    COUNT("num_local_experts", experts, 1, 4096), /* num_experts as transformers 5 writes it */
    COUNT("vocab_size", vocab, 1, 10000000),
    FLAG("attention_bias", attention_bias),
    FLAG("norm_topk_prob", renormalise),
    FLAG("tie_word_embeddings", tied),
    {"rms_norm_eps", KEY_REAL, offsetof(struct config, epsilon), 0, 1, NULL},
    {"rope_parameters", KEY_ROPE, 0, 0, 0, NULL},
    {"rope_scaling", KEY_ROPE, 0, 0, 0, NULL},
    {"rope_theta", KEY_ROPE, 0, 0, 0, NULL},
    ONE("decoder_sparse_step", "1"),
    ONE("hidden_act", "\"silu\""),
    ONE("is_encoder_decoder", "false"),
    ONE("layer_types", "\"full_attention\""),
    ONE("mlp_bias", "false"),
    ONE("mlp_only_layers", "[]"),
    ONE("model_type", "\"qwen3_moe\""),
    ONE("n_shared_experts", "0"),
    ONE("num_nextn_predict_layers", "0"),
    ONE("partial_rotary_factor", "1"),
    ONE("routed_scaling_factor", "1"),
    ONE("use_sliding_window", "false"),
    HARMLESS("_attn_implementation"),
    HARMLESS("_attn_implementation_autoset"),
    HARMLESS("_name_or_path"),
    HARMLESS("architectures"),
    HARMLESS("attention_dropout"),
    HARMLESS("bos_token_id"),
    HARMLESS("chunk_size_feed_forward"),
    HARMLESS("dtype"),
    HARMLESS("eos_token_id"),
    HARMLESS("id2label"),
    HARMLESS("initializer_range"),
    HARMLESS("intermediate_size"), /* of dense layers: there are none */
    HARMLESS("label2id"),
    HARMLESS("max_window_layers"), /* of sliding windows, as sliding_window: use_sliding_window turns them on */
    HARMLESS("mkmodel"),
    HARMLESS("output_attentions"),
    HARMLESS("output_hidden_states"),
    HARMLESS("output_router_logits"),
    HARMLESS("pad_token_id"),
    HARMLESS("problem_type"),
    HARMLESS("return_dict"),
    HARMLESS("router_aux_loss_coef"),
    HARMLESS("sliding_window"),
    HARMLESS("tokenizer_class"),
    HARMLESS("torch_dtype"),
    HARMLESS("transformers_version"),
    HARMLESS("unsloth_fixed"),
    HARMLESS("unsloth_version"),
    HARMLESS("use_cache"),
};

/* ---- RoPE ---- */

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_KINDS };
static const char *const rope_names[ROPE_KINDS] = {"default", "linear", "llama3", "yarn"};
#define OF(kind) (1u << (kind))

/* NAN: not given. */
struct rope {
    double theta, factor, trained, low, high, attention, fast, slow, scale, scale_all, partial;
    bool truncate;
};

static const struct rope_key {
    const char *name;
    size_t offset;
    unsigned kinds; /* that read it */
} rope_keys[] = {
    {"rope_theta", offsetof(struct rope, theta), ~0u},
    {"partial_rotary_factor", offsetof(struct rope, partial), ~0u},
    {"factor", offsetof(struct rope, factor), OF(ROPE_LINEAR) | OF(ROPE_LLAMA3) | OF(ROPE_YARN)},
    {"original_max_position_embeddings", offsetof(struct rope, trained), OF(ROPE_LLAMA3) | OF(ROPE_YARN)},
    {"low_freq_factor", offsetof(struct rope, low), OF(ROPE_LLAMA3)},
    {"high_freq_factor", offsetof(struct rope, high), OF(ROPE_LLAMA3)},
    {"attention_factor", offsetof(struct rope, attention), OF(ROPE_YARN)},
    {"beta_fast", offsetof(struct rope, fast), OF(ROPE_YARN)},
    {"beta_slow", offsetof(struct rope, slow), OF(ROPE_YARN)},
    {"mscale", offsetof(struct rope, scale), OF(ROPE_YARN)},
    {"mscale_all_dim", offsetof(struct rope, scale_all), OF(ROPE_YARN)},
};

/* The steps of the Llama 3 paper: slow pairs turn slower by the factor, those between are interpolated. */
static double llama3_step(const struct rope *r, double step)
{
    double wavelength = 2 * M_PI / step;
    if (wavelength < r->trained / r->high)
        return step;
    if (wavelength > r->trained / r->low)
        return step / r->factor;
    double part = (r->trained / wavelength - r->low) / (r->high - r->low);
    return (1 - part) * step / r->factor + part * step;
}

/* The pair that turns so many times within the positions of training: YaRN, section 3.2. */
static double yarn_pair(const struct rope *r, uint32_t head_dim, double turns)
{
    return head_dim * log(r->trained / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_scale(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static void rope_steps(const struct rope *r, enum rope_kind kind, struct config *c)
{
    double low = 0, high = 0;
    if (kind == ROPE_YARN) {
        low = yarn_pair(r, c->head_dim, r->fast);
        high = yarn_pair(r, c->head_dim, r->slow);
        low = fmax(r->truncate ? floor(low) : low, 0);
        high = fmin(r->truncate ? ceil(high) : high, c->head_dim - 1);
        high += low == high ? 0.001 : 0;
    }
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double step = pow(r->theta, -2.0 * i / c->head_dim);
        double slow = kind == ROPE_YARN ? fmin(fmax((i - low) / (high - low), 0), 1) : 1;
        c->rope_step[i] = kind == ROPE_DEFAULT  ? step
                          : kind == ROPE_LLAMA3 ? llama3_step(r, step)
                                                : step / r->factor * slow + step * (1 - slow);
    }
    bool both = r->scale != 0 && r->scale_all != 0 && !isnan(r->scale) && !isnan(r->scale_all);
    c->rope_scale = kind != ROPE_YARN      ? 1
                    : !isnan(r->attention) ? r->attention
                    : both                 ? yarn_scale(r->factor, r->scale) / yarn_scale(r->factor, r->scale_all)
                                           : yarn_scale(r->factor, 1);
}

static errint_t rope_kind(const json_t *object, enum rope_kind *kind, struct efs_error *err)
{
    const json_t *new = json_object_get(object, "rope_type"), *old = json_object_get(object, "type");
    const char *name = json_string_value(new ? new : old);
    *kind = ROPE_DEFAULT;
    while (name && *kind < ROPE_KINDS && strcmp(name, rope_names[*kind]) != 0)
        (*kind)++;
    if (((new || old) && !name) || *kind == ROPE_KINDS)
        return efs_fail(err, -EINVAL, "config.json: rope_type: %s: not default, linear, llama3 or yarn",
                        name ? name : "not a string");
    if (new &&old && !json_equal(new, old))
        return efs_fail(err, -EINVAL, "config.json: rope_type and type differ");
    return 0;
}

static errint_t rope_member(const char *object, const char *name, const json_t *value, enum rope_kind kind,
                            struct rope *r, struct names *unknown, struct efs_error *err)
{
    char whole[256];
    snprintf(whole, sizeof(whole), "%s.%s", object, name);
    if (strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0)
        return 0;
    if (strcmp(name, "truncate") == 0 && kind == ROPE_YARN && json_is_boolean(value)) {
        r->truncate = json_is_true(value);
        return 0;
    }
    for (size_t i = 0; i < sizeof(rope_keys) / sizeof(rope_keys[0]); i++)
        if (strcmp(name, rope_keys[i].name) == 0 && rope_keys[i].kinds & OF(kind)) {
            if (!json_is_number(value) || json_number_value(value) < 0)
                return efs_fail(err, -EINVAL, "config.json: %s: a number from 0 is needed", whole);
            *(double *)((char *)r + rope_keys[i].offset) = json_number_value(value);
            return 0;
        }
    names_add(unknown, whole);
    return 0;
}

static errint_t rope_parse(json_t *root, struct config *c, struct names *unknown, struct efs_error *err)
{
    json_t *new = json_object_get(root, "rope_parameters"), *old = json_object_get(root, "rope_scaling"), *value;
    const json_t *theta = json_object_get(root, "rope_theta");
    const char *object = new ? "rope_parameters" : "rope_scaling", *name;
    struct rope r = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 1, true};
    enum rope_kind kind;
    if ((new && !json_is_object(new)) || (old && !json_is_object(old)) || (theta && !json_is_number(theta)))
        return efs_fail(err, -EINVAL, "config.json: rope_parameters, rope_scaling or rope_theta has another type");
    if (new &&old && !json_equal(new, old))
        return efs_fail(err, -EINVAL, "config.json: rope_parameters and rope_scaling differ");
    errint_t rc = rope_kind(new ? new : old, &kind, err);
    if (rc < 0)
        return rc;
    json_object_foreach(new ? new : old, name,
                        value) if ((rc = rope_member(object, name, value, kind, &r, unknown, err)) < 0) return rc;
    if (theta && !isnan(r.theta) && r.theta != json_number_value(theta))
        return efs_fail(err, -EINVAL, "config.json: rope_theta and %s.rope_theta differ", object);
    if (isnan(r.theta))
        r.theta = theta ? json_number_value(theta) : 10000; /* as transformers */
    if (isnan(r.trained) && c->trained_positions)
        r.trained = c->trained_positions;
    r.fast = isnan(r.fast) || r.fast == 0 ? 32 : r.fast;
    r.slow = isnan(r.slow) || r.slow == 0 ? 1 : r.slow;
    if (r.partial != 1)
        return efs_fail(err, -EINVAL, "config.json: %s.partial_rotary_factor: only 1 is supported", object);
    if (!(r.theta > 1) || (kind != ROPE_DEFAULT && !(r.factor > 0)) || (kind >= ROPE_LLAMA3 && !(r.trained >= 1)) ||
        (kind == ROPE_LLAMA3 && !(r.low > 0 && r.high > r.low)))
        return efs_fail(err, -EINVAL, "config.json: %s: a key of rope_type %s is missing, or out of range", object,
                        rope_names[kind]);
    rope_steps(&r, kind, c);
    return 0;
}

/* ---- keys ---- */

bool is_ignored(const struct ignored *ignored, const char *name)
{
    for (uint32_t i = 0; i < ignored->count; i++)
        if (fnmatch(ignored->pattern[i], name, 0) == 0)
            return true;
    return false;
}

void names_add(struct names *n, const char *name)
{
    size_t used = strlen(n->text);
    n->count++;
    if (n->left_out || used + strlen(name) + MORE_BYTES > sizeof(n->text))
        n->left_out++;
    else
        snprintf(n->text + used, sizeof(n->text) - used, "%s%s", used ? ", " : "", name);
}

void names_end(struct names *n)
{
    size_t used = strlen(n->text);
    if (n->left_out)
        snprintf(n->text + used, sizeof(n->text) - used, " and %u more", n->left_out);
}

/* Python's None and what is to be ignored are keys that are not there. */
static void drop(json_t *object, const char *within, const struct ignored *ignored)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, name, value)
    {
        char whole[256];
        snprintf(whole, sizeof(whole), "%s%s", within, name);
        if (json_is_null(value) || is_ignored(ignored, whole))
            json_object_del(object, name);
    }
}

/* Each element of a list, or the value itself; 1.0 is 1. */
static bool is_one(const json_t *value, const char *text)
{
    json_t *one = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = json_is_number(value) && json_is_number(one) ? json_number_value(value) == json_number_value(one)
                                                             : json_equal(value, one);
    if (json_is_array(value) && json_is_string(one)) {
        same = true;
        for (size_t i = 0; i < json_array_size(value); i++)
            same = same && json_equal(json_array_get(value, i), one);
    }
    json_decref(one);
    return same;
}

static errint_t key_parse(const struct key *key, const json_t *value, struct config *c, struct efs_error *err)
{
    void *at = (char *)c + key->offset;
    double number = json_number_value(value);
    bool good = number >= key->least && number <= key->most;
    switch (key->effect) {
    case KEY_COUNT:
        if (!json_is_integer(value) || !good)
            return efs_fail(err, -EINVAL, "config.json: %s: a whole number from %.0f to %.0f is needed", key->name,
                            key->least, key->most);
        if (*(uint32_t *)at && *(uint32_t *)at != (uint32_t)number)
            return efs_fail(err, -EINVAL, "config.json: %s: differs from a key of the same meaning", key->name);
        *(uint32_t *)at = (uint32_t)number;
        return 0;
    case KEY_REAL:
        if (!json_is_number(value) || !good)
            return efs_fail(err, -EINVAL, "config.json: %s: a number from %g to %g is needed", key->name, key->least,
                            key->most);
        *(double *)at = number;
        return 0;
    case KEY_FLAG:
        if (!json_is_boolean(value))
            return efs_fail(err, -EINVAL, "config.json: %s: true or false is needed", key->name);
        *(bool *)at = json_is_true(value);
        return 0;
    case KEY_ONE:
        if (!is_one(value, key->one))
            return efs_fail(err, -EINVAL, "config.json: %s: only %s is supported", key->name, key->one);
        return 0;
    default:
        return 0;
    }
}

static errint_t keys_parse(json_t *root, struct config *c, struct names *unknown, struct efs_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        size_t i = 0, count = sizeof(keys) / sizeof(keys[0]);
        while (i < count && strcmp(keys[i].name, name) != 0)
            i++;
        errint_t rc = i < count ? key_parse(&keys[i], value, c, err) : 0;
        if (rc < 0)
            return rc;
        if (i == count)
            names_add(unknown, name);
    }
    return 0;
}

/* Of keys that depend on each other, and those that are needed. */
static errint_t check_sizes(struct config *c, struct efs_error *err)
{
    if (!c->head_dim && c->heads)
        c->head_dim = c->hidden / c->heads;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].effect == KEY_COUNT && keys[i].offset != offsetof(struct config, trained_positions) &&
            !*(const uint32_t *)((const char *)c + keys[i].offset))
            return efs_fail(err, -EINVAL, "config.json: %s: is not there", keys[i].name);
    if (c->chosen > c->experts || c->heads % c->kv_heads || c->head_dim < 2 || c->head_dim > HEAD_DIM_MAX ||
        c->head_dim % 2)
        return efs_fail(err, -EINVAL, "config.json: numbers of heads or experts contradict each other");
    return 0;
}

errint_t config_parse(const char *text, uint64_t bytes, const struct ignored *ignored, struct config *c,
                      struct efs_error *err)
{
    struct efs_error why = {""};
    struct names unknown = {.count = 0};
    json_t *root = efs_json_python(text, bytes, &why), *type = json_object_get(root, "model_type");
    *c = (struct config){.epsilon = 1e-6};
    if (!root)
        return efs_fail(err, -EINVAL, "config.json: %s", why.text);
    drop(root, "", ignored);
    drop(json_object_get(root, "rope_parameters"), "rope_parameters.", ignored);
    drop(json_object_get(root, "rope_scaling"), "rope_scaling.", ignored);
    errint_t rc = 0;
    if (!json_is_string(type) || strcmp(json_string_value(type), "qwen3_moe") != 0)
        rc = efs_fail(err, -EINVAL, "config.json: model_type is %s; only qwen3_moe runs",
                      json_is_string(type) ? json_string_value(type) : "not there");
    if (rc == 0)
        rc = keys_parse(root, c, &unknown, err);
    if (rc == 0)
        rc = check_sizes(c, err);
    if (rc == 0)
        rc = rope_parse(root, c, &unknown, err);
    json_decref(root);
    if (rc < 0 || !unknown.count)
        return rc;
    names_end(&unknown);
    return efs_fail(err, -EINVAL,
                    "config.json: unknown keys, which may change the result: %s; --ignore KEY runs without",
                    unknown.text);
}
