/* SPDX-License-Identifier: Apache-2.0 */
/* sized.c - see sized.h. */
#include "sized.h"

#include <errno.h>

errint_t efs_sized_in(const char *name, const void *from, void *to, size_t bytes, struct efs_error *err)
{
    uint32_t size;
    memcpy(&size, from, sizeof(size));
    if (size <= sizeof(size))
        return efs_fail(err, -EINVAL, "struct %s: size is %u: set it to sizeof(struct %s)", name, size, name);
    for (size_t i = bytes; i < size; i++)
        if (((const char *)from)[i])
            return efs_fail(err, -E2BIG, "struct %s: a member is set that this version of the library does not have",
                            name);
    efs_sized_out(to, bytes, from, size);
    size = (uint32_t)bytes;
    memcpy(to, &size, sizeof(size));
    return 0;
}
