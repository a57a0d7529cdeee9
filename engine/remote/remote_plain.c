/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_plain.c - a checkpoint on a server, served in place: a GGUF file, all parts of a split one, a safetensors
 * file, or those that an index names with the small files next to them. The headers are read in blocks, and become the
 * index of a plain store, whose chunks the backing reads.
 */
#include "http.h"
#include "plain.h"
#include "queue.h"
#include "source.h"

#include "expertfs-private.h"
#include "hash.h"
#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX 10000u
#define NAME_BYTES_MAX 255u
#define INDEX_BYTES_MAX (64u << 20)
#define FIRST_BLOCK (256u << 10) /* of a header: enough for most */
#define BLOCK (4u << 20)

struct remote_plain {
    struct efs_http *http;
    char *folder; /* the address up to the last slash, without a query */
    /* The block of a header that was read last: */
    uint8_t *block;
    uint32_t file;
    uint64_t begin;
    size_t bytes;
};

/* ---- headers ---- */

static errint_t read_block(struct remote_plain *p, uint32_t file, uint64_t offset, struct efs_error *err)
{
    struct efs_http_file *f = p->http->files[file];
    const size_t most = offset < FIRST_BLOCK ? FIRST_BLOCK : offset < BLOCK / 3 ? 3 * (size_t)offset : BLOCK;
    const uint64_t left = f->known.bytes - offset;
    p->file = file;
    p->begin = offset;
    p->bytes = 0;
    const size_t bytes = left < most ? (size_t)left : most;
    errint_t rc = efs_http_read(p->http, f, offset, p->block, bytes, err);
    p->bytes = rc == 0 ? bytes : 0;
    return rc;
}

