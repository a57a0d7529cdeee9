/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors headers: a file that violates the format is not read, with file and offset in its note; unusual files are
 * read. */
#include "test.h"
#include "source_files.h"

#define NAME "model.safetensors"

/* A header, the number of bytes of data after it, and the expected reason. */
struct bad_case {
    const char *header;
    size_t data_bytes;
    const char *reason;
};

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static const struct bad_case bad_cases[] = {
    /* offsets */
    {"{" T("x", "U8", "900", 0, 900) "}", 800, NAME ": the file ends too early: 100 bytes of data are missing"},
    {"{" T("x", "U8", "2", 4, 2) "}", 4, "begin 4 is past their end 2"},
    {"{" T("a", "U8", "4", 0, 4) "," T("b", "U8", "4", 2, 6) "}", 6, "tensor \"b\": data_offsets begin 2 is inside"},
    {"{" T("b", "U8", "4", 2, 6) "," T("a", "U8", "4", 0, 4) "}", 6, "inside tensor \"a\", which ends at 4"},
    {"{" T("a", "U8", "4", 0, 4) "," T("b", "U8", "4", 0, 4) "}", 4, "inside tensor \"a\""},
    {"{" T("a", "U8", "4", 0, 4) "," T("e", "U8", "0", 2, 2) "}", 4, "tensor \"e\": data_offsets begin 2 is inside"},
    {"{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 3, 5) "}", 5,
     "tensor \"b\": data_offsets begin 3 leaves a hole"},
    {"{" T("a", "U8", "2", 1, 3) "}", 3, "leaves a hole: no tensor holds the data from 0"},
    {"{" T("a", "U8", "2", 0, 2) "}", 3, "tensors end at 2, the data has 3 bytes"},
    {"{}", 1, "tensors end at 0, the data has 1 bytes"},
    {"{\"__metadata__\":{}}", 1, "tensors end at 0"},
    /* sizes */
    {"{" T("a", "F32", "2", 0, 4) "}", 4, "shape and dtype F32 need 8 bytes, data_offsets span 4"},
    {"{" T("a", "BF16", "", 0, 4) "}", 4, "need 2 bytes"},
    {"{" T("a", "U8", "0", 0, 1) "}", 1, "need 0 bytes"},
    {"{" T("a", "F4", "3", 0, 2) "}", 2, "not a whole number of bytes"},
    {"{" T("a", "F6_E2M3", "2", 0, 2) "}", 2, "not a whole number of bytes"},
    {"{" T("a", "U8", "4294967296,4294967296", 0, 0) "}", 0, "more than 64 bits hold"},
    {"{" T("a", "F64", "4611686018427387904", 0, 0) "}", 0, "more than 64 bits hold"},
    {"{" T("a", "U8", "9223372036854775807,9223372036854775807,0", 0, 0) "}", 0, "more than 64 bits hold"},
    {"{" T("a", "U8", "4294967296,4294967296,1,1,1,1,1,1,1", 0, 0) "}", 0, "more than 64 bits hold"},
    {"{" T("a", "U8", "1,1,1,1,1,1,1,1,3", 0, 2) "}", 2, "need 3 bytes"},
    /* numbers */
    {"{" T("a", "U8", "-2", 0, 2) "}", 2, "dimension 0 of shape is not a whole number"},
    {"{" T("a", "U8", "2.0", 0, 2) "}", 2, "dimension 0 of shape is not a whole number"},
    {"{" T("a", "U8", "1,2e0", 0, 2) "}", 2, "dimension 1 of shape is not a whole number"},
    {"{" T("a", "U8", "\"2\"", 0, 2) "}", 2, "dimension 0 of shape is not a whole number"},
    {"{" T("a", "U8", "true", 0, 2) "}", 2, "dimension 0 of shape is not a whole number"},
    {"{" T("a", "U8", "18446744073709551618", 0, 2) "}", 2, "too big integer"},
    {"{" T("a", "U8", "2", 0, 9223372036854775808) "}", 2, "too big integer"},
    {"{" T("a", "U8", "2", 0, 9223372036854775807) "}", 2, "ends too early: 9223372036854775805 bytes"},
    {"{" T("a", "U8", "2", -2, 0) "}", 2, "data_offsets has something that is not a whole number"},
    {"{" T("a", "U8", "2", 0.0, 2) "}", 2, "data_offsets has something that is not a whole number"},
    {"{" T("a", "U8", "2", 00, 2) "}", 2, "JSON at offset"},
    /* fields */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, "data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2,2]}}", 2, "data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0]}}", 2, "data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":{\"0\":0}}}", 2, "data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2, "shape is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":2,\"data_offsets\":[0,2]}}", 2, "shape is missing or not an array"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "dtype is missing"},
    {"{\"a\":{\"dtype\":8,\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "dtype is missing or not a string"},
    {"{\"a\":[\"U8\",[2],[0,2]]}", 2, "its description is not an object"},
    {"{\"a\":null}", 0, "its description is not an object"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"n\":1}}", 0, "__metadata__ \"n\" is not a string"},
    {"{\"__metadata__\":{\"n\":\"1\",\"n\":\"2\"}}", 0, "duplicate"},
    /* the offsets of an unknown dtype are checked, too */
    {"{" T("a", "F3", "2", 0, 3) "}", 2, "ends too early: 1 bytes"},
    {"{" T("a", "F3", "2", 0, 2) "," T("b", "U8", "2", 1, 3) "}", 3, "inside tensor \"a\""},
    {"{" T("a", "F3", "2.5", 0, 2) "}", 2, "dimension 0"},
    /* JSON */
    {"{" T("a", "U8", "2", 0, 2) "," T("a", "U8", "2", 2, 4) "}", 4, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "duplicate"},
    {" {" T("a", "U8", "2", 0, 2) "}", 2, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"\"x\"", 0, "does not begin with '{'"},
    {"{", 0, "JSON at offset"},
    {"{" T("a", "U8", "2", 0, 2), 2, "JSON at offset"},
    {"{" T("a", "U8", "2", 0, 2) ",}", 2, "JSON at offset"},
    {"{" T("a", "U8", "2", 0, 2) "} x", 2, "JSON at offset"},
    {"{" T("a", "U8", "2", 0, 2) "}{}", 2, "JSON at offset"},
    {"{'a':1}", 0, "JSON at offset"},
    {"{" T("\xFF", "U8", "2", 0, 2) "}", 2, "JSON at offset"},
    {"{" T("\xC0\xAF", "U8", "2", 0, 2) "}", 2, "JSON at offset"},
    {"{" T("\xED\xA0\x80", "U8", "2", 0, 2) "}", 2, "JSON at offset"},
    {"{" T("\\ud800", "U8", "2", 0, 2) "}", 2, "JSON at offset"},
    {"{" T("a\\u0000", "U8", "2", 0, 2) "}", 2, "NUL byte in object key"},
    {"{" T("a\nb", "U8", "2", 0, 2) "}", 2, "JSON at offset"},
};

