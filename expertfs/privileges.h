/* SPDX-License-Identifier: Apache-2.0 */
/* privileges.h - drops the privileges of a daemon that runs as root, to limit the damage of an exploit. */
#ifndef EFSD_PRIVILEGES_H
#define EFSD_PRIVILEGES_H

#include "expertfs.h"

/*
 * Permanently drops all capabilities except those that the daemon needs, also from the bounding set; as root also sets
 * no_new_privs. Does nothing in a process without capabilities: the daemon of a user mounts through fusermount3, which
 * is set-user-ID. A needed capability that the process lacks is not an error. Call before starting threads, which
 * inherit the result. -errno of the failed system call, with err.
 */
errint_t efsd_privileges_drop(struct efs_error *err);

#endif
