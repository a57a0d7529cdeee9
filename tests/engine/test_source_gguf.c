/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF headers: what violates the format is not read, and told with file and offset; what is only odd is read. */
#include "test.h"
#include "source_files.h"

#define NAME "model.gguf"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_WITHDRAWN = 4, T_Q8_0 = 8, T_Q8_1 = 9, T_BF16 = 30 };

static void write_model(const char *dir, struct sf_bytes *file)
{
    sf_write(dir, NAME, file->data, file->count);
    free(file->data);
    *file = (struct sf_bytes){0};
}

static void key(struct sf_bytes *file, const char *name, uint32_t type)
{
    sf_string(file, name);
    sf_number(file, type, 4);
}

/* One tensor and bytes of data behind it, at the alignment 32. */
static void one_tensor(struct sf_bytes *file, uint32_t dims, const uint64_t *shape, uint32_t type, uint64_t offset,
                       size_t data_bytes)
{
    sf_gguf_header(file, 3, 1, 0);
    sf_gguf_tensor(file, "t", dims, shape, type, offset);
    sf_align(file, 32);
    sf_zero(file, data_bytes);
}

static void refuse_file(const char *dir, struct sf_bytes *file, const char *reason)
{
    write_model(dir, file);
    sf_unread(dir, NAME, EFS_SOURCE_UNREAD, reason);
}

/* The same of a file that ends before what it describes. */
static void refuse_cut(const char *dir, struct sf_bytes *file, const char *reason)
{
    write_model(dir, file);
    sf_unread(dir, NAME, EFS_SOURCE_BROKEN, reason);
}

TEST(refuses_headers)
{
    char *dir = sf_mkdir();
    struct sf_bytes file = {0};

    refuse_cut(dir, &file, "past the end of the file (0 bytes)");
    sf_put(&file, "GGML", 4);
    sf_zero(&file, 100);
    refuse_file(dir, &file, "header at offset 0: it does not begin with \"GGUF\"");
    for (uint32_t version = 0; version < 6; version++) {
        if (version == 2 || version == 3)
            continue;
        sf_gguf_header(&file, version, 0, 0);
        refuse_file(dir, &file, "versions 2 to 3 are read");
    }
    sf_gguf_header(&file, 0x03000000, 0, 0);
    refuse_file(dir, &file, "big-endian");
    sf_gguf_header(&file, 3, 1, 0);
    refuse_cut(dir, &file, "1 tensors are more than the file can hold");
    sf_gguf_header(&file, 3, UINT64_MAX, 0);
    sf_zero(&file, 1000);
    refuse_file(dir, &file, "18446744073709551615 tensors are more");
    sf_gguf_header(&file, 3, 1000 / 24 + 1, 0);
    sf_zero(&file, 1000);
    refuse_cut(dir, &file, "42 tensors are more");
    sf_gguf_header(&file, 3, 0, UINT64_MAX / 13 + 1);
    sf_zero(&file, 1000);
    refuse_file(dir, &file, "metadata entries are more");
    sf_gguf_header(&file, 3, 0, 77);
    sf_zero(&file, 1000);
    refuse_cut(dir, &file, "77 metadata entries are more");
    sf_rmdir(dir);
}

/* A file of one metadata entry: key "k", type, then value, then 64 bytes. */
static void refuse_value(const char *dir, uint32_t type, const struct sf_bytes *value, const char *reason)
{
    struct sf_bytes file = {0};

    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "k", type);
    sf_put(&file, value->data, value->count);
    sf_zero(&file, 64);
    if (strstr(reason, "past the end"))
        refuse_cut(dir, &file, reason);
    else
        refuse_file(dir, &file, reason);
}

