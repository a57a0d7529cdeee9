/* SPDX-License-Identifier: Apache-2.0 */
/* Which expert a tensor belongs to: stacks, names that only resemble those of experts, several models in one directory.
 * test_families has the names of each family. */
#include "test.h"
#include "named_model.h"

TEST(separates_stacks)
{
    struct named_model model = {0};
    struct efs_catalog catalog;

    for (uint32_t l = 1; l <= 3; l += 2)
        for (uint32_t e = 0; e < 2; e++) {
            named_model_add(&model, 1, "encoder.block.%u.layer.1.mlp.experts.expert_%u.wi.weight", l, e);
            named_model_add(&model, 1, "encoder.block.%u.layer.1.mlp.experts.expert_%u.wo.weight", l, e);
            named_model_add(&model, 1, "decoder.block.%u.layer.2.mlp.experts.expert_%u.wi.weight", l, e);
            named_model_add(&model, 1, "decoder.block.%u.layer.2.mlp.experts.expert_%u.wo.weight", l, e);
        }
    named_model_add(&model, 1, "encoder.block.1.layer.1.mlp.router.classifier.weight");
    named_model_add(&model, 1, "encoder.block.0.layer.1.mlp.wi.weight");
    named_model_add(&model, 1, "shared.weight");
    named_model_read(&model, &catalog);
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
        struct named_model model = {0};
        struct efs_catalog catalog;
        snprintf(name, sizeof(name), "%slayers.0.mlp.experts.1.up_proj.weight", prefixes[i].prefix);
        named_model_add(&model, 1, "%s", name);
        named_model_add(&model, 1, "model.layers.0.mlp.experts.0.gate_proj.weight");
        named_model_read(&model, &catalog);
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
    struct named_model model = {0};
    struct efs_catalog catalog;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        named_model_add(&model, 4, "%s", names[i]);
    named_model_read(&model, &catalog);
    assert_int_equal(catalog.tensor_count, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < catalog.tensor_count; i++)
        if (catalog.tensors[i].tensor_class != EFS_CLASS_DENSE)
            fail_msg("\"%s\" was taken for an expert's", catalog.tensors[i].name);
    assert_int_equal(catalog.expert_count, 0);
    assert_null(catalog.experts);
    assert_string_equal(catalog.family, "dense");
    efs_catalog_free(&catalog);
}

/* Scales of a fused tensor, where their first dimension counts its experts. */
TEST(scales_belong_to_experts)
{
    static const struct {
        const char *fused, *scales[8];
    } models[] = {
        {"blk.3.ffn_up_exps.weight",
         {"blk.3.ffn_up_exps.scale", "blk.3.ffn_gate_exps.input_scale", "blk.3.ffn_down_exps.bias"}},
        {"model.layers.3.mlp.experts.gate_up_proj",
         {"model.layers.3.mlp.experts.gate_up_proj_weight_scale", "model.layers.3.mlp.experts.down_proj_input_scale",
          "model.layers.3.mlp.experts.down_proj.weight_scale_2", "model.layers.3.mlp.experts.down_proj_amax",
          "model.layers.3.mlp.experts.gate_up_proj_weight_quantizer._amax"}},
        {"language_model.model.layers.3.feed_forward.experts.down_proj",
         {"language_model.model.layers.3.feed_forward.experts.down_proj_weight_scale_inv",
          "language_model.model.layers.3.feed_forward.experts.gate_up_proj.input_amax"}},
        {"model.layers.3.block_sparse_moe.input_linear.weight", {"model.layers.3.block_sparse_moe.input_linear.scale"}},
        {"model.layers.3.mlp.switch_mlp.up_proj.weight", {"model.layers.3.mlp.switch_mlp.up_proj.scales"}},
        {"backbone.layers.3.mixer.experts.up_proj", {"backbone.layers.3.mixer.experts.up_proj_scale"}},
    };
    static const uint64_t fused[] = {4, 2, 2}, each[] = {4}, rows[] = {4, 2}, one[] = {1}, other[] = {2, 4};

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (size_t s = 0; s < 8 && models[m].scales[s]; s++) {
            const struct {
                const uint64_t *shape;
                uint32_t dims;
                enum efs_tensor_class tensor_class;
            } shapes[] = {{each, 1, EFS_CLASS_FUSED},
                          {rows, 2, EFS_CLASS_FUSED},
                          {one, 1, EFS_CLASS_DENSE},
                          {NULL, 0, EFS_CLASS_DENSE}};
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                struct named_model model = {0};
                struct efs_catalog catalog;
                named_model_add_shape(&model, models[m].scales[s], shapes[i].dims, shapes[i].shape);
                named_model_add_shape(&model, models[m].fused, 3, fused);
                named_model_read(&model, &catalog);
                assert_int_equal(catalog.expert_count, 4);
                expect_tensor(&catalog, models[m].scales[s], shapes[i].tensor_class, "", 3, 0);
                efs_catalog_free(&catalog);
            }
        }
    /* Another layer's; another number of experts */
    struct named_model model = {0};
    struct efs_catalog catalog;
    named_model_add_shape(&model, "blk.0.ffn_up_exps.weight", 3, fused);
    named_model_add_shape(&model, "blk.1.ffn_up_exps.scale", 1, each);
    named_model_add_shape(&model, "blk.0.ffn_up_exps.scale", 2, other);
    named_model_read(&model, &catalog);
    assert_int_equal(count_class(&catalog, EFS_CLASS_FUSED), 1);
    efs_catalog_free(&catalog);
}

