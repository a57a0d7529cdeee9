/* SPDX-License-Identifier: Apache-2.0 */
/* local_copy.h - where `up --remote` keeps a copy of what it reads. */
#ifndef EXPERTCTL_LOCAL_COPY_H
#define EXPERTCTL_LOCAL_COPY_H

#include <stddef.h>

/* The options of a mount that keep a copy in the user's cache, of half of what is free there, and a line that says so
 * on standard error. text: "" if `options` names a copy (may be NULL), or if there is no cache or too little space. */
void ctl_local_copy(const char *options, char *text, size_t room);

#endif
