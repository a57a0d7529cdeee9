/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_gguf.c - parses the header of a GGUF file to tensors with checked offsets.
 *
 * A file consists of: "GGUF", u32 version, u64 number of tensors, u64 number of metadata entries; the metadata (key,
 * type, value); the tensors (name, dimensions, type, offset from the start of the data); padding to the alignment; the
 * data. Versions 2 and 3, little-endian. The checks are those of ggml's reader and the gguf package, except that gaps
 * between tensors and any order of tensors are accepted (as by the package), and also nested arrays and unknown types,
 * whose bytes are stored unparsed. Each file of a split model is parsed separately.
 */
#include "gguf_cursor.h"

#include "dtype.h"
#include "sys.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VERSION_MIN 2u
#define VERSION_MAX 3u
#define HEADER_BYTES 24u
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_KEY "general.alignment"
#define ARCHITECTURE_KEY "general.architecture"
#define TYPE_KEY "general.type"         /* "model" and others; files of before 2024 have none */
#define EXPERTS_KEY_END ".expert_count" /* after the architecture */
#define PARTS_KEY "split.count"         /* of a file that gguf-split made; 0 after its --merge */
#define PART_KEY "split.no"             /* from 0 */
#define METADATA_MAX 1000000u
#define KEY_BYTES_MAX 65535u /* limit of the specification */
#define ARRAY_DEPTH_MAX 8u   /* nesting limit; the specification has none */
/* Minimum sizes, which bound the counts. */
#define METADATA_BYTES_MIN 13u
#define TENSOR_BYTES_MIN 24u

/* Types of metadata values and their sizes; 0: variable size. */
enum { VALUE_U16 = 2, VALUE_U32 = 4, VALUE_STRING = 8, VALUE_ARRAY = 9, VALUE_TYPES = 13 };
static const uint8_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- the header ---- */

struct header {
    uint64_t tensors, metadata;
    uint32_t alignment;
    uint64_t data_offset, data_bytes;
};

static errint_t read_header(struct efs_gguf_cursor *cursor, struct header *header)
{
    uint8_t magic[4];
    uint32_t version;
    errint_t ret;

    efs_gguf_part(cursor, "header", EFS_GGUF_ONLY);
    if ((ret = efs_gguf_read(cursor, magic, sizeof(magic))) < 0)
        return ret;
    if (memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        cursor->cut = cursor->in->bytes < HEADER_BYTES;
        return efs_gguf_fail(cursor, "it does not begin with \"GGUF\"");
    }
    if ((ret = efs_gguf_u32(cursor, &version)) < 0)
        return ret;
    if (version != 0 && (version & 0xFFFF) == 0)
        return efs_gguf_fail(cursor, "the file is big-endian; only little-endian files are read");
    if (version < VERSION_MIN || version > VERSION_MAX)
        return efs_gguf_fail(cursor, "GGUF version %" PRIu32 "; versions %u to %u are read", version, VERSION_MIN,
                             VERSION_MAX);
    if ((ret = efs_gguf_u64(cursor, &header->tensors)) < 0 || (ret = efs_gguf_u64(cursor, &header->metadata)) < 0)
        return ret;
    cursor->cut = header->metadata <= METADATA_MAX && header->tensors <= UINT32_MAX;
    if (header->metadata > METADATA_MAX || header->metadata > efs_gguf_left(cursor) / METADATA_BYTES_MIN)
        return efs_gguf_fail(cursor, "%" PRIu64 " metadata entries are more than the file can hold", header->metadata);
    if (header->tensors > efs_gguf_left(cursor) / TENSOR_BYTES_MIN)
        return efs_gguf_fail(cursor, "%" PRIu64 " tensors are more than the file can hold", header->tensors);
    cursor->cut = false;
    return 0;
}

