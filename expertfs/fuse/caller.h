/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.h - who waits for an answer. The kernel says that a caller was interrupted, but not by what, and an EINTR for
 * a signal that is handled, or that only stops, would be an error that reads of files never give. Without an answer who
 * is ended waits all the same.
 */
#ifndef EFSD_CALLER_H
#define EFSD_CALLER_H

#include "mount.h"

/* In an interrupt function: is the caller's thread to end as soon as it has its answer? false, too, where /proc does
 * not tell. */
bool efsd_caller_ends(fuse_req_t req);

#endif
