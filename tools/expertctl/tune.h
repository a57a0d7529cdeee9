/* SPDX-License-Identifier: Apache-2.0 */
/* tune.h - settings of a mount that serves. */
#ifndef EXPERTCTL_TUNE_H
#define EXPERTCTL_TUNE_H

#include "expertfs.h"

#include <jansson.h>

/* Makes the setting NAME=VALUE of path, in the mount at root, or resets NAME. Prints a warning of the daemon. Adds the
 * new value to the object `values` unless that is NULL. Fails with the daemon's reason in err. */
errint_t ctl_setting_make(const char *root, const char *path, const char *pair, json_t *values, struct efs_error *err);

/* Applies options as of -o, which expertfs accepts, to a mount: makes the settings among them, and warns of those that
 * have an effect only when it is mounted. Stops at a setting that is refused, as ctl_setting_make(). */
errint_t ctl_options_apply(const char *root, const char *options, struct efs_error *err);

#endif
