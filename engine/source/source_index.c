/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_index.c - reads NAME.safetensors.index.json, whose "weight_map" has the file of each tensor: which files it
 * names, and whether all of them exist. An index that cannot be read is ignored, with a note.
 */
#include "source.h"

#include "expertfs-private.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_BYTES_MAX (128u << 20) /* about 100 bytes per tensor */
#define INDEX_VALUES_MAX 1000000u    /* a parsed value takes over 100 bytes; a store has fewer tensors */
#define INDEX_END ".safetensors.index.json"

bool efs_source_is_index(const char *path)
{
    size_t bytes = strlen(path), end_bytes = strlen(INDEX_END);

    return bytes >= end_bytes && strcmp(path + bytes - end_bytes, INDEX_END) == 0;
}

size_t efs_source_folder(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? (size_t)(slash + 1 - path) : 0;
}

static int compare_path(const void *key, const void *file)
{
    return strcmp(key, ((const struct efs_source_file *)file)->path);
}

struct efs_source_file *efs_source_find(const struct efs_catalog *catalog, const char *path)
{
    return bsearch(path, catalog->files, catalog->file_count, sizeof(catalog->files[0]), compare_path);
}

/* Reads a file of the catalogue into *text, which the caller frees. */
static errint_t index_read(const struct efs_catalog *catalog, const struct efs_source_file *file, char **text)
{
    char *path;
    struct stat st;

    if (catalog->reader) {
        struct efs_error ignored;
        *text = efs_sys_malloc(file->bytes + 1);
        return *text ? catalog->reader->read(catalog->reader->arg, (uint32_t)(file - catalog->files), 0, *text,
                                             file->bytes, &ignored)
                     : -ENOMEM;
    }
    if (asprintf(&path, "%s/%s", catalog->root, file->path) < 0)
        return -ENOMEM;
    int fd = efs_regular_open(AT_FDCWD, path, 0, &st);
    free(path);
    if (fd < 0)
        return fd;
    *text = efs_sys_malloc(file->bytes + 1);
    errint_t ret = *text ? efs_sys_pread_all(fd, *text, file->bytes, 0) : -ENOMEM;
    efs_sys_close(fd);
    return ret;
}

json_t *efs_source_json(const struct efs_catalog *catalog, const struct efs_source_file *file, uint32_t max,
                        struct efs_error *why)
{
    char *text = NULL;
    json_t *root = NULL;
    size_t values = 0;

    if (file->bytes > max) {
        efs_fail(why, -E2BIG, "%llu bytes; %u are the most", (unsigned long long)file->bytes, max);
        return NULL;
    }
    errint_t ret = index_read(catalog, file, &text);
    for (uint64_t i = 0; ret == 0 && i < file->bytes; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (ret < 0)
        efs_fail(why, ret, "%s", strerror(-ret));
    else if (values > INDEX_VALUES_MAX)
        efs_fail(why, -E2BIG, "%zu values; %u are the most", values, INDEX_VALUES_MAX);
    else
        root = efs_json_python(text, file->bytes, why);
    free(text);
    return root;
}

json_t *efs_source_index_map(const struct efs_catalog *catalog, const struct efs_source_file *index,
                             struct efs_error *why)
{
    json_t *root = efs_source_json(catalog, index, INDEX_BYTES_MAX, why), *map = json_object_get(root, "weight_map");
    const char *tensor;
    json_t *file;

