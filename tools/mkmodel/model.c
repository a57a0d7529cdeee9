/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"

static const struct mk_family *const families[] = {&mk_family_mixtral, &mk_family_qwen3, &mk_family_deepseek,
                                                   &mk_family_gpt_oss, &mk_family_switch};

const struct mk_family *mk_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (!strcmp(families[i]->name, name))
            return families[i];
    return NULL;
}

struct preset {
    const char *name;
    const struct mk_family *family;
    uint32_t layers, experts, experts_per_token, hidden, intermediate, vocab;
    uint64_t shard_bytes;
};

static const struct preset presets[] = {
    {"demo", &mk_family_qwen3, 6, 16, 4, 2048, 768, 8192, 256u << 20},
    {"replay", &mk_family_qwen3, 24, 32, 4, 2048, 768, 8192, 1u << 30},
    {"tiny-mixtral", &mk_family_mixtral, 3, 4, 2, 128, 256, 640, 1u << 20},
    {"tiny-qwen3-moe", &mk_family_qwen3, 3, 8, 2, 128, 128, 640, 1u << 20},
    {"tiny-deepseek-v2", &mk_family_deepseek, 3, 8, 2, 128, 128, 640, 1u << 20},
    {"tiny-gpt-oss", &mk_family_gpt_oss, 4, 8, 2, 128, 128, 640, 1u << 20},
    {"tiny-switch", &mk_family_switch, 4, 8, 1, 128, 256, 640, 1u << 20},
};

const char mk_preset_help[] = "demo: about 1 GiB of qwen3-moe, 9 MiB experts\n"
                              "replay: 7 GiB of qwen3-moe, 24 layers of 32 experts\n"
                              "tiny-mixtral, tiny-qwen3-moe, tiny-deepseek-v2, tiny-gpt-oss, tiny-switch: a few\n"
                              "MiB, for tests";

static void set_default(uint32_t *field, uint32_t value)
{
    if (!*field)
        *field = value;
}

bool mk_model_preset(struct mk_model *model, const char *name)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        const struct preset *preset = &presets[i];
        if (strcmp(preset->name, name) != 0)
            continue;
        if (!model->family)
            model->family = preset->family;
        if (!model->target_bytes)
            set_default(&model->layers, preset->layers);
        set_default(&model->experts, preset->experts);
        set_default(&model->experts_per_token, preset->experts_per_token);
        set_default(&model->hidden, preset->hidden);
        set_default(&model->intermediate, preset->intermediate);
        set_default(&model->vocab, preset->vocab);
        if (!model->shard_bytes)
            model->shard_bytes = preset->shard_bytes;
        return true;
    }
    return false;
}

static int model_refuse(struct mk_error *error, const char *what)
{
    snprintf(error->text, sizeof(error->text), "%s", what);
    return -EINVAL;
}

static int check_limits(const struct mk_model *model, struct mk_error *error)
{
    if (model->hidden % 32 || model->hidden < 64 || model->hidden > 65536)
        return model_refuse(error, "--hidden: a multiple of 32 from 64 to 65536 is needed");
    if (model->intermediate % 32 || model->intermediate > 262144)
        return model_refuse(error, "--intermediate: a multiple of 32 up to 262144 is needed");
    if (model->vocab < 320 || model->vocab > 1000000)
        return model_refuse(error, "--vocab: from 320 (all bytes and some words) to 1000000 is needed");
    if (model->experts < 2 || model->experts > 4096)
        return model_refuse(error, "--experts: from 2 to 4096 are needed");
    if (model->experts_per_token > model->experts)
        return model_refuse(error, "--experts-per-token: more than there are experts");
    if (model->layers > 1024)
        return model_refuse(error, "--layers: up to 1024");
    if (model->format == MK_GGUF && !model->family->gguf)
        return model_refuse(error, "--format=gguf: for mixtral and qwen3-moe only");
    if (model->dtype == MK_FP8 && (model->format == MK_GGUF || !model->family->fp8))
        return model_refuse(error, "--dtype=fp8: for qwen3-moe and deepseek-v2 in safetensors only");
    return 0;
}

static void derive_heads(struct mk_model *model)
{
    uint32_t hidden = model->hidden;
    model->head_dim = hidden % 128 == 0 && hidden >= 1024 ? 128 : hidden % 64 == 0 && hidden >= 256 ? 64 : 32;
    model->heads = hidden / model->head_dim;
    uint32_t divisor = model->family->head_divisor;
    while (divisor > 1 && model->heads % divisor)
        divisor /= 2;
    model->kv_heads = model->heads / divisor;
    model->dense_intermediate = model->intermediate;
    model->context = 4096;
    if (model->family->derive)
        model->family->derive(model);
}

/* Bytes of all tensors with that many layers; UINT64_MAX: no memory. */
static uint64_t model_bytes_with(const struct mk_model *model, uint32_t layers)
{
    struct mk_model sized = *model;
    struct mk_plan plan;
    sized.layers = layers;
    mk_plan_init(&plan, &sized);
    sized.family->plan(&sized, &plan);
    uint64_t bytes = plan.failed ? UINT64_MAX : mk_plan_bytes(&plan);
    mk_plan_free(&plan);
    return bytes;
}

/* All families grow by the same number of bytes every layer_step layers. */
static int choose_layers(struct mk_model *model, struct mk_error *error)
{
    const struct mk_family *family = model->family;
    uint32_t least = family->layer_min;
    uint64_t base = model_bytes_with(model, least), next = model_bytes_with(model, least + family->layer_step);
    if (base == UINT64_MAX || next == UINT64_MAX)
        return -ENOMEM;
    uint64_t more = model->target_bytes > base ? model->target_bytes - base : 0, step = next - base;
    uint64_t steps = (more + step / 2) / step;
    if (steps > 1000)
        return model_refuse(error, "--size: too large for layers of this size; choose larger experts");
    model->layers = least + (uint32_t)steps * family->layer_step;
    return 0;
}

int mk_model_derive(struct mk_model *model, struct mk_error *error)
{
    if (!model->family)
        return model_refuse(error, "--family or --preset is needed");
    set_default(&model->experts, 8);
    set_default(&model->experts_per_token,
                model->family == &mk_family_switch ? 1 : (model->experts < 8 ? 2 : model->experts / 4));
    set_default(&model->hidden, 1024);
    set_default(&model->intermediate, 512);
    set_default(&model->vocab, 8192);
    if (!model->shard_bytes)
        model->shard_bytes = UINT64_C(5000000000);
    int rc = check_limits(model, error);
    if (rc)
        return rc;
    derive_heads(model);
    if (!model->layers && model->target_bytes) {
        rc = choose_layers(model, error);
        if (rc)
            return rc;
    }
    set_default(&model->layers, 4);
    if (model->layers < model->family->layer_min || model->layers % model->family->layer_step)
        return model_refuse(error, model->family->layer_step > 1 ? "--layers: this family needs an even number"
                                                                 : "--layers: this family needs more");
    return 0;
}