static void refuse(const char *header, size_t header_bytes, size_t data_bytes, enum efs_source_state state,
                   const char *reason)
{
    struct sf_bytes file = {0};
    sf_safetensors(&file, header, header_bytes, data_bytes);
    sf_refuse(NAME, &file, state, reason);
}

static void read_text(const char *header, size_t data_bytes, struct efs_catalog *catalog)
{
    struct sf_bytes file = {0};
    sf_safetensors(&file, header, strlen(header), data_bytes);
    sf_read(NAME, &file, catalog);
}

/* A file that ends before the data that it describes looks like an interrupted download. */
static enum efs_source_state state_of(const char *reason)
{
    static const char *const no_header[] = {"JSON at offset", "does not begin", "a header of", "are the most",
                                            "too big integer"};
    if (strstr(reason, "ends too early") || strstr(reason, "is past the end") || strstr(reason, "too short"))
        return EFS_SOURCE_BROKEN;
    for (size_t i = 0; i < sizeof(no_header) / sizeof(no_header[0]); i++)
        if (strstr(reason, no_header[i]))
            return EFS_SOURCE_NO_HEADER;
    return EFS_SOURCE_UNREAD;
}

TEST(refuses_violations)
{
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        const struct bad_case *c = &bad_cases[i];
        refuse(c->header, strlen(c->header), c->data_bytes, state_of(c->reason), c->reason);
    }
    static const char header[] = "{" T("a", "U8", "2", 0, 2) "}";
    refuse(header, sizeof(header), 2, EFS_SOURCE_NO_HEADER, "JSON at offset"); /* including its terminator */
}

/* Files with this header length, followed by the body. */
TEST(refuses_header_lengths)
{
    static const struct {
        uint64_t length;
        const char *body, *reason;
    } cases[] = {
        {3, "{}", "a header of 3 bytes is past the end of the file (10 bytes)"},
        {1, "", "is past the end of the file"},
        {0, "", "a header of 0 bytes"},
        {0, "{}", "a header of 0 bytes"},
        {1, "{}", "JSON at offset"},
        {100000000, "{}", "is past the end of the file"},
        {100000001, "{}", "100000000 are the most"},
        {UINT64_MAX, "{}", "a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "{}", "100000000 are the most"},
        {INT64_MAX, "{}", "100000000 are the most"},
        {3, "x}", "offset 0: a header of 3 bytes"},
    };
    struct sf_bytes file = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sf_number(&file, cases[i].length, 8);
        sf_put(&file, cases[i].body, strlen(cases[i].body));
        sf_refuse(NAME, &file, *cases[i].body ? state_of(cases[i].reason) : EFS_SOURCE_BROKEN, cases[i].reason);
    }
    sf_refuse(NAME, &file, EFS_SOURCE_BROKEN, "0 bytes at offset 0: too short");
    sf_put(&file, "<html>1\n", 8);
    sf_refuse(NAME, &file, EFS_SOURCE_BROKEN, "100000000 are the most");
}

