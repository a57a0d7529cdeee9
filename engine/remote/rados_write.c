/* SPDX-License-Identifier: Apache-2.0 */
/* rados_write.c - see rados_write.h. */
#include "rados_write.h"

#include "expertfs-private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int efs_rados_write_object(const struct efs_rados *r, const char *name, uint64_t version, const void *data,
                           size_t bytes, int full)
{
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    if (version)
        r->call.write_op_assert_version(op, version);
    else
        r->call.write_op_create(op, 1, NULL);
    r->call.write_op_write_full(op, data, bytes);
    int rc = r->call.write_op_operate(op, r->io, name, NULL, full);
    r->call.release_write_op(op);
    return rc;
}

int efs_rados_remove_object(const struct efs_rados *r, const char *name)
{
    void *op = r->call.create_write_op();
    if (!op)
        return -ENOMEM;
    r->call.write_op_remove(op);
    int rc = r->call.write_op_operate(op, r->io, name, NULL, EFS_RADOS_FULL_FORCE);
    r->call.release_write_op(op);
    return rc;
}

bool efs_rados_is_changed(int rc)
{
    return rc == -EEXIST || rc == -ERANGE || rc == -EOVERFLOW || rc == -ENOENT;
}

static void print_fields(const struct efs_rados_head *head, char text[256])
{
    snprintf(text, 256,
             "\"version\": 1, \"id\": \"%s\", \"bytes\": %" PRIu64 ", \"object_bytes\": %" PRIu32
             ", \"content_hash\": \"%016" PRIx64 "\"",
             head->id, head->bytes, head->object_bytes, head->content_hash);
}

int efs_rados_write_head(const struct efs_rados *r, const struct efs_rados_head *head, uint64_t version)
{
    char fields[256], text[320];
    print_fields(head, fields);
    int bytes = snprintf(text, sizeof(text), "{\"format\": \"" EFS_RADOS_STORE "\", %s}\n", fields);
    return efs_rados_write_object(r, r->name, version, text, (size_t)bytes, EFS_RADOS_FULL_TRY);
}

int efs_rados_write_mark(const struct efs_rados *r, const char *mark, const struct efs_rados_head *head,
                         const struct efs_rados_head *replaced, int full)
{
    char fields[256], former[256], text[640];
    print_fields(head, fields);
    int bytes = snprintf(text, sizeof(text), "{\"format\": \"" EFS_RADOS_MARK "\", %s", fields);
    if (replaced && *replaced->id) {
        print_fields(replaced, former);
        bytes += snprintf(text + bytes, sizeof(text) - (size_t)bytes, ", \"replaces\": {%s}", former);
    }
    bytes += snprintf(text + bytes, sizeof(text) - (size_t)bytes, "}\n");
    return efs_rados_write_object(r, mark, 0, text, (size_t)bytes, full);
}

errint_t efs_rados_mark_name(const struct efs_rados *r, char name[EFS_RADOS_MARK_BYTES], struct efs_error *err)
{
    const size_t bytes = strlen(r->name), end = strlen(EFS_RADOS_MARK_END);
    if (bytes >= end && strcmp(r->name + bytes - end, EFS_RADOS_MARK_END) == 0)
        return efs_fail(err, -EINVAL,
                        "%s: the ending " EFS_RADOS_MARK_END " marks what is unfinished\nhint: choose "
                        "another name",
                        r->label);
    snprintf(name, EFS_RADOS_MARK_BYTES, "%s" EFS_RADOS_MARK_END, r->name);
    return 0;
}

int efs_rados_remove_objects(const struct efs_rados *r, const char *id, uint64_t end)
{
    char oid[EFS_RADOS_OID_BYTES];
    int failed = 0;
    for (uint64_t i = 0; i < end; i++) {
        efs_rados_oid(oid, id, i);
        int rc = efs_rados_remove_object(r, oid);
        failed = rc < 0 && rc != -ENOENT && !failed ? rc : failed;
    }
    return failed;
}

int efs_rados_remove_store(const struct efs_rados *r, const struct efs_rados_head *head)
{
    return efs_rados_remove_objects(r, head->id, (head->bytes + head->object_bytes - 1) / head->object_bytes);
}

errint_t efs_rados_fail(const struct efs_rados *r, int rc, struct efs_error *err)
{
    char reason[300];
    return efs_fail(err, rc, "%s: %s", r->label, efs_rados_reason(rc, reason, sizeof(reason)));
}

errint_t efs_rados_fail_marked(struct efs_rados *r, const char *mark, struct efs_error *err)
{
    struct efs_rados_head head;
    if (efs_rados_mark_read(r, mark, &head, NULL) == -EUCLEAN)
        return efs_fail(err, -EEXIST, "%s: the object %s is in the way\nhint: choose another name", r->label, mark);
    return efs_fail(
        err, -EEXIST,
        "%s: a copy to this name, or its deletion, runs or was killed\nhint: `expertctl rm --unfinished %s` "
        "deletes what a killed one left",
        r->label, EFS_WORD(r->label));
}
