/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - finds the mount of a path, and all mounts of expertfs. */
#ifndef EXPERTCTL_MOUNTPOINT_H
#define EXPERTCTL_MOUNTPOINT_H

#include "expertfs.h"

#include <sys/types.h>

#define CTL_XATTR "user.expertfs."

/* The root of the expertfs mount that contains the path `given`, or whose name it is (ctl_mount_choose); the caller
 * frees it with free(). -ENODEV: the path is in no mount that has the attributes user.expertfs.*; -ENOENT: neither a
 * path nor a name; -E2BIG: several mounts have that name; errors of ctl_mount_check(); else -errno of stat(). */
errint_t ctl_mount_of(const char *given, char **root, struct efs_error *err);
/* Whether path has the attribute user.expertfs.answer, as the root of a mount has. */
bool ctl_is_mount(const char *path);
/* As efs_store_open(); for a mount point the error names the store that it serves. Of an address what may be secret is
 * cut off afterwards. */
errint_t ctl_store_open(char *path, struct efs_store **store, struct efs_error *err);
/* The visible mounts of type fuse.expertfs in mountinfo, each once, in the order of mounting. Makes no call on a mount,
 * so it does not block on a daemon. */
struct ctl_mounts {
    struct ctl_mount {
        char *path, *source; /* source: the store, unless -o fsname named another */
        dev_t device;
        int parent;  /* id of the parent mount */
        uid_t user;  /* owner of the mount */
        bool usable; /* by this user: the own one, or with allow_other */
    } * mount;
    size_t count;
};
errint_t ctl_mounts_find(struct ctl_mounts *mounts, struct efs_error *err);
void ctl_mounts_free(struct ctl_mounts *mounts);
/* The mount at this path; NULL: none. */
const struct ctl_mount *ctl_mount_at(const struct ctl_mounts *mounts, const char *path);
/* Whether the mount serves the file at this address; false for a path. */
bool ctl_mount_is_of_address(const struct ctl_mount *mount, const char *given);
/* The mount at the path `given`, or with that name: the last part of its path, else the name of its store, also as
 * org/name; else the mount that contains this path. Does not block on a daemon for more than 4 s. -ENOENT: none;
 * -E2BIG: several, which err lists. */
errint_t ctl_mount_choose(const struct ctl_mounts *mounts, const char *given, const struct ctl_mount **mount,
                          struct efs_error *err);
/* Whether the daemon of the mount that contains path answers: 0; -ENOTCONN: it has ended; -ETIMEDOUT: not within
 * timeout_ms; else -errno of a call on path. *held unless NULL: a request that was not answered keeps the mount in use,
 * because the daemon has taken it. */
errint_t ctl_mount_state(const char *path, int timeout_ms, bool *held);
/* After a call on root failed: whether it is because the mount was unmounted, which is then printed. */
bool ctl_mount_was_unmounted(const char *root);
/* As ctl_mount_state() within 3 s, with a message and a way out: 0, -ENOTCONN or -ETIMEDOUT. */
errint_t ctl_mount_check(const char *root, struct efs_error *err);
/* The same for the mount above a path, by the text of the path; 0 if there is none. */
errint_t ctl_mount_check_above(const char *path, struct efs_error *err);
/* The path of the only mount of type fuse.expertfs that this user may use; the caller frees it with free(). -ENOENT: no
 * mount; -E2BIG: several mounts, which err lists; errors of ctl_mount_check(). */
errint_t ctl_mount_only(char **root, struct efs_error *err);
/* Whether the store of a mount, or the model that it serves in place, was removed or replaced since it was mounted, by
 * its config: words that say so, which the caller frees with free(). NULL: neither. A file that was written to is the
 * same file. mount_store.c. */
char *ctl_mount_store_lost(const char *config);
/* Unmounts, waits for the daemon to end, and removes the mount point that `up` made. lazy: detaches a mount that is in
 * use. -EBUSY: in use; -EPERM; messages in err. down.c. */
errint_t ctl_mount_end(const struct ctl_mount *mount, bool lazy, struct efs_error *err);
/* Whether this process may mount and unmount itself, by CAP_SYS_ADMIN; else fusermount3 does it. */
bool ctl_may_mount(void);
/* As tools_control_read(), but gives up when the daemon sends nothing for timeout_ms. The caller frees the text. NULL:
 * no answer in time, an error, or an empty file. */
char *ctl_mount_probe(const char *root, const char *file, int timeout_ms);

#endif
