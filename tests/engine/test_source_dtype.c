/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tensors by type and shape; text of errors. */
#include "test.h"
#include "dtype.h"
#include "expertfs-private.h"
#include "layout.h"

TEST(sizes_tensors)
{
    static const struct {
        enum efs_dtype dtype;
        uint32_t dims;
        uint64_t shape[3];
        uint64_t bytes;
    } cases[] = {
        {EFS_DTYPE_F32, 0, {0}, 4},
        {EFS_DTYPE_BF16, 1, {3}, 6},
        {EFS_DTYPE_C64, 2, {3, 5}, 120},
        {EFS_DTYPE_F4, 2, {3, 2}, 3},
        {EFS_DTYPE_F6_E3M2, 1, {4}, 3},
        {EFS_DTYPE_U8, 3, {0, 1ULL << 63, 1ULL << 63}, 0},
        {EFS_DTYPE_U8, 1, {(1ULL << 61) - 1}, (1ULL << 61) - 1},
        {EFS_DTYPE_GGML + 12, 2, {3, 512}, 3 * 2 * 144},
        {EFS_DTYPE_GGML + 39, 3, {2, 2, 32}, 4 * 17},
        {EFS_DTYPE_GGML + 8, 2, {5, 0}, 0},
    };
    uint64_t bytes;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(efs_dtype_tensor_bytes(cases[i].dtype, cases[i].dims, cases[i].shape, &bytes), 0);
        assert_true(bytes == cases[i].bytes);
    }
}

TEST(refuses_sizes)
{
    static const struct {
        enum efs_dtype dtype;
        uint32_t dims;
        uint64_t shape[3];
        errint_t error;
    } cases[] = {
        {EFS_DTYPE_NONE, 1, {1}, -EUCLEAN},
        {EFS_DTYPE_COUNT, 1, {1}, -EUCLEAN},
        {EFS_DTYPE_GGML, 1, {32}, -EUCLEAN},      /* a plain type, not a block type */
        {EFS_DTYPE_GGML + 4, 1, {32}, -EUCLEAN},  /* withdrawn */
        {EFS_DTYPE_GGML + 43, 1, {32}, -EUCLEAN}, /* unknown */
        {EFS_DTYPE_F4, 1, {3}, -EUCLEAN},
        {EFS_DTYPE_F6_E2M3, 1, {2}, -EUCLEAN},
        {EFS_DTYPE_GGML + 12, 2, {256, 128}, -EUCLEAN},
        {EFS_DTYPE_GGML + 8, 0, {0}, -EUCLEAN},
        {EFS_DTYPE_U8, 2, {1ULL << 32, 1ULL << 32}, -EOVERFLOW},
        {EFS_DTYPE_U8, 1, {1ULL << 61}, -EOVERFLOW},
        {EFS_DTYPE_U8, 3, {1ULL << 63, 1ULL << 63, 0}, -EOVERFLOW},
        {EFS_DTYPE_GGML + 8, 1, {1ULL << 63}, -EOVERFLOW},
    };
    uint64_t bytes = 77;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(efs_dtype_tensor_bytes(cases[i].dtype, cases[i].dims, cases[i].shape, &bytes), cases[i].error);
    assert_int_equal(bytes, 77);
}

TEST(names_types)
{
    assert_string_equal(efs_dtype_name(EFS_DTYPE_BF16), "BF16");
    assert_string_equal(efs_dtype_name(EFS_DTYPE_GGML + 16), "ggml:IQ2_XXS");
    assert_string_equal(efs_dtype_name(EFS_DTYPE_NONE), "unknown");
    assert_string_equal(efs_dtype_name(EFS_DTYPE_COUNT), "unknown");
    assert_string_equal(efs_dtype_name(200), "unknown");
    assert_string_equal(efs_dtype_name((enum efs_dtype) - 1), "ggml:unknown");
    assert_string_equal(efs_dtype_name(EFS_DTYPE_GGML + 4), "ggml:unknown");
    assert_string_equal(efs_dtype_name(EFS_DTYPE_GGML + 5000), "ggml:unknown");
    for (unsigned i = 1; i < EFS_DTYPE_COUNT; i++)
        assert_int_equal(efs_dtype_from_safetensors(efs_dtype_name((enum efs_dtype)i)), i);
    assert_int_equal(efs_dtype_from_safetensors(""), EFS_DTYPE_NONE);
    assert_int_equal(efs_dtype_from_safetensors("bf16"), EFS_DTYPE_NONE);
    assert_int_equal(efs_dtype_from_safetensors("ggml:Q4_0"), EFS_DTYPE_NONE);
    assert_int_equal(efs_dtype_from_ggml(30), EFS_DTYPE_BF16);
    assert_int_equal(efs_dtype_from_ggml(2), EFS_DTYPE_GGML + 2);
    assert_int_equal(efs_dtype_from_ggml(UINT32_MAX), EFS_DTYPE_NONE);
}

/* A hint of the format or of the message that ends it keeps its newline, one in a name does not. */
TEST(formats_hints)
{
    struct efs_error err;

    efs_fail(&err, -1, "%s: x\nhint: %s", "a\nb\nhint: c", "d\ne");
    assert_string_equal(err.text, "a?b?hint: c: x\nhint: d?e");
    efs_fail(&err, -1, "%s: x", "a\nhint: b");
    assert_string_equal(err.text, "a?hint: b: x");
    efs_fail(&err, -1, "%s", "a\nhint: b");
    assert_string_equal(err.text, "a\nhint: b");
    efs_join_hint(err.text, sizeof("a\nhint: b")); /* no room */
    assert_string_equal(err.text, "a\nhint: b");
    efs_join_hint(err.text, sizeof("a; hint: b"));
    assert_string_equal(err.text, "a; hint: b");
}

TEST(formats_errors)
{
    struct efs_error err;
    char longer[3000];

    assert_string_equal(efs_version(), EFS_VERSION_STRING);
    assert_int_equal(efs_fail(NULL, -EIO, "%d", 1), -EIO);
    assert_int_equal(efs_fail(&err, -EUCLEAN, "%s: %d", "file", 7), -EUCLEAN);
    assert_string_equal(err.text, "file: 7");
    /* One line of UTF-8 without control characters: C0, DEL, C1, invalid and overlong sequences are replaced. */
    efs_fail(&err, -1, "%s", "a\nb\033[2J\x7F \xC2\x9B \xC3\xA9 \xE6\x9D\x83 \xF0\x9F\x98\x80 \xFF \xC0\xAF \xE6\x9D");
    assert_string_equal(err.text, "a?b?[2J? ?? \xC3\xA9 \xE6\x9D\x83 \xF0\x9F\x98\x80 ? ?? ??");
    /* A message that is cut inside a character has '?' for its bytes. */
    for (size_t shift = 0; shift < 4; shift++) {
        memset(longer, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof(longer); i += 4)
            memcpy(longer + i, "\xF0\x9F\x98\x80", 5);
        efs_fail(&err, -1, "%s", longer);
        assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
        size_t rest = (sizeof(err.text) - 1 - shift) % 4;
        assert_int_equal(strspn(err.text + sizeof(err.text) - 1 - rest, "?"), rest);
    }
}

TEST_MAIN(NULL, NULL)
