/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_index.c - any names of a checkpoint's files, and any bytes as its index: accepted, or refused with a message.
 *
 * Input: a line for each file: 't' if it has tensors and '-' if not, a character whose low bit chooses the size (1: 2
 * MiB; 0: 100 bytes), then the name. An empty line. The contents of model.safetensors.index.json.
 */
#include "fuzz.h"
#include "pack.h"
#include "source.h"

#include <errno.h>
#include <string.h>

#define INDEX "model.safetensors.index.json"
#define FILES_MAX 32u
#define NAME_MAX_BYTES 200u

static char index_folder[] = "/tmp/fuzz-index-XXXXXX";

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct efs_source_file *)a)->path, ((const struct efs_source_file *)b)->path);
}

/* Adds valid paths to the catalogue: relative and without "..". Returns the offset after the empty line, or size. */
static size_t take_files(const char *text, size_t size, struct efs_catalog *catalog)
{
    size_t at = 0;
    while (at < size && text[at] != '\n') {
        const char *end = memchr(text + at, '\n', size - at);
        size_t bytes = end ? (size_t)(end - text) - at : size - at;
        char name[NAME_MAX_BYTES + 1] = "";
        if (bytes > 2 && bytes - 2 <= NAME_MAX_BYTES)
            memcpy(name, text + at + 2, bytes - 2);
        if (*name && *name != '/' && !strstr(name, "..") && catalog->file_count < FILES_MAX)
            catalog->files[catalog->file_count++] = (struct efs_source_file){
                .path = strdup(name), .bytes = text[at + 1] & 1 ? 2u << 20 : 100, .has_tensors = text[at] == 't'};
        at += bytes + 1;
    }
    return at < size ? at + 1 : size;
}

static void add_index(struct efs_catalog *catalog, const void *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", index_folder, INDEX);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
    catalog->files[catalog->file_count++] = (struct efs_source_file){.path = strdup(INDEX), .bytes = bytes};
    qsort(catalog->files, catalog->file_count, sizeof(catalog->files[0]), compare_paths);
    size_t kept = 0;
    for (size_t i = 0; i < catalog->file_count; i++)
        if (kept && strcmp(catalog->files[kept - 1].path, catalog->files[i].path) == 0)
            free(catalog->files[i].path);
        else
            catalog->files[kept++] = catalog->files[i];
    catalog->file_count = kept;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct efs_catalog catalog = {.root = strdup(index_folder), .files = calloc(FILES_MAX + 1, sizeof(*catalog.files))};
    CHECK(catalog.root && catalog.files);
    size_t at = take_files((const char *)data, size, &catalog);
    add_index(&catalog, data + at, size - at);
    CHECK(efs_source_read_indexes(&catalog, NULL) == 0);
    for (unsigned single = 0; single < 2; single++) { /* the source is the directory, or one file of it */
        struct efs_error err = {""};
        errint_t rc = efs_catalog_check(single ? "/tmp/one.safetensors" : index_folder, &catalog, &err);
        CHECK(rc == 0 || (rc == -ENODATA && *err.text));
    }
    efs_catalog_free(&catalog);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    fuzz_folder(index_folder);
    return 0;
}
