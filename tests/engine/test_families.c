/* SPDX-License-Identifier: Apache-2.0 */
/* Families of models: the experts of each are found by the names of its tensors, by the number of experts in its
 * config.json, or by an expression of the user. */
#include "named_model.h"
#include "test.h"

/* Families with one tensor per expert: the pattern of names, and dense tensors of such models. */
struct family {
    const char *family, *format; /* for printf: layer, expert unless fused, tensor */
    const char *tensors[8];
    const char *dense[6];
};

static const struct family plain_families[] = {
    {"mixtral",
     "model.layers.%u.block_sparse_moe.experts.%u.%s",
     {"w1.weight", "w2.weight", "w3.weight"},
     {"model.layers.0.block_sparse_moe.gate.weight", "model.embed_tokens.weight", "lm_head.weight",
      "model.layers.0.self_attn.q_proj.weight"}},
    {"qwen-moe",
     "model.layers.%u.mlp.experts.%u.%s",
     {"gate_proj.weight", "up_proj.weight", "down_proj.weight", "gate_proj.weight_scale_inv",
      "up_proj.weight_scale_inv", "down_proj.weight_scale"},
     {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.shared_expert.up_proj.weight",
      "model.layers.0.mlp.shared_experts.up_proj.weight", "model.layers.0.mlp.shared_expert_gate.weight",
      "model.layers.0.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.up_proj.weight"}},
    {"qwen-moe",
     "model.language_model.layers.%u.mlp.experts.%u.%s",
     {"gate_proj.qweight", "gate_proj.qzeros", "gate_proj.scales"},
     {"model.visual.blocks.0.mlp.linear_fc1.weight"}},
    {"llama4",
     "language_model.model.layers.%u.feed_forward.experts.%u.%s",
     {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
     {"language_model.model.layers.0.feed_forward.shared_expert.up_proj.weight",
      "language_model.model.layers.0.feed_forward.router.weight"}},
    {"gguf", /* Mixtral, before llama.cpp fused the experts of a layer */
     "blk.%u.ffn_gate.%u.%s",
     {"weight"},
     {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_norm.weight"}},
};

/* Families with fused tensors: one tensor for all experts of a layer. */
static const struct family fused_families[] = {
    {"llama4",
     "language_model.model.layers.%u.feed_forward.experts.%s",
     {"gate_up_proj", "down_proj"},
     {"language_model.model.layers.0.feed_forward.shared_expert.up_proj.weight"}},
    {"gpt-oss",
     "model.layers.%u.mlp.experts.%s",
     {"gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias", "down_proj_blocks", "down_proj_scales",
      "down_proj_bias"},
     {"model.layers.0.mlp.router.weight", "model.layers.0.mlp.router.bias"}},
    {"gpt-oss", /* BF16: the names of the next family, and biases */
     "model.layers.%u.mlp.experts.%s",
     {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"},
     {"model.layers.0.mlp.router.weight"}},
    {"qwen3.5-moe",
     "model.language_model.layers.%u.mlp.experts.%s",
     {"gate_up_proj", "down_proj"},
     {"model.language_model.layers.0.mlp.shared_expert.gate_proj.weight",
      "model.language_model.layers.0.mlp.gate.weight"}},
    {"mlx",
     "model.layers.%u.mlp.switch_mlp.%s",
     {"gate_proj.weight", "gate_proj.scales", "gate_proj.biases", "up_proj.weight", "down_proj.weight"},
     {"model.layers.0.mlp.gate.weight"}},
    {"mlx", "model.layers.%u.block_sparse_moe.switch_mlp.%s", {"gate_proj.weight"}, {NULL}},
    {"mlx", "model.layers.%u.feed_forward.switch_mlp.%s", {"gate_proj.scales"}, {NULL}}, /* LFM2, Jamba */
    {"mlx",                                                                              /* gpt-oss, dots.llm1 */
     "model.layers.%u.mlp.experts.%s",
     {"gate_proj.weight", "gate_proj.scales", "gate_proj.biases", "gate_proj.bias", "up_proj.weight", "down_proj.bias"},
     {"model.layers.0.mlp.router.weight"}},
    {"mlx", /* Llama 4 */
     "language_model.model.layers.%u.feed_forward.experts.%s",
     {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
     {"language_model.model.layers.0.feed_forward.shared_expert.up_proj.weight"}},
    {"mlx", "language_model.model.layers.%u.experts.switch_glu.%s", {"gate_proj.weight"}, {NULL}}, /* Gemma 4 */
    {"gguf",
     "blk.%u.%s",
     {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_up_exps.weight",
      "ffn_gate_exps.bias"},
     {"blk.0.ffn_gate_shexp.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_norm.weight", "blk.0.exp_probs_b.bias"}},
};

/* Layers and experts whose numeric order is not their order as text: 2 before 10. */
static const uint32_t layers[] = {10, 2}, experts[] = {0, 11, 3, 100}, sorted[] = {0, 3, 11, 100};
#define FUSED 5u /* experts of a fused tensor */

static void name_of(const struct family *f, bool fused, size_t layer, size_t expert, size_t tensor, char name[200])
{
    if (fused)
        snprintf(name, 200, f->format, layers[layer], f->tensors[tensor]);
    else
        snprintf(name, 200, f->format, layers[layer], experts[expert], f->tensors[tensor]);
}

static void groups(const struct family *f, bool fused)
{
    const uint64_t bias[] = {FUSED, 7};
    const size_t each = fused ? FUSED : 4, names = fused ? 1 : 4; /* per layer: experts, and tensors of one kind */
    const enum efs_tensor_class tensor_class = fused ? EFS_CLASS_FUSED : EFS_CLASS_EXPERT;
    struct named_model model = {0};
    struct efs_catalog catalog;
    char name[200];
    size_t tensors = 0, dense = 0;
    for (; dense < 6 && f->dense[dense]; dense++)
        named_model_add(&model, FUSED, "%s", f->dense[dense]);
    for (size_t l = 0; l < 2; l++)
        for (size_t e = 0; e < names; e++)
            for (size_t t = 0; t < 8 && f->tensors[t]; t++, tensors++) {
                name_of(f, fused, l, e, t, name);
                if (fused && strstr(name, "bias"))
                    named_model_add_shape(&model, name, 2, bias);
                else
                    named_model_add(&model, FUSED, "%s", name);
            }
    named_model_read(&model, &catalog);
    assert_string_equal(catalog.family, f->family);
    assert_int_equal(catalog.expert_count, 2 * each);
    assert_int_equal(count_class(&catalog, tensor_class), tensors);
    assert_int_equal(catalog.tensor_count, tensors + dense);
    for (uint32_t e = 0; e < 2 * each; e++)
        expect_expert(&catalog, e, "", e < each ? 2 : 10, fused ? e % FUSED : sorted[e % 4]);
    for (size_t d = 0; d < dense; d++)
        expect_tensor(&catalog, f->dense[d], EFS_CLASS_DENSE, "", 0, 0);
    for (size_t l = 0; l < 2; l++)
        for (size_t e = 0; e < names; e++)
            for (size_t t = 0; t < 8 && f->tensors[t]; t++) {
                name_of(f, fused, l, e, t, name);
                expect_tensor(&catalog, name, tensor_class, "", layers[l], fused ? 0 : experts[e]);
            }
    efs_catalog_free(&catalog);
}

TEST(groups_families)
{
    for (size_t f = 0; f < sizeof(plain_families) / sizeof(plain_families[0]); f++)
        groups(&plain_families[f], false);
    for (size_t f = 0; f < sizeof(fused_families) / sizeof(fused_families[0]); f++)
        groups(&fused_families[f], true);
}

/* ---- checkpoints with a config.json, names as in the models' public code ---- */

#define EXPERTS 4u
#define CONFIG(architecture, count)                                                                                    \
    "{\"architectures\":[\"" architecture "\"],\"" count "\":4,\"num_experts_per_tok\":2}"

/* A checkpoint of layers 1 and 2 with EXPERTS experts each. */
struct checkpoint {
    const char *what, *config; /* NULL: no config.json */
    const char *family, *stack;
    enum { NUMBERED, FIRST_DIMENSION, ROWS } kind;
    const char *formats[4]; /* of tensors, for printf: layer; NUMBERED: expert */
    const char *dense[6];   /* of two dimensions, the first one EXPERTS; names with "conv" have three */
};

static const struct checkpoint checkpoints[] = {
    {"Granite-MoE",
     CONFIG("GraniteMoeForCausalLM", "num_local_experts"),
     "GraniteMoeForCausalLM",
     "",
     FIRST_DIMENSION,
     {"model.layers.%u.block_sparse_moe.input_linear.weight", "model.layers.%u.block_sparse_moe.output_linear.weight"},
     {"model.layers.1.block_sparse_moe.router.layer.weight", "model.layers.1.shared_mlp.input_linear.weight"}},
    {"DBRX",
     "{\"architectures\":[\"DbrxForCausalLM\"],\"ffn_config\":{\"moe_num_experts\":4,\"moe_top_k\":4}}",
     "DbrxForCausalLM",
     "",
     ROWS,
     {"transformer.blocks.%u.ffn.experts.mlp.w1", "transformer.blocks.%u.ffn.experts.mlp.v1",
      "transformer.blocks.%u.ffn.experts.mlp.w2"},
     {"transformer.blocks.1.ffn.router.layer.weight", "transformer.blocks.1.norm_attn_norm.attn.Wqkv.weight"}},
    {"nomic-embed-moe",
     CONFIG("NomicBertModel", "num_experts"),
     "NomicBertModel",
     "encoder",
     ROWS,
     {"encoder.layers.%u.mlp.experts.mlp.w1", "encoder.layers.%u.mlp.experts.mlp.w2"},
     {"encoder.layers.1.mlp.router.layer.weight"}},
    {"Grok-1",
     CONFIG("Grok1ModelForCausalLM", "num_experts"),
     "Grok1ModelForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.moe_block.experts.%u.linear.weight", "model.layers.%u.moe_block.experts.%u.linear_1.weight",
      "model.layers.%u.moe_block.experts.%u.linear_v.weight"},
     {"model.layers.1.moe_block.gate.weight"}},
    {"Grok-1, the first conversion",
     NULL,
     "grok",
     "",
     NUMBERED,
     {"transformer.decoder_layer.%u.moe.%u.linear.weight", "transformer.decoder_layer.%u.moe.%u.linear_1.weight",
      "transformer.decoder_layer.%u.moe.%u.linear_v.weight"},
     {"transformer.decoder_layer.1.router.weight"}},
    {"Mixtral, Mistral's names",
     NULL,
     "llama4",
     "",
     NUMBERED,
     {"layers.%u.feed_forward.experts.%u.w1.weight", "layers.%u.feed_forward.experts.%u.w2.weight"},
     {"layers.1.feed_forward.gate.weight", "tok_embeddings.weight", "output.weight"}},
    {"Mistral Large 3, Mistral's names",
     NULL,
     "mistral",
     "",
     NUMBERED,
     {"layers.%u.experts.%u.w1.weight", "layers.%u.experts.%u.w2.weight", "layers.%u.experts.%u.w3.weight"},
     {"layers.1.gate.weight", "layers.1.shared_experts.w1.weight"}},
    {"Step3",
     CONFIG("Step3TextForCausalLM", "moe_num_experts"),
     "Step3TextForCausalLM",
     "",
     FIRST_DIMENSION,
     {"model.layers.%u.moe.gate_proj.weight", "model.layers.%u.moe.up_proj.weight",
      "model.layers.%u.moe.down_proj.weight"},
     {"model.layers.1.moe.gate.weight", "model.layers.1.moe.router_bias",
      "model.layers.1.share_expert.up_proj.weight"}},
    {"Jamba",
     CONFIG("JambaForCausalLM", "num_experts"),
     "JambaForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.feed_forward.experts.%u.gate_proj.weight"},
     {"model.layers.1.feed_forward.router.weight", "model.layers.1.mamba.conv1d.weight"}},
    {"MiniMax",
     CONFIG("MiniMaxM2ForCausalLM", "num_local_experts"),
     "MiniMaxM2ForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.block_sparse_moe.experts.%u.w1.weight",
      "model.layers.%u.block_sparse_moe.experts.%u.w1.weight_scale_inv"},
     {"model.layers.1.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.e_score_correction_bias"}},
    {"Hunyuan",
     CONFIG("HunYuanMoEV1ForCausalLM", "num_experts"),
     "HunYuanMoEV1ForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.mlp.experts.%u.gate_proj.weight"},
     {"model.layers.1.mlp.gate.wg.weight", "model.layers.1.mlp.shared_mlp.up_proj.weight"}},
    {"ERNIE-4.5",
     CONFIG("Ernie4_5_MoeForCausalLM", "moe_num_experts"),
     "Ernie4_5_MoeForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.mlp.experts.%u.down_proj.weight"},
     {"model.layers.1.mlp.moe_statics.e_score_correction_bias", "model.layers.1.mlp.shared_experts.up_proj.weight"}},
    {"Kimi-K2",
     CONFIG("DeepseekV3ForCausalLM", "n_routed_experts"),
     "DeepseekV3ForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.mlp.experts.%u.up_proj.weight", "model.layers.%u.mlp.experts.%u.up_proj.weight_scale_inv"},
     {"model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.shared_experts.up_proj.weight"}},
    {"Kimi-Linear",
     CONFIG("KimiLinearForCausalLM", "num_experts"),
     "KimiLinearForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.block_sparse_moe.experts.%u.w3.weight"},
     {"model.layers.1.block_sparse_moe.gate.e_score_correction_bias",
      "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight"}},
    {"Nemotron-H",
     CONFIG("NemotronHForCausalLM", "n_routed_experts"),
     "NemotronHForCausalLM",
     "",
     NUMBERED,
     {"backbone.layers.%u.mixer.experts.%u.up_proj.weight", "backbone.layers.%u.mixer.experts.%u.down_proj.weight"},
     {"backbone.layers.1.mixer.gate.weight", "backbone.layers.1.mixer.shared_experts.up_proj.weight",
      "backbone.layers.2.mixer.conv1d.weight"}},
    {"Qwen3-Next",
     CONFIG("Qwen3NextForCausalLM", "num_experts"),
     "Qwen3NextForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.mlp.experts.%u.gate_proj.weight"},
     {"model.layers.1.mlp.shared_expert_gate.weight", "model.layers.1.linear_attn.conv1d.weight"}},
    {"Qwen3-Omni",
     "{\"architectures\":[\"Qwen3OmniMoeForConditionalGeneration\"],\"thinker_config\":{\"text_config\":"
     "{\"num_experts\":4}}}",
     "Qwen3OmniMoeForConditionalGeneration",
     "thinker",
     NUMBERED,
     {"thinker.model.layers.%u.mlp.experts.%u.gate_proj.weight"},
     {"thinker.model.layers.1.mlp.gate.weight", "thinker.visual.blocks.1.mlp.linear_fc1.weight"}},
    {"LongCat",
     CONFIG("LongcatFlashForCausalLM", "n_routed_experts"),
     "LongcatFlashForCausalLM",
     "",
     NUMBERED,
     {"model.layers.%u.mlp.experts.%u.gate_proj.weight"},
     {"model.layers.1.mlp.router.classifier.weight", "model.layers.1.mlps.0.up_proj.weight"}},
    {"DeepSeek's own names",
     NULL,
     "deepseek",
     "",
     NUMBERED,
     {"layers.%u.ffn.experts.%u.w1.weight", "layers.%u.ffn.experts.%u.w1.scale"},
     {"layers.1.ffn.gate.weight", "layers.1.ffn.shared_experts.w1.weight"}},
    {"NLLB-MoE",
     CONFIG("NllbMoeForConditionalGeneration", "num_experts"),
     "NllbMoeForConditionalGeneration",
     "encoder",
     NUMBERED,
     {"model.encoder.layers.%u.ffn.experts.expert_%u.fc1.weight"},
     {"model.encoder.layers.1.ffn.router.classifier.weight"}},
    {"Gemma 4",
     CONFIG("Gemma4ForConditionalGeneration", "num_experts"),
     "Gemma4ForConditionalGeneration",
     "",
     FIRST_DIMENSION,
     {"model.language_model.layers.%u.experts.gate_up_proj", "model.language_model.layers.%u.experts.down_proj"},
     {"model.language_model.layers.1.router.proj.weight"}},
    /* Names that are not in the table */
    {"Aria",
     "{\"architectures\":[\"AriaForConditionalGeneration\"],\"text_config\":{\"moe_num_experts\":4}}",
     "AriaForConditionalGeneration",
     "",
     FIRST_DIMENSION,
     {"language_model.model.layers.%u.mlp.experts.fc1.weight", "language_model.model.layers.%u.mlp.experts.fc2.weight"},
     {"language_model.model.layers.1.mlp.router.weight"}},
    {"JetMoE",
     CONFIG("JetMoeForCausalLM", "num_local_experts"),
     "JetMoeForCausalLM",
     "",
     FIRST_DIMENSION,
     {"model.layers.%u.mlp.input_linear.weight", "model.layers.%u.mlp.output_linear.weight"},
     {"model.layers.1.mlp.router.layer.weight", "model.layers.1.self_attention.conv.weight"}},
    {"numbers after a word",
     "{\"model\":{\"num_moe_experts\":[4,4]}}",
     "pattern",
     "tower",
     NUMBERED,
     {"tower.stage.%u.ffn.lane_%u.in.weight", "tower.stage.%u.ffn.lane_%u.out.weight"},
     {"tower.stage.1.ffn.router.weight", "tower.head.weight"}},
    {"the parts of an expert are numbers",
     "{\"moe\":{\"num_experts\":4}}",
     "pattern",
     "",
     NUMBERED,
     {"h.%u.mix.%u.0.weight", "h.%u.mix.%u.1.weight"},
     {"h.1.router.weight"}},
};