/* Reads a string of at most max bytes and terminates it; the caller frees *text. */
static errint_t read_string(struct efs_gguf_cursor *cursor, uint32_t max, char **text, size_t *bytes)
{
    uint64_t length;

    *text = NULL;
    errint_t ret = efs_gguf_u64(cursor, &length);
    if (ret < 0)
        return ret;
    if (length > max)
        return efs_gguf_fail(cursor, "its name has %" PRIu64 " bytes; %" PRIu32 " are the most", length, max);
    char *copy = efs_sys_malloc((size_t)length + 1);
    if (!copy)
        return efs_fail(cursor->err, -ENOMEM, "%s: out of memory", cursor->in->path);
    ret = efs_gguf_read(cursor, copy, (size_t)length);
    if (ret < 0) {
        free(copy);
        return ret;
    }
    copy[length] = '\0';
    *text = copy;
    *bytes = (size_t)length;
    return 0;
}

static errint_t skip_value(struct efs_gguf_cursor *cursor, uint32_t type, unsigned depth);

static errint_t skip_array(struct efs_gguf_cursor *cursor, unsigned depth)
{
    uint32_t type;
    uint64_t count;
    errint_t ret;

    if (depth == ARRAY_DEPTH_MAX)
        return efs_gguf_fail(cursor, "more than %u arrays in each other", ARRAY_DEPTH_MAX);
    if ((ret = efs_gguf_u32(cursor, &type)) < 0 || (ret = efs_gguf_u64(cursor, &count)) < 0)
        return ret;
    if (type >= VALUE_TYPES)
        return efs_gguf_fail(cursor, "an array of the unknown type %" PRIu32, type);
    /* Every element takes at least one byte: bounds the loop and the product. */
    uint64_t each = value_bytes[type] ? value_bytes[type] : 8;
    if (count > efs_gguf_left(cursor) / each) {
        cursor->cut = true;
        return efs_gguf_fail(cursor, "an array of %" PRIu64 " elements is past the end of the file", count);
    }
    if (value_bytes[type])
        return efs_gguf_skip(cursor, count * each);
    if (type == VALUE_STRING)
        return efs_gguf_skip_strings(cursor, count);
    for (uint64_t i = 0; ret == 0 && i < count; i++)
        ret = skip_value(cursor, type, depth + 1);
    return ret;
}

static errint_t skip_value(struct efs_gguf_cursor *cursor, uint32_t type, unsigned depth)
{
    uint64_t length;
    errint_t ret;

    if (type >= VALUE_TYPES)
        return efs_gguf_fail(cursor, "a value of the unknown type %" PRIu32, type);
    if (type == VALUE_ARRAY)
        return skip_array(cursor, depth);
    if (type != VALUE_STRING)
        return efs_gguf_skip(cursor, value_bytes[type]);
    ret = efs_gguf_u64(cursor, &length);
    return ret < 0 ? ret : efs_gguf_skip(cursor, length);
}

static errint_t read_alignment(struct efs_gguf_cursor *cursor, uint32_t type, uint32_t *alignment)
{
    if (type != VALUE_U32)
        return efs_gguf_fail(cursor, ALIGNMENT_KEY " is of type %" PRIu32 "; %d (UINT32) is right", type, VALUE_U32);
    errint_t ret = efs_gguf_u32(cursor, alignment);
    if (ret == 0 && (*alignment == 0 || (*alignment & (*alignment - 1))))
        ret = efs_gguf_fail(cursor, ALIGNMENT_KEY " %" PRIu32 " is not a power of two", *alignment);
    return ret;
}

static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Rejects duplicate keys. Compares hashes, so that a hostile file's metadata cannot exhaust memory. */
static errint_t check_keys(const struct efs_gguf_cursor *cursor, uint64_t *hashes, size_t count)
{
    qsort(hashes, count, sizeof(*hashes), compare_hashes);
    for (size_t i = 1; i < count; i++)
        if (hashes[i - 1] == hashes[i])
            return efs_fail(cursor->err, -EUCLEAN, "%s: metadata at offset 24: a key is there twice", cursor->in->path);
    return 0;
}

/* Reads a string value; "" if it has room bytes or more, or a NUL. */
static errint_t read_short(struct efs_gguf_cursor *cursor, char *text, size_t room)
{
    uint64_t bytes;

    *text = '\0';
    errint_t ret = efs_gguf_u64(cursor, &bytes);
    if (ret < 0 || bytes >= room)
        return ret < 0 ? ret : efs_gguf_skip(cursor, bytes);
    ret = efs_gguf_read(cursor, text, (size_t)bytes);
    text[ret == 0 && !memchr(text, '\0', (size_t)bytes) ? bytes : 0] = '\0';
    return ret;
}

