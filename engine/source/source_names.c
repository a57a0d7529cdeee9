/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_names.c - the names that are known for tensors of experts.
 *
 * A name consists of a prefix (a part of the model) and a rest that matches a pattern of the table. The prefix gives
 * the stack: common parts ("model", "language_model", "transformer", "backbone") are dropped, so "model.layers.3..." is
 * in stack "" and "encoder.block.3..." in stack "encoder".
 *
 * Patterns: {L} and {E} are decimal numbers without leading zeros, {a|b} is one of the words, * at the end is one
 * character or more, {S} is "." or "_" and one of suffixes[] at the end; any other character matches itself. The first
 * matching row is used.
 */
#include "source_names.h"

#include <ctype.h>
#include <string.h>

struct row {
    const char *family;
    enum efs_name_kind kind;
    const char *pattern;
};

/* GroveMoE: its chunk experts, each shared by several experts of the layer, have their own numbers and are a stack. */
#define GROVE "grove"
#define GROVE_STACK "chunk"

/* More specific rows precede more general ones. The families are named by their first model. */
static const struct row table[] = {
    /* Mixtral, Phi-3.5-MoE, MiniMax, Kimi-Linear, Arctic, Grok-2 */
    {"mixtral", EFS_NAME_EXPERT, "layers.{L}.block_sparse_moe.experts.{E}.*"},
    {"granite", EFS_NAME_FUSED, "layers.{L}.block_sparse_moe.{input_linear|output_linear}.*"},
    {"grok", EFS_NAME_EXPERT, "layers.{L}.moe_block.experts.{E}.*"},
    {"grok", EFS_NAME_EXPERT, "decoder_layer.{L}.moe.{E}.*"},
    {"step3", EFS_NAME_FUSED, "layers.{L}.moe.{gate_up_proj|gate_proj|up_proj|down_proj}.*"},
    {"nemotron-h", EFS_NAME_EXPERT, "layers.{L}.mixer.experts.{E}.*"},
    {"nemotron-h", EFS_NAME_FUSED, "layers.{L}.mixer.experts.{up_proj|down_proj}"},
    {"dbrx", EFS_NAME_ROWS, "blocks.{L}.ffn.experts.mlp.{w1|v1|w2}"},
    {"nomic-moe", EFS_NAME_ROWS, "layers.{L}.mlp.experts.mlp.{w1|w2}"},
    {"mistral", EFS_NAME_EXPERT, "layers.{L}.experts.{E}.*"}, /* Mistral Large 3, its own names */
    {"gemma4", EFS_NAME_FUSED, "layers.{L}.experts.{gate_up_proj|down_proj}"},
    {"nllb", EFS_NAME_EXPERT, "layers.{L}.ffn.experts.expert_{E}.*"},
    {"deepseek", EFS_NAME_EXPERT, "layers.{L}.ffn.experts.{E}.*"}, /* its own names */
    {"switch", EFS_NAME_EXPERT, "block.{L}.layer.{1|2}.mlp.experts.expert_{E}.*"},
    {"llama4", EFS_NAME_FUSED, "layers.{L}.feed_forward.experts.{gate_up_proj|down_proj}"},
    /* also Jamba, LFM2-MoE, and Mixtral by Mistral's own names */
    {"llama4", EFS_NAME_EXPERT, "layers.{L}.feed_forward.experts.{E}.*"},
    {"gpt-oss", EFS_NAME_FUSED, "layers.{L}.mlp.experts.{gate_up_proj|down_proj}_{blocks|scales|bias}"},
    /* also OLMoE, DeepSeek, Kimi-K2, GLM, Hunyuan, ERNIE-4.5, LongCat, Ling, dots.llm1 */
    {"qwen-moe", EFS_NAME_EXPERT, "layers.{L}.mlp.experts.{E}.*"},
    {"qwen3.5-moe", EFS_NAME_FUSED, "layers.{L}.mlp.experts.{gate_up_proj|down_proj}"},
    {"mlx", EFS_NAME_FUSED, "layers.{L}.{mlp|block_sparse_moe|feed_forward|mixer}.switch_mlp.*"},
    {"mlx", EFS_NAME_FUSED, "layers.{L}.{mlp|feed_forward}.experts.{gate|up|down}_proj.{weight|scales|biases|bias}"},
    {"mlx", EFS_NAME_FUSED, "layers.{L}.experts.switch_glu.*"},
    {"gguf", EFS_NAME_FUSED, "blk.{L}.ffn_{gate_up|gate|up|down}_exps.{weight|bias}"},
    {"gguf", EFS_NAME_EXPERT, "blk.{L}.ffn_{gate|up|down}.{E}.{weight|bias}"},
    {GROVE, EFS_NAME_EXPERT, "layers.{L}.mlp.chunk_experts.{E}.*"},
    {GROVE, EFS_NAME_FUSED, "blk.{L}.ffn_{gate|up|down}_chexps.{weight|bias}"},
    {GROVE, EFS_NAME_SCALES, "blk.{L}.ffn_{gate|up|down}_chexps{S}"},
    {"gguf", EFS_NAME_SCALES, "blk.{L}.ffn_{gate_up|gate|up|down}_exps{S}"},
    {"fused", EFS_NAME_SCALES, "layers.{L}.{mlp|feed_forward|mixer}.experts.{gate_up_proj|up_proj|down_proj}{S}"},
    {"fused", EFS_NAME_SCALES, "layers.{L}.experts.{gate_up_proj|down_proj}{S}"},
};
#define ROWS (sizeof(table) / sizeof(table[0]))

