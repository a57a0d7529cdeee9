/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.h - is the caller of a request being killed? The kernel reports that a caller was interrupted, but not by
 * which signal. Replying EINTR for a signal that is handled, or that stops the process, would be an error that reads of
 * regular files never return; but a caller that is being killed does not exit before its request is answered.
 */
#ifndef EFSD_CALLER_H
#define EFSD_CALLER_H

#include "mount.h"

/* Call from an interrupt function. True if a pending signal kills the caller's thread as soon as its request is
 * answered. False, too, if /proc does not show the thread's signals. */
bool efsd_caller_is_killed(fuse_req_t req);

#endif
