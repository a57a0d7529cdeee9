/* SPDX-License-Identifier: Apache-2.0 */
/* Experts whose names are not known: by the number of experts in config.json or GGUF metadata, and by an expression of
 * the user. */
#include "named_model.h"
#include "test.h"

#define EXPERTS 4u
#define CONFIG(architecture, count)                                                                                    \
    "{\"architectures\":[\"" architecture "\"],\"" count "\":4,\"num_experts_per_tok\":2}"

/* Without the number of experts, or with another one, names that are not known stay dense. */
TEST(needs_the_number_of_experts)
{
    static const char *const configs[] = {"",
                                          "{}",
                                          "[4]",
                                          "{\"num_experts\":5}",
                                          "{\"num_experts\":\"4\"}",
                                          "{\"num_experts\":-4}",
                                          "{\"num_experts_per_tok\":4}",
                                          "{\"n_shared_experts\":4,\"zero_expert_num\":4,\"num_experts_per_group\":4}",
                                          "{\"num_layers\":4}",
                                          "not JSON"};

    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        struct named_model model = {0};
        struct efs_catalog catalog;
        char *dir = sf_mkdir();
        for (unsigned e = 0; e < EXPERTS; e++)
            named_model_add(&model, 1, "model.layers.1.mix.%u.up.weight", e);
        named_model_add(&model, EXPERTS, "model.layers.1.lanes.weight");
        named_model_write(&model, dir, "model.safetensors");
        sf_write(dir, "config.json", configs[i], strlen(configs[i]));
        sf_accept(dir, &catalog);
        if (catalog.expert_count)
            fail_msg("%s: %zu experts", configs[i], catalog.expert_count);
        assert_string_equal(catalog.family, "dense");
        efs_catalog_free(&catalog);
        sf_rmdir(dir);
    }
}

/* Numbers that are not those of experts: incomplete, of attention, without a layer; names that are known leave others
 * dense. */
TEST(leaves_other_numbers_dense)
{
    static const char config[] = CONFIG("OtherForCausalLM", "num_experts");
    struct named_model model = {0};
    struct efs_catalog catalog;
    char *dir = sf_mkdir();

    for (unsigned e = 0; e < EXPERTS; e++) {
        named_model_add(&model, 1, "model.layers.1.self_attn.heads.%u.weight", e);
        named_model_add(&model, 1, "lanes.%u.weight", e);
        named_model_add(&model, 1, "model.layers.1.lanes.%u", e);
        named_model_add(&model, 1, "model.layers.1.parts.%u.weight", e ? e : 9);
    }
    named_model_add(&model, EXPERTS, "lanes.weight");
    named_model_write(&model, dir, "model.safetensors");
    sf_write(dir, "config.json", config, strlen(config));
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.expert_count, 0);
    assert_string_equal(catalog.family, "OtherForCausalLM");
    efs_catalog_free(&catalog);

    for (unsigned e = 0; e < EXPERTS; e++) {
        named_model_add(&model, 1, "model.layers.1.mlp.experts.%u.up_proj.weight", e);
        named_model_add(&model, 1, "model.layers.1.other.%u.weight", e);
    }
    named_model_write(&model, dir, "model.safetensors");
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.expert_count, EXPERTS);
    expect_tensor(&catalog, "model.layers.1.other.0.weight", EFS_CLASS_DENSE, "", 0, 0);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* ---- an expression of the user ---- */

static errint_t read_with(const char *experts, const char *config, struct efs_catalog *catalog, struct efs_error *err)
{
    const uint64_t rows[] = {12, 6};
    struct named_model model = {0};
    char *dir = sf_mkdir();

    for (unsigned e = 0; e < 3; e++)
        named_model_add(&model, 1, "tower.unit.7.part.%u.in.weight", e);
    named_model_add(&model, 3, "tower.unit.7.all.weight");
    named_model_add_shape(&model, "tower.unit.7.rows.weight", 2, rows);
    named_model_add(&model, 3, "model.layers.7.mlp.experts.down_proj");
    named_model_write(&model, dir, "model.safetensors");
    if (config)
        sf_write(dir, "config.json", config, strlen(config));
    errint_t ret = efs_catalog_read(dir, experts, catalog, err);
    sf_rmdir(dir);
    return ret;
}

