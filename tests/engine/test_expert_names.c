/* SPDX-License-Identifier: Apache-2.0 */
/* Which expert a tensor belongs to, by its name: every family of the table, two layers, several experts, and dense
 * tensors. */
#include "test.h"
#include "source_files.h"

/* A checkpoint of U8 tensors by name and shape, written as one safetensors file. */
struct model {
    struct sf_bytes header;
    size_t data_bytes;
};

static void add(struct model *model, const char *name, unsigned dims, const uint64_t *shape)
{
    char text[256];
    size_t bytes = 1;

    snprintf(text, sizeof(text), "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[", model->header.count ? "," : "{", name);
    sf_put(&model->header, text, strlen(text));
    for (unsigned i = 0; i < dims; i++) {
        snprintf(text, sizeof(text), "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
        sf_put(&model->header, text, strlen(text));
        bytes *= shape[i];
    }
    snprintf(text, sizeof(text), "],\"data_offsets\":[%zu,%zu]}", model->data_bytes, model->data_bytes + bytes);
    sf_put(&model->header, text, strlen(text));
    model->data_bytes += bytes;
}

/* Adds a tensor of shape [first, 2, 3]; its name is formatted as by printf(3). */
static void add_of(struct model *model, uint64_t first, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_of(struct model *model, uint64_t first, const char *format, ...)
{
    const uint64_t shape[] = {first, 2, 3};
    char name[200];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    add(model, name, 3, shape);
}

/* Returns the model as a safetensors file and resets *model. */
static struct sf_bytes end_model(struct model *model)
{
    struct sf_bytes file = {0};

    sf_put(&model->header, "}", 1);
    sf_safetensors(&file, (const char *)model->header.data, model->header.count, model->data_bytes);
    free(model->header.data);
    *model = (struct model){0};
    return file;
}

static void write_model(struct model *model, const char *dir, const char *name)
{
    struct sf_bytes file = end_model(model);

    sf_write(dir, name, file.data, file.count);
    free(file.data);
}

/* Reads a directory that contains only the model. */
static void read_model(struct model *model, struct efs_catalog *catalog)
{
    struct sf_bytes file = end_model(model);

    sf_read("model.safetensors", &file, catalog);
}

static void expect_expert(const struct efs_catalog *catalog, size_t index, const char *stack, uint32_t layer,
                          uint32_t expert)
{
    assert_true(index < catalog->expert_count);
    assert_string_equal(catalog->experts[index].stack, stack);
    assert_int_equal(catalog->experts[index].layer, layer);
    assert_int_equal(catalog->experts[index].expert, expert);
}

/* Fails unless the tensor has this class and its (first) expert is (stack, layer, expert). */
static void expect_tensor(const struct efs_catalog *catalog, const char *name, enum efs_tensor_class tensor_class,
                          const char *stack, uint32_t layer, uint32_t expert)
{
    const struct efs_source_tensor *tensor = sf_tensor(catalog, name);

    if (tensor->tensor_class != tensor_class)
        fail_msg("%s is of class %d, not %d", name, tensor->tensor_class, tensor_class);
    if (tensor_class != EFS_CLASS_DENSE)
        expect_expert(catalog, tensor->expert_first, stack, layer, expert);
}

static size_t count_class(const struct efs_catalog *catalog, enum efs_tensor_class tensor_class)
{
    size_t count = 0;

    for (size_t i = 0; i < catalog->tensor_count; i++)
        count += catalog->tensors[i].tensor_class == tensor_class;
    return count;
}

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
    struct model model = {0};
    struct efs_catalog catalog;
    char name[200];
    size_t tensors = 0, dense = 0;
    for (; dense < 6 && f->dense[dense]; dense++)
        add_of(&model, FUSED, "%s", f->dense[dense]);
    for (size_t l = 0; l < 2; l++)
        for (size_t e = 0; e < names; e++)
            for (size_t t = 0; t < 8 && f->tensors[t]; t++, tensors++) {
                name_of(f, fused, l, e, t, name);
                if (fused && strstr(name, "bias"))
                    add(&model, name, 2, bias);
                else
                    add_of(&model, FUSED, "%s", name);
            }
    read_model(&model, &catalog);
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

TEST(separates_stacks)
{
    struct model model = {0};
    struct efs_catalog catalog;

    for (uint32_t l = 1; l <= 3; l += 2)
        for (uint32_t e = 0; e < 2; e++) {
            add_of(&model, 1, "encoder.block.%u.layer.1.mlp.experts.expert_%u.wi.weight", l, e);
            add_of(&model, 1, "encoder.block.%u.layer.1.mlp.experts.expert_%u.wo.weight", l, e);
            add_of(&model, 1, "decoder.block.%u.layer.2.mlp.experts.expert_%u.wi.weight", l, e);
            add_of(&model, 1, "decoder.block.%u.layer.2.mlp.experts.expert_%u.wo.weight", l, e);
        }
    add_of(&model, 1, "encoder.block.1.layer.1.mlp.router.classifier.weight");
    add_of(&model, 1, "encoder.block.0.layer.1.mlp.wi.weight");
    add_of(&model, 1, "shared.weight");
    read_model(&model, &catalog);
    assert_string_equal(catalog.family, "switch");
    assert_int_equal(catalog.expert_count, 8);
    assert_int_equal(count_class(&catalog, EFS_CLASS_EXPERT), 16);
    expect_expert(&catalog, 0, "decoder", 1, 0);
    expect_expert(&catalog, 3, "decoder", 3, 1);
    expect_expert(&catalog, 4, "encoder", 1, 0);
    expect_expert(&catalog, 7, "encoder", 3, 1);
    expect_tensor(&catalog, "encoder.block.3.layer.1.mlp.experts.expert_1.wo.weight", EFS_CLASS_EXPERT, "encoder", 3,
                  1);
    expect_tensor(&catalog, "decoder.block.1.layer.2.mlp.experts.expert_0.wi.weight", EFS_CLASS_EXPERT, "decoder", 1,
                  0);
    expect_tensor(&catalog, "encoder.block.1.layer.1.mlp.router.classifier.weight", EFS_CLASS_DENSE, "", 0, 0);
    efs_catalog_free(&catalog);
}

/* Each part of a model with its own layer numbers is a stack. */
TEST(names_stacks_by_prefix)
{
    static const struct {
        const char *prefix, *stack;
    } prefixes[] = {{"", ""},
                    {"model.", ""},
                    {"language_model.", ""},
                    {"model.language_model.", ""},
                    {"language_model.model.", ""},
                    {"mtp.", "mtp"},
                    {"thinker.model.", "thinker"},
                    {"talker.model.", "talker"},
                    {"model.encoder.", "encoder"},
                    {"a.b.", "a-b"},
                    {"a_b.", "a_b"},
                    {"a123456789012345678901234567890.", "a123456789012345678901234567890"}};
    char name[200];

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        struct model model = {0};
        struct efs_catalog catalog;
        snprintf(name, sizeof(name), "%slayers.0.mlp.experts.1.up_proj.weight", prefixes[i].prefix);
        add_of(&model, 1, "%s", name);
        add_of(&model, 1, "model.layers.0.mlp.experts.0.gate_proj.weight");
        read_model(&model, &catalog);
        expect_tensor(&catalog, name, EFS_CLASS_EXPERT, prefixes[i].stack, 0, 1);
        expect_tensor(&catalog, "model.layers.0.mlp.experts.0.gate_proj.weight", EFS_CLASS_EXPERT, "", 0, 0);
        assert_int_equal(catalog.expert_count, 2);
        efs_catalog_free(&catalog);
    }
}

/* Names that only resemble those of experts. */
TEST(leaves_other_names_dense)
{
    static const char *const names[] = {
        "model.layers.0.mlp.experts.x.up_proj.weight",
        "model.layers.0.mlp.experts.01.up_proj.weight",
        "model.layers.00.mlp.experts.1.up_proj.weight",
        "model.layers.-1.mlp.experts.1.up_proj.weight",
        "model.layers.+1.mlp.experts.1.up_proj.weight",
        "model.layers.100000.mlp.experts.1.up_proj.weight",
        "model.layers.1.mlp.experts.1000000.up_proj.weight",
        "model.layers.1.mlp.experts.99999999999999999999999.up_proj.weight",
        "model.layers.0.mlp.experts.1",
        "model.layers.0.mlp.experts.1.",
        "model.layers.0.mlp.experts",
        "model.layers.0.mlp.experts.gate_up_projx",
        "model.layers.0.mlp.experts.gate_up_proj_foo",
        "model.layers.0.mlp.myexperts.1.up_proj.weight",
        "model.sublayers.0.mlp.experts.1.up_proj.weight",
        "model..layers.0.mlp.experts.1.up_proj.weight",
        ".layers.0.mlp.experts.1.up_proj.weight",
        "a/b.layers.0.mlp.experts.1.up_proj.weight",
        "\xC3\xA9.layers.0.mlp.experts.1.up_proj.weight",
        "a1234567890123456789012345678901.layers.0.mlp.experts.1.up_proj.weight",
        "blk.0.ffn_gate_exps",
        "blk.0.ffn_gate_exps.scale",
        "blk.0.ffn_gate_shexp.weight",
        "decoder.block.1.layer.3.mlp.experts.expert_0.wi.weight",
        "layers.0",
        "layers",
        "",
        ".",
        "...",
    };
    struct model model = {0};
    struct efs_catalog catalog;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add_of(&model, 4, "%s", names[i]);
    read_model(&model, &catalog);
    assert_int_equal(catalog.tensor_count, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < catalog.tensor_count; i++)
        if (catalog.tensors[i].tensor_class != EFS_CLASS_DENSE)
            fail_msg("\"%s\" was taken for an expert's", catalog.tensors[i].name);
    assert_int_equal(catalog.expert_count, 0);
    assert_null(catalog.experts);
    assert_string_equal(catalog.family, "dense");
    efs_catalog_free(&catalog);
}

/* Fused tensors that cannot be divided into experts. */
TEST(leaves_indivisible_tensors_dense)
{
    static const uint64_t one[] = {6}, none[] = {3, 0}, no_expert[] = {0, 3}, many[] = {65537, 1}, most[] = {65536, 1};
    static const char f4[] = "{\"model.layers.0.mlp.experts.down_proj\":{\"dtype\":\"F4\",\"shape\":[2,3],"
                             "\"data_offsets\":[0,3]},\"model.layers.1.mlp.experts.down_proj\":{\"dtype\":\"F4\","
                             "\"shape\":[2,4],\"data_offsets\":[3,7]}}";
    struct model model = {0};
    struct efs_catalog catalog;
    char *dir = sf_mkdir();

    add(&model, "model.layers.0.mlp.experts.down_proj", 1, one);
    add(&model, "model.layers.1.mlp.experts.down_proj", 2, none);
    add(&model, "model.layers.2.mlp.experts.down_proj", 2, no_expert);
    add(&model, "model.layers.3.mlp.experts.down_proj", 0, one);
    add(&model, "model.layers.4.mlp.experts.down_proj", 2, many);
    add(&model, "model.layers.5.mlp.experts.down_proj", 2, most);
    write_model(&model, dir, "model.safetensors");
    sf_accept(dir, &catalog);
    assert_int_equal(count_class(&catalog, EFS_CLASS_DENSE), 5);
    expect_tensor(&catalog, "model.layers.5.mlp.experts.down_proj", EFS_CLASS_FUSED, "", 5, 0);
    assert_int_equal(catalog.expert_count, 65536);
    efs_catalog_free(&catalog);

    struct sf_bytes file = {0};
    sf_safetensors(&file, f4, strlen(f4), 7);
    sf_write(dir, "model.safetensors", file.data, file.count);
    free(file.data);
    sf_accept(dir, &catalog);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.down_proj", EFS_CLASS_DENSE, "", 0, 0);
    expect_tensor(&catalog, "model.layers.1.mlp.experts.down_proj", EFS_CLASS_FUSED, "", 1, 0);
    assert_int_equal(catalog.expert_count, 2);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* Tensors of a layer with different numbers of experts: the catalogue has the union. */
TEST(unites_expert_counts)
{
    struct model model = {0};
    struct efs_catalog catalog;

    add_of(&model, 2, "model.layers.0.mlp.experts.down_proj");
    add_of(&model, 4, "model.layers.0.mlp.experts.gate_up_proj");
    add_of(&model, 4, "model.layers.0.mlp.experts.7.up_proj.weight");
    add_of(&model, 1, "model.layers.1.mlp.experts.down_proj");
    read_model(&model, &catalog);
    assert_int_equal(catalog.expert_count, 6);
    for (uint32_t e = 0; e < 4; e++)
        expect_expert(&catalog, e, "", 0, e);
    expect_expert(&catalog, 4, "", 0, 7);
    expect_expert(&catalog, 5, "", 1, 0);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.down_proj", EFS_CLASS_FUSED, "", 0, 0);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.gate_up_proj", EFS_CLASS_FUSED, "", 0, 0);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.7.up_proj.weight", EFS_CLASS_EXPERT, "", 0, 7);
    expect_tensor(&catalog, "model.layers.1.mlp.experts.down_proj", EFS_CLASS_FUSED, "", 1, 0);
    efs_catalog_free(&catalog);
}

/* An expert's tensors may be in several shards. A file that repeats a tensor belongs to another model. */
TEST(joins_shards_and_drops_duplicates)
{
    struct model model = {0};
    struct efs_catalog catalog;
    char *dir = sf_mkdir();

    add_of(&model, 1, "model.layers.0.mlp.experts.0.up_proj.weight");
    add_of(&model, 1, "model.layers.0.mlp.experts.1.up_proj.weight");
    write_model(&model, dir, "model-00001-of-00002.safetensors");
    add_of(&model, 1, "model.layers.0.mlp.experts.1.down_proj.weight");
    add_of(&model, 1, "model.layers.0.mlp.experts.0.down_proj.weight");
    write_model(&model, dir, "model-00002-of-00002.safetensors");
    add_of(&model, 1, "model.layers.0.mlp.experts.0.up_proj.weight");
    add_of(&model, 1, "model.layers.0.mlp.experts.2.up_proj.weight");
    write_model(&model, dir, "other/model.safetensors");
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.tensor_count, 6);
    assert_int_equal(catalog.expert_count, 2);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.0.up_proj.weight", EFS_CLASS_EXPERT, "", 0, 0);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.1.up_proj.weight", EFS_CLASS_EXPERT, "", 0, 1);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.0.down_proj.weight", EFS_CLASS_EXPERT, "", 0, 0);
    assert_int_equal(count_class(&catalog, EFS_CLASS_DENSE), 2);
    for (size_t i = 0; i < catalog.tensor_count; i++)
        if (catalog.tensors[i].tensor_class == EFS_CLASS_DENSE)
            assert_string_equal(catalog.files[catalog.tensors[i].file].path, "other/model.safetensors");
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* A GGUF model split over two files. The slowest dimension, which is the last in GGUF, counts experts. */
TEST(groups_split_gguf)
{
    static const uint64_t q4[] = {64, 3, 4}, bias[] = {6, 4}, router[] = {8, 4};
    char *dir = sf_mkdir(), name[100];
    struct efs_catalog catalog;

    for (unsigned layer = 0; layer < 2; layer++) {
        struct sf_bytes file = {0};
        sf_gguf_header(&file, 3, 3, 0);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.weight", layer);
        sf_gguf_tensor(&file, name, 3, q4, 2, 0);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.bias", layer);
        sf_gguf_tensor(&file, name, 2, bias, 0, 448);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", layer);
        sf_gguf_tensor(&file, name, 2, router, 0, 544);
        sf_align(&file, 32);
        sf_zero(&file, 544 + 128);
        snprintf(name, sizeof(name), "m-0000%u-of-00002.gguf", layer + 1);
        sf_write(dir, name, file.data, file.count);
        free(file.data);
    }
    sf_accept(dir, &catalog);
    assert_string_equal(catalog.family, "gguf");
    assert_int_equal(catalog.expert_count, 8);
    assert_int_equal(catalog.tensor_count, 6);
    for (uint32_t layer = 0; layer < 2; layer++) {
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.weight", layer);
        expect_tensor(&catalog, name, EFS_CLASS_FUSED, "", layer, 0);
        assert_int_equal(sf_tensor(&catalog, name)->shape[0], 4);
        assert_int_equal(sf_tensor(&catalog, name)->shape[2], 64);
        assert_int_equal(sf_tensor(&catalog, name)->bytes, 4 * 3 * 2 * 18);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.bias", layer);
        expect_tensor(&catalog, name, EFS_CLASS_FUSED, "", layer, 0);
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", layer);
        expect_tensor(&catalog, name, EFS_CLASS_DENSE, "", 0, 0);
    }
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* ---- several models in one directory ---- */

#define INDEX "model.safetensors.index.json"
#define MAP(...) "{\"weight_map\":{" __VA_ARGS__ "}}"
#define UP(layer, expert) "model.layers." #layer ".mlp.experts." #expert ".up_proj.weight"

/* A file: its text, or, if that is NULL, a model of this number of layers with two experts each, whose tensors have
 * first * 6 bytes. */
struct part_file {
    const char *path, *text;
    unsigned layers, first;
};

/* Fails unless exactly the files with prefix `begin` have tensors of experts, `sparse` layers have experts, and the
 * only note starts with `noted` ("": no note). */
static void expect_model(const char *what, const struct part_file *files, const char *begin, uint32_t sparse,
                         const char *noted)
{
    char *dir = sf_mkdir();
    struct efs_catalog catalog;
    size_t notes = 0;

    for (const struct part_file *file = files; file->path; file++) {
        struct model model = {0};
        if (file->text) {
            sf_write(dir, file->path, file->text, strlen(file->text));
            continue;
        }
        for (unsigned layer = 0; layer < file->layers; layer++)
            for (unsigned expert = 0; expert < 2; expert++)
                add_of(&model, file->first, "model.layers.%u.mlp.experts.%u.up_proj.weight", layer, expert);
        add_of(&model, file->first, "model.norm.weight");
        write_model(&model, dir, file->path);
    }
    sf_accept(dir, &catalog);
    if (catalog.expert_count != sparse * 2)
        fail_msg("%s: %zu experts, not %u", what, catalog.expert_count, sparse * 2);
    for (size_t i = 0; i < catalog.tensor_count; i++) {
        const struct efs_source_tensor *tensor = &catalog.tensors[i];
        const char *path = catalog.files[tensor->file].path;
        bool ours = strncmp(path, begin, strlen(begin)) == 0, norm = strstr(tensor->name, "norm");
        if ((tensor->tensor_class == EFS_CLASS_EXPERT) != (ours && !norm))
            fail_msg("%s: %s of %s is of class %d", what, tensor->name, path, tensor->tensor_class);
        if (catalog.files[tensor->file].other_model != !ours)
            fail_msg("%s: %s is of another model: %d", what, path, catalog.files[tensor->file].other_model);
    }
    for (size_t f = 0; f < catalog.file_count; f++)
        if (catalog.files[f].note) {
            notes++;
            if (strncmp(catalog.files[f].note, noted, strlen(noted)) != 0)
                fail_msg("%s: %s", what, catalog.files[f].note);
        }
    assert_int_equal(notes, *noted != '\0');
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

TEST(chooses_one_of_several_models)
{
    /* A directory that sorts before the model's files and is not in the index */
    expect_model("draft, index",
                 (const struct part_file[]){{INDEX, MAP("\"x\":\"model.safetensors\""), 0, 0},
                                            {"draft/model.safetensors", NULL, 3, 1},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "draft/model.safetensors: the index does not name it");
    expect_model("draft, config.json",
                 (const struct part_file[]){{"config.json", "{}", 0, 0},
                                            {"draft/config.json", "{}", 0, 0},
                                            {"draft/model.safetensors", NULL, 3, 9},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "draft: is a model of its own");
    expect_model("draft without, config.json",
                 (const struct part_file[]){{"config.json", "{}", 0, 0},
                                            {"draft/model.safetensors", NULL, 3, 9},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "draft/model.safetensors: does not lie beside config.json");
    /* inclusionAI/Ming-flash-omni-2.0 (vllm 39700): a directory with its own index */
    expect_model("a folder's index",
                 (const struct part_file[]){{INDEX, MAP("\"x\":\"model-1.safetensors\""), 0, 0},
                                            {"model-1.safetensors", NULL, 2, 2},
                                            {"an/talker/" INDEX, MAP("\"x\":\"model.safetensors\""), 0, 0},
                                            {"an/talker/model.safetensors", NULL, 4, 3},
                                            {0}},
                 "model", 2, "an/talker: is a model of its own");
    /* unsloth 2978: files of an earlier upload next to the model's */
    expect_model("files left behind",
                 (const struct part_file[]){{INDEX, MAP("\"x\":\"model-1-of-1.safetensors\""), 0, 0},
                                            {"config.json", "{}", 0, 0},
                                            {"a.safetensors", NULL, 5, 3},
                                            {"model-1-of-1.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "a.safetensors: the index does not name it");
    /* Neither index nor config.json: the parts of one model do not repeat a tensor */
    expect_model("doubles without a word",
                 (const struct part_file[]){{"draft/model-00001-of-00002.safetensors", NULL, 3, 9},
                                            {"draft/model-00002-of-00002.safetensors", NULL, 0, 1},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "draft/model-00001-of-00002.safetensors: has tensors that model.safetensors has");
    /* No model at the top level: the largest one, not the first */
    expect_model("folders alone",
                 (const struct part_file[]){{"a/config.json", "{}", 0, 0},
                                            {"a/model.safetensors", NULL, 1, 1},
                                            {"b/config.json", "{}", 0, 0},
                                            {"b/sub/model.safetensors", NULL, 2, 2},
                                            {0}},
                 "b", 2, "a: is a model of its own");
    /* Two formats with an index each, as Mistral publishes (huggingface_hub 3645): the index with the usual name */
    expect_model("two indexes",
                 (const struct part_file[]){
                     {"consolidated.safetensors.index.json", MAP("\"x\":\"consolidated-1.safetensors\""), 0, 0},
                     {"consolidated-1.safetensors", NULL, 3, 9},
                     {INDEX, MAP("\"x\":\"model-1.safetensors\""), 0, 0},
                     {"model-1.safetensors", NULL, 2, 2},
                     {0}},
                 "model", 2, "consolidated-1.safetensors: the index does not name it");
    /* Without an index, model.safetensors is the model; the file next to it is an adapter or another format */
    expect_model("a single file",
                 (const struct part_file[]){{"config.json", "{}", 0, 0},
                                            {"consolidated.safetensors", NULL, 3, 9},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "model", 2, "consolidated.safetensors: the model is model.safetensors");
    /* An index that names a missing file is ignored */
    expect_model("a broken index",
                 (const struct part_file[]){{INDEX, MAP("\"x\":\"gone.safetensors\""), 0, 0},
                                            {"config.json", "{}", 0, 0},
                                            {"model.safetensors", NULL, 2, 2},
                                            {0}},
                 "", 2, "");
}

/* One tensor in two files: the file in the index, else the one nearer to the top. */
TEST(chooses_one_of_two_tensors)
{
    static const struct {
        const char *index, *of_expert_0;
    } cases[] = {{MAP("\"" UP(0, 0) "\":\"b.safetensors\",\"" UP(0, 1) "\":\"a.safetensors\""), "b.safetensors"},
                 {MAP("\"" UP(0, 0) "\":\"a.safetensors\",\"" UP(0, 1) "\":\"b.safetensors\""), "a.safetensors"},
                 {"", "b.safetensors"}};

    for (size_t i = 0; i < 3; i++) {
        char *dir = sf_mkdir();
        struct efs_catalog catalog;
        for (int file = 0; file < 2; file++) {
            struct model model = {0};
            add_of(&model, 1, UP(0, 0));
            add_of(&model, 1, UP(0, 1));
            write_model(&model, dir, file ? "b.safetensors" : *cases[i].index ? "a.safetensors" : "a/a.safetensors");
        }
        if (*cases[i].index)
            sf_write(dir, INDEX, cases[i].index, strlen(cases[i].index));
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.expert_count, 2);
        for (size_t t = 0; t < catalog.tensor_count; t++)
            if (strcmp(catalog.tensors[t].name, UP(0, 0)) == 0)
                assert_true((catalog.tensors[t].tensor_class == EFS_CLASS_EXPERT) ==
                            (strcmp(catalog.files[catalog.tensors[t].file].path, cases[i].of_expert_0) == 0));
        assert_int_equal(count_class(&catalog, EFS_CLASS_EXPERT), 2);
        /* The catalogue does not have tensors that the index assigns to another file (colibri 1479, vllm 54230):
         * experts/ must not show them */
        assert_int_equal(catalog.tensor_count, *cases[i].index ? 2 : 4);
        efs_catalog_free(&catalog);
        sf_rmdir(dir);
    }
}

/* Each GGUF file is a model or a part of one; the largest model of a directory is chosen. */
TEST(chooses_one_of_several_gguf)
{
    static const char *const names[] = {"a-Q4.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c-Q2.gguf"};
    static const uint64_t shapes[][3] = {{32, 2, 3}, {32, 2, 2}, {32, 2, 2}, {32, 1, 4}};
    char *dir = sf_mkdir(), name[64];
    struct efs_catalog catalog;

    for (unsigned i = 0; i < 4; i++) {
        struct sf_bytes file = {0};
        sf_gguf_header(&file, 3, 1, 0);
        snprintf(name, sizeof(name), "blk.%u.ffn_up_exps.weight", i == 2);
        sf_gguf_tensor(&file, name, 3, shapes[i], 0, 0);
        sf_align(&file, 32);
        sf_zero(&file, shapes[i][0] * shapes[i][1] * shapes[i][2] * 4);
        sf_write(dir, names[i], file.data, file.count);
        free(file.data);
    }
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.expert_count, 4);
    for (unsigned f = 0; f < 4; f++)
        assert_true(catalog.files[f].other_model == (f == 0 || f == 3));
    assert_non_null(strstr(catalog.files[3].note, "c-Q2.gguf: is a model of its own"));
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

TEST_MAIN(NULL, NULL)
