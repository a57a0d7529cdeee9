/* SPDX-License-Identifier: Apache-2.0 */
/* up_print.h - what `expertctl up` prints of a mount. */
#ifndef EXPERTCTL_UP_PRINT_H
#define EXPERTCTL_UP_PRINT_H

#include "model.h"

#include <stdbool.h>

/* Prints the mount of the model at path, which has this config, in four lines or as JSON. Returns the exit status. */
int ctl_up_print(const struct ctl_model *model, const char *path, const char *config, bool json);

#endif
