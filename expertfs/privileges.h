/* SPDX-License-Identifier: Apache-2.0 */
/* privileges.h - what a daemon of root gives up, so that one that was taken over can do less. */
#ifndef EFSD_PRIVILEGES_H
#define EFSD_PRIVILEGES_H

#include "expertfs.h"

/*
 * Drop all capabilities but those that are needed, for ever, also from the bounding set, and the right to gain others
 * by running programs. Before threads are begun, which inherit it. Who has none keeps what he has: a user's daemon
 * mounts by fusermount3, which is set-user-ID. Capabilities that the process lacks are no error. -errno of the system,
 * with err.
 */
errint_t efsd_privileges_drop(struct efs_error *err);

#endif
