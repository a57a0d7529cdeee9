/* SPDX-License-Identifier: Apache-2.0 */
/* top_view.h - what `expertctl top` shows, as lines of text and as JSON. */
#ifndef EXPERTCTL_TOP_VIEW_H
#define EXPERTCTL_TOP_VIEW_H

#include "top_sample.h"

#include <stdio.h>

/*
 * Two samples as lines of at most 80 letters, but for long paths: rates between them, or since the mount began if
 * before is NULL; at most expert_rows experts. A line that is a head of columns begins with '\1', which is not to be
 * printed.
 */
void top_view(FILE *out, const char *root, const struct top_sample *before, const struct top_sample *now,
              size_t expert_rows);
/* Lines above the experts, the head of those included. */
#define TOP_VIEW_LINES 17u

struct json_t;
/* The same as an object; NULL: no memory. */
struct json_t *top_view_json(const char *root, const struct top_sample *before, const struct top_sample *now,
                             size_t expert_rows);

#endif
