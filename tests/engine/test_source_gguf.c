/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF headers: a file that violates the format is not read, with file and offset in its note; unusual files are read.
 */
#include "test.h"
#include "source_files.h"

#define NAME "model.gguf"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum { T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_WITHDRAWN = 4, T_Q8_0 = 8, T_Q8_1 = 9, T_BF16 = 30 };

static void key(struct sf_bytes *file, const char *name, uint32_t type)
{
    sf_string(file, name);
    sf_number(file, type, 4);
}

/* Zeros up to the alignment of 32, then data. */
static void put_data(struct sf_bytes *file, size_t bytes)
{
    sf_align(file, 32);
    sf_zero(file, bytes);
}

static void read_file(struct sf_bytes *file, struct efs_catalog *catalog)
{
    sf_read(NAME, file, catalog);
}

static void refuse_file(struct sf_bytes *file, const char *reason)
{
    sf_refuse(NAME, file, EFS_SOURCE_UNREAD, reason);
}

/* The same for a file that ends before the data that it describes. */
static void refuse_cut(struct sf_bytes *file, const char *reason)
{
    sf_refuse(NAME, file, EFS_SOURCE_BROKEN, reason);
}

TEST(refuses_headers)
{
    static const struct {
        uint32_t version;
        uint64_t tensors, metadata;
        size_t more; /* bytes after the header */
        enum efs_source_state state;
        const char *reason;
    } headers[] = {
        {0, 0, 0, 0, EFS_SOURCE_UNREAD, "versions 2 to 3 are read"},
        {1, 0, 0, 0, EFS_SOURCE_UNREAD, "versions 2 to 3 are read"},
        {4, 0, 0, 0, EFS_SOURCE_UNREAD, "versions 2 to 3 are read"},
        {0x03000000, 0, 0, 0, EFS_SOURCE_UNREAD, "big-endian"},
        {3, 1, 0, 0, EFS_SOURCE_BROKEN, "1 tensors are more than the file can hold"},
        {3, UINT64_MAX, 0, 1000, EFS_SOURCE_UNREAD, "18446744073709551615 tensors are more"},
        {3, 1000 / 24 + 1, 0, 1000, EFS_SOURCE_BROKEN, "42 tensors are more"},
        {3, 0, UINT64_MAX / 13 + 1, 1000, EFS_SOURCE_UNREAD, "metadata entries are more"},
        {3, 0, 77, 1000, EFS_SOURCE_BROKEN, "77 metadata entries are more"},
    };
    struct sf_bytes file = {0};
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        sf_gguf_header(&file, headers[i].version, headers[i].tensors, headers[i].metadata);
        sf_zero(&file, headers[i].more);
        sf_refuse(NAME, &file, headers[i].state, headers[i].reason);
    }
    refuse_cut(&file, "past the end of the file (0 bytes)");
    sf_put(&file, "GGML", 4);
    sf_zero(&file, 100);
    refuse_file(&file, "header at offset 0: it does not begin with \"GGUF\"");
    for (size_t n = 4; n < 24; n++) { /* fewer bytes than a header: of a failed download */
        sf_put(&file, "\377\376\375\374", 4);
        sf_zero(&file, n - 4);
        refuse_cut(&file, "it does not begin with \"GGUF\"");
    }
}