/* An efs_source_reader: offset and bytes are inside the file. */
static errint_t read_header(void *arg, uint32_t file, uint64_t offset, void *data, size_t bytes, struct efs_error *err)
{
    struct remote_plain *p = arg;
    for (uint8_t *to = data; bytes > 0;) {
        if (file != p->file || offset < p->begin || offset - p->begin >= p->bytes) {
            errint_t rc = read_block(p, file, offset, err);
            if (rc < 0)
                return rc;
        }
        const size_t at = (size_t)(offset - p->begin), n = bytes < p->bytes - at ? bytes : p->bytes - at;
        memcpy(to, p->block + at, n);
        to += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

/* ---- the files ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* A name in the mount: from a server, so it must not lead out of it. */
static bool is_name(const char *name)
{
    const size_t bytes = strlen(name);
    bool good = bytes > 0 && bytes <= NAME_BYTES_MAX && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
                strcmp(name, "experts") != 0 && strcmp(name, ".expertfs") != 0;
    for (size_t i = 0; good && i < bytes; i++)
        good = (unsigned char)name[i] >= 0x20 && name[i] != 0x7F && name[i] != '/';
    return good;
}

/* The last part of an address, decoded; NULL with err: it is no name of a file. The caller frees it. */
static char *name_of(const char *address, struct efs_error *err)
{
    const char *from = strrchr(address, '/') + 1;
    char *name = strdup(from), *to = name;
    for (; name && *from; from++)
        if (strncmp(address, "s3://", 5) != 0 && *from == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0) {
            *to++ = (char)(hex(from[1]) << 4 | hex(from[2]));
            from += 2;
        } else {
            *to++ = *from;
        }
    if (name)
        *to = '\0';
    if (name && strlen(name) == (size_t)(to - name) && is_name(name))
        return name;
    efs_fail(err, name ? -EINVAL : -ENOMEM, "%s: %s", address, name ? "does not end with a file's name" : "no memory");
    free(name);
    return NULL;
}

/* The address of the file of this name, which is encoded, but not in s3://. The caller frees it; NULL: no memory. */
static char *address_of(const struct remote_plain *p, const char *name)
{
    char *last = strncmp(p->folder, "s3://", 5) == 0 ? strdup(name) : efs_url_encode(name), *address;
    if (!last || asprintf(&address, "%s%s", p->folder, last) < 0)
        address = NULL;
    free(last);
    return address;
}

/* Adds the file of this name next to the first one. optional: one that is not there is left out. */
static errint_t add_file(struct remote_plain *p, const char *name, bool optional, struct efs_error *err)
{
    struct efs_http_file *file = NULL;
    struct efs_error why = {""};
    uint8_t head[EFS_SOURCE_HEAD];
    size_t bytes = sizeof(head);
    for (unsigned i = 0; i < p->http->file_count; i++)
        if (strcmp(p->http->files[i]->path, name) == 0)
            return 0;
    if (p->http->file_count >= FILES_MAX)
        return efs_fail(err, -E2BIG, "%s: more than %u files", p->folder, FILES_MAX);
    char *address = address_of(p, name);
    if (!address)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = efs_http_add(p->http, address, head, &bytes, &file, &why);
    free(address);
    if (optional && (rc == -ENOENT || rc == -EACCES))
        return 0;
    if (rc < 0)
        return efs_fail(err, rc, "%s", why.text);
    file->path = strdup(name);
    return file->path ? 0 : efs_fail(err, -ENOMEM, "no memory");
}

/* Adds all parts of the split model that a file is a part of. */
static errint_t add_parts(struct remote_plain *p, const char *first, struct efs_error *err)
{
    struct efs_source_part part;
    errint_t rc = 0;
    if (!efs_source_part(first, &part))
        return 0;
    for (unsigned long n = part.number == 0 ? 0 : 1, end = n + part.count; rc == 0 && n < end && n < FILES_MAX; n++) {
        char *name;
        if (asprintf(&name, "%.*s%0*lu%s", part.prefix_bytes, first, part.digits, n, part.end) < 0)
            return efs_fail(err, -ENOMEM, "no memory");
        rc = add_file(p, name, false, err);
        free(name);
    }
    return rc;
}

/* Adds the small files of a model, if they are there. */
static errint_t add_small(struct remote_plain *p, struct efs_error *err)
{
    static const char *const small[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "tokenizer.model",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja"};
    errint_t rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(small) / sizeof(small[0]); i++)
        rc = add_file(p, small[i], true, err);
    return rc;
}

/* Adds the files that an index names. */
static errint_t add_index(struct remote_plain *p, struct efs_error *err)
{
    struct efs_http_file *index = p->http->files[0];
    if (index->known.bytes > INDEX_BYTES_MAX)
        return efs_fail(err, -E2BIG, "%s: an index of more than %u bytes", index->address.name, INDEX_BYTES_MAX);
    const size_t bytes = (size_t)index->known.bytes;
    char *text = efs_sys_malloc(bytes);
    errint_t rc = text ? efs_http_read(p->http, index, 0, text, bytes, err) : efs_fail(err, -ENOMEM, "no memory");
    json_t *json = rc == 0 ? json_loadb(text, bytes, 0, NULL) : NULL;
    json_t *map = json_object_get(json, "weight_map"), *value;
    const char *key;
    free(text);
    if (rc == 0 && !json_is_object(map))
        rc = efs_fail(err, -EUCLEAN, "%s: not an index of safetensors files (no weight_map)", index->address.name);
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (rc == 0 && (!name || !is_name(name)))
            rc = efs_fail(err, -EUCLEAN, "%s: names a file that is not next to it", index->address.name);
        if (rc == 0)
            rc = add_file(p, name, false, err);
    }
    json_decref(json);
    return rc;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp((*(struct efs_http_file *const *)a)->path, (*(struct efs_http_file *const *)b)->path);
}

/* ---- the store ---- */

static errint_t list(struct remote_plain *p, struct efs_catalog *catalog, struct efs_error *err)
{
    const struct efs_http *h = p->http;
    uint64_t total = 0;
    qsort(h->files, h->file_count, sizeof(*h->files), compare_files);
    catalog->root = strndup(p->folder, strlen(p->folder) - 1);
    catalog->files = efs_sys_calloc(h->file_count, sizeof(*catalog->files));
    if (!catalog->root || !catalog->files)
        return efs_fail(err, -ENOMEM, "no memory");
    for (unsigned i = 0; i < h->file_count; i++) {
        struct efs_source_file *file = &catalog->files[catalog->file_count++];
        *file = (struct efs_source_file){
            .path = strdup(h->files[i]->path), .bytes = h->files[i]->known.bytes, .index = EFS_NONE};
        if (!file->path)
            return efs_fail(err, -ENOMEM, "no memory");
        if (__builtin_add_overflow(total, file->bytes, &total) || total > INT64_MAX / 2)
            return efs_fail(err, -EFBIG, "%s: impossible size", catalog->root);
    }
    return 0;
}

/* Makes the store's index of a parsed catalogue, and addresses for its files. */
static errint_t open_catalog(struct remote_plain *p, const char *name, const struct efs_catalog *catalog,
                             const struct stat *st, struct efs_store **store, struct efs_error *err)
{
    errint_t rc = efs_catalog_check(name, catalog, err);
    struct efs_plain *plain = rc == 0 ? efs_plain_new(catalog) : NULL;
    if (rc == 0 && !plain)
        rc = efs_fail(err, -ENOMEM, "%s: no memory", name);
    for (uint32_t i = 0; rc == 0 && i < plain->file_count; i++) {
        struct efs_http_file *file = p->http->files[i];
        file->base = plain->files[i].address;
        plain->files[i].opened_stat.st_ino = (ino_t)efs_hash(file->known.etag, strlen(file->known.etag)) >> 1;
    }
    if (rc == 0)
        rc = efs_plain_index(plain, catalog, err);
    const struct efs_store_plain source = {
        .plain = plain, .read = efs_plain_read, .close = efs_plain_close, .st = *st, .remote = true};
    if (rc == 0)
        rc = efs_store_open_plain(name, plain->sb.store_bytes, &source, store, err);
    if (rc < 0) {
        efs_plain_close(plain);
        return rc;
    }
    free(plain->index); /* the store has a copy */
    plain->index = NULL;
    return 0;
}

static errint_t open_files(struct remote_plain *p, const char *name, const struct stat *st, struct efs_store **store,
                           struct efs_error *err)
{
    struct efs_source_reader reader = {.read = read_header, .arg = p};
    struct efs_catalog catalog = {.reader = &reader};
    const char *first = p->http->files[0]->path;
    const bool index = efs_source_is_index(first);
    errint_t rc = index ? add_index(p, err) : add_parts(p, first, err);
    if (rc == 0 && (index || strcmp(first, "model.safetensors") == 0))
        rc = add_small(p, err);
    if (rc == 0)
        rc = list(p, &catalog, err);
    if (rc < 0) {
        efs_catalog_free(&catalog);
        return rc;
    }
    rc = efs_catalog_parse(&catalog, NULL, err); /* frees it after an error */
    if (rc < 0)
        return rc;
    rc = open_catalog(p, name, &catalog, st, store, err);
    efs_catalog_free(&catalog);
    return rc;
}

errint_t efs_remote_plain_open(struct efs_http *h, const void *head, size_t head_bytes, const struct stat *st,
                               struct efs_store **store, struct efs_error *err)
{
    struct remote_plain p = {.http = h, .file = EFS_NONE};
    char *name = strdup(h->files[0]->address.name), *path = name ? name_of(name, err) : NULL;
    const size_t few = head_bytes < EFS_SOURCE_HEAD ? head_bytes : EFS_SOURCE_HEAD;
    errint_t rc = path ? 0 : name ? -EINVAL : efs_fail(err, -ENOMEM, "no memory");
    h->files[0]->path = path;
    if (rc == 0 && !efs_source_named_weights(path) && !efs_source_is_index(path) &&
        efs_source_kind(path, false, head, few).format == EFS_SOURCE_PLAIN)
        rc = efs_fail(
            err, -EUCLEAN,
            "%s: neither an expertfs store nor a file of weights\nhint: give the address of a store, a GGUF or "
            "safetensors file, or a model.safetensors.index.json",
            name);
    p.folder = rc == 0 ? strndup(name, (size_t)(strrchr(name, '/') + 1 - name)) : NULL;
    p.block = rc == 0 ? efs_sys_malloc(BLOCK) : NULL;
    if (rc == 0 && (!p.folder || !p.block))
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = open_files(&p, name, st, store, err);
    free(p.block);
    free(p.folder);
    free(name);
    if (rc < 0) {
        h->b.ops->close(&h->b, false);
        return rc;
    }
    rc = efs_store_back(*store, &h->b, err);
    if (rc < 0) {
        efs_store_close(*store);
        *store = NULL;
    }
    return rc;
}