/* Experts of GroveMoE that several experts share, counted apart from these. */
TEST(chunk_experts_are_a_stack)
{
    static const uint64_t fused[] = {4, 2, 2}, chunks[] = {2, 2, 2}, each[] = {2};
    struct named_model model = {0};
    struct efs_catalog catalog;

    named_model_add(&model, 1, "model.layers.0.mlp.experts.3.up_proj.weight");
    named_model_add(&model, 1, "model.layers.0.mlp.chunk_experts.1.up_proj.weight");
    named_model_read(&model, &catalog);
    expect_tensor(&catalog, "model.layers.0.mlp.experts.3.up_proj.weight", EFS_CLASS_EXPERT, "", 0, 3);
    expect_tensor(&catalog, "model.layers.0.mlp.chunk_experts.1.up_proj.weight", EFS_CLASS_EXPERT, "chunk", 0, 1);
    assert_string_equal(catalog.family, "qwen-moe");
    efs_catalog_free(&catalog);

    model = (struct named_model){0};
    named_model_add_shape(&model, "blk.5.ffn_up_exps.weight", 3, fused);
    named_model_add_shape(&model, "blk.5.ffn_up_chexps.weight", 3, chunks);
    named_model_add_shape(&model, "blk.5.ffn_up_chexps.scale", 1, each);
    named_model_read(&model, &catalog);
    assert_int_equal(catalog.expert_count, 6);
    expect_tensor(&catalog, "blk.5.ffn_up_exps.weight", EFS_CLASS_FUSED, "", 5, 0);
    expect_tensor(&catalog, "blk.5.ffn_up_chexps.weight", EFS_CLASS_FUSED, "chunk", 5, 0);
    expect_tensor(&catalog, "blk.5.ffn_up_chexps.scale", EFS_CLASS_FUSED, "chunk", 5, 0);
    efs_catalog_free(&catalog);
}

/* Fused tensors that cannot be divided into experts. */
TEST(leaves_indivisible_tensors_dense)
{
    static const uint64_t one[] = {6}, none[] = {3, 0}, no_expert[] = {0, 3}, many[] = {65537, 1}, most[] = {65536, 1};
    static const char f4[] = "{\"model.layers.0.mlp.experts.down_proj\":{\"dtype\":\"F4\",\"shape\":[2,3],"
                             "\"data_offsets\":[0,3]},\"model.layers.1.mlp.experts.down_proj\":{\"dtype\":\"F4\","
                             "\"shape\":[2,4],\"data_offsets\":[3,7]}}";
    struct named_model model = {0};
    struct efs_catalog catalog;
    char *dir = sf_mkdir();

    named_model_add_shape(&model, "model.layers.0.mlp.experts.down_proj", 1, one);
    named_model_add_shape(&model, "model.layers.1.mlp.experts.down_proj", 2, none);
    named_model_add_shape(&model, "model.layers.2.mlp.experts.down_proj", 2, no_expert);
    named_model_add_shape(&model, "model.layers.3.mlp.experts.down_proj", 0, one);
    named_model_add_shape(&model, "model.layers.4.mlp.experts.down_proj", 2, many);
    named_model_add_shape(&model, "model.layers.5.mlp.experts.down_proj", 2, most);
    named_model_write(&model, dir, "model.safetensors");
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
    struct named_model model = {0};
    struct efs_catalog catalog;

    named_model_add(&model, 2, "model.layers.0.mlp.experts.down_proj");
    named_model_add(&model, 4, "model.layers.0.mlp.experts.gate_up_proj");
    named_model_add(&model, 4, "model.layers.0.mlp.experts.7.up_proj.weight");
    named_model_add(&model, 1, "model.layers.1.mlp.experts.down_proj");
    named_model_read(&model, &catalog);
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
    struct named_model model = {0};
    struct efs_catalog catalog;
    char *dir = sf_mkdir();

    named_model_add(&model, 1, "model.layers.0.mlp.experts.0.up_proj.weight");
    named_model_add(&model, 1, "model.layers.0.mlp.experts.1.up_proj.weight");
    named_model_write(&model, dir, "model-00001-of-00002.safetensors");
    named_model_add(&model, 1, "model.layers.0.mlp.experts.1.down_proj.weight");
    named_model_add(&model, 1, "model.layers.0.mlp.experts.0.down_proj.weight");
    named_model_write(&model, dir, "model-00002-of-00002.safetensors");
    named_model_add(&model, 1, "model.layers.0.mlp.experts.0.up_proj.weight");
    named_model_add(&model, 1, "model.layers.0.mlp.experts.2.up_proj.weight");
    named_model_write(&model, dir, "other/model.safetensors");
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
        struct named_model model = {0};
        if (file->text) {
            sf_write(dir, file->path, file->text, strlen(file->text));
            continue;
        }
        for (unsigned layer = 0; layer < file->layers; layer++)
            for (unsigned expert = 0; expert < 2; expert++)
                named_model_add(&model, file->first, "model.layers.%u.mlp.experts.%u.up_proj.weight", layer, expert);
        named_model_add(&model, file->first, "model.norm.weight");
        named_model_write(&model, dir, file->path);
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
            struct named_model model = {0};
            named_model_add(&model, 1, UP(0, 0));
            named_model_add(&model, 1, UP(0, 1));
            named_model_write(&model, dir,
                              file              ? "b.safetensors"
                              : *cases[i].index ? "a.safetensors"
                                                : "a/a.safetensors");
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
