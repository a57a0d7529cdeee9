/* SPDX-License-Identifier: Apache-2.0 */
/* options_apply.c - the options of `expertctl up -o` on a model that is mounted already. */
#include "tune.h"

#include "expertfs-private.h"
#include "mountpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

/* The value of a setting; false: the mount has no setting of this name. */
static bool setting_read(const char *root, const char *option, char *value, size_t room)
{
    char name[128];
    bool fits =
        (size_t)snprintf(name, sizeof(name), CTL_XATTR "%.*s", (int)strcspn(option, "="), option) < sizeof(name);
    ssize_t n = fits && strchr(option, '=') ? getxattr(root, name, value, room - 1) : -1;
    value[n < 0 ? 0 : n] = '\0';
    return n >= 0;
}

errint_t ctl_options_apply(const char *root, const char *options, struct efs_error *err)
{
    char *copy = strdup(options), *rest = copy, value[512], others[512] = "";
    errint_t rc = copy ? 0 : efs_fail(err, -ENOMEM, "no memory");
    for (const char *option; rc == 0 && (option = strsep(&rest, ","));) {
        size_t used = strlen(others);
        if (!setting_read(root, option, value, sizeof(value)))
            snprintf(others + used, sizeof(others) - used, "%s%s", used && *option ? "," : "", option);
        else if (strcmp(strchr(option, '=') + 1, value) != 0)
            rc = ctl_setting_make(root, root, option, NULL, err);
    }
    if (rc == 0 && *others)
        fprintf(stderr,
                "expertctl: warning: %s: mounted already: -o %s has an effect only when it is mounted\n"
                "hint: `expertctl down %s` first\n",
                root, others, EFS_WORD(root));
    free(copy);
    return rc;
}
