/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - parses config.json: keys that are read, keys that must have one value, keys without effect here. */
#include "config.h"
#include "expertfs-private.h"

#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define AT(member) offsetof(struct config, member)

/* Integer keys, stored in a uint32_t. */
static const struct {
    const char *name;
    size_t at;
    uint32_t least, most;
} numbers[] = {
    {"head_dim", AT(head_dim), 2, HEAD_DIM_MAX},
    {"hidden_size", AT(hidden), 1, 65536},
    {"max_position_embeddings", AT(trained_positions), 1, UINT32_MAX},
    {"moe_intermediate_size", AT(inner), 1, 262144},
    {"num_attention_heads", AT(heads), 1, 65536},
    {"num_experts", AT(experts), 1, 4096},
    {"num_experts_per_tok", AT(chosen), 1, 4096},
    {"num_hidden_layers", AT(layers), 1, 1024},
    {"num_key_value_heads", AT(kv_heads), 1, 65536},
    {"num_local_experts", AT(experts), 1, 4096}, /* num_experts as transformers 5 writes it */
    {"vocab_size", AT(vocab), 1, 10000000},
};

static const struct {
    const char *name;
    size_t at;
} flags[] = {
    {"norm_topk_prob", AT(renormalise)},
    {"tie_word_embeddings", AT(tied)},
};

/* Keys with one supported value, written as JSON; a list whose elements all are that value is accepted, too. */
static const struct {
    const char *name, *value;
} fixed[] = {
    {"attention_bias", "false"},       {"decoder_sparse_step", "1"},          {"hidden_act", "\"silu\""},
    {"is_encoder_decoder", "false"},   {"layer_types", "\"full_attention\""}, {"mlp_bias", "false"},
    {"mlp_only_layers", "[]"},         {"model_type", "\"qwen3_moe\""},       {"n_shared_experts", "0"},
    {"num_nextn_predict_layers", "0"}, {"partial_rotary_factor", "1"},        {"routed_scaling_factor", "1"},
    {"use_sliding_window", "false"},
};

/* Keys that key_parse() accepts without using them: for training, tokenizers or generation; made irrelevant by a key
 * above (sliding windows, dense layers); or read by rope_parse(). */
static const char harmless[] =
    " _attn_implementation _attn_implementation_autoset _name_or_path architectures attention_dropout bos_token_id"
    " chunk_size_feed_forward dtype eos_token_id id2label initializer_range intermediate_size label2id"
    " max_window_layers mkmodel output_attentions output_hidden_states output_router_logits pad_token_id problem_type"
    " return_dict rope_parameters rope_scaling rope_theta router_aux_loss_coef sliding_window tokenizer_class "
    "torch_dtype transformers_version unsloth_fixed"
    " unsloth_version use_cache ";

/* ---- RoPE ---- */

/* 0: not given. */
struct rope {
    double theta, factor, trained, attention, fast, slow;
};

static const struct {
    const char *name;
    size_t at;
} rope_keys[] = {
    {"rope_theta", offsetof(struct rope, theta)},
    {"factor", offsetof(struct rope, factor)}, /* this and the following keys: YaRN only */
    {"original_max_position_embeddings", offsetof(struct rope, trained)},
    {"attention_factor", offsetof(struct rope, attention)},
    {"beta_fast", offsetof(struct rope, fast)},
    {"beta_slow", offsetof(struct rope, slow)},
};