static void add_checkpoint(struct named_model *model, const struct checkpoint *c)
{
    const uint64_t router[] = {EXPERTS, 6}, rows[] = {EXPERTS * 5, 6};
    char name[200];

    for (size_t d = 0; d < 6 && c->dense[d]; d++)
        if (strstr(c->dense[d], "conv"))
            named_model_add(model, EXPERTS, "%s", c->dense[d]);
        else
            named_model_add_shape(model, c->dense[d], 2, router);
    for (unsigned layer = 1; layer <= 2; layer++)
        for (unsigned expert = 0; expert < (c->kind == NUMBERED ? EXPERTS : 1); expert++)
            for (size_t t = 0; t < 4 && c->formats[t]; t++) {
                snprintf(name, sizeof(name), c->formats[t], layer, expert);
                if (c->kind == ROWS)
                    named_model_add_shape(model, name, 2, rows);
                else
                    named_model_add(model, EXPERTS, "%s", name);
            }
}

static void expect_checkpoint(const struct checkpoint *c, const struct efs_catalog *catalog)
{
    const enum efs_tensor_class tensor_class = c->kind == NUMBERED ? EFS_CLASS_EXPERT : EFS_CLASS_FUSED;
    char name[200];

    if (strcmp(catalog->family, c->family) != 0 || catalog->expert_count != 2 * EXPERTS)
        fail_msg("%s: family %s, %zu experts", c->what, catalog->family, catalog->expert_count);
    for (unsigned e = 0; e < 2 * EXPERTS; e++)
        expect_expert(catalog, e, c->stack, 1 + e / EXPERTS, e % EXPERTS);
    for (size_t d = 0; d < 6 && c->dense[d]; d++)
        expect_tensor(catalog, c->dense[d], EFS_CLASS_DENSE, "", 0, 0);
    for (unsigned layer = 1; layer <= 2; layer++)
        for (unsigned expert = 0; expert < (c->kind == NUMBERED ? EXPERTS : 1); expert++)
            for (size_t t = 0; t < 4 && c->formats[t]; t++) {
                snprintf(name, sizeof(name), c->formats[t], layer, expert);
                expect_tensor(catalog, name, tensor_class, c->stack, layer, expert);
                const struct efs_source_tensor *tensor = sf_tensor(catalog, name);
                assert_int_equal(tensor->dims, 3);
                if (c->kind == ROWS)
                    assert_true(tensor->shape[0] == EXPERTS && tensor->shape[1] == 5 && tensor->shape[2] == 6);
            }
}

TEST(groups_checkpoints_with_config)
{
    for (size_t i = 0; i < sizeof(checkpoints) / sizeof(checkpoints[0]); i++) {
        struct named_model model = {0};
        struct efs_catalog catalog;
        char *dir = sf_mkdir();
        add_checkpoint(&model, &checkpoints[i]);
        named_model_write(&model, dir, "model.safetensors");
        if (checkpoints[i].config)
            sf_write(dir, "config.json", checkpoints[i].config, strlen(checkpoints[i].config));
        sf_accept(dir, &catalog);
        expect_checkpoint(&checkpoints[i], &catalog);
        efs_catalog_free(&catalog);
        sf_rmdir(dir);
    }
}

TEST_MAIN(NULL, NULL)