    if (root && !json_is_object(map)) {
        efs_fail(why, -EUCLEAN, "it has no \"weight_map\" of tensors");
        map = NULL;
    }
    json_object_foreach(map, tensor, file)
    {
        if (json_is_string(file))
            continue;
        efs_fail(why, -EUCLEAN, "the file of \"%.200s\" is not a string", tensor);
        map = NULL;
        break;
    }
    json_incref(map);
    json_decref(root);
    return map;
}

/* Resolves empty components, "." and ".." in place; ".." that lead out of the checkpoint remain. */
static void normalise(char *path)
{
    char *begin = path + (*path == '/'), *to = begin, *floor = begin; /* after the ".." that remain */
    bool last = false;

    for (const char *part = begin, *end; !last; part = end + 1) {
        end = strchrnul(part, '/');
        last = !*end;
        size_t bytes = (size_t)(end - part);
        bool up = bytes == 2 && memcmp(part, "..", 2) == 0;
        if (up && to > floor) {
            for (to--; to > floor && to[-1] != '/';)
                to--;
        } else if (bytes && (bytes != 1 || *part != '.')) {
            memmove(to, part, bytes);
            to += bytes;
            *to++ = '/';
            floor = up ? to : floor;
        }
    }
    to[to > begin ? -1 : 0] = '\0';
}

char *efs_source_index_path(const struct efs_source_file *index, const char *name)
{
    size_t folder = *name == '/' ? 0 : efs_source_folder(index->path);
    char *path;

    if (asprintf(&path, "%.*s%s", (int)folder, index->path, name) < 0)
        return NULL;
    normalise(path);
    return path;
}

/* Sets the index member of a file that the map names, or `missing` of the index. 0 or -ENOMEM. */
static errint_t add_name(struct efs_catalog *catalog, uint32_t number, const char *name)
{
    struct efs_source_file *index = &catalog->files[number];
    char *path = efs_source_index_path(index, name);

    if (!path)
        return -ENOMEM;
    struct efs_source_file *file = efs_source_find(catalog, path);
    if (file)
        file->index = number;
    if (file || index->missing)
        free(path);
    else
        index->missing = path;
    return 0;
}

/* Ignores the index, with a note. */
static errint_t ignore_index(struct efs_source_file *index, const char *why)
{
    if (index->note)
        return 0;
    int bytes = asprintf(&index->note,
                         "%s: cannot be read as an index: %s; which files it names, and whether they are all there, "
                         "is not known",
                         index->path, why);
    if (bytes < 0)
        index->note = NULL;
    return bytes < 0 ? -ENOMEM : 0;
}

errint_t efs_source_read_index(struct efs_catalog *catalog, uint32_t number)
{
    struct efs_source_file *index = &catalog->files[number];
    struct efs_error why = {""};
    json_t *map = efs_source_index_map(catalog, index, &why);
    errint_t ret = map ? 0 : ignore_index(index, why.text);

    for (void *at = json_object_iter(map); at && ret == 0; at = json_object_iter_next(map, at))
        ret = add_name(catalog, number, json_string_value(json_object_iter_value(at)));
    index->names_all = json_object_size(map) > 0 && !index->missing;
    json_decref(map);
    return ret;
}

errint_t efs_source_read_indexes(struct efs_catalog *catalog, struct efs_error *err)
{
    errint_t ret = 0;

    for (uint32_t f = 0; ret == 0 && f < catalog->file_count; f++)
        ret = efs_source_is_index(catalog->files[f].path) ? efs_source_read_index(catalog, f) : 0;
    return ret < 0 ? efs_fail(err, ret, "%s: out of memory", catalog->root) : 0;
}

static int compare_name(const void *key, const void *tensor)
{
    return strcmp(key, (*(const struct efs_source_tensor *const *)tensor)->name);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const struct efs_source_tensor *const *)a)->name,
                  (*(const struct efs_source_tensor *const *)b)->name);
}

/* Whether the folder of an index has all tensors that it names, with the size that it states. */
static bool has_tensors(const struct efs_catalog *catalog, const struct efs_source_file *index,
                        const struct efs_source_tensor **sorted, size_t count)
{
    struct efs_error ignored;
    json_t *root = efs_source_json(catalog, index, INDEX_BYTES_MAX, &ignored),
           *map = json_object_get(root, "weight_map");
    json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
    bool found = json_is_integer(total) && json_object_size(map) > 0;
    uint64_t bytes = 0;

    for (void *at = json_object_iter(map); at && found; at = json_object_iter_next(map, at)) {
        const struct efs_source_tensor *const *tensor =
            bsearch(json_object_iter_key(at), sorted, count, sizeof(*sorted), compare_name);
        found = tensor != NULL;
        bytes += found ? (*tensor)->bytes : 0;
    }
    found = found && bytes == (uint64_t)json_integer_value(total);
    json_decref(root);
    return found;
}

/* The tensors of safetensors files in the folder of the index, sorted by name. */
static size_t tensors_beside(const struct efs_catalog *catalog, const struct efs_source_file *index,
                             const struct efs_source_tensor **sorted)
{
    size_t count = 0, folder = efs_source_folder(index->path);

    for (size_t t = 0; t < catalog->tensor_count; t++) {
        const struct efs_source_file *file = &catalog->files[catalog->tensors[t].file];
        if (!file->gguf && efs_source_folder(file->path) == folder && memcmp(file->path, index->path, folder) == 0)
            sorted[count++] = &catalog->tensors[t];
    }
    if (count)
        qsort(sorted, count, sizeof(*sorted), compare_tensors);
    return count;
}

errint_t efs_source_check_indexes(struct efs_catalog *catalog, struct efs_error *err)
{
    errint_t ret = 0;

    for (size_t f = 0; ret == 0 && f < catalog->file_count; f++) {
        struct efs_source_file *index = &catalog->files[f];
        if (!index->missing)
            continue;
        const struct efs_source_tensor **sorted = efs_sys_calloc(catalog->tensor_count + 1, sizeof(*sorted));
        if (sorted && has_tensors(catalog, index, sorted, tensors_beside(catalog, index, sorted))) {
            ret =
                !index->note && asprintf(&index->note, "%s: names %s, which is missing; its tensors are in other files",
                                         index->path, index->missing) < 0
                    ? -ENOMEM
                    : 0;
            free(index->missing);
            index->missing = NULL;
        }
        ret = sorted ? ret : -ENOMEM;
        free(sorted);
    }
    return ret < 0 ? efs_fail(err, ret, "%s: out of memory", catalog->root) : 0;
}