/* The index of the pair that makes `turns` rotations within the trained positions: YaRN, section 3.2. */
static double yarn_pair(const struct rope *r, uint32_t head_dim, double turns)
{
    return head_dim * log(r->trained / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static void rope_steps(const struct rope *r, bool yarn, struct config *c)
{
    double low = 0, high = 0;
    if (yarn) {
        low = fmax(floor(yarn_pair(r, c->head_dim, r->fast ? r->fast : 32)), 0);
        high = fmin(ceil(yarn_pair(r, c->head_dim, r->slow ? r->slow : 1)), c->head_dim - 1);
        high += low == high ? 0.001 : 0;
    }
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        double step = pow(r->theta, -2.0 * i / c->head_dim);
        double slow = yarn ? fmin(fmax((i - low) / (high - low), 0), 1) : 0;
        c->rope_step[i] = yarn ? step / r->factor * slow + step * (1 - slow) : step;
    }
    c->rope_scale = !yarn ? 1 : r->attention ? r->attention : r->factor <= 1 ? 1 : 0.1 * log(r->factor) + 1;
}

static errint_t rope_parse(json_t *root, struct config *c, struct efs_error *err)
{
    json_t *object = json_object_get(root, "rope_parameters"), *old = json_object_get(root, "rope_scaling"), *value;
    const json_t *theta = json_object_get(root, "rope_theta"), *type;
    struct rope r = {.trained = c->trained_positions};
    const char *name;
    if (json_is_object(object) && json_is_object(old) && !json_equal(object, old))
        return efs_fail(err, -EINVAL, "config.json: rope_parameters and rope_scaling differ");
    object = json_is_object(object) ? object : old;
    type = json_object_get(object, "rope_type");
    type = type ? type : json_object_get(object, "type");
    bool yarn = json_is_string(type) && strcmp(json_string_value(type), "yarn") == 0;
    if (type && !yarn && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0))
        return efs_fail(err, -EINVAL, "config.json: rope_type %s: only default and yarn are supported",
                        json_is_string(type) ? json_string_value(type) : "is not a string");
    json_object_foreach(object, name, value)
    {
        size_t i = 0, known = yarn ? LENGTH(rope_keys) : 1;
        while (i < known && strcmp(name, rope_keys[i].name) != 0)
            i++;
        if (json_is_null(value) || strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0)
            continue;
        if (i == known)
            return efs_fail(err, -EINVAL, "config.json: the key %s of RoPE is not supported", name);
        if (!(json_number_value(value) > 0))
            return efs_fail(err, -EINVAL, "config.json: %s of RoPE: a number above 0 is needed", name);
        *(double *)((char *)&r + rope_keys[i].at) = json_number_value(value);
    }
    if (theta && !json_is_null(theta)) {
        if (!json_is_number(theta) || (r.theta && r.theta != json_number_value(theta)))
            return efs_fail(err, -EINVAL, "config.json: rope_theta is no number, or two of them differ");
        r.theta = json_number_value(theta);
    }
    r.theta = r.theta ? r.theta : 10000; /* default of transformers */
    if (!(r.theta > 1) || (yarn && !(r.factor > 0 && r.trained >= 1)))
        return efs_fail(err, -EINVAL,
                        "config.json: rope_theta, factor or original_max_position_embeddings is missing "
                        "or out of range");
    rope_steps(&r, yarn, c);
    return 0;
}

/* ---- keys ---- */

/* Whether value equals the JSON in text, or is a list whose elements all equal that string. 1.0 equals 1. */
static bool is_fixed(const json_t *value, const char *text)
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

