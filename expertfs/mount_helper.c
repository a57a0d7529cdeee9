/* SPDX-License-Identifier: Apache-2.0 */
/* mount_helper.c - see mount_helper.h. */
#include "mount_helper.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

bool efsd_mount_helper_called(const char *name)
{
    const char *slash = strrchr(name, '/');
    return strncmp(slash ? slash + 1 : name, "mount.", 6) == 0;
}

errint_t efsd_mount_helper_parse(int argc, char **argv, struct efsd_options *options, bool *fake, struct efs_error *err)
{
    int letter;
    errint_t rc = 0;
    *fake = false;
    opterr = 0;
    while (!rc && (letter = getopt(argc, argv, "sfnvN:o:t:")) != -1) {
        if (letter == 'o')
            rc = efsd_options_parse(options, optarg, err);
        else if (letter == '?')
            rc = efs_fail(err, -EINVAL, "unknown option -%c\nhint: mount -t expertfs -o OPTIONS STORE MOUNTPOINT",
                          optopt);
        *fake |= letter == 'f';
    }
    if (!rc && argc - optind != 2)
        rc = efs_fail(err, -EINVAL, "a store and a mountpoint are needed");
    if (!rc)
        rc = efsd_options_check(options, err);
    if (rc)
        return rc;
    options->store = strdup(argv[optind]);
    options->mountpoint = strdup(argv[optind + 1]);
    return options->store && options->mountpoint ? 0 : efs_fail(err, -ENOMEM, "no memory");
}
