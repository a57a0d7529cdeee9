/* SPDX-License-Identifier: Apache-2.0 */
/* pack_weights.c - is this a checkpoint, and all of one? By the names of its files: no weight is read. */
#include "pack.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 7 /* of a part's number */

/* PREFIX-00002-of-00003.safetensors: one file of several. */
struct part {
    int prefix_bytes, digits;
    unsigned long number, count;
    const char *end; /* "-of-" and what follows */
};

static bool part_parse(const char *path, struct part *part)
{
    const char *of = NULL;
    for (const char *next = strstr(path, "-of-"); next; next = strstr(next + 1, "-of-"))
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
        bool found =
            bsearch(other, catalog->files, catalog->file_count, sizeof(catalog->files[0]), compare_path) != NULL;
        errint_t rc = 0;
        if (!found && strcmp(catalog->root, src) != 0) /* a single file */
            rc = efs_fail(err, -ENODATA,
                          "%s: is one part of %lu: pack the folder that has them all; --any packs it alone", src,
                          part.count);
        else if (!found)
            rc = efs_fail(err, -ENODATA, "%s: did not come whole: %s is missing; --any packs it all the same", src,
                          other);
        free(other);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The folder in which hubs cache a model: snapshots/REVISION/NAME are links to blobs/. */
static errint_t check_copies(const char *src, const struct efs_catalog *catalog, struct efs_error *err)
{
    const char *blob = NULL, *snapshot = NULL;
    for (size_t f = 0; f < catalog->file_count; f++) {
        const char *path = catalog->files[f].path;
        if (strncmp(path, "blobs/", 6) == 0)
            blob = path;
        else if (!snapshot && strncmp(path, "snapshots/", 10) == 0 && strchr(path + 10, '/'))
            snapshot = path;
    }
    if (!blob || !snapshot)
        return 0;
    return efs_fail(err, -ENODATA, "%s: has each file twice, as caches of hubs do: pack %s/%.*s; --any packs it all",
                    src, src, (int)(strchr(snapshot + 10, '/') - snapshot), snapshot);
}

errint_t efs_pack_check_weights(const char *src, const struct efs_catalog *catalog,
                                const struct efs_pack_options *options, struct efs_error *err)
{
    if (!options->weights)
        return 0;
    if (catalog->tensor_count) {
        errint_t whole = check_copies(src, catalog, err);
        for (size_t f = 0; f < catalog->file_count && whole == 0; f++)
            whole = check_parts(src, catalog, catalog->files[f].path, err);
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
