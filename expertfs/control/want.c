/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.c - .expertfs/want: what a runtime says that it needs, as lines written to the file or by an ioctl.
 *
 * A write(2) is one message: all of its lines are taken, or none. Nothing is kept between writes; where in the file a
 * write goes does not matter.
 */
#include "want.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "control.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "expertfs-protocol.h"
#include "log.h"

bool efsd_is_want(const struct efsd *daemon, uint32_t node)
{
    const struct efsd_node *n = &daemon->tree.nodes[node];
    return n->kind == EFSD_CONTROL && n->id == EFSD_CONTROL_WANT;
}

/* Refused ones are told, at most one a second: a runtime that is wrong is so many times a second. */
static void tell_refused(struct efsd *daemon, uid_t user, const char *why)
{
    int64_t now = time(NULL);
    if (atomic_exchange_explicit(&daemon->tuning.want_logged, now, memory_order_relaxed) != now)
        efsd_log(EFS_LOG_WARNING, "invalid request of user %u: %s", (unsigned)user, why);
    efsd_answer(daemon, why);
}

errint_t efsd_want_take(struct efsd *daemon, uid_t user, const char *text, size_t bytes)
{
    struct efs_error err = {.text = ""};
    errint_t rc = efs_want(daemon->fs, text, bytes, &err);
    efsd_count(rc ? &daemon->counters.want_errors : &daemon->counters.wants, 1);
    if (rc)
        tell_refused(daemon, user, *err.text ? err.text : strerror(-rc));
    return rc;
}

void efsd_want_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
                     struct fuse_file_info *file)
{
    struct efsd *daemon = fuse_req_userdata(req);
    uint32_t node;
    (void)offset;
    if (!efsd_node_of(daemon, ino, &node) || !efsd_is_want(daemon, node) || file->writepage) {
        fuse_reply_err(req, EROFS); /* writepage: through a mapping, in pieces that nobody chose */
        return;
    }
    errint_t rc = efsd_want_take(daemon, fuse_req_ctx(req)->uid, data, bytes);
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_write(req, bytes);
}

/* A request as a line, so that there is one way in. 0, -EINVAL. */
static errint_t line_of(const struct efs_want_ioctl *want, char *line, size_t room, size_t *bytes)
{
    if (want->size != sizeof(*want) || want->flags || want->count > EFS_WANT_IOCTL_EXPERTS)
        return -EINVAL;
    size_t used = (size_t)snprintf(line, room, "%u:", want->layer);
    for (uint32_t i = 0; i < want->count; i++)
        used += (size_t)snprintf(line + used, room - used, " %u*%u", want->want[i].expert, want->want[i].tokens);
    *bytes = used;
    return 0;
}

void efsd_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned command, void *argument, struct fuse_file_info *file,
                unsigned flags, const void *in, size_t in_bytes, size_t out_bytes)
{
    struct efsd *daemon = fuse_req_userdata(req);
    struct efs_want_ioctl want;
    char line[EFS_WANT_IOCTL_EXPERTS * 24 + 16];
    size_t bytes;
    uint32_t node;
    (void)argument, (void)file, (void)flags, (void)out_bytes;
    if (command != EFS_IOC_WANT || !efsd_node_of(daemon, ino, &node) ||
        (node != EFSD_ROOT && !efsd_is_want(daemon, node))) {
        fuse_reply_err(req, ENOTTY);
        return;
    }
    if (!efsd_may_tune(daemon, req)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    if (in_bytes != sizeof(want)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    memcpy(&want, in, sizeof(want));
    errint_t rc = line_of(&want, line, sizeof(line), &bytes);
    if (rc) {
        efsd_count(&daemon->counters.want_errors, 1);
        tell_refused(daemon, fuse_req_ctx(req)->uid,
                     "a struct efs_want_ioctl of another size, with flags, or with more than 64 experts");
    } else {
        rc = efsd_want_take(daemon, fuse_req_ctx(req)->uid, line, bytes);
    }
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_ioctl(req, 0, NULL, 0);
}
