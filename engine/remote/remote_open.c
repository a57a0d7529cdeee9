/* SPDX-License-Identifier: Apache-2.0 */
/* remote_open.c - opens what efs_store_open() is given: a file on a server, a store's file, or a checkpoint in place.
 */
#include "hash.h"
#include "http.h"
#include "plain.h"
#include "rados.h"
#include "store.h"

#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In place of the file's inode. A store that needs a secret is readable for the user who gave it, alone. */
static struct stat remote_stat(const struct efs_http_file *file)
{
    const struct efs_address *a = &file->address;
    struct stat st = {.st_mode = a->token || a->keys || strchr(a->url, '?') ? 0400 : 0444,
                      .st_gid = getegid(),
                      .st_dev = (dev_t)efs_hash(a->name, strlen(a->name)) >> 1,
                      .st_ino = (ino_t)efs_hash(file->known.etag, strlen(file->known.etag)) >> 1,
                      .st_size = (off_t)file->known.bytes};
    st.st_mtim.tv_sec = file->modified >= 0 ? (time_t)file->modified : 0;
    return st;
}

static errint_t open_rados(const char *address, struct efs_store **store, struct efs_error *err)
{
    struct efs_backing *backing;
    struct efs_rados_head head;
    errint_t rc = efs_rados_open(address, &backing, &head, err);
    if (rc < 0)
        return rc;
    struct stat st = {.st_mode = 0400, /* the keyring is this user's */
                      .st_gid = getegid(),
                      .st_dev = (dev_t)efs_hash(address, strlen(address)) >> 1,
                      .st_ino = (ino_t)efs_hash(head.id, strlen(head.id)) >> 1,
                      .st_size = (off_t)head.bytes};
    st.st_mtim.tv_sec = head.modified;
    return efs_store_open_backing(address, head.bytes, &st, backing, store, err);
}

static errint_t open_remote(const char *address, struct efs_store **store, struct efs_error *err)
{
    if (efs_is_rados(address))
        return open_rados(address, store, err);
    struct efs_http *h = NULL;
    struct efs_http_file *file = NULL;
    struct efs_disk_superblock sb = {.magic = ""};
    size_t bytes = sizeof(sb);
    errint_t rc = efs_http_new(&efs_http_ops, &h, err);
    if (rc < 0)
        return rc;
    rc = efs_http_add(h, address, &sb, &bytes, &file, err);
    if (rc < 0) {
        efs_http_free(h);
        return rc;
    }
    const struct stat st = remote_stat(file);
    if (bytes < sizeof(sb.magic) || memcmp(sb.magic, EFS_MAGIC, sizeof(sb.magic)) != 0)
        return efs_remote_plain_open(h, &sb, bytes, &st, store, err);
    char name[1024];
    snprintf(name, sizeof(name), "%s", file->address.name);
    return efs_store_open_backing(name, file->known.bytes, &st, &h->b, store, err);
}

errint_t efs_store_open(const char *path, struct efs_store **store, struct efs_error *err)
{
    *store = NULL;
    if (efs_is_address(path))
        return open_remote(path, store, err);
    return efs_plain_is_checkpoint(path) ? efs_plain_open(path, store, err) : efs_store_open_file(path, store, err);
}

errint_t efs_remote_text(const char *name, const char *url, size_t most, char **text, size_t *bytes,
                         struct efs_error *err)
{
    struct efs_http *h;
    errint_t rc = efs_http_new(&efs_http_ops, &h, err);
    *text = NULL;
    *bytes = most;
    if (rc < 0)
        return rc;
    *text = efs_sys_malloc(most);
    rc = *text ? efs_http_text(h, name, url, *text, bytes, err) : efs_fail(err, -ENOMEM, "no memory");
    efs_http_free(h);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
