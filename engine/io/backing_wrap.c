/* SPDX-License-Identifier: Apache-2.0 */
/* backing_wrap.c - a backing around another one. */
#include "backing.h"

void efs_backing_start_inner(struct efs_backing *inner, const struct efs_backing *outer,
                             void (*ended)(void *owner, struct efs_backing_read *read, ssize_t result), void *owner)
{
    inner->ended = ended;
    inner->owner = owner;
    inner->say = outer->say;
    inner->say_arg = outer->say_arg;
    inner->stats = outer->stats;
    inner->segments = outer->segments;
    inner->wake_fd = outer->wake_fd;
    if (inner->ops->start)
        inner->ops->start(inner);
}