static errint_t read_architecture(struct efs_gguf_cursor *cursor, struct efs_source_facts *facts)
{
    char text[sizeof(facts->architecture)];

    errint_t ret = read_short(cursor, text, sizeof(text));
    if (ret == 0)
        efs_source_set_architecture(facts, text, strlen(text));
    facts->companion |= strcmp(text, "clip") == 0 || strcmp(text, "controlvector") == 0;
    return ret;
}

static errint_t read_type(struct efs_gguf_cursor *cursor, struct efs_source_facts *facts)
{
    char text[32];

    errint_t ret = read_short(cursor, text, sizeof(text));
    facts->companion |= *text && strcmp(text, "model") != 0;
    return ret;
}

static errint_t read_expert_count(struct efs_gguf_cursor *cursor, struct efs_source_facts *facts)
{
    uint32_t count;
    errint_t ret = efs_gguf_u32(cursor, &count);

    if (ret == 0)
        efs_source_add_count(facts, count);
    return ret;
}

static errint_t read_u16(struct efs_gguf_cursor *cursor, uint16_t *value)
{
    uint8_t bytes[2];
    errint_t ret = efs_gguf_read(cursor, bytes, sizeof(bytes));

    if (ret == 0)
        *value = (uint16_t)(bytes[0] | bytes[1] << 8);
    return ret;
}

static bool key_is(const char *key, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(key, wanted, bytes) == 0;
}

static bool key_ends(const char *key, size_t bytes, const char *end)
{
    size_t end_bytes = strlen(end);

    return bytes > end_bytes && memcmp(key + bytes - end_bytes, end, end_bytes) == 0;
}

/* Reads the value of a metadata entry, or skips it. */
static errint_t read_value(struct efs_gguf_cursor *cursor, const char *key, size_t key_bytes, struct header *header,
                           struct efs_source_facts *facts)
{
    uint32_t type;
    errint_t ret = efs_gguf_u32(cursor, &type);

    if (ret < 0)
        return ret;
    if (key_is(key, key_bytes, ALIGNMENT_KEY))
        return read_alignment(cursor, type, &header->alignment);
    if (type == VALUE_STRING && key_is(key, key_bytes, ARCHITECTURE_KEY))
        return read_architecture(cursor, facts);
    if (type == VALUE_STRING && key_is(key, key_bytes, TYPE_KEY))
        return read_type(cursor, facts);
    if (type == VALUE_U16 && key_is(key, key_bytes, PARTS_KEY))
        return read_u16(cursor, &facts->part_count);
    if (type == VALUE_U16 && key_is(key, key_bytes, PART_KEY))
        return read_u16(cursor, &facts->part);
    if (type == VALUE_U32 && key_ends(key, key_bytes, EXPERTS_KEY_END))
        return read_expert_count(cursor, facts);
    return skip_value(cursor, type, 0);
}

static errint_t read_metadata(struct efs_gguf_cursor *cursor, struct header *header, struct efs_source_facts *facts)
{
    errint_t ret = 0;

    header->alignment = ALIGNMENT_DEFAULT;
    uint64_t *hashes = efs_sys_calloc((size_t)header->metadata + 1, sizeof(*hashes));
    if (!hashes)
        return efs_fail(cursor->err, -ENOMEM, "%s: out of memory", cursor->in->path);
    for (uint64_t i = 0; ret == 0 && i < header->metadata; i++) {
        char *key;
        size_t key_bytes;

        efs_gguf_part(cursor, "metadata entry", i);
        if ((ret = read_string(cursor, KEY_BYTES_MAX, &key, &key_bytes)) < 0)
            break;
        hashes[i] = XXH3_64bits(key, key_bytes);
        ret = read_value(cursor, key, key_bytes, header, facts);
        free(key);
    }
    if (ret == 0)
        ret = check_keys(cursor, hashes, (size_t)header->metadata);
    free(hashes);
    return ret;
}