/* Of tensors that go with a fused one, in the names of compressed-tensors, ModelOpt, GGUF. */
static const char *const suffixes[] = {"bias",
                                       "scale",
                                       "scales",
                                       "scale_inv",
                                       "amax",
                                       "weight_scale",
                                       "weight_scale_2",
                                       "weight_scale_inv",
                                       "weight_amax",
                                       "input_scale",
                                       "input_amax",
                                       "global_scale",
                                       "weight_global_scale",
                                       "input_global_scale",
                                       "weight_zero_point",
                                       "weight_quantizer._amax",
                                       "weight_quantizer._scale",
                                       "input_quantizer._amax"};

/* Parts of a prefix that do not distinguish stacks. */
static const char *const common_parts[] = {"model", "language_model", "transformer", "backbone"};

const char *efs_source_match_number(const char *text, uint32_t max, uint32_t *number)
{
    uint64_t n = 0;

    if (!isdigit((unsigned char)*text) || (text[0] == '0' && isdigit((unsigned char)text[1])))
        return NULL;
    for (; isdigit((unsigned char)*text); text++) {
        n = n * 10 + (uint64_t)(*text - '0');
        if (n > max)
            return NULL;
    }
    *number = (uint32_t)n;
    return text;
}

/* Matches one of the words of "{a|b}" (pattern points after the brace) at the start of text; returns the text after
 * it, or NULL. In the table, a word precedes any word that is its prefix. */
static const char *match_word(const char *pattern, const char *text)
{
    while (*pattern != '}') {
        size_t n = strcspn(pattern, "|}");
        if (strncmp(pattern, text, n) == 0)
            return text + n;
        pattern += n + (pattern[n] == '|');
    }
    return NULL;
}

