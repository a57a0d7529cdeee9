/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_safetensors.c - parses the header of a safetensors file to tensors with checked offsets.
 *
 * A file consists of: u64 length of the header; the header (a JSON object: name -> dtype, shape, data_offsets, and
 * "__metadata__": string -> string); the data. Tensors cover the data without gap or overlap, in any order. The parser
 * rejects everything that the reference reader rejects, and also duplicate names and a header that does not start with
 * '{', which the specification forbids but the reference reader accepts. It also accepts unknown dtypes, whose bytes
 * are stored unparsed. A file with a header but no data at all is metadata only, not truncated.
 */
#include "source.h"

#include "dtype.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8u
#define HEADER_BYTES_MAX 100000000u /* limit of the reference reader */

/* The file and the location of its data. */
struct layout {
    const struct efs_source_input *in;
    uint64_t data_offset, data_bytes;
    bool *cut; /* the file ends before data that its header describes */
    const json_t *root;
    struct efs_error *err;
};

/* Rejects one tensor: "FILE: header at offset 8: tensor "NAME": REASON". */
#define REFUSE(layout, name, ...) REFUSE_(layout, name, __VA_ARGS__, "")
#define REFUSE_(layout, name, format, ...)                                                                             \
    efs_fail((layout)->err, -EUCLEAN, "%s: header at offset 8: tensor \"%.200s\": " format "%s", (layout)->in->path,   \
             name, __VA_ARGS__)

/* Reads a JSON integer that is not negative. */
static bool get_count(const json_t *value, uint64_t *count)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *count = (uint64_t)json_integer_value(value);
    return true;
}

/* The data ends before the end of a tensor. */
static errint_t refuse_cut(const struct layout *layout)
{
    uint64_t end, needed = layout->data_bytes;
    const char *name;
    json_t *info;

    json_object_foreach((json_t *)(uintptr_t)layout->root, name, info)
    {
        if (get_count(json_array_get(json_object_get(info, "data_offsets"), 1), &end) && end > needed)
            needed = end;
    }
    *layout->cut = true;
    return efs_fail(layout->err, -EUCLEAN, "%s: the file ends too early: %" PRIu64 " bytes of data are missing",
                    layout->in->path, needed - layout->data_bytes);
}

/* Reads data_offsets: [begin, end] from the start of the data. */
static errint_t get_place(const struct layout *layout, const char *name, const json_t *offsets,
                          struct efs_source_tensor *tensor)
{
    uint64_t begin, end;

    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return REFUSE(layout, name, "data_offsets is not a pair of numbers");
    if (!get_count(json_array_get(offsets, 0), &begin) || !get_count(json_array_get(offsets, 1), &end))
        return REFUSE(layout, name, "data_offsets has something that is not a whole number from 0 up");
    if (begin > end)
        return REFUSE(layout, name, "data_offsets begin %" PRIu64 " is past their end %" PRIu64, begin, end);
    if (end > layout->data_bytes && layout->data_bytes > 0)
        return refuse_cut(layout);
    if (end > layout->data_bytes)
        return REFUSE(layout, name, "data_offsets end %" PRIu64 " is past the data (0 bytes)", end);
    tensor->offset = layout->data_offset + begin;
    tensor->bytes = end - begin;
    return 0;
}

/* Keeps an unsupported type or shape as text; the tensor becomes U8 [bytes]. */
static errint_t keep_type(const struct layout *layout, const json_t *info, struct efs_source_tensor *tensor)
{
    char *dtype = json_dumps(json_object_get(info, "dtype"), JSON_ENCODE_ANY | JSON_COMPACT);
    char *shape = json_dumps(json_object_get(info, "shape"), JSON_ENCODE_ANY | JSON_COMPACT);
    int n = dtype && shape ? asprintf(&tensor->type, "\"dtype\":%s,\"shape\":%s", dtype, shape) : -1;
    free(dtype);
    free(shape);
    if (n < 0) {
        tensor->type = NULL;
        return efs_fail(layout->err, -ENOMEM, "%s: out of memory", layout->in->path);
    }
    tensor->dtype = EFS_DTYPE_U8;
    tensor->dims = 1;
    tensor->shape[0] = tensor->bytes;
    return 0;
}

/* Reads shape and dtype and checks that they agree with data_offsets. *fits: the catalogue can represent both. */
static errint_t get_type(const struct layout *layout, const char *name, const json_t *shape, const char *dtype,
                         struct efs_source_tensor *tensor, bool *fits)
{
    size_t dims = json_array_size(shape);
    uint64_t bytes;
    errint_t ret;