/* Reads a tensor's name, dimensions, type and offset from the start of the data. The caller frees the name, also on
 * failure. */
static errint_t read_info(struct efs_gguf_cursor *cursor, struct efs_source_entry *entry, uint64_t *offset)
{
    struct efs_source_tensor *tensor = &entry->tensor;
    size_t name_bytes;
    uint32_t type;
    errint_t ret;

    if ((ret = read_string(cursor, EFS_SOURCE_MAX_NAME, &tensor->name, &name_bytes)) < 0)
        return ret;
    if (!efs_utf8_text(tensor->name, name_bytes))
        return efs_gguf_fail(cursor, "its name is not UTF-8 text");
    if ((ret = efs_gguf_u32(cursor, &tensor->dims)) < 0)
        return ret;
    if (tensor->dims > EFS_MAX_DIMS)
        return efs_gguf_fail(cursor, "\"%.200s\" has %" PRIu32 " dimensions; %d are the most", tensor->name,
                             tensor->dims, EFS_MAX_DIMS);
    /* GGUF stores the fastest dimension first. */
    for (uint32_t i = tensor->dims; i-- > 0;)
        if ((ret = efs_gguf_u64(cursor, &tensor->shape[i])) < 0)
            return ret;
    if ((ret = efs_gguf_u32(cursor, &type)) < 0 || (ret = efs_gguf_u64(cursor, offset)) < 0)
        return ret;
    tensor->dtype = efs_dtype_from_ggml(type);
    entry->known = tensor->dtype != EFS_DTYPE_NONE;
    if (!entry->known) {
        if (type <= UINT16_MAX - EFS_DTYPE_GGML)
            tensor->dtype = (enum efs_dtype)(EFS_DTYPE_GGML + type);
        return 0;
    }
    ret = efs_dtype_tensor_bytes(tensor->dtype, tensor->dims, tensor->shape, &tensor->bytes);
    if (ret == -EOVERFLOW)
        return efs_gguf_fail(cursor, "the dimensions of \"%.200s\" multiply to more than 64 bits hold", tensor->name);
    if (ret < 0)
        return efs_gguf_fail(cursor, "the rows of \"%.200s\" are not a whole number of %s blocks", tensor->name,
                             efs_dtype_name(tensor->dtype));
    return 0;
}