TEST(refuses_metadata)
{
    char *dir = sf_mkdir();
    struct sf_bytes value = {0}, file = {0};

    refuse_value(dir, 13, &value, "metadata entry 0 at offset 24: a value of the unknown type 13");
    refuse_value(dir, UINT32_MAX, &value, "unknown type 4294967295");

    sf_number(&value, 65, 8); /* 64 bytes follow */
    refuse_value(dir, STRING, &value, "65 bytes at offset 45 are past the end");
    value.count = 0;
    sf_number(&value, UINT64_MAX, 8);
    refuse_value(dir, STRING, &value, "18446744073709551615 bytes at offset 45 are past the end");

    value.count = 0;
    sf_number(&value, 13, 4);
    sf_number(&value, 1, 8);
    refuse_value(dir, ARRAY, &value, "an array of the unknown type 13");
    value.count = 0;
    sf_number(&value, F64, 4);
    sf_number(&value, 9, 8);
    refuse_value(dir, ARRAY, &value, "an array of 9 elements is past the end");
    value.count = 0;
    sf_number(&value, F64, 4);
    sf_number(&value, UINT64_MAX / 8 + 2, 8); /* times 8 bytes wraps around to 8 */
    refuse_value(dir, ARRAY, &value, "elements is past the end");
    value.count = 0;
    sf_number(&value, STRING, 4);
    sf_number(&value, 9, 8);
    refuse_value(dir, ARRAY, &value, "an array of 9 elements is past the end");
    value.count = 0;
    sf_number(&value, ARRAY, 4);
    sf_number(&value, UINT64_MAX, 8);
    refuse_value(dir, ARRAY, &value, "elements is past the end");
    value.count = 0;
    for (int depth = 0; depth < 9; depth++) {
        sf_number(&value, ARRAY, 4);
        sf_number(&value, 1, 8);
    }
    refuse_value(dir, ARRAY, &value, "more than 8 arrays in each other");
    free(value.data);

    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 65536, 8);
    sf_zero(&file, 70000);
    refuse_file(dir, &file, "its name has 65536 bytes");
    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 100, 8);
    sf_zero(&file, 50);
    refuse_cut(dir, &file, "100 bytes at offset 32 are past the end of the file (82 bytes)");
    sf_gguf_header(&file, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        key(&file, "same", U8);
        sf_number(&file, 1, 1);
    }
    refuse_file(dir, &file, "a key is there twice");
    sf_rmdir(dir);
}

TEST(refuses_alignments)
{
    static const uint32_t wrong[] = {0, 3, 33, 48, UINT32_MAX};
    char *dir = sf_mkdir();
    struct sf_bytes file = {0};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        sf_gguf_header(&file, 3, 0, 1);
        key(&file, "general.alignment", U32);
        sf_number(&file, wrong[i], 4);
        refuse_file(dir, &file, "is not a power of two");
    }
    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "general.alignment", U64);
    sf_number(&file, 32, 8);
    refuse_file(dir, &file, "general.alignment is of type 10");
    /* Aligned to 2 GiB, the data would begin past the end. */
    sf_gguf_header(&file, 3, 1, 1);
    key(&file, "general.alignment", U32);
    sf_number(&file, 1u << 31, 4);
    sf_gguf_tensor(&file, "t", 0, NULL, T_F32, 0);
    sf_zero(&file, 100);
    refuse_file(dir, &file, "data at offset 2147483648: it begins past the end");
    sf_rmdir(dir);
}