    uint64_t *sizes = efs_sys_calloc(dims ? dims : 1, sizeof(*sizes));
    if (!sizes)
        return efs_fail(layout->err, -ENOMEM, "%s: out of memory", layout->in->path);
    for (size_t i = 0; i < dims; i++)
        if (!get_count(json_array_get(shape, i), &sizes[i])) {
            free(sizes);
            return REFUSE(layout, name, "dimension %zu of shape is not a whole number from 0 up", i);
        }
    tensor->dtype = efs_dtype_from_safetensors(dtype);
    *fits = tensor->dtype != EFS_DTYPE_NONE && dims <= EFS_MAX_DIMS;
    ret = tensor->dtype == EFS_DTYPE_NONE ? 0 : efs_dtype_tensor_bytes(tensor->dtype, (uint32_t)dims, sizes, &bytes);
    if (ret == -EOVERFLOW)
        ret = REFUSE(layout, name, "the sizes of shape multiply to more than 64 bits hold");
    else if (ret < 0)
        ret = REFUSE(layout, name, "%s elements of this shape are not a whole number of bytes", dtype);
    else if (tensor->dtype != EFS_DTYPE_NONE && bytes != tensor->bytes)
        ret = REFUSE(layout, name, "shape and dtype %s need %" PRIu64 " bytes, data_offsets span %" PRIu64, dtype,
                     bytes, tensor->bytes);
    if (ret == 0 && *fits) {
        tensor->dims = (uint32_t)dims;
        memcpy(tensor->shape, sizes, dims * sizeof(*sizes));
    }
    free(sizes);
    return ret;
}

static errint_t add_tensor(const struct layout *layout, const char *name, const json_t *info,
                           struct efs_source_list *list)
{
    struct efs_source_entry entry = {.tensor = {.file = layout->in->file, .tensor_class = EFS_CLASS_DENSE}};
    const json_t *dtype = json_object_get(info, "dtype"), *shape = json_object_get(info, "shape");
    bool fits = false;

    if (!json_is_object(info))
        return REFUSE(layout, name, "its description is not an object");
    if (!json_is_string(dtype))
        return REFUSE(layout, name, "dtype is missing or not a string");
    if (!json_is_array(shape))
        return REFUSE(layout, name, "shape is missing or not an array");
    errint_t ret = get_place(layout, name, json_object_get(info, "data_offsets"), &entry.tensor);
    if (ret == 0)
        ret = get_type(layout, name, shape, json_string_value(dtype), &entry.tensor, &fits);
    entry.known = strlen(name) <= EFS_SOURCE_MAX_NAME;
    if (ret == 0 && entry.known && !fits)
        ret = keep_type(layout, info, &entry.tensor);
    if (ret < 0)
        return ret;
    entry.tensor.name = strdup(name);
    if (!entry.tensor.name)
        efs_source_tensor_free(&entry.tensor);
    ret = entry.tensor.name ? efs_source_list_add(list, &entry) : -ENOMEM;
    return ret < 0 ? efs_fail(layout->err, ret, "%s: out of memory", layout->in->path) : 0;
}

/* Checks "__metadata__": null, or an object of strings. */
static errint_t check_metadata(const struct layout *layout, const json_t *metadata)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata) && !json_is_null(metadata))
        return efs_fail(layout->err, -EUCLEAN, "%s: header at offset 8: __metadata__ is not an object",
                        layout->in->path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return efs_fail(layout->err, -EUCLEAN, "%s: header at offset 8: __metadata__ \"%.200s\" is not a string",
                            layout->in->path, key);
    }
    return 0;
}

/* Checks that the sorted tensors cover the data from its first byte to its last, without gap or overlap. */
static errint_t check_cover(const struct layout *layout, const struct efs_source_list *list)
{
    uint64_t next = 0;
    const char *before = NULL;

    for (size_t i = 0; i < list->count; i++) {
        const struct efs_source_tensor *tensor = &list->entries[i].tensor;
        uint64_t begin = tensor->offset - layout->data_offset;
        if (begin < next)
            return REFUSE(layout, tensor->name,
                          "data_offsets begin %" PRIu64 " is inside tensor \"%.200s\", which ends at %" PRIu64, begin,
                          before, next);
        if (begin > next)
            return REFUSE(layout, tensor->name,
                          "data_offsets begin %" PRIu64 " leaves a hole: no tensor holds the data from %" PRIu64, begin,
                          next);
        next = begin + tensor->bytes;
        before = tensor->name;
    }
    if (next != layout->data_bytes)
        return efs_fail(layout->err, -EUCLEAN,
                        "%s: data at offset %" PRIu64 ": tensors end at %" PRIu64 ", the data has %" PRIu64 " bytes",
                        layout->in->path, layout->data_offset, next, layout->data_bytes);
    return 0;
}

