/* SPDX-License-Identifier: Apache-2.0 */
/* mount_helper.h - the command line with which mount(8) calls /sbin/mount.expertfs. */
#ifndef EFSD_MOUNT_HELPER_H
#define EFSD_MOUNT_HELPER_H

#include "options.h"

/* Whether the program was called by a name mount.TYPE. */
bool efsd_mount_helper_called(const char *name);
/* Parses SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]. *fake: -f, only check the options. -EINVAL or
 * -ENOMEM with the reason in err. */
errint_t efsd_mount_helper_parse(int argc, char **argv, struct efsd_options *options, bool *fake,
                                 struct efs_error *err);

#endif
