/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.c - .expertfs/want: what a runtime says that it needs, as lines written to the file.
 *
 * A write(2) is one message: all of its lines are taken, or none. Nothing is kept between writes; where in the file a
 * write goes does not matter.
 */
#include "want.h"

#include <errno.h>
#include <string.h>

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
