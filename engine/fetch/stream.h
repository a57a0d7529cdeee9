/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - a stream of reads (expertfs-private.h). Private to fetch/. */
#ifndef EFS_STREAM_H
#define EFS_STREAM_H

#include <stdbool.h>

struct efs_stream { /* walks are shared by all streams: efs_extents.streams */
    bool no_readahead, may_block;
};

#endif
