/* SPDX-License-Identifier: Apache-2.0 */
/* source_check.c - checks that a source is a complete checkpoint, from file names and indexes only: reads no
 * weights. */
#include "source.h"
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HINT_MISSING "\nhint: download it; mkexpertfs --any packs without it"

/* Whether a part of a split model exists, with its number in the same number of digits or without leading zeros.
 * *other: the first name tried, if it was NULL; the caller frees it. */
static bool has_part(const struct efs_catalog *catalog, const char *path, const struct efs_source_part *part,
                     unsigned long number, char **other)
{
    for (int digits = part->digits; digits >= 1; digits = digits > 1 ? 1 : 0) {
        char *name;
        if (asprintf(&name, "%.*s%0*lu%s", part->prefix_bytes, path, digits, number, part->end) < 0)
            return false;
        bool found = efs_source_find(catalog, name);
        if (*other)
            free(name);
        else
            *other = name;
        if (found)
            return true;
    }
    return false;
}

/*
 * Checks that the parts before and after this one exist; if that holds for each part, all exist. Files named by an
 * index are checked by check_index().
 */
static errint_t check_parts(const char *src, const struct efs_catalog *catalog, const struct efs_source_file *file,
                            struct efs_error *err)
{
    struct efs_source_part part;
    char *other = NULL;
    bool weights =
        file->has_tensors || file->state != EFS_SOURCE_WHOLE; /* else only its name is that of a part (AppleDouble) */
    if (!weights || file->index != EFS_NONE || !efs_source_part(file->path, &part))
        return 0;
    unsigned long first = has_part(catalog, file->path, &part, 0, &other) ? 0 : 1, last = first + part.count - 1;
    errint_t rc = 0;
    for (unsigned long number = part.number > first ? part.number - 1 : first;
         rc == 0 && number <= part.number + 1 && number <= last; number++) {
        free(other);
        other = NULL;
        if (has_part(catalog, file->path, &part, number, &other))
            continue;
        if (!other)
            rc = efs_fail(err, -ENOMEM, "%s: no memory", src);
        else if (strcmp(catalog->root, src) != 0) /* src is a single file */
            rc = efs_fail(
                err, -ENODATA,
                "%s: is one part of %lu\nhint: put the other parts next to it; --reclaim takes only the folder "
                "that has them all; mkexpertfs --any packs it alone",
                src, part.count);
        else
            rc = efs_fail(err, -ENODATA, "%s: %s is missing, one of %lu parts" HINT_MISSING, src, other, part.count);
    }
    free(other);
    return rc;
}

/* Checks that the name of a GGUF file is that of the part that its metadata states: the other parts are found by it. */
static errint_t check_part_name(const char *src, const struct efs_catalog *catalog, const struct efs_source_file *file,
                                struct efs_error *err)
{
    const struct efs_source_facts *facts = file->gguf ? file->facts : NULL;
    struct efs_source_part part;
    if (!facts || facts->part_count < 2)
        return 0;
    bool named = efs_source_part(file->path, &part) && part.count == facts->part_count;
    char *other = NULL;
    if (named)
        named = part.number == facts->part + (has_part(catalog, file->path, &part, 0, &other) ? 0u : 1u);
    free(other);
    if (named)
        return 0;
    bool alone = strcmp(catalog->root, src) != 0; /* src is a single file */
    return efs_fail(err, -ENODATA,
                    "%s%s%s: is part %u of %u by its metadata, but not by its name, which finds the other parts\n"
                    "hint: name it, or a link to it, PREFIX-%05u-of-%05u.gguf, next to the others; mkexpertfs --any "
                    "packs it as it is",
                    src, alone ? "" : "/", alone ? "" : file->path, facts->part + 1u, (unsigned)facts->part_count,
                    facts->part + 1u, (unsigned)facts->part_count);
}

static errint_t check_index(const char *src, const struct efs_source_file *index, struct efs_error *err)
{
    const char *missing = index->missing;
    if (!missing)
        return 0;
    return efs_fail(err, -ENODATA, "%s: %s %s, which %s names" HINT_MISSING, src, *missing ? missing : "\"\"",
                    *missing == '/' || strncmp(missing, "../", 3) == 0 ? "lies outside of it" : "is missing",
                    index->path);
}

