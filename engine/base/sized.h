/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sized.h - structs of the public headers can grow: their size comes with them, and programs that were built before a
 * member was there know nothing of it. A new member stands behind the last one, at the size that the struct had before
 * or farther: what pads a struct at its end holds anything in programs of that time.
 */
#ifndef EFS_SIZED_H
#define EFS_SIZED_H

#include "expertfs.h"

#include <string.h>

/* A struct that a caller has filled, which begins with its size, into one of ours, of bytes: members that it does not
 * have are 0. -EINVAL: the size was not set; -E2BIG: something is set that only a later version has. */
errint_t efs_sized_in(const char *name, const void *from, void *to, size_t bytes, struct efs_error *err);

/* A caller's array of count elements of from_bytes each as one of ours, of bytes each: *to is the caller's own if they
 * are alike, else a copy, which the caller frees as *copy (NULL: none). -EINVAL: from_bytes is 0; -E2BIG as above;
 * -ENOMEM.
 */
errint_t efs_sized_array(const char *name, const void *from, size_t from_bytes, size_t count, size_t bytes,
                         const void **to, void **copy, struct efs_error *err);

/* One of ours, of bytes, into a caller's, of to_bytes: what that does not know is left out, what we do not is 0. */
static inline void efs_sized_out(void *to, size_t to_bytes, const void *from, size_t bytes)
{
    size_t common = to_bytes < bytes ? to_bytes : bytes;
    memcpy(to, from, common);
    memset((char *)to + common, 0, to_bytes - common);
}

#endif