/* One metadata entry "k" with 64 bytes after its value: a string of `count` bytes, or an array of `count` elements. */
TEST(refuses_values)
{
    static const struct {
        uint32_t type, element;
        uint64_t count;
        const char *reason;
    } values[] = {
        {13, 0, 0, "metadata entry 0 at offset 24: a value of the unknown type 13"},
        {UINT32_MAX, 0, 0, "unknown type 4294967295"},
        {STRING, 0, 65, "65 bytes at offset 45 are past the end"},
        {STRING, 0, UINT64_MAX, "18446744073709551615 bytes at offset 45 are past the end"},
        {ARRAY, 13, 1, "an array of the unknown type 13"},
        {ARRAY, F64, 9, "an array of 9 elements is past the end"},
        {ARRAY, F64, UINT64_MAX / 8 + 2, "elements is past the end"}, /* times 8 bytes wraps around to 8 */
        {ARRAY, STRING, 9, "an array of 9 elements is past the end"},
        {ARRAY, ARRAY, UINT64_MAX, "elements is past the end"},
    };
    struct sf_bytes file = {0};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        sf_gguf_header(&file, 3, 0, 1);
        key(&file, "k", values[i].type);
        if (values[i].type == ARRAY)
            sf_number(&file, values[i].element, 4);
        if (values[i].type < 13)
            sf_number(&file, values[i].count, 8);
        sf_zero(&file, 64);
        bool cut = strstr(values[i].reason, "past the end");
        sf_refuse(NAME, &file, cut ? EFS_SOURCE_BROKEN : EFS_SOURCE_UNREAD, values[i].reason);
    }
    for (uint64_t bytes = 41; bytes != 0; bytes = bytes == 41 ? UINT64_MAX : 0) { /* of the second of three strings */
        char reason[64];
        sf_gguf_header(&file, 3, 0, 1);
        key(&file, "k", ARRAY);
        sf_number(&file, STRING, 4);
        sf_number(&file, 3, 8);
        sf_string(&file, "first");
        sf_number(&file, bytes, 8);
        sf_zero(&file, 40);
        snprintf(reason, sizeof(reason), "%" PRIu64 " bytes at offset %zu are past the end", bytes, file.count - 40);
        refuse_cut(&file, reason);
    }
    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "k", ARRAY);
    for (int depth = 0; depth < 9; depth++) {
        sf_number(&file, ARRAY, 4);
        sf_number(&file, 1, 8);
    }
    sf_zero(&file, 64);
    refuse_file(&file, "more than 8 arrays in each other");
}

TEST(refuses_keys)
{
    struct sf_bytes file = {0};
    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 65536, 8);
    sf_zero(&file, 70000);
    refuse_file(&file, "its name has 65536 bytes");
    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 100, 8);
    sf_zero(&file, 50);
    refuse_cut(&file, "100 bytes at offset 32 are past the end of the file (82 bytes)");
    sf_gguf_header(&file, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        key(&file, "same", U8);
        sf_number(&file, 1, 1);
    }
    refuse_file(&file, "a key is there twice");
}

TEST(refuses_alignments)
{
    static const uint32_t wrong[] = {0, 3, 33, 48, UINT32_MAX};
    struct sf_bytes file = {0};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        sf_gguf_header(&file, 3, 0, 1);
        key(&file, "general.alignment", U32);
        sf_number(&file, wrong[i], 4);
        refuse_file(&file, "is not a power of two");
    }
    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "general.alignment", U64);
    sf_number(&file, 32, 8);
    refuse_file(&file, "general.alignment is of type 10");
    /* With an alignment of 2 GiB, the data would start past the end. */
    sf_gguf_header(&file, 3, 1, 1);
    key(&file, "general.alignment", U32);
    sf_number(&file, 1u << 31, 4);
    sf_gguf_tensor(&file, "t", 0, NULL, T_F32, 0);
    sf_zero(&file, 100);
    refuse_file(&file, "data at offset 2147483648: it begins past the end");
}