TEST(refuses_every_truncation)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("a.b", "BF16", "2,3", 0, 12) "," T("c", "F32", "", 12, 16) "}";
    struct sf_bytes file = {0}, part = {0};
    struct efs_catalog catalog;

    sf_safetensors(&file, header, strlen(header), 16);
    for (size_t n = 0; n < file.count; n++) {
        sf_put(&part, file.data, n);
        /* A whole header without any data is a file of metadata. */
        sf_refuse(NAME, &part, n == 8 + strlen(header) ? EFS_SOURCE_UNREAD : EFS_SOURCE_BROKEN, "");
    }
    sf_read(NAME, &file, &catalog);
    assert_int_equal(catalog.tensor_count, 2);
    efs_catalog_free(&catalog);
}

/* Expected tensors, in the order of their data. */
struct wanted {
    const char *name;
    uint64_t bytes;
    uint32_t dims;
    uint64_t shape[8];
};

static void check_tensors(const char *header, size_t data_bytes, const struct wanted *wanted, size_t count)
{
    struct efs_catalog catalog;
    uint64_t offset = 8 + strlen(header);
    read_text(header, data_bytes, &catalog);
    assert_int_equal(catalog.tensor_count, count);
    for (size_t i = 0; i < count; i++) {
        const struct efs_source_tensor *t = &catalog.tensors[i];
        assert_string_equal(t->name, wanted[i].name);
        assert_int_equal(t->offset, offset);
        assert_int_equal(t->bytes, wanted[i].bytes);
        assert_int_equal(t->dims, wanted[i].dims);
        assert_memory_equal(t->shape, wanted[i].shape, t->dims * sizeof(t->shape[0]));
        assert_int_equal(t->tensor_class, EFS_CLASS_DENSE);
        offset += t->bytes;
    }
    assert_string_equal(catalog.family, "dense");
    efs_catalog_free(&catalog);
}
#define CHECK_TENSORS(header, data_bytes, ...)                                                                         \
    check_tensors(header, data_bytes, (const struct wanted[]){__VA_ARGS__},                                            \
                  sizeof((const struct wanted[]){__VA_ARGS__}) / sizeof(struct wanted))

TEST(reads_odd_headers)
{
    /* Names that are not in the order of data; trailing blanks make the header's length odd, so that no tensor is
     * aligned. */
    static const char unaligned[] =
        "{" T("z", "F32", "2", 8, 16) "," T("m", "F32", "1", 16, 20) "," T("a", "F32", "2,1", 0, 8) "}  ";
    assert_int_equal(strlen(unaligned) % 2, 1);
    CHECK_TENSORS(unaligned, 20, {"a", 8, 2, {2, 1}}, {"z", 8, 1, {2}}, {"m", 4, 1, {1}});
    /* Scalars and tensors without elements */
    CHECK_TENSORS(
        "{" T("scalar", "F32", "", 0, 4) "," T("none", "BF16", "3,0,5", 4, 4) "," T("first", "U8", "0", 0, 0) "," T(
            "wide", "U8", "0,9223372036854775807,9223372036854775807", 4, 4) ",\"__metadata__\":null}",
        4, {"first", 0, 1, {0}}, {"scalar", 4, 0, {0}}, {"none", 0, 3, {3, 0, 5}},
        {"wide", 0, 3, {0, INT64_MAX, INT64_MAX}});
    /* Names and fields */
    CHECK_TENSORS("{\"__metadata__\":{\"\\u00e9\":\"\\n\",\"nul\":\"a\\u0000b\"},\n\t" T(
                      "\xC3\xA9.\xE6\x9D\x83", "U8", "2", 0, 2) "," T("\\u00fc\\n\\ud83d\\ude00", "U8", "1", 2,
                                                                      3) "," T("", "U8", "1", 3,
                                                                               4) ",\"x\":{\"extra\":[{}],\"data_"
                                                                                  "offsets\":[4,5],\"shape\":[1],"
                                                                                  "\"dtype\":\"U8\"}} \n\t\r",
                  5, {"\xC3\xA9.\xE6\x9D\x83", 2, 1, {2}}, {"\xC3\xBC\n\xF0\x9F\x98\x80", 1, 1, {1}}, {"", 1, 1, {1}},
                  {"x", 1, 1, {1}});
    struct efs_catalog catalog;
    read_text("{}", 0, &catalog);
    assert_int_equal(catalog.tensor_count, 0);
    efs_catalog_free(&catalog);
}

