/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - builds the catalogue of a checkpoint: walks the directory, parses each file of weights, names the
 * experts. */
#include "source.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Moves the tensors of a file to the catalogue, except those that no record can represent. */
static errint_t add_tensors(struct efs_catalog *catalog, size_t *capacity, struct efs_source_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (!list->entries[i].known && list->entries[i].tensor.dtype < EFS_DTYPE_GGML)
            continue;
        errint_t ret =
            efs_source_grow((void **)&catalog->tensors, catalog->tensor_count, capacity, sizeof(*catalog->tensors));
        if (ret < 0)
            return ret;
        catalog->tensors[catalog->tensor_count++] = list->entries[i].tensor;
        list->entries[i].tensor.name = list->entries[i].tensor.type = NULL;
    }
    return 0;
}

static errint_t open_input(const struct efs_catalog *catalog, uint32_t file, struct efs_source_input *in,
                           struct efs_error *err)
{
    const struct efs_source_file *f = &catalog->files[file];
    struct stat st;
    char *path = NULL;

    *in = (struct efs_source_input){
        .reader = catalog->reader, .fd = -1, .path = f->path, .bytes = f->bytes, .file = file};
    if (catalog->reader)
        return 0;
    if (asprintf(&path, "%s/%s", catalog->root, f->path) < 0)
        return efs_fail(err, -ENOMEM, "%s: out of memory", f->path);
    /* The path may have been replaced by a FIFO since the walk: O_NONBLOCK, so that open does not wait for a writer. */
    int fd = efs_sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    int ret = fd < 0 ? efs_fail(err, fd, "%s: cannot open: %s", path, strerror(-fd)) : 0;
    if (ret == 0 && (ret = efs_sys_fstat(fd, &st)) < 0)
        efs_fail(err, ret, "%s: %s", path, strerror(-ret));
    else if (ret == 0 && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes))
        ret = efs_fail(err, -ESTALE, "%s: the file changed while it was read", path);
    free(path);
    if (ret == 0)
        in->fd = fd;
    else if (fd >= 0)
        efs_sys_close(fd);
    return ret;
}

/* Marks a file as stored as plain bytes, with a note. */
static errint_t mark_plain(const struct efs_catalog *catalog, struct efs_source_file *file, enum efs_source_state state,
                           const char *note, struct efs_error *err)
{
    bool named = file->index != EFS_NONE && (state != EFS_SOURCE_BROKEN || !efs_source_named_weights(file->path));

    file->state = state;
    if (asprintf(&file->note, "%s%s%s%s", note, named ? "; " : "", named ? catalog->files[file->index].path : "",
                 named ? " names it" : "") < 0)
        file->note = NULL;
    return file->note ? 0 : efs_fail(err, -ENOMEM, "%s: out of memory", file->path);
}

static errint_t keep_facts(struct efs_source_file *file, const struct efs_source_list *list)
{
    file->facts = efs_sys_malloc(sizeof(*file->facts));
    if (!file->facts)
        return -ENOMEM;
    *file->facts = list->facts;
    return 0;
}

/* Parses one file of weights. A file that violates its format is stored as plain bytes: one bad file must not
 * prevent packing. */
static errint_t parse_file(struct efs_catalog *catalog, const struct efs_source_input *in, bool gguf, size_t *capacity,
                           struct efs_error *err)
{
    struct efs_source_file *file = &catalog->files[in->file];
    struct efs_source_list list = {.before = catalog->tensor_count};
    struct efs_error why = {""};

    errint_t ret = gguf ? efs_source_gguf(in, &list, &why) : efs_source_safetensors(in, &list, &why);
    if (ret == -EUCLEAN) {
        enum efs_source_state state = list.cut         ? EFS_SOURCE_BROKEN
                                      : list.no_header ? EFS_SOURCE_NO_HEADER
                                                       : EFS_SOURCE_UNREAD;
        ret = mark_plain(catalog, file, state, why.text, err);
    } else if (ret < 0) {
        efs_fail(err, ret, "%s", why.text);
    } else {
        file->has_tensors = true;
        file->gguf = gguf;
        ret = gguf ? keep_facts(file, &list) : 0;
        if (ret == 0 && !in->reader)
            ret = efs_source_mark_holes(in, &list, file);
        if (ret == 0)
            ret = add_tensors(catalog, capacity, &list);
        if (ret < 0)
            efs_fail(err, ret, "%s: out of memory", in->path);
    }
    efs_source_list_free(&list);
    return ret;
}

