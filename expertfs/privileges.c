/* SPDX-License-Identifier: Apache-2.0 */
/* privileges.c - see privileges.h. */
#include "privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* SYS_ADMIN: mount, unmount, register backing files with the kernel, create private file systems. DAC_READ_SEARCH and
 * DAC_OVERRIDE: open stores, sockets and state directories of other users. IPC_LOCK: register the chunk pool with
 * io_uring regardless of RLIMIT_MEMLOCK. expertfs@.service grants the first three and sets no limit. */
static const uint64_t kept = UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_DAC_READ_SEARCH |
                             UINT64_C(1) << CAP_DAC_OVERRIDE | UINT64_C(1) << CAP_IPC_LOCK;

errint_t efsd_privileges_drop(struct efs_error *err)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct now[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capget, &header, now) < 0)
        return efs_fail(err, -errno, "capget: %s", strerror(errno));
    if (now[0].permitted == 0 && now[1].permitted == 0)
        return 0;
    /* The bounding set first: this needs CAP_SETPCAP, which capset() drops. EPERM, without it, is no error. */
    for (unsigned long c = 0; prctl(PR_CAPBSET_READ, c) >= 0; c++)
        if (!(kept >> c & 1) && prctl(PR_CAPBSET_DROP, c) < 0 && errno != EPERM)
            return efs_fail(err, -errno, "capability %lu cannot be dropped: %s", c, strerror(errno));
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        now[i].permitted &= (uint32_t)(kept >> (32 * i));
        now[i].effective &= now[i].permitted;
        now[i].inheritable = 0;
    }
    if (syscall(SYS_capset, &header, now) < 0)
        return efs_fail(err, -errno, "capset: %s", strerror(errno));
    if (geteuid() == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return efs_fail(err, -errno, "no_new_privs: %s", strerror(errno));
    return 0;
}