/* Whether a safetensors file in the folder of this one was parsed. */
static bool has_weights_beside(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    size_t folder = efs_source_folder(file->path);
    for (size_t f = 0; f < catalog->file_count; f++) {
        const struct efs_source_file *other = &catalog->files[f];
        if (other->has_tensors && !other->gguf && efs_source_folder(other->path) == folder &&
            memcmp(other->path, file->path, folder) == 0)
            return true;
    }
    return false;
}

static errint_t fail_file(const char *src, const struct efs_catalog *catalog, const struct efs_source_file *file,
                          const char *hint, struct efs_error *err)
{
    bool alone = strcmp(catalog->root, src) != 0; /* src is a single file */
    return efs_fail(err, -ENODATA, "%s%s%s\nhint: %s", src, alone ? "" : "/",
                    file->note + (alone ? strlen(file->path) : 0), hint);
}

/* A download that broke, or a file without a header whose tensors the model lacks then. */
static errint_t check_file(const char *src, const struct efs_catalog *catalog, const struct efs_source_file *file,
                           struct efs_error *err)
{
    if (file->state != EFS_SOURCE_BROKEN &&
        (file->state != EFS_SOURCE_NO_HEADER || (file->index == EFS_NONE && !has_weights_beside(catalog, file))))
        return 0;
    return fail_file(src, catalog, file, "download it again; mkexpertfs --any packs it as it is", err);
}

static errint_t fail_lack(const char *src, const struct efs_catalog *catalog, const char *more, struct efs_error *err)
{
    return efs_fail(err, -ENODATA, "%s/%s\nhint: finish, allow or remove it%s", src, catalog->lacks, more);
}

errint_t efs_catalog_check_whole(const char *src, const struct efs_catalog *catalog, struct efs_error *err)
{
    if (catalog->lacks)
        return fail_lack(src, catalog, "", err);
    for (size_t f = 0; f < catalog->file_count; f++)
        if (catalog->files[f].state == EFS_SOURCE_BROKEN)
            return fail_file(src, catalog, &catalog->files[f],
                             "download it again; --reclaim removes no file that may still be needed for that", err);
    return 0;
}

static bool has_pickles(const struct efs_catalog *catalog)
{
    static const char *const ends[] = {".bin", ".pt", ".pth", ".ckpt"};
    for (size_t f = 0; f < catalog->file_count; f++) {
        const char *dot = strrchr(catalog->files[f].path, '.');
        for (size_t i = 0; dot && i < sizeof(ends) / sizeof(ends[0]); i++)
            if (strcmp(dot, ends[i]) == 0)
                return true;
    }
    return false;
}

errint_t efs_catalog_check(const char *src, const struct efs_catalog *catalog, struct efs_error *err)
{
    bool unread = false;
    if (catalog->lacks)
        return fail_lack(src, catalog, "; mkexpertfs --any packs without it", err);
    for (size_t f = 0; f < catalog->file_count; f++) {
        errint_t whole = check_file(src, catalog, &catalog->files[f], err);
        if (whole < 0)
            return whole;
        unread |= catalog->files[f].state != EFS_SOURCE_WHOLE;
    }
    if (catalog->tensor_count || unread) {
        errint_t whole = 0;
        for (size_t f = 0; f < catalog->file_count && whole == 0; f++) {
            whole = check_parts(src, catalog, &catalog->files[f], err);
            if (whole == 0)
                whole = check_part_name(src, catalog, &catalog->files[f], err);
        }
        for (size_t f = 0; f < catalog->file_count && whole == 0; f++)
            whole = check_index(src, &catalog->files[f], err);
        return whole;
    }
    struct efs_store *store = NULL;
    if (catalog->file_count == 1 && efs_store_open_file(src, &store, NULL) == 0) {
        efs_store_close(store);
        return efs_fail(err, -ENODATA,
                        "%s: is an expertfs store already\nhint: mount it with expertfs, restore it with `expertctl "
                        "unpack`",
                        src);
    }
    return efs_fail(
        err, -ENODATA,
        "%s: no weights found: no safetensors or GGUF file with tensors\nhint: %smkexpertfs --any packs it "
        "all the same",
        src,
        has_pickles(catalog)
            ? "weights of PyTorch are read as safetensors, to which save_pretrained() of transformers writes; "
            : "");
}