/* A file with one tensor "t". */
TEST(refuses_tensors)
{
    static const struct {
        uint32_t dims;
        uint64_t shape[9];
        uint32_t type;
        uint64_t offset;
        size_t data_bytes;
        enum efs_source_state state;
        const char *reason;
    } tensors[] = {
        {2,
         {1ULL << 32, 1ULL << 32},
         T_F32,
         0,
         64,
         EFS_SOURCE_UNREAD,
         "tensor 0 at offset 24: the dimensions of \"t\" multiply to more than 64 bits hold"},
        {2, {1ULL << 62, 1}, T_F32, 0, 64, EFS_SOURCE_UNREAD, "more than 64 bits hold"},
        {1, {1ULL << 63}, T_Q8_0, 0, 64, EFS_SOURCE_UNREAD, "more than 64 bits hold"},
        {9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, T_F32, 0, 64, EFS_SOURCE_UNREAD, "\"t\" has 9 dimensions; 8 are the most"},
        {1, {40}, T_Q4_0, 0, 64, EFS_SOURCE_UNREAD, "the rows of \"t\" are not a whole number of ggml:Q4_0 blocks"},
        {2,
         {31, 32},
         T_Q4_0,
         0,
         1024,
         EFS_SOURCE_UNREAD, /* whole blocks, but not per row */
         "not a whole number of ggml:Q4_0 blocks"},
        {0, {0}, T_Q4_0, 0, 64, EFS_SOURCE_UNREAD, "not a whole number of ggml:Q4_0 blocks"},
        {1, {8}, T_F32, 0, 31, EFS_SOURCE_BROKEN, "ends too early: at least 1 bytes"},
        {1, {8}, T_F32, 32, 63, EFS_SOURCE_BROKEN, "ends too early: at least 1 bytes"},
        {1, {8}, T_F32, 96, 64, EFS_SOURCE_BROKEN, "ends too early: at least 64 bytes"},
        {1, {8}, T_F32, UINT64_MAX - 31, 64, EFS_SOURCE_BROKEN, "ends too early"},
        {1, {8}, T_F32, 16, 64, EFS_SOURCE_UNREAD, "offset 16 of \"t\" is not a multiple of the alignment, 32"},
        {1, {8}, 99, 96, 64, EFS_SOURCE_BROKEN, "ends too early: at least 32 bytes"}, /* offset of an unknown type is
                                                                                         checked */
        {1, {8}, 99, 1, 64, EFS_SOURCE_UNREAD, "not a multiple of the alignment"},
    };
    struct sf_bytes file = {0};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        sf_gguf_header(&file, 3, 1, 0);
        sf_gguf_tensor(&file, "t", tensors[i].dims, tensors[i].shape, tensors[i].type, tensors[i].offset);
        put_data(&file, tensors[i].data_bytes);
        sf_refuse(NAME, &file, tensors[i].state, tensors[i].reason);
    }
}

static void refuse_two(const char *a, uint64_t a_offset, const char *b, uint64_t b_offset, uint64_t b_elements,
                       const char *reason)
{
    static const uint64_t eight = 8;
    struct sf_bytes file = {0};
    sf_gguf_header(&file, 3, 2, 0);
    sf_gguf_tensor(&file, a, 1, &eight, T_F32, a_offset);
    sf_gguf_tensor(&file, b, 1, &b_elements, T_F32, b_offset);
    put_data(&file, 320);
    refuse_file(&file, reason);
}

/* A tensor whose name has `length` bytes according to the file, which contains `count` of them. */
static void refuse_name(uint64_t length, const char *bytes, size_t count, const char *reason)
{
    struct sf_bytes file = {0};
    sf_gguf_header(&file, 3, 1, 0);
    sf_number(&file, length, 8);
    sf_put(&file, bytes, count);
    sf_zero(&file, 64);
    refuse_file(&file, reason);
}

TEST(refuses_places_and_names)
{
    refuse_two("second", 64, "first", 32, 16, "\"first\", 64 bytes at 32 of the data, overlaps \"second\" at 64");
    refuse_two("same", 0, "same", 32, 8, "two tensors are called \"same\"");
    refuse_name(1, "\xFF", 1, "its name is not UTF-8 text");
    refuse_name(2, "a", 2, "its name is not UTF-8 text"); /* a NUL inside */
    refuse_name(1ULL << 40, "", 0, "its name has 1099511627776 bytes");
}

/* Writes metadata with a value of every type, and arrays of arrays. Returns the number of entries. */
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

#define SMALL_DATA 262u /* bytes after its header */

/* A small file with all of these; no padding after the last tensor, so that every byte matters. */
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
    struct sf_bytes file = {0}, part = {0};
    struct efs_catalog catalog;

    small_file(&file, 3);
    size_t data = file.count - SMALL_DATA, infos = data - 1;
    while (file.data[infos - 1] == 0) /* the low byte of the last tensor's offset, 192; the padding follows */
        infos--;
    infos += 7;
    for (size_t n = 0; n < file.count; n++) {
        sf_put(&part, file.data, n);
        /* A file with all descriptions of tensors and no data is a file of metadata. */
        sf_refuse(NAME, &part, n >= infos && n <= data ? EFS_SOURCE_UNREAD : EFS_SOURCE_BROKEN, "");
    }
    read_file(&file, &catalog);
    efs_catalog_free(&catalog);
}