TEST(finds_experts_by_expression)
{
    struct efs_catalog catalog;
    struct efs_error err;

    assert_int_equal(read_with("unit\\.([0-9]+)\\.part\\.([0-9]+)\\.", NULL, &catalog, &err), 0);
    assert_int_equal(catalog.expert_count, 6);
    expect_tensor(&catalog, "tower.unit.7.part.2.in.weight", EFS_CLASS_EXPERT, "tower", 7, 2);
    expect_tensor(&catalog, "tower.unit.7.all.weight", EFS_CLASS_DENSE, "", 0, 0);
    expect_tensor(&catalog, "model.layers.7.mlp.experts.down_proj", EFS_CLASS_FUSED, "", 7, 0);
    efs_catalog_free(&catalog);

    assert_int_equal(read_with("unit\\.([0-9]+)\\.all", NULL, &catalog, &err), 0);
    expect_tensor(&catalog, "tower.unit.7.all.weight", EFS_CLASS_FUSED, "tower", 7, 0);
    efs_catalog_free(&catalog);

    assert_int_equal(read_with("unit\\.([0-9]+)\\.(all|rows)", "{\"num_experts\":3}", &catalog, &err), -EINVAL);
    assert_int_equal(read_with("unit\\.([0-9]+)\\.rows", "{\"num_experts\":3}", &catalog, &err), 0);
    expect_tensor(&catalog, "tower.unit.7.rows.weight", EFS_CLASS_FUSED, "tower", 7, 0);
    assert_int_equal(sf_tensor(&catalog, "tower.unit.7.rows.weight")->shape[0], 3);
    assert_int_equal(sf_tensor(&catalog, "tower.unit.7.rows.weight")->shape[1], 4);
    efs_catalog_free(&catalog);
}

TEST(refuses_expressions)
{
    static const struct {
        const char *experts, *reason;
    } cases[] = {{"unit.([0-9]+", "--experts 'unit.([0-9]+'"},
                 {"unit", "has no group"},
                 {"absent\\.([0-9]+)", "finds no tensor of experts"},
                 {"(unit)\\.7", "finds no tensor of experts"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct efs_catalog catalog;
        struct efs_error err = {""};
        assert_int_equal(read_with(cases[i].experts, NULL, &catalog, &err), -EINVAL);
        if (!strstr(err.text, cases[i].reason))
            fail_msg("\"%s\", not \"%s\"", err.text, cases[i].reason);
    }
}

/* ---- metadata of GGUF ---- */

static void put_text(struct sf_bytes *file, const char *key, const char *value)
{
    sf_string(file, key);
    sf_number(file, 8, 4);
    sf_string(file, value);
}

static void put_u32(struct sf_bytes *file, const char *key, uint32_t value)
{
    sf_string(file, key);
    sf_number(file, 4, 4);
    sf_number(file, value, 4);
}

/* The architecture is the family; of a split model the first part has it. */
TEST(reads_gguf_metadata)
{
    static const uint64_t shape[] = {8, 2, 4};
    char *dir = sf_mkdir();
    struct efs_catalog catalog;

    for (unsigned part = 1; part <= 2; part++) {
        struct sf_bytes file = {0};
        char name[40];
        sf_gguf_header(&file, 3, 1, part == 1 ? 2 : 0);
        if (part == 1) {
            put_text(&file, "general.architecture", "newmoe");
            put_u32(&file, "newmoe.expert_count", 4);
        }
        snprintf(name, sizeof(name), "blk.%u.ffn_lanes.weight", part);
        sf_gguf_tensor(&file, name, 3, shape, 0, 0);
        sf_align(&file, 32);
        sf_zero(&file, 8 * 2 * 4 * 4);
        snprintf(name, sizeof(name), "m-0000%u-of-00002.gguf", part);
        sf_write(dir, name, file.data, file.count);
        free(file.data);
    }
    sf_accept(dir, &catalog);
    assert_string_equal(catalog.family, "newmoe");
    assert_int_equal(catalog.expert_count, 8);
    expect_tensor(&catalog, "blk.2.ffn_lanes.weight", EFS_CLASS_FUSED, "", 2, 0);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* An architecture that is too long, or no name, is ignored. */
TEST(ignores_bad_architectures)
{
    static const char *const texts[] = {"", "a b", "../x",
                                        "a123456789b123456789c123456789d123456789e123456789f123456789g1234"};
    static const uint64_t shape[] = {8};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        sf_gguf_header(&file, 3, 1, 1);
        put_text(&file, "general.architecture", texts[i]);
        sf_gguf_tensor(&file, "x", 1, shape, 0, 0);
        sf_align(&file, 32);
        sf_zero(&file, 32);
        sf_read("m.gguf", &file, &catalog);
        if (i == 2)
            assert_string_equal(catalog.family, "dense");
        efs_catalog_free(&catalog);
    }
}

TEST_MAIN(NULL, NULL)
