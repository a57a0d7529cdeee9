/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_index.c - NAME.safetensors.index.json, which has the file of each tensor in its "weight_map": which files it
 * names, and whether they are all there.
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

#define INDEX_BYTES_MAX (32u << 20) /* 100 bytes a tensor: about 300,000 of them */
#define INDEX_VALUES_MAX 1000000u   /* one of 3 bytes takes 100 and more of memory */
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

/* The bytes of a file of the catalogue, if at most INDEX_BYTES_MAX; NULL: it cannot be read now. For free(). */
static char *index_read(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    char *path, *text = NULL;
    struct stat st;

    if (file->bytes == 0 || file->bytes > INDEX_BYTES_MAX || asprintf(&path, "%s/%s", catalog->root, file->path) < 0)
        return NULL;
    int fd = efs_regular_open(AT_FDCWD, path, 0, &st);
    free(path);
    if (fd < 0)
        return NULL;
    text = efs_sys_malloc(file->bytes);
    if (text && efs_sys_pread_all(fd, text, file->bytes, 0) < 0) {
        free(text);
        text = NULL;
    }
    efs_sys_close(fd);
    return text;
}

json_t *efs_source_index_map(const struct efs_catalog *catalog, const struct efs_source_file *index)
{
    char *text = index_read(catalog, index);
    json_t *root = NULL;
    size_t values = 0;

    for (uint64_t i = 0; text && i < index->bytes; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (text && values <= INDEX_VALUES_MAX)
        root = efs_json_python(text, index->bytes, NULL);
    free(text);
    json_t *map = json_incref(json_object_get(root, "weight_map"));
    json_decref(root);
    return map;
}

/* A file of the map by its name in the index's folder: its index is set, or missing told. -ENOMEM. */
static errint_t take_name(struct efs_catalog *catalog, uint32_t number, const char *name)
{
    struct efs_source_file *index = &catalog->files[number];
    char *path;

    if (!*name || *name == '/' || strstr(name, ".."))
        return 0;
    if (asprintf(&path, "%.*s%s", (int)efs_source_folder(index->path), index->path, name) < 0)
        return -ENOMEM;
    struct efs_source_file *file = efs_source_find(catalog, path);
    if (file)
        file->index = number;
    if (file || index->missing || strchr(name, '/')) /* below folders no program writes them */
        free(path);
    else
        index->missing = path;
    return 0;
}

errint_t efs_source_take_index(struct efs_catalog *catalog, uint32_t number)
{
    json_t *map = efs_source_index_map(catalog, &catalog->files[number]);
    errint_t ret = 0;

    for (void *at = json_object_iter(map); at && ret == 0; at = json_object_iter_next(map, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        ret = name ? take_name(catalog, number, name) : 0;
    }
    catalog->files[number].names_all = json_object_size(map) > 0 && !catalog->files[number].missing;
    json_decref(map);
    return ret;
}

errint_t efs_source_read_indexes(struct efs_catalog *catalog, struct efs_error *err)
{
    errint_t ret = 0;

    for (uint32_t f = 0; ret == 0 && f < catalog->file_count; f++)
        ret = efs_source_is_index(catalog->files[f].path) ? efs_source_take_index(catalog, f) : 0;
    return ret < 0 ? efs_fail(err, ret, "%s: out of memory", catalog->root) : 0;
}