TEST(refuses_tensors)
{
    static const uint64_t two32[] = {1ULL << 32, 1ULL << 32}, big[] = {1ULL << 62, 1}, eight[] = {8}, forty[] = {40},
                          rows[] = {31, 32}, nine[] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, blocks[] = {1ULL << 63};
    char *dir = sf_mkdir();
    struct sf_bytes file = {0};

    one_tensor(&file, 2, two32, T_F32, 0, 64);
    refuse_file(dir, &file, "tensor 0 at offset 24: the dimensions of \"t\" multiply to more than 64 bits hold");
    one_tensor(&file, 2, big, T_F32, 0, 64);
    refuse_file(dir, &file, "more than 64 bits hold");
    one_tensor(&file, 1, blocks, T_Q8_0, 0, 64);
    refuse_file(dir, &file, "more than 64 bits hold");
    one_tensor(&file, 9, nine, T_F32, 0, 64);
    refuse_file(dir, &file, "\"t\" has 9 dimensions; 8 are the most");
    one_tensor(&file, 1, forty, T_Q4_0, 0, 64);
    refuse_file(dir, &file, "the rows of \"t\" are not a whole number of ggml:Q4_0 blocks");
    one_tensor(&file, 2, rows, T_Q4_0, 0, 1024); /* 31 x 32: as many blocks, but not in a row */
    refuse_file(dir, &file, "not a whole number of ggml:Q4_0 blocks");
    one_tensor(&file, 0, NULL, T_Q4_0, 0, 64);
    refuse_file(dir, &file, "not a whole number of ggml:Q4_0 blocks");
    one_tensor(&file, 1, eight, T_F32, 0, 31);
    refuse_cut(dir, &file, "\"t\", 32 bytes at 0 of the data, reaches past the data (31 bytes)");
    one_tensor(&file, 1, eight, T_F32, 32, 63);
    refuse_cut(dir, &file, "32 bytes at 32 of the data, reaches past");
    one_tensor(&file, 1, eight, T_F32, 96, 64);
    refuse_cut(dir, &file, "offset 96 of \"t\" is past the data (64 bytes)");
    one_tensor(&file, 1, eight, T_F32, UINT64_MAX - 31, 64);
    refuse_cut(dir, &file, "is past the data");
    one_tensor(&file, 1, eight, T_F32, 16, 64);
    refuse_file(dir, &file, "offset 16 of \"t\" is not a multiple of the alignment, 32");
    one_tensor(&file, 1, eight, 99, 96, 64); /* an unknown type's place is checked too */
    refuse_cut(dir, &file, "is past the data");
    one_tensor(&file, 1, eight, 99, 1, 64);
    refuse_file(dir, &file, "not a multiple of the alignment");

    sf_gguf_header(&file, 3, 2, 0);
    sf_gguf_tensor(&file, "second", 1, eight, T_F32, 32);
    sf_gguf_tensor(&file, "first", 1, forty, T_F32, 0);
    sf_align(&file, 32);
    sf_zero(&file, 320);
    refuse_file(dir, &file, "\"first\", 160 bytes at 0 of the data, overlaps \"second\" at 32");
    sf_gguf_header(&file, 3, 2, 0);
    sf_gguf_tensor(&file, "same", 1, eight, T_F32, 0);
    sf_gguf_tensor(&file, "same", 1, eight, T_F32, 32);
    sf_align(&file, 32);
    sf_zero(&file, 64);
    refuse_file(dir, &file, "two tensors are called \"same\"");
    sf_gguf_header(&file, 3, 1, 0);
    sf_gguf_tensor(&file, "\xFF", 1, eight, T_F32, 0);
    sf_align(&file, 32);
    sf_zero(&file, 64);
    refuse_file(dir, &file, "its name is not UTF-8 text");
    sf_gguf_header(&file, 3, 1, 0);
    sf_number(&file, 2, 8); /* a name with a NUL inside */
    sf_put(&file, "a", 2);
    sf_zero(&file, 64);
    refuse_file(dir, &file, "its name is not UTF-8 text");
    sf_gguf_header(&file, 3, 1, 0);
    sf_number(&file, 1ULL << 40, 8);
    sf_zero(&file, 64);
    refuse_file(dir, &file, "its name has 1099511627776 bytes");
    sf_rmdir(dir);
}

/* Metadata with a value of every type, arrays of arrays too. Returns the number of entries. */
static uint64_t every_value(struct sf_bytes *out)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t count = 0;
    char name[20];

    for (uint32_t type = 0; type < sizeof(bytes); type++) {
        if (type == ARRAY)
            continue;
        snprintf(name, sizeof(name), "value.%u", type);
        key(out, name, type);
        sf_zero(out, type == STRING ? 0 : bytes[type]);
        if (type == STRING)
            sf_string(out, "text");
        snprintf(name, sizeof(name), "array.%u", type);
        key(out, name, ARRAY);
        sf_number(out, type, 4);
        sf_number(out, 3, 8);
        for (int i = 0; i < 3; i++) {
            sf_zero(out, type == STRING ? 0 : bytes[type]);
            if (type == STRING)
                sf_string(out, i == 1 ? "" : "element");
        }
        count += 2;
    }
    key(out, "nested", ARRAY);
    sf_number(out, ARRAY, 4);
    sf_number(out, 3, 8);
    for (unsigned i = 0; i < 3; i++) { /* of 0, 1 and 2 numbers */
        sf_number(out, U16, 4);
        sf_number(out, i, 8);
        sf_zero(out, (size_t)2 * i);
    }
    return count + 1;
}

#define SMALL_DATA 262u /* bytes behind its header */

/* A small file with everything in it; no padding behind the last tensor, so that every byte counts. */
static void small_file(struct sf_bytes *file, uint32_t version)
{
    static const uint64_t f32[] = {4, 2}, q8[] = {32, 3}, bf16[] = {3};
    struct sf_bytes metadata = {0};
    uint64_t count = every_value(&metadata);

    sf_gguf_header(file, version, 4, count + 1);
    sf_put(file, metadata.data, metadata.count);
    free(metadata.data);
    key(file, "general.alignment", U32);
    sf_number(file, 64, 4);
    sf_gguf_tensor(file, "last", 1, bf16, T_BF16, 256);
    sf_gguf_tensor(file, "q8", 2, q8, T_Q8_0, 64);
    sf_gguf_tensor(file, "f32", 2, f32, T_F32, 0);
    sf_gguf_tensor(file, "scalar", 0, NULL, T_F16, 192);
    sf_align(file, 64);
    sf_zero(file, SMALL_DATA);
}