TEST(reads_both_versions)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        small_file(&file, version);
        size_t data = file.count - SMALL_DATA;
        read_file(&file, &catalog);
        assert_int_equal(catalog.tensor_count, 4);
        assert_int_equal(data % 64, 0);
        const struct efs_source_tensor *tensor = sf_tensor(&catalog, "f32");
        assert_int_equal(tensor->offset, data);
        assert_int_equal(tensor->bytes, 32);
        assert_int_equal(tensor->dtype, EFS_DTYPE_F32);
        assert_int_equal(tensor->dims, 2);
        assert_int_equal(tensor->shape[0], 2); /* slowest dimension first */
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
}

/* A tensor of an unknown type has the bytes up to the next tensor. A type number that no record can hold is left out.
 */
TEST(keeps_unknown_types)
{
    static const uint64_t shape[] = {32};
    static const uint32_t unknown[] = {T_WITHDRAWN, T_Q8_1, 31, 43, 1000, UINT32_MAX};

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct sf_bytes file = {0};
        struct efs_catalog catalog;
        sf_gguf_header(&file, 3, 3, 0);
        sf_gguf_tensor(&file, "before", 1, shape, T_F32, 0);
        sf_gguf_tensor(&file, "unknown", 1, shape, unknown[i], 128);
        sf_gguf_tensor(&file, "after", 1, shape, T_F32, 160);
        put_data(&file, 160 + 128);
        read_file(&file, &catalog);
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
}

/* Bytes of 256 elements of every type in files, according to ggml's block structures. */
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

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct efs_catalog catalog;
        for (unsigned cut = 0; cut < 2; cut++) {
            struct sf_bytes file = {0};
            sf_gguf_header(&file, 3, 1, 0);
            sf_gguf_tensor(&file, "t", 2, shape, sizes[i].type, 0);
            put_data(&file, (size_t)sizes[i].bytes * 2 - cut);
            if (cut)
                refuse_cut(&file, "the file ends too early");
            else
                read_file(&file, &catalog);
        }
        assert_int_equal(catalog.tensor_count, 1);
        assert_int_equal(catalog.tensors[0].bytes, sizes[i].bytes * 2);
        assert_string_equal(efs_dtype_name(catalog.tensors[0].dtype), sizes[i].name);
        efs_catalog_free(&catalog);
    }
}

TEST(reads_odd_files)
{
    static const uint64_t none[] = {0, 4};
    struct sf_bytes file = {0};
    struct efs_catalog catalog;

    /* Only metadata, as in vocabulary files; no data, no padding. */
    sf_gguf_header(&file, 3, 0, 1);
    key(&file, "k", STRING);
    sf_string(&file, "v");
    read_file(&file, &catalog);
    assert_int_equal(catalog.tensor_count, 0);
    efs_catalog_free(&catalog);
    /* An empty tensor at the end of empty data; alignment 1; a name longer than ggml's default limit. */
    sf_gguf_header(&file, 3, 1, 1);
    key(&file, "general.alignment", U32);
    sf_number(&file, 1, 4);
    sf_gguf_tensor(&file, "a name of more than sixty-four bytes, which the format allows, and \xC3\xA9 in it", 2, none,
                   T_F32, 0);
    read_file(&file, &catalog);
    assert_int_equal(catalog.tensor_count, 1);
    assert_int_equal(catalog.tensors[0].bytes, 0);
    efs_catalog_free(&catalog);
    /* A key that has the alignment's key as a prefix. */
    sf_gguf_header(&file, 3, 0, 1);
    sf_number(&file, 18, 8);
    sf_put(&file, "general.alignment", 18); /* including its terminator */
    sf_number(&file, U32, 4);
    sf_number(&file, 33, 4);
    read_file(&file, &catalog);
    efs_catalog_free(&catalog);
}

/* Fields and values that cross the ends of the reader's window, and strings larger than it. */
TEST(reads_large_metadata)
{
    static const uint64_t shape[] = {8};

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
        read_file(&file, &catalog);
        assert_int_equal(catalog.tensor_count, 2000);
        assert_string_equal(catalog.tensors[1999].name, "tensor.1999");
        assert_int_equal(catalog.tensors[1999].offset, data + 1999 * 32);
        efs_catalog_free(&catalog);
    }
}

TEST_MAIN(NULL, NULL)