static const struct {
    const char *name;
    enum efs_dtype dtype;
    unsigned bits;
} dtypes[] = {
    {"BOOL", EFS_DTYPE_BOOL, 8},
    {"U8", EFS_DTYPE_U8, 8},
    {"I8", EFS_DTYPE_I8, 8},
    {"U16", EFS_DTYPE_U16, 16},
    {"I16", EFS_DTYPE_I16, 16},
    {"F16", EFS_DTYPE_F16, 16},
    {"BF16", EFS_DTYPE_BF16, 16},
    {"U32", EFS_DTYPE_U32, 32},
    {"I32", EFS_DTYPE_I32, 32},
    {"F32", EFS_DTYPE_F32, 32},
    {"U64", EFS_DTYPE_U64, 64},
    {"I64", EFS_DTYPE_I64, 64},
    {"F64", EFS_DTYPE_F64, 64},
    {"C64", EFS_DTYPE_C64, 64},
    {"F8_E4M3", EFS_DTYPE_F8_E4M3, 8},
    {"F8_E5M2", EFS_DTYPE_F8_E5M2, 8},
    {"F8_E8M0", EFS_DTYPE_F8_E8M0, 8},
    {"F8_E4M3FNUZ", EFS_DTYPE_F8_E4M3FNUZ, 8},
    {"F8_E5M2FNUZ", EFS_DTYPE_F8_E5M2FNUZ, 8},
    {"F4", EFS_DTYPE_F4, 4},
    {"F6_E2M3", EFS_DTYPE_F6_E2M3, 6},
    {"F6_E3M2", EFS_DTYPE_F6_E3M2, 6},
};

TEST(reads_every_dtype)
{
    assert_int_equal(sizeof(dtypes) / sizeof(dtypes[0]), EFS_DTYPE_COUNT - 1);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        struct efs_catalog catalog;
        unsigned bytes = dtypes[i].bits; /* 8 elements */
        char header[200];
        snprintf(header, sizeof(header), "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
                 dtypes[i].name, bytes);
        read_text(header, bytes, &catalog);
        assert_int_equal(catalog.tensor_count, 1);
        assert_int_equal(catalog.tensors[0].dtype, dtypes[i].dtype);
        assert_int_equal(catalog.tensors[0].bytes, bytes);
        assert_string_equal(efs_dtype_name(catalog.tensors[0].dtype), dtypes[i].name);
        efs_catalog_free(&catalog);
    }
}

/* A dtype or a shape that a catalogue cannot represent: a tensor of bytes that keeps its description. */
TEST(keeps_what_it_cannot_describe)
{
    static const char header[] = "{" T("a", "U8", "2", 0, 2) "," T("future", "F3", "7", 2, 5) "," T(
        "deep", "U8", "1,1,1,1,1,1,1,1,2", 5, 7) "," T("eight", "U8", "1,1,1,1,1,1,1,2", 7, 9) "}";
    struct efs_catalog catalog;

    read_text(header, 9, &catalog);
    assert_int_equal(catalog.tensor_count, 4);
    assert_string_equal(catalog.tensors[0].name, "a");
    assert_null(catalog.tensors[0].type);
    assert_string_equal(catalog.tensors[1].name, "future");
    assert_string_equal(catalog.tensors[1].type, "\"dtype\":\"F3\",\"shape\":[7]");
    assert_int_equal(catalog.tensors[1].dtype, EFS_DTYPE_U8);
    assert_int_equal(catalog.tensors[1].dims, 1);
    assert_int_equal(catalog.tensors[1].shape[0], 3);
    assert_string_equal(catalog.tensors[2].type, "\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,2]");
    assert_int_equal(catalog.tensors[2].dims, 1);
    assert_string_equal(catalog.tensors[3].name, "eight");
    assert_int_equal(catalog.tensors[3].dims, 8);
    assert_int_equal(catalog.tensors[3].shape[7], 2);
    efs_catalog_free(&catalog);
}

/* A name longer than the message: the note is one line and contains the reason. */
TEST(keeps_messages_to_a_line)
{
    struct efs_catalog catalog;
    struct sf_bytes header = {0};

    sf_put(&header, "{\"", 2);
    for (int i = 0; i < 3000; i++)
        sf_put(&header, "\\n\xC3\xA9", 4);
    sf_put(&header, "\":{}}", 6); /* including its terminator */
    read_text((const char *)header.data, 0, &catalog);
    assert_null(strchr(catalog.files[0].note, '\n'));
    assert_non_null(strstr(catalog.files[0].note, "dtype is missing"));
    efs_catalog_free(&catalog);
    free(header.data);
}

TEST_MAIN(NULL, NULL)