static bool is_suffix(const char *text)
{
    for (size_t i = 0; (*text == '.' || *text == '_') && i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (strcmp(text + 1, suffixes[i]) == 0)
            return true;
    return false;
}

static bool match_pattern(const char *pattern, const char *text, struct efs_name_match *match)
{
    while (*pattern) {
        if (*pattern == '*')
            return *text != '\0';
        if (*pattern != '{') {
            if (*pattern++ != *text++)
                return false;
            continue;
        }
        if (strncmp(pattern, "{S}", 3) == 0)
            return is_suffix(text);
        if (strncmp(pattern, "{L}", 3) == 0)
            text = efs_source_match_number(text, EFS_SOURCE_LAYER_MAX, &match->layer);
        else if (strncmp(pattern, "{E}", 3) == 0)
            text = efs_source_match_number(text, EFS_SOURCE_EXPERT_MAX, &match->expert);
        else
            text = match_word(pattern + 1, text);
        if (!text)
            return false;
        pattern = strchr(pattern, '}') + 1;
    }
    return *text == '\0';
}

static bool is_common_part(const char *part, size_t bytes)
{
    for (size_t i = 0; i < sizeof(common_parts) / sizeof(common_parts[0]); i++)
        if (strlen(common_parts[i]) == bytes && memcmp(common_parts[i], part, bytes) == 0)
            return true;
    return false;
}

bool efs_source_stack_of(const char *prefix, size_t bytes, char stack[EFS_SOURCE_STACK_BYTES_MAX + 1])
{
    size_t used = 0;

    while (bytes > 0) {
        size_t part = (size_t)((const char *)memchr(prefix, '.', bytes) - prefix);
        if (!is_common_part(prefix, part)) {
            if (part == 0 || used + (used > 0) + part > EFS_SOURCE_STACK_BYTES_MAX)
                return false;
            if (used)
                stack[used++] = '-';
            for (size_t i = 0; i < part; i++) {
                if (!isalnum((unsigned char)prefix[i]) && prefix[i] != '_')
                    return false;
                stack[used++] = prefix[i];
            }
        }
        prefix += part + 1;
        bytes -= part + 1;
    }
    stack[used] = '\0';
    return true;
}

/* Appends the stack that a row adds to that of the prefix. false: it does not fit. */
static bool append_stack(char stack[EFS_SOURCE_STACK_BYTES_MAX + 1], const struct row *row)
{
    size_t used = strlen(stack);

    if (strcmp(row->family, GROVE) != 0)
        return true;
    if (used + (used > 0) + strlen(GROVE_STACK) > EFS_SOURCE_STACK_BYTES_MAX)
        return false;
    if (used)
        stack[used++] = '-';
    memcpy(stack + used, GROVE_STACK, sizeof(GROVE_STACK));
    return true;
}

bool efs_source_match_name(const char *name, struct efs_name_match *match)
{
    for (const char *text = name; text; text = strchr(text, '.'), text = text ? text + 1 : NULL)
        for (unsigned i = 0; i < ROWS; i++) {
            *match = (struct efs_name_match){.kind = table[i].kind, .family = table[i].family, .rank = i + 1};
            if (match_pattern(table[i].pattern, text, match))
                return efs_source_stack_of(name, (size_t)(text - name), match->stack) &&
                       append_stack(match->stack, &table[i]);
        }
    return false;
}

/* The number in a group of a match; false: there is none. */
static bool group_number(const char *name, const regmatch_t *group, uint32_t max, uint32_t *number)
{
    return group->rm_so >= 0 && efs_source_match_number(name + group->rm_so, max, number) == name + group->rm_eo;
}

bool efs_source_match_regex(const char *name, const regex_t *regex, struct efs_name_match *match)
{
    regmatch_t groups[3]; /* those that the expression does not have are -1 */

    if (regexec(regex, name, 3, groups, 0) != 0)
        return false;
    *match =
        (struct efs_name_match){.kind = groups[2].rm_so < 0 ? EFS_NAME_FUSED : EFS_NAME_EXPERT, .family = "--experts"};
    size_t prefix = (size_t)groups[0].rm_so;
    while (prefix > 0 && name[prefix - 1] != '.')
        prefix--;
    return group_number(name, &groups[1], EFS_SOURCE_LAYER_MAX, &match->layer) &&
           (match->kind == EFS_NAME_FUSED || group_number(name, &groups[2], EFS_SOURCE_EXPERT_MAX, &match->expert)) &&
           efs_source_stack_of(name, prefix, match->stack);
}
