/* SPDX-License-Identifier: Apache-2.0 */
/* pack_weights.c - is this a checkpoint, and all of one? By the names of its files, and those in its index: no weight
 * is read. */
#include "pack.h"
#include "expertfs-private.h"
#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 7                /* of a part's number */
#define INDEX_BYTES_MAX (32u << 20) /* 100 bytes a tensor: about 300,000 of them */
#define INDEX_VALUES_MAX 1000000u   /* one of 3 bytes takes 100 and more of memory */
#define INDEX_END ".safetensors.index.json"

/* PREFIX-00002-of-00003.safetensors: one file of several; "-OF-", too. */
struct part {
    int prefix_bytes, digits;
    unsigned long number, count;
    const char *end; /* "-of-" and what follows */
};

static bool part_parse(const char *path, struct part *part)
{
    const char *of = NULL;
    for (const char *next = strcasestr(path, "-of-"); next; next = strcasestr(next + 1, "-of-"))
        of = next;
    const char *digits = of;
    while (digits && digits > path && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    size_t after = of ? strspn(of + 4, "0123456789") : 0;
    if (!of || digits == of || digits == path || digits[-1] != '-' || of - digits > DIGITS_MAX || !after ||
        after > DIGITS_MAX || (strcmp(of + 4 + after, ".safetensors") != 0 && strcmp(of + 4 + after, ".gguf") != 0))
        return false;
    *part = (struct part){.prefix_bytes = (int)(digits - path),
                          .digits = (int)(of - digits),
                          .number = strtoul(digits, NULL, 10),
                          .count = strtoul(of + 4, NULL, 10),
                          .end = of};
    return part->number >= 1 && part->number <= part->count;
}

static int compare_path(const void *key, const void *file)
{
    return strcmp(key, ((const struct efs_source_file *)file)->path);
}

static bool has_file(const struct efs_catalog *catalog, const char *path)
{
    return bsearch(path, catalog->files, catalog->file_count, sizeof(catalog->files[0]), compare_path) != NULL;
}

/* The parts before and after one of several are there; so all are, when this holds for each. */
static errint_t check_parts(const char *src, const struct efs_catalog *catalog, const char *path, struct efs_error *err)
{
    struct part part;
    if (!part_parse(path, &part))
        return 0;
    for (unsigned long number = part.number > 1 ? part.number - 1 : 1;
         number <= part.number + 1 && number <= part.count; number++) {
        char *other;
        if (asprintf(&other, "%.*s%0*lu%s", part.prefix_bytes, path, part.digits, number, part.end) < 0)
            return efs_fail(err, -ENOMEM, "%s: no memory", src);
        bool found = has_file(catalog, other);
        errint_t rc = 0;
        if (!found && strcmp(catalog->root, src) != 0) /* a single file */
            rc = efs_fail(err, -ENODATA,
                          "%s: is one part of %lu: pack the folder that has them all; --any packs it alone", src,
                          part.count);
        else if (!found)
            rc = efs_fail(err, -ENODATA, "%s: %s is missing, one of %lu parts; --any packs it all the same", src, other,
                          part.count);
        free(other);
        if (rc < 0)
            return rc;
    }
    return 0;
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

/* An index as JSON; NULL: it is none, or beyond the limits. */
static json_t *index_load(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    char *text = index_read(catalog, file);
    json_t *root = NULL;
    size_t values = 0;
    for (uint64_t i = 0; text && i < file->bytes; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (text && values <= INDEX_VALUES_MAX)
        root = efs_json_python(text, file->bytes, NULL);
    free(text);
    return root;
}

/* A file that an index names is there, in the index's folder. */
static errint_t check_named(const char *src, const struct efs_catalog *catalog, const char *index, const char *name,
                            struct efs_error *err)
{
    const char *slash = strrchr(index, '/');
    char *path;
    if (!*name || strchr(name, '/') || strstr(name, ".."))
        return 0;
    if (asprintf(&path, "%.*s%s", slash ? (int)(slash + 1 - index) : 0, index, name) < 0)
        return efs_fail(err, -ENOMEM, "%s: no memory", src);
    errint_t rc = has_file(catalog, path)
                      ? 0
                      : efs_fail(err, -ENODATA, "%s: %s is missing, which %s names; --any packs it all the same", src,
                                 path, index);
    free(path);
    return rc;
}

/*
 * NAME.safetensors.index.json has the file of each tensor in its "weight_map". An index that is none, or cannot be read
 * now, is a file like others.
 */
static errint_t check_index(const char *src, const struct efs_catalog *catalog, const struct efs_source_file *index,
                            struct efs_error *err)
{
    size_t bytes = strlen(index->path), end_bytes = strlen(INDEX_END);
    if (bytes < end_bytes || strcmp(index->path + bytes - end_bytes, INDEX_END) != 0)
        return 0;
    json_t *root = index_load(catalog, index), *map = json_object_get(root, "weight_map");
    errint_t rc = 0;
    for (void *at = json_object_iter(map); at && rc == 0; at = json_object_iter_next(map, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        rc = name ? check_named(src, catalog, index->path, name, err) : 0;
    }
    json_decref(root);
    return rc;
}

errint_t efs_pack_check_weights(const char *src, const struct efs_catalog *catalog,
                                const struct efs_pack_options *options, struct efs_error *err)
{
    bool unread = false;
    if (!options->weights)
        return 0;
    for (size_t f = 0; f < catalog->file_count; f++) {
        if (catalog->files[f].state == EFS_SOURCE_BROKEN)
            return efs_fail(err, -ENODATA, "%s/%s; --any packs it as it is", catalog->root, catalog->files[f].note);
        unread |= catalog->files[f].state == EFS_SOURCE_UNREAD;
    }
    if (catalog->tensor_count || unread) {
        errint_t whole = efs_pack_check_copies(src, catalog, err);
        for (size_t f = 0; f < catalog->file_count && whole == 0; f++)
            whole = check_parts(src, catalog, catalog->files[f].path, err);
        for (size_t f = 0; f < catalog->file_count && whole == 0; f++)
            whole = check_index(src, catalog, &catalog->files[f], err);
        return whole;
    }
    char magic[sizeof(EFS_MAGIC) - 1], *path = NULL;
    bool store = false;
    for (size_t i = 0; i < catalog->file_count && !store; i++) {
        free(path);
        if (asprintf(&path, "%s/%s", catalog->root, catalog->files[i].path) < 0)
            return efs_fail(err, -ENOMEM, "%s: no memory", src);
        int fd = efs_sys_open(path, O_RDONLY | O_NONBLOCK, 0);
        store = fd >= 0 && efs_sys_pread_all(fd, magic, sizeof(magic), 0) == 0 &&
                memcmp(magic, EFS_MAGIC, sizeof(magic)) == 0;
        if (fd >= 0)
            efs_sys_close(fd);
    }
    errint_t rc =
        store ? efs_fail(err, -ENODATA, "%s: is a store already; expertfs mounts it, expertctl unpack unpacks it", path)
              : efs_fail(err, -ENODATA,
                         "%s: no weights found: no safetensors or GGUF file with tensors; --any packs it all "
                         "the same",
                         src);
    free(path);
    return rc;
}

errint_t efs_pack_check(const char *src, struct efs_error *err)
{
    const struct efs_pack_options options = {.size = sizeof(options), .weights = true};
    struct efs_catalog catalog;
    errint_t rc = efs_catalog_read(src, &catalog, err);
    if (rc < 0)
        return rc;
    rc = efs_pack_check_weights(src, &catalog, &options, err);
    efs_catalog_free(&catalog);
    return rc;
}