static errint_t key_parse(const char *name, const json_t *value, struct config *c, struct efs_error *err)
{
    double number = json_number_value(value);
    char word[256];
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        uint32_t *at = (uint32_t *)((char *)c + numbers[i].at);
        if (strcmp(name, numbers[i].name) != 0)
            continue;
        if (!json_is_integer(value) || number < numbers[i].least || number > numbers[i].most)
            return efs_fail(err, -EINVAL, "config.json: %s: a whole number from %u to %u is needed", name,
                            numbers[i].least, numbers[i].most);
        if (*at && *at != (uint32_t)number)
            return efs_fail(err, -EINVAL, "config.json: %s: differs from a key of the same meaning", name);
        *at = (uint32_t)number;
        return 0;
    }
    for (size_t i = 0; i < LENGTH(flags); i++)
        if (strcmp(name, flags[i].name) == 0) {
            *(bool *)((char *)c + flags[i].at) = json_is_true(value);
            return json_is_boolean(value) ? 0
                                          : efs_fail(err, -EINVAL, "config.json: %s: true or false is needed", name);
        }
    for (size_t i = 0; i < LENGTH(fixed); i++)
        if (strcmp(name, fixed[i].name) == 0)
            return is_fixed(value, fixed[i].value)
                       ? 0
                       : efs_fail(err, -EINVAL, "config.json: %s: only %s is supported", name, fixed[i].value);
    if (strcmp(name, "rms_norm_eps") == 0) {
        c->epsilon = number;
        return json_is_number(value) && number >= 0 && number <= 1
                   ? 0
                   : efs_fail(err, -EINVAL, "config.json: %s: a number from 0 to 1 is needed", name);
    }
    snprintf(word, sizeof(word), " %s ", name);
    return strstr(harmless, word) ? 0
                                  : efs_fail(err, -EINVAL,
                                             "config.json: the key %s is not known, and may change the result\nhint: "
                                             "--ignore=%s runs without it",
                                             name, name);
}

/* Checks required keys and keys that depend on each other; computes head_dim if it is missing. */
static errint_t check_sizes(struct config *c, struct efs_error *err)
{
    if (!c->head_dim && c->heads)
        c->head_dim = c->hidden / c->heads;
    for (size_t i = 0; i < LENGTH(numbers); i++)
        if (numbers[i].at != AT(trained_positions) && !*(const uint32_t *)((const char *)c + numbers[i].at))
            return efs_fail(err, -EINVAL, "config.json: %s: is not there", numbers[i].name);
    if (c->chosen > c->experts || c->heads % c->kv_heads || c->head_dim < 2 || c->head_dim > HEAD_DIM_MAX ||
        c->head_dim % 2)
        return efs_fail(err, -EINVAL, "config.json: numbers of heads or experts contradict each other");
    return 0;
}

bool is_ignored(const char *const *ignored, const char *name)
{
    for (; *ignored; ignored++)
        if (fnmatch(*ignored, name, 0) == 0)
            return true;
    return false;
}

/* Deletes the keys of an object that match a pattern. prefix: prepended to each key, such as "rope_scaling." */
static void delete_ignored(json_t *object, const char *prefix, const char *const *ignored)
{
    const char *name;
    json_t *value;
    void *next;
    char whole[256];
    json_object_foreach_safe(object, next, name, value)
    {
        snprintf(whole, sizeof(whole), "%s%s", prefix, name);
        if (is_ignored(ignored, whole))
            json_object_del(object, name);
    }
}

errint_t config_parse(const char *text, uint64_t bytes, const char *const *ignored, struct config *c,
                      struct efs_error *err)
{
    struct efs_error why = {""};
    json_t *root = efs_json_python(text, bytes, &why), *value;
    const json_t *type = json_object_get(root, "model_type");
    const char *name;
    errint_t rc = 0;
    *c = (struct config){.epsilon = 1e-6};
    if (!root)
        return efs_fail(err, -EINVAL, "config.json: %s", why.text);
    delete_ignored(root, "", ignored);
    delete_ignored(json_object_get(root, "rope_parameters"), "rope_parameters.", ignored);
    delete_ignored(json_object_get(root, "rope_scaling"), "rope_scaling.", ignored);
    if (!json_is_string(type) || strcmp(json_string_value(type), "qwen3_moe") != 0)
        rc = efs_fail(err, -EINVAL, "config.json: model_type is %s; only qwen3_moe runs",
                      json_is_string(type) ? json_string_value(type) : "not there");
    json_object_foreach(root, name, value) if (rc == 0 && !json_is_null(value)) /* null: as if the key were absent */
        rc = key_parse(name, value, c, err);
    if (rc == 0)
        rc = check_sizes(c, err);
    if (rc == 0)
        rc = rope_parse(root, c, err);
    json_decref(root);
    return rc;
}