static errint_t read_tensors(const struct layout *layout, json_t *root, struct efs_source_list *list)
{
    const char *name;
    json_t *info;
    errint_t ret = 0;

    if (!json_is_object(root))
        return efs_fail(layout->err, -EUCLEAN, "%s: header at offset 8: not a JSON object", layout->in->path);
    ret =
        efs_source_list_room(list, json_object_size(root), layout->in->path, layout->err); /* exact, without escapes */
    if (ret < 0)
        return ret;
    json_object_foreach(root, name, info)
    {
        ret = strcmp(name, "__metadata__") == 0 ? check_metadata(layout, info) : add_tensor(layout, name, info, list);
        if (ret < 0)
            return ret;
    }
    efs_source_list_sort(list);
    return check_cover(layout, list);
}

/* Counts the tensors of a header without parsing it, which would take memory and time. A tensor that has this word
 * in its name may be counted twice. */
static uint64_t count_tensors(const char *header, uint64_t header_bytes)
{
    static const char word[] = "\"data_offsets\"";
    const char *end = header + header_bytes;
    uint64_t count = 0;

    for (const char *at = header; (at = memmem(at, (size_t)(end - at), word, strlen(word))); at++)
        count++;
    return count;
}

/* Reads and parses the header. The caller owns *root. Other readers accept a name twice, and U+0000 in a name. */
static errint_t load_header(const struct efs_source_input *in, uint64_t header_bytes, struct efs_source_list *list,
                            json_t **root, struct efs_error *err)
{
    json_error_t error;

    char *header = efs_sys_malloc(header_bytes);
    if (!header)
        return efs_fail(err, -ENOMEM, "%s: no memory for a header of %" PRIu64 " bytes", in->path, header_bytes);
    errint_t ret = efs_source_read(in, LENGTH_BYTES, header, header_bytes, err);
    if (ret == 0 && header[0] != '{')
        ret = efs_fail(err, -EUCLEAN, "%s: header at offset 8: does not begin with '{'", in->path);
    if (ret == 0)
        ret = efs_source_list_room(list, count_tensors(header, header_bytes), in->path, err);
    if (ret == 0) {
        *root = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        list->no_header = !*root && json_error_code(&error) != json_error_duplicate_key &&
                          json_error_code(&error) != json_error_null_byte_in_key;
        if (!*root && json_error_code(&error) == json_error_out_of_memory)
            ret = efs_fail(err, -ENOMEM, "%s: out of memory", in->path);
        else if (!*root)
            ret = efs_fail(err, -EUCLEAN, "%s: header at offset 8: JSON at offset %" PRIu64 ": %s", in->path,
                           (uint64_t)LENGTH_BYTES + (uint64_t)(error.position > 0 ? error.position : 0), error.text);
    }
    free(header);
    return ret;
}

errint_t efs_source_safetensors(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err)
{
    unsigned char start[LENGTH_BYTES + 1] = {[LENGTH_BYTES] = '{'};
    uint64_t header_bytes = 0;
    json_t *root = NULL;

    list->cut = in->bytes <= LENGTH_BYTES;
    list->no_header = true;
    if (in->bytes < LENGTH_BYTES)
        return efs_fail(err, -EUCLEAN, "%s: %" PRIu64 " bytes at offset 0: too short for the length of a header",
                        in->path, in->bytes);
    errint_t ret = efs_source_read(in, 0, start, in->bytes < sizeof(start) ? (size_t)in->bytes : sizeof(start), err);
    if (ret < 0)
        return ret;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)start[i] << (8 * i);
    if (header_bytes > HEADER_BYTES_MAX)
        return efs_fail(err, -EUCLEAN, "%s: offset 0: a header of %" PRIu64 " bytes; %u are the most", in->path,
                        header_bytes, HEADER_BYTES_MAX);
    if (header_bytes > in->bytes - LENGTH_BYTES) {
        list->cut = start[LENGTH_BYTES] == '{'; /* else the 8 bytes are not the length of a header */
        return efs_fail(err, -EUCLEAN,
                        "%s: offset 0: a header of %" PRIu64 " bytes is past the end of the file (%" PRIu64 " bytes)",
                        in->path, header_bytes, in->bytes);
    }
    if (header_bytes == 0)
        return efs_fail(err, -EUCLEAN, "%s: offset 0: a header of 0 bytes", in->path);
    ret = load_header(in, header_bytes, list, &root, err);
    if (ret < 0)
        return ret;
    struct layout layout = {.in = in,
                            .data_offset = LENGTH_BYTES + header_bytes,
                            .data_bytes = in->bytes - LENGTH_BYTES - header_bytes,
                            .cut = &list->cut,
                            .root = root,
                            .err = err};
    ret = read_tensors(&layout, root, list);
    json_decref(root);
    return ret;
}
