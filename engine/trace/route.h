/* SPDX-License-Identifier: Apache-2.0 */
/* route.h - a routing trace from memory, for tests; expertfs-private.h has the rest. */
#ifndef EFS_ROUTE_H
#define EFS_ROUTE_H

#include "expertfs-private.h"

/* efs_route_read() of the bytes of a file; name is for messages. */
errint_t efs_route_parse(const char *name, const void *data, size_t bytes, struct efs_route *route,
                         struct efs_error *err);

#endif
