/* SPDX-License-Identifier: Apache-2.0 */
/* rados.c - see rados.h: the library, the connection, the head. */
#include "rados.h"

#include "expertfs-private.h"
#include "symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_SECONDS "30"
#define ARGUMENT_BYTES 256u

static errint_t load(struct efs_rados_calls *call, struct efs_error *err)
{
    const char *named = secure_getenv("EXPERTFS_RADOS");
    void *library = dlopen(named && *named ? named : "librados.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return efs_fail(err, -ENOSYS,
                        "pools of Ceph are read by librados, which is not installed\nhint: apt install librados2");
#define EFS_RADOS_FIND(result, name, arguments)                                                                        \
    if (!efs_symbol(library, "rados_" #name, &call->name, sizeof(call->name)))                                         \
        return efs_fail(err, -ENOSYS, "librados has no rados_" #name ": that of Ceph 16 or later is needed");
    EFS_RADOS_CALLS(EFS_RADOS_FIND)
#undef EFS_RADOS_FIND
    return 0;
}

/* ---- the address and the user ---- */

errint_t efs_rados_parse(const char *address, struct efs_rados *rados, struct efs_error *err)
{
    const char *pool = strncmp(address, "rados:", 6) == 0 ? address + 6 : "";
    const size_t pool_bytes = strcspn(pool, "/");
    const char *name = pool[pool_bytes] ? pool + pool_bytes + 1 : "";
    if (pool_bytes == 0 || pool_bytes >= sizeof(rados->pool) || !*name || strlen(name) >= sizeof(rados->name))
        return efs_fail(err, -EINVAL,
                        "%s: no address in Ceph\nhint: it is written rados:POOL/NAME, both at most 255 bytes", address);
    memcpy(rados->pool, pool, pool_bytes);
    strcpy(rados->name, name);
    snprintf(rados->label, sizeof(rados->label), "%s", address);
    return 0;
}

/* Arguments in CEPH_ARGS that the library leaves to programs. "": not given. */
struct given {
    char user[ARGUMENT_BYTES], conf[PATH_MAX];
};

static void take_argument(struct given *given, char kind, const char *value)
{
    if (kind == 'c')
        snprintf(given->conf, sizeof(given->conf), "%s", value);
    else
        snprintf(given->user, sizeof(given->user), "%s",
                 value + (kind == 'n' && strncmp(value, "client.", 7) == 0 ? 7 : 0));
}

static void find_arguments(struct given *given)
{
    static const struct {
        const char *name;
        char kind;
    } known[] = {{"--id", 'i'}, {"--user", 'i'}, {"--name", 'n'}, {"-n", 'n'}, {"--conf", 'c'}, {"-c", 'c'}};
    const char *text = secure_getenv("CEPH_ARGS");
    char *copy = text ? strdup(text) : NULL, *rest = NULL, next = '\0';
    *given = (struct given){.user = ""};
    for (char *word = copy ? strtok_r(copy, " \t", &rest) : NULL; word; word = strtok_r(NULL, " \t", &rest)) {
        const char kind = next;
        next = '\0';
        if (kind)
            take_argument(given, kind, word);
        for (size_t i = 0; !kind && i < sizeof(known) / sizeof(known[0]); i++) {
            const size_t bytes = strlen(known[i].name);
            if (strcmp(word, known[i].name) == 0)
                next = known[i].kind;
            else if (known[i].name[1] == '-' && strncmp(word, known[i].name, bytes) == 0 && word[bytes] == '=')
                take_argument(given, known[i].kind, word + bytes + 1);
        }
    }
    free(copy);
}

/* ---- the connection ---- */

const char *efs_rados_reason(int rc, char *text, size_t room)
{
    if (rc == -ETIMEDOUT)
        snprintf(text, room, "no answer in time\nhint: `ceph -s` says whether the cluster is healthy and reachable");
    else if (rc == -EACCES || rc == -EPERM)
        snprintf(text, room,
                 "the user may not\nhint: its keyring and caps: to read, mon 'allow r' osd 'allow r pool=POOL'");
    else if (rc == -ENOSPC || rc == -EDQUOT)
        snprintf(text, room, "%s\nhint: the pool or the cluster is full: `ceph df`", strerror(-rc));
    else
        snprintf(text, room, "%s", strerror(rc < 0 ? -rc : rc));
    return text;
}

/* Without timeouts librados waits for ever. */
static void set_timeout(struct efs_rados *r, const char *option, const char *unset)
{
    char value[32] = "";
    if (r->call.conf_get(r->cluster, option, value, sizeof(value)) < 0 || strtod(value, NULL) == strtod(unset, NULL))
        (void)r->call.conf_set(r->cluster, option, TIMEOUT_SECONDS);
}

errint_t efs_rados_connect(const char *address, struct efs_rados *r, struct efs_error *err)
{
    struct given given;
    char reason[300];
    *r = (struct efs_rados){.cluster = NULL};
    errint_t rc = efs_rados_parse(address, r, err);
    if (rc == 0)
        rc = load(&r->call, err);
    if (rc < 0)
        return rc;
    find_arguments(&given);
    int failed = r->call.create(&r->cluster, *given.user ? given.user : NULL);
    if (failed < 0) {
        r->cluster = NULL;
        return efs_fail(err, failed, "%s: %s", r->label, efs_rados_reason(failed, reason, sizeof(reason)));
    }
    /* NULL: CEPH_CONF, or where Ceph looks for it */
    failed = r->call.conf_read_file(r->cluster, *given.conf ? given.conf : NULL);
    if (failed < 0 && failed != -ENOENT)
        return efs_fail(err, -EINVAL, "%s: the configuration of Ceph cannot be read: %s\nhint: CEPH_CONF names one",
                        r->label, strerror(-failed));
    (void)r->call.conf_parse_env(r->cluster, NULL);
    char hosts[8] = "";
    if (failed == -ENOENT && r->call.conf_get(r->cluster, "mon_host", hosts, sizeof(hosts)) == 0 && !*hosts)
        return efs_fail(err, -ENOENT,
                        "%s: no configuration of Ceph\nhint: CEPH_CONF names one; else it is /etc/ceph/ceph.conf",
                        r->label);
    set_timeout(r, "rados_osd_op_timeout", "0");
    set_timeout(r, "rados_mon_op_timeout", "0");
    set_timeout(r, "client_mount_timeout", "300"); /* the default */
    failed = r->call.connect(r->cluster);
    if (failed < 0)
        return efs_fail(err, failed, "%s: cannot connect: %s", r->label,
                        failed == -ENOENT ? "no key for this user\nhint: CEPH_ARGS=--id=USER, and its keyring"
                                          : efs_rados_reason(failed, reason, sizeof(reason)));
    failed = r->call.ioctx_create(r->cluster, r->pool, &r->io);
    if (failed == -ENOENT)
        return efs_fail(err, -ENOENT, "%s: no such pool: %s\nhint: `ceph osd pool ls` lists them", r->label, r->pool);
    return failed < 0
               ? efs_fail(err, failed, "%s: pool: %s", r->label, efs_rados_reason(failed, reason, sizeof(reason)))
               : 0;
}

void efs_rados_close(struct efs_rados *r)
{
    if (r->io)
        r->call.ioctx_destroy(r->io);
    if (r->cluster)
        r->call.shutdown(r->cluster);
    r->io = r->cluster = NULL;
}

/* ---- the head ---- */

void efs_rados_oid(char oid[EFS_RADOS_OID_BYTES], const char *id, uint64_t number)
{
    snprintf(oid, EFS_RADOS_OID_BYTES, "%.16s.%016" PRIx64, id, number);
}

static bool parse_hex(const json_t *head, const char *key, char digits[17], uint64_t *value)
{
    const char *text = json_string_value(json_object_get(head, key));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    memcpy(digits, text, 17);
    *value = strtoull(text, NULL, 16);
    return true;
}

/* Checks a head, of which nothing is trusted. Sets all but modified. */
static errint_t head_parse(const json_t *json, struct efs_rados_head *head)
{
    char digits[17];
    uint64_t number;
    const json_int_t version = json_integer_value(json_object_get(json, "version"));
    const json_int_t size = json_integer_value(json_object_get(json, "bytes"));
    const json_int_t object = json_integer_value(json_object_get(json, "object_bytes"));
    if (version > 1)
        return -EPROTONOSUPPORT;
    /* object_bytes: whole pages; a read of the queue then touches few objects */
    if (version != 1 || size <= 0 || object < 65536 || object > (64 << 20) || object % 4096 != 0 ||
        !parse_hex(json, "id", head->id, &number) || !parse_hex(json, "content_hash", digits, &head->content_hash))
        return -EUCLEAN;
    head->bytes = (uint64_t)size;
    head->object_bytes = (uint32_t)object;
    return 0;
}

/* An object's bytes. replaced: NULL for a head. */
static errint_t object_parse(const char *text, size_t bytes, const char *wanted, struct efs_rados_head *head,
                             struct efs_rados_head *replaced)
{
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *format = json_string_value(json_object_get(json, "format"));
    const json_t *former = json_object_get(json, "replaces");
    errint_t rc = format && strcmp(format, wanted) == 0 ? head_parse(json, head) : -EUCLEAN;
    if (rc == 0 && replaced && former)
        rc = head_parse(former, replaced);
    json_decref(json);
    return rc;
}

static errint_t object_read(struct efs_rados *r, const char *name, const char *format, struct efs_rados_head *head,
                            struct efs_rados_head *replaced)
{
    char text[EFS_RADOS_HEAD_BYTES];
    uint64_t bytes = 0;
    time_t modified = 0;
    *head = (struct efs_rados_head){.modified = 0};
    if (replaced)
        *replaced = *head;
    int rc = r->call.stat(r->io, name, &bytes, &modified);
    if (rc == 0 && bytes <= sizeof(text))
        rc = r->call.read(r->io, name, text, sizeof(text), 0);
    if (rc < 0)
        return rc;
    head->modified = modified;
    return bytes > sizeof(text) ? -EUCLEAN : object_parse(text, (size_t)rc, format, head, replaced);
}

errint_t efs_rados_mark_read(struct efs_rados *r, const char *name, struct efs_rados_head *head,
                             struct efs_rados_head *replaced)
{
    return object_read(r, name, EFS_RADOS_MARK, head, replaced);
}

errint_t efs_rados_head_try(struct efs_rados *r, struct efs_rados_head *head)
{
    return object_read(r, r->name, EFS_RADOS_STORE, head, NULL);
}

errint_t efs_rados_head_read(struct efs_rados *r, struct efs_rados_head *head, struct efs_error *err)
{
    char reason[300];
    errint_t rc = efs_rados_head_try(r, head);
    if (rc == -ENOENT)
        return efs_fail(err, rc, "%s: no such store\nhint: `rados -p %s ls` lists the objects of the pool", r->label,
                        EFS_WORD(r->pool));
    if (rc == -EPROTONOSUPPORT)
        return efs_fail(err, rc, "%s: a later expertfs wrote it\nhint: use that", r->label);
    if (rc == -EUCLEAN)
        return efs_fail(err, rc, "%s: not a store of expertfs\nhint: `mkexpertfs --copy STORE %s` writes one", r->label,
                        EFS_WORD(r->label));
    return rc < 0 ? efs_fail(err, rc, "%s: %s", r->label, efs_rados_reason(rc, reason, sizeof(reason))) : 0;
}
