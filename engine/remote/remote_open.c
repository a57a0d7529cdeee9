/* SPDX-License-Identifier: Apache-2.0 */
/* remote_open.c - opens what efs_store_open() is given: a file on a server, a store's file, or a checkpoint in place.
 */
#include "hash.h"
#include "http.h"
#include "plain.h"
#include "rados.h"
#include "store.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* In place of the file's inode. A store that needs a secret is readable for the user who gave it, alone. */
static struct stat remote_stat(const struct efs_http *h)
{
    struct stat st = {.st_mode = h->address.token || h->address.keys || strchr(h->address.url, '?') ? 0400 : 0444,
                      .st_gid = getegid(),
                      .st_dev = (dev_t)efs_hash(h->address.name, strlen(h->address.name)) >> 1,
                      .st_ino = (ino_t)efs_hash(h->known.etag, strlen(h->known.etag)) >> 1,
                      .st_size = (off_t)h->known.bytes};
    st.st_mtim.tv_sec = h->modified >= 0 ? (time_t)h->modified : 0;
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
    struct efs_disk_superblock sb = {.magic = ""};
    size_t bytes = sizeof(sb);
    errint_t rc = efs_http_open(address, &h, &sb, &bytes, err);
    if (rc < 0)
        return rc;
    char name[1024];
    snprintf(name, sizeof(name), "%s", h->address.name);
    const struct stat st = remote_stat(h);
    if (bytes < sizeof(sb.magic) || memcmp(sb.magic, EFS_MAGIC, sizeof(sb.magic)) != 0) {
        h->b.ops->close(&h->b, false);
        return efs_fail(err, -EUCLEAN,
                        "%s: not an expertfs store (no magic at offset 0)\nhint: mkexpertfs makes one; place it there",
                        name);
    }
    return efs_store_open_backing(name, h->known.bytes, &st, &h->b, store, err);
}

errint_t efs_store_open(const char *path, struct efs_store **store, struct efs_error *err)
{
    *store = NULL;
    if (efs_is_address(path))
        return open_remote(path, store, err);
    return efs_plain_is_checkpoint(path) ? efs_plain_open(path, store, err) : efs_store_open_file(path, store, err);
}
