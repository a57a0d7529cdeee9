/* SPDX-License-Identifier: Apache-2.0 */
/* source_files.c - writes checkpoint files byte by byte; see source_files.h. */
#include "source_files.h"

#include "fixture.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void sf_zero(struct sf_bytes *bytes, size_t count)
{
    if (bytes->capacity - bytes->count < count) {
        bytes->capacity = (bytes->count + count) * 2;
        bytes->data = realloc(bytes->data, bytes->capacity);
        assert_non_null(bytes->data);
    }
    if (count)
        memset(bytes->data + bytes->count, 0, count);
    bytes->count += count;
}

void sf_put(struct sf_bytes *bytes, const void *data, size_t count)
{
    sf_zero(bytes, count);
    if (count)
        memcpy(bytes->data + bytes->count - count, data, count);
}

void sf_number(struct sf_bytes *bytes, uint64_t value, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint8_t byte = (uint8_t)(value >> (8 * i));
        sf_put(bytes, &byte, 1);
    }
}

void sf_string(struct sf_bytes *bytes, const char *text)
{
    sf_number(bytes, strlen(text), 8);
    sf_put(bytes, text, strlen(text));
}

void sf_align(struct sf_bytes *bytes, size_t alignment)
{
    while (bytes->count % alignment)
        sf_zero(bytes, 1);
}

char *sf_mkdir(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = NULL;

    assert_true(asprintf(&path, "%s/expertfs-test-XXXXXX", tmp ? tmp : "/tmp") > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void sf_rmdir(char *directory)
{
    assert_int_equal(nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(directory);
}

void sf_write(const char *directory, const char *name, const void *data, size_t count)
{
    fixture_file_below(directory, name, data, count);
}

void sf_safetensors(struct sf_bytes *out, const char *header, size_t header_bytes, size_t data_bytes)
{
    sf_number(out, header_bytes, 8);
    sf_put(out, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        sf_number(out, i, 1);
}

void sf_gguf_header(struct sf_bytes *out, uint32_t version, uint64_t tensors, uint64_t metadata)
{
    sf_put(out, "GGUF", 4);
    sf_number(out, version, 4);
    sf_number(out, tensors, 8);
    sf_number(out, metadata, 8);
}

void sf_gguf_tensor(struct sf_bytes *out, const char *name, uint32_t dims, const uint64_t *shape, uint32_t type,
                    uint64_t offset)
{
    sf_string(out, name);
    sf_number(out, dims, 4);
    for (uint32_t i = 0; i < dims; i++)
        sf_number(out, shape[i], 8);
    sf_number(out, type, 4);
    sf_number(out, offset, 8);
}

static void check_tensors(const struct efs_catalog *catalog)
{
    for (size_t i = 0; i < catalog->tensor_count; i++) {
        const struct efs_source_tensor *tensor = &catalog->tensors[i];
        assert_true(tensor->file < catalog->file_count);
        assert_true(catalog->files[tensor->file].has_tensors);
        assert_true(tensor->offset <= catalog->files[tensor->file].bytes);
        assert_true(tensor->bytes <= catalog->files[tensor->file].bytes - tensor->offset);
        assert_true(tensor->dims <= EFS_MAX_DIMS);
        if (i > 0 && tensor[-1].file == tensor->file)
            assert_true(tensor[-1].offset + tensor[-1].bytes <= tensor->offset);
        if (i > 0)
            assert_true(tensor[-1].file <= tensor->file);
        if (tensor->tensor_class == EFS_CLASS_EXPERT)
            assert_true(tensor->expert_first < catalog->expert_count);
        if (tensor->tensor_class == EFS_CLASS_FUSED) {
            assert_true(tensor->dims >= 1 && tensor->shape[0] >= 1 && tensor->bytes % tensor->shape[0] == 0);
            assert_true(tensor->shape[0] <= catalog->expert_count - tensor->expert_first);
            for (uint64_t e = 0; e < tensor->shape[0]; e++)
                assert_int_equal(catalog->experts[tensor->expert_first + e].expert, e);
        }
    }
}

static void check_order(const struct efs_catalog *catalog)
{
    for (size_t i = 1; i < catalog->file_count; i++)
        assert_true(strcmp(catalog->files[i - 1].path, catalog->files[i].path) < 0);
    for (size_t i = 1; i < catalog->expert_count; i++) {
        const struct efs_source_expert *a = &catalog->experts[i - 1], *b = &catalog->experts[i];
        int stack = strcmp(a->stack, b->stack);
        assert_true(stack <= 0);
        if (stack == 0)
            assert_true(a->layer < b->layer || (a->layer == b->layer && a->expert < b->expert));
    }
}

void sf_accept(const char *directory, struct efs_catalog *catalog)
{
    struct efs_error err = {""};
    errint_t ret = efs_catalog_read(directory, NULL, catalog, &err);

    if (ret < 0)
        fail_msg("refused (%d): %s", ret, err.text);
    assert_non_null(catalog->family);
    check_tensors(catalog);
    check_order(catalog);
}

void sf_unread(const char *directory, const char *name, enum efs_source_state state, const char *reason)
{
    struct efs_catalog catalog;
    const struct efs_source_file *file = NULL;

    sf_accept(directory, &catalog);
    for (size_t f = 0; f < catalog.file_count; f++)
        if (strcmp(catalog.files[f].path, name) == 0)
            file = &catalog.files[f];
    assert_non_null(file);
    if (file->has_tensors || !file->note)
        fail_msg("read, though it should not be: %s", reason);
    if (file->state != state || !strstr(file->note, reason) || strncmp(file->note, name, strlen(name)) != 0 ||
        (!strstr(file->note, "offset") && !strstr(file->note, "ends too early")))
        fail_msg("state %d, \"%s\"; wanted %d, \"%s: ... %s\", with an offset", file->state, file->note, state, name,
                 reason);
    for (size_t t = 0; t < catalog.tensor_count; t++)
        assert_ptr_not_equal(&catalog.files[catalog.tensors[t].file], file);
    efs_catalog_free(&catalog);
}

/* Write the file to a new directory and free its bytes. Returns the directory. */
static char *alone(const char *name, struct sf_bytes *file)
{
    char *directory = sf_mkdir();
    sf_write(directory, name, file->data, file->count);
    free(file->data);
    *file = (struct sf_bytes){0};
    return directory;
}

void sf_read(const char *name, struct sf_bytes *file, struct efs_catalog *catalog)
{
    char *directory = alone(name, file);
    sf_accept(directory, catalog);
    sf_rmdir(directory);
}

void sf_refuse(const char *name, struct sf_bytes *file, enum efs_source_state state, const char *reason)
{
    char *directory = alone(name, file);
    sf_unread(directory, name, state, reason);
    sf_rmdir(directory);
}

const struct efs_source_tensor *sf_tensor(const struct efs_catalog *catalog, const char *name)
{
    for (size_t i = 0; i < catalog->tensor_count; i++)
        if (strcmp(catalog->tensors[i].name, name) == 0)
            return &catalog->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}