/* Reads the descriptions of all tensors. Offsets remain relative until the end of the descriptions is known. */
static errint_t read_infos(struct efs_gguf_cursor *cursor, const struct header *header, struct efs_source_list *list)
{
    errint_t ret = 0;

    for (uint64_t i = 0; ret == 0 && i < header->tensors; i++) {
        struct efs_source_entry entry = {
            .tensor = {.file = cursor->in->file, .tensor_class = EFS_CLASS_DENSE},
        };
        efs_gguf_part(cursor, "tensor", i);
        ret = read_info(cursor, &entry, &entry.tensor.offset);
        if (ret == 0 && entry.tensor.offset % header->alignment)
            ret = efs_gguf_fail(cursor, "offset %" PRIu64 " of \"%.200s\" is not a multiple of the alignment, %" PRIu32,
                                entry.tensor.offset, entry.tensor.name, header->alignment);
        if (ret < 0) {
            free(entry.tensor.name);
            break;
        }
        ret = efs_source_list_add(list, &entry);
        if (ret < 0)
            efs_fail(cursor->err, ret, "%s: out of memory", cursor->in->path);
    }
    return ret;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static errint_t check_names(const struct efs_gguf_cursor *cursor, const struct efs_source_list *list)
{
    errint_t ret = 0;

    char **names = efs_sys_calloc(list->count + 1, sizeof(char *));
    if (!names)
        return efs_fail(cursor->err, -ENOMEM, "%s: out of memory", cursor->in->path);
    for (size_t i = 0; i < list->count; i++)
        names[i] = list->entries[i].tensor.name;
    qsort(names, list->count, sizeof(char *), compare_names);
    for (size_t i = 1; ret == 0 && i < list->count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            ret = efs_gguf_fail(cursor, "two tensors are called \"%.200s\"", names[i]);
    free(names);
    return ret;
}

/* The data ends before the end of a tensor. */
static errint_t fail_cut(const struct efs_gguf_cursor *cursor, const struct header *header,
                         const struct efs_source_list *list)
{
    uint64_t end, needed = header->data_bytes;

    if (header->data_bytes == 0)
        return efs_gguf_fail(cursor, "\"%.200s\" is past the data (0 bytes)", list->entries[0].tensor.name);
    for (size_t i = 0; i < list->count; i++) {
        const struct efs_source_tensor *tensor = &list->entries[i].tensor;
        if (__builtin_add_overflow(tensor->offset, list->entries[i].known ? tensor->bytes : 0, &end))
            end = UINT64_MAX;
        needed = end > needed ? end : needed;
    }
    return efs_fail(cursor->err, -EUCLEAN,
                    "%s: the file ends too early: at least %" PRIu64 " bytes of data are missing", cursor->in->path,
                    needed - header->data_bytes);
}

/* Checks that each tensor is inside the data and after the previous one, and makes offsets relative to the file. A
 * tensor of unknown type extends to the next one. */
static errint_t place_tensors(struct efs_gguf_cursor *cursor, const struct header *header, struct efs_source_list *list)
{
    cursor->cut = header->data_bytes > 0; /* without data the file is metadata only, not truncated */
    efs_source_list_sort(list);
    for (size_t i = 0; i < list->count; i++) {
        struct efs_source_tensor *tensor = &list->entries[i].tensor;
        struct efs_source_tensor *next = i + 1 < list->count ? &list->entries[i + 1].tensor : NULL;
        uint64_t limit = next ? next->offset : header->data_bytes;

        if (!list->entries[i].known && limit <= header->data_bytes)
            tensor->bytes = limit - tensor->offset;
        if (tensor->offset > header->data_bytes || tensor->bytes > header->data_bytes - tensor->offset)
            return fail_cut(cursor, header, list);
        if (next && tensor->bytes > next->offset - tensor->offset) {
            cursor->cut = false;
            return efs_gguf_fail(
                cursor, "\"%.200s\", %" PRIu64 " bytes at %" PRIu64 " of the data, overlaps \"%.200s\" at %" PRIu64,
                tensor->name, tensor->bytes, tensor->offset, next->name, next->offset);
        }
    }
    for (size_t i = 0; i < list->count; i++)
        list->entries[i].tensor.offset += header->data_offset;
    return 0;
}

/* Sets the start of the data: after the descriptions, aligned. It may be past the end of a file without tensors. */
static errint_t find_data(struct efs_gguf_cursor *cursor, struct header *header)
{
    uint64_t mask = (uint64_t)header->alignment - 1;

    header->data_offset = (cursor->offset + mask) & ~mask; /* cannot overflow: both are far below 2^63 */
    if (header->tensors > 0 && header->data_offset > cursor->in->bytes)
        return efs_fail(cursor->err, -EUCLEAN,
                        "%s: data at offset %" PRIu64 ": it begins past the end of the file (%" PRIu64 " bytes)",
                        cursor->in->path, header->data_offset, cursor->in->bytes);
    header->data_bytes = header->tensors > 0 ? cursor->in->bytes - header->data_offset : 0;
    cursor->offset = header->tensors > 0 ? header->data_offset : cursor->offset;
    efs_gguf_part(cursor, "data", EFS_GGUF_ONLY);
    return 0;
}

errint_t efs_source_gguf(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err)
{
    struct efs_gguf_cursor cursor;
    struct header header = {0};

    errint_t ret = efs_gguf_open(&cursor, in, err);
    if (ret == 0)
        ret = read_header(&cursor, &header);
    if (ret == 0)
        ret = read_metadata(&cursor, &header, &list->facts);
    if (ret == 0)
        ret = efs_source_list_room(list, header.tensors, in->path, err);
    if (ret == 0)
        ret = read_infos(&cursor, &header, list);
    if (ret == 0)
        ret = check_names(&cursor, list);
    if (ret == 0)
        ret = find_data(&cursor, &header);
    if (ret == 0)
        ret = place_tensors(&cursor, &header, list);
    list->cut = cursor.cut;
    efs_gguf_close(&cursor);
    return ret;
}
