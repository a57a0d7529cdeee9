/* SPDX-License-Identifier: Apache-2.0 */
/* sized.c - see sized.h. */
#include "sized.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* Is something set behind the bytes that are ours? */
static errint_t sized_check(const char *name, const char *from, size_t from_bytes, size_t bytes, struct efs_error *err)
{
    for (size_t i = bytes; i < from_bytes; i++)
        if (from[i])
            return efs_fail(err, -E2BIG, "struct %s: a member is set that this version of the library does not have",
                            name);
    return 0;
}

errint_t efs_sized_in(const char *name, const void *from, void *to, size_t bytes, struct efs_error *err)
{
    uint32_t size;
    memcpy(&size, from, sizeof(size));
    if (size <= sizeof(size))
        return efs_fail(err, -EINVAL, "struct %s: size is %u: set it to sizeof(struct %s)", name, size, name);
    errint_t rc = sized_check(name, from, size, bytes, err);
    if (rc < 0)
        return rc;
    efs_sized_out(to, bytes, from, size);
    size = (uint32_t)bytes;
    memcpy(to, &size, sizeof(size));
    return 0;
}

errint_t efs_sized_array(const char *name, const void *from, size_t from_bytes, size_t count, size_t bytes,
                         const void **to, void **copy, struct efs_error *err)
{
    *to = from;
    *copy = NULL;
    if (from_bytes == 0)
        return efs_fail(err, -EINVAL, "array of struct %s: the size of one is 0: set it to sizeof(struct %s)", name,
                        name);
    if (from_bytes == bytes || count == 0)
        return 0;
    char *ours = efs_sys_calloc(count, bytes);
    errint_t rc = ours ? 0 : efs_fail(err, -ENOMEM, "no memory for an array of struct %s", name);
    for (size_t i = 0; i < count && rc == 0; i++) {
        const char *one = (const char *)from + i * from_bytes;
        rc = sized_check(name, one, from_bytes, bytes, err);
        efs_sized_out(ours + i * bytes, bytes, one, from_bytes);
    }
    if (rc < 0) {
        free(ours);
        return rc;
    }
    *to = *copy = ours;
    return 0;
}
