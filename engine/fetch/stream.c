/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - creates and frees streams. */
#include "stream.h"

#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **out)
{
    (void)fs;
    *out = NULL;
    if (hints & ~(uint32_t)(EFS_STREAM_NO_READAHEAD | EFS_STREAM_MAY_BLOCK))
        return -EINVAL;
    struct efs_stream *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s =
        (struct efs_stream){.no_readahead = hints & EFS_STREAM_NO_READAHEAD, .may_block = hints & EFS_STREAM_MAY_BLOCK};
    *out = s;
    return 0;
}

void efs_stream_free(struct efs_stream *stream)
{
    free(stream);
}