TEST(refuses_every_truncation)
{
    char *dir = sf_mkdir();
    struct sf_bytes file = {0};
    struct efs_catalog catalog;

    small_file(&file, 3);
    size_t data = file.count - SMALL_DATA, infos = data - 1;
    while (file.data[infos - 1] == 0) /* the last tensor's offset, 192, and then the padding */
        infos--;
    infos += 7;
    for (size_t n = 0; n < file.count; n++) {
        sf_write(dir, NAME, file.data, n);
        /* All that describes tensors and not one byte of data is a file of metadata. */
        sf_unread(dir, NAME, n >= infos && n <= data ? EFS_SOURCE_UNREAD : EFS_SOURCE_BROKEN, "");
    }
    write_model(dir, &file);
    sf_accept(dir, &catalog);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

TEST(reads_both_versions)
{
    char *dir = sf_mkdir();

    for (uint32_t version = 2; version <= 3; version++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        small_file(&file, version);
        size_t data = file.count - SMALL_DATA;
        write_model(dir, &file);
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.tensor_count, 4);
        assert_int_equal(data % 64, 0);
        const struct efs_source_tensor *tensor = sf_tensor(&catalog, "f32");
        assert_int_equal(tensor->offset, data);
        assert_int_equal(tensor->bytes, 32);
        assert_int_equal(tensor->dtype, EFS_DTYPE_F32);
        assert_int_equal(tensor->dims, 2);
        assert_int_equal(tensor->shape[0], 2); /* slowest first */
        assert_int_equal(tensor->shape[1], 4);
        tensor = sf_tensor(&catalog, "q8");
        assert_int_equal(tensor->offset, data + 64);
        assert_int_equal(tensor->bytes, 3 * 34);
        assert_int_equal(tensor->dtype, EFS_DTYPE_GGML + T_Q8_0);
        assert_string_equal(efs_dtype_name(tensor->dtype), "ggml:Q8_0");
        tensor = sf_tensor(&catalog, "scalar");
        assert_int_equal(tensor->offset, data + 192);
        assert_int_equal(tensor->bytes, 2);
        assert_int_equal(tensor->dims, 0);
        assert_int_equal(sf_tensor(&catalog, "last")->dtype, EFS_DTYPE_BF16);
        assert_string_equal(catalog.tensors[0].name, "f32");
        assert_string_equal(catalog.tensors[3].name, "last");
        efs_catalog_free(&catalog);
    }
    sf_rmdir(dir);
}

/* Tensors of types that are not known have the bytes up to the next tensor; a number that no record holds is left out.
 */
TEST(keeps_unknown_types)
{
    static const uint64_t shape[] = {32};
    static const uint32_t unknown[] = {T_WITHDRAWN, T_Q8_1, 31, 43, 1000, UINT32_MAX};
    char *dir = sf_mkdir();

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        sf_gguf_header(&file, 3, 3, 0);
        sf_gguf_tensor(&file, "before", 1, shape, T_F32, 0);
        sf_gguf_tensor(&file, "unknown", 1, shape, unknown[i], 128);
        sf_gguf_tensor(&file, "after", 1, shape, T_F32, 160);
        sf_align(&file, 32);
        sf_zero(&file, 160 + 128);
        write_model(dir, &file);
        sf_accept(dir, &catalog);
        bool kept = unknown[i] < UINT16_MAX - EFS_DTYPE_GGML;
        assert_int_equal(catalog.tensor_count, 2 + kept);
        assert_string_equal(catalog.tensors[0].name, "before");
        assert_string_equal(catalog.tensors[1 + kept].name, "after");
        if (kept) {
            assert_string_equal(catalog.tensors[1].name, "unknown");
            assert_int_equal(catalog.tensors[1].dtype, EFS_DTYPE_GGML + unknown[i]);
            assert_int_equal(catalog.tensors[1].bytes, 32);
            assert_int_equal(catalog.tensors[1].tensor_class, EFS_CLASS_DENSE);
        }
        efs_catalog_free(&catalog);
    }
    sf_rmdir(dir);
}