/* Reads a file's first bytes, and parses the file if it has weights. */
static errint_t read_file(struct efs_catalog *catalog, uint32_t file, size_t *capacity, struct efs_error *err)
{
    struct efs_source_file *f = &catalog->files[file];
    struct efs_source_input in;
    uint8_t head[EFS_SOURCE_HEAD];
    size_t bytes = f->bytes < sizeof(head) ? (size_t)f->bytes : sizeof(head);
    bool named = efs_source_named_weights(f->path) || f->index != EFS_NONE;

    if (bytes == 0 && !named)
        return 0;
    errint_t ret = open_input(catalog, file, &in, err);
    if (ret < 0)
        return named ? ret : 0; /* not needed as weights; packing reads the file later and reports the error */
    ret = efs_source_read(&in, 0, head, bytes, err);
    const struct efs_source_kind kind = efs_source_kind(f->path, named, head, ret == 0 ? bytes : 0);
    if (ret < 0 && !named) {
        ret = 0;
    } else if (ret == 0 && kind.what) {
        struct efs_error why;
        efs_fail(&why, 0, "%s: %s", f->path, kind.what);
        ret = mark_plain(catalog, f, kind.broken ? EFS_SOURCE_BROKEN : EFS_SOURCE_WHOLE, why.text, err);
    } else if (ret == 0 && kind.format != EFS_SOURCE_PLAIN) {
        ret = parse_file(catalog, &in, kind.format == EFS_SOURCE_GGUF, capacity, err);
    }
    if (in.fd >= 0)
        efs_sys_close(in.fd);
    return ret;
}

errint_t efs_catalog_list(const char *src, struct efs_catalog *catalog, struct efs_error *err)
{
    *catalog = (struct efs_catalog){0};
    errint_t ret = efs_source_walk(src, catalog, err);
    if (ret < 0)
        efs_catalog_free(catalog);
    return ret;
}

errint_t efs_catalog_parse(struct efs_catalog *catalog, const char *experts, struct efs_error *err)
{
    size_t capacity = 0;
    errint_t ret = efs_source_read_indexes(catalog, err);

    for (uint32_t i = 0; ret == 0 && i < catalog->file_count; i++)
        ret = read_file(catalog, i, &capacity, err);
    if (ret == 0 && !catalog->reader)
        ret = efs_source_mark_downloads(catalog, err);
    if (ret == 0)
        ret = efs_source_check_indexes(catalog, err);
    if (ret == 0)
        ret = efs_source_name_experts(catalog, experts, err);
    if (ret < 0)
        efs_catalog_free(catalog);
    return ret;
}

errint_t efs_catalog_read(const char *src, const char *experts, struct efs_catalog *catalog, struct efs_error *err)
{
    errint_t ret = efs_catalog_list(src, catalog, err);

    return ret == 0 ? efs_catalog_parse(catalog, experts, err) : ret;
}

errint_t efs_catalog_read_parts(const char *src, const char *experts, struct efs_catalog *catalog, bool *added,
                                struct efs_error *err)
{
    errint_t ret = efs_catalog_list(src, catalog, err);

    if (ret < 0)
        return ret;
    ret = efs_catalog_add_parts(catalog, added, err);
    if (ret == 0)
        return efs_catalog_parse(catalog, experts, err);
    efs_catalog_free(catalog);
    return ret;
}

void efs_catalog_free(struct efs_catalog *catalog)
{
    for (size_t i = 0; i < catalog->file_count; i++) {
        free(catalog->files[i].path);
        free(catalog->files[i].note);
        free(catalog->files[i].missing);
        free(catalog->files[i].facts);
    }
    for (size_t i = 0; i < catalog->tensor_count; i++)
        efs_source_tensor_free(&catalog->tensors[i]);
    for (size_t i = 0; i < catalog->expert_count; i++)
        free(catalog->experts[i].stack);
    free(catalog->root);
    free(catalog->files);
    free(catalog->tensors);
    free(catalog->experts);
    free(catalog->skipped);
    free(catalog->lacks);
    free(catalog->family);
    *catalog = (struct efs_catalog){0};
}