/* Bytes of 256 elements of every type that files may hold, as ggml's block structures have them. */
static const struct {
    uint32_t type;
    uint32_t bytes;
    const char *name;
} sizes[] = {
    {0, 1024, "F32"},         {1, 512, "F16"},          {2, 144, "ggml:Q4_0"},   {3, 160, "ggml:Q4_1"},
    {6, 176, "ggml:Q5_0"},    {7, 192, "ggml:Q5_1"},    {8, 272, "ggml:Q8_0"},   {10, 84, "ggml:Q2_K"},
    {11, 110, "ggml:Q3_K"},   {12, 144, "ggml:Q4_K"},   {13, 176, "ggml:Q5_K"},  {14, 210, "ggml:Q6_K"},
    {15, 292, "ggml:Q8_K"},   {16, 66, "ggml:IQ2_XXS"}, {17, 74, "ggml:IQ2_XS"}, {18, 98, "ggml:IQ3_XXS"},
    {19, 50, "ggml:IQ1_S"},   {20, 144, "ggml:IQ4_NL"}, {21, 110, "ggml:IQ3_S"}, {22, 82, "ggml:IQ2_S"},
    {23, 136, "ggml:IQ4_XS"}, {24, 256, "I8"},          {25, 512, "I16"},        {26, 1024, "I32"},
    {27, 2048, "I64"},        {28, 2048, "F64"},        {29, 56, "ggml:IQ1_M"},  {30, 512, "BF16"},
    {34, 54, "ggml:TQ1_0"},   {35, 66, "ggml:TQ2_0"},   {39, 136, "ggml:MXFP4"}, {40, 144, "ggml:NVFP4"},
    {41, 36, "ggml:Q1_0"},    {42, 72, "ggml:Q2_0"},
};

TEST(reads_every_type)
{
    static const uint64_t shape[] = {256, 2};
    char *dir = sf_mkdir();

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        one_tensor(&file, 2, shape, sizes[i].type, 0, (size_t)sizes[i].bytes * 2);
        write_model(dir, &file);
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.tensor_count, 1);
        assert_int_equal(catalog.tensors[0].bytes, sizes[i].bytes * 2);
        assert_string_equal(efs_dtype_name(catalog.tensors[0].dtype), sizes[i].name);
        efs_catalog_free(&catalog);
        one_tensor(&file, 2, shape, sizes[i].type, 0, (size_t)sizes[i].bytes * 2 - 1);
        refuse_cut(dir, &file, "reaches past the data");
    }
    sf_rmdir(dir);
}

TEST(reads_odd_files)
{
    static const uint64_t none[] = {0, 4};
    char *dir = sf_mkdir();
    struct sf_bytes file = {0};
    struct efs_catalog catalog;

    /* Metadata alone, as vocabulary files are; no data, no padding. */
    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "k", STRING);
    sf_string(&file, "v");
    write_model(dir, &file);
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.tensor_count, 0);
    efs_catalog_free(&catalog);
    /* An empty tensor at the end of empty data; alignment 1; a name that the default limit of ggml would not take. */
    sf_gguf_header(&file, 3, 1, 1);
    key(&file, "general.alignment", U32);
    sf_number(&file, 1, 4);
    sf_gguf_tensor(&file, "a name of more than sixty-four bytes, which the format allows, and \xC3\xA9 in it", 2, none,
                   T_F32, 0);
    write_model(dir, &file);
    sf_accept(dir, &catalog);
    assert_int_equal(catalog.tensor_count, 1);
    assert_int_equal(catalog.tensors[0].bytes, 0);
    efs_catalog_free(&catalog);
    /* A key that only begins like the alignment's. */
    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 18, 8);
    sf_put(&file, "general.alignment", 18); /* its terminator too */
    sf_number(&file, U32, 4);
    sf_number(&file, 33, 4);
    write_model(dir, &file);
    sf_accept(dir, &catalog);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* Fields and values that lie across the ends of the reader's window, and strings larger than it. */
TEST(reads_large_metadata)
{
    static const uint64_t shape[] = {8};
    char *dir = sf_mkdir();

    for (size_t shift = 0; shift < 24; shift++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        char name[32];
        sf_gguf_header(&file, 3, 2000, 2);
        key(&file, "large", STRING);
        sf_number(&file, 200000 + shift, 8);
        sf_zero(&file, 200000 + shift);
        key(&file, "tokens", ARRAY);
        sf_number(&file, STRING, 4);
        sf_number(&file, 30000, 8);
        for (int i = 0; i < 30000; i++)
            sf_string(&file, i % 3 ? "tok" : "token");
        for (uint64_t i = 0; i < 2000; i++) {
            snprintf(name, sizeof(name), "tensor.%" PRIu64, i);
            sf_gguf_tensor(&file, name, 1, shape, T_F32, i * 32);
        }
        sf_align(&file, 32);
        size_t data = file.count;
        sf_zero(&file, (size_t)2000 * 32);
        write_model(dir, &file);
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.tensor_count, 2000);
        assert_string_equal(catalog.tensors[1999].name, "tensor.1999");
        assert_int_equal(catalog.tensors[1999].offset, data + 1999 * 32);
        efs_catalog_free(&catalog);
    }
    sf_rmdir(dir);
}

TEST_MAIN(NULL, NULL)
