/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_packets.h - sizes of packets, by the table of expertfs-protocol.h. */
#ifndef EFS_FUZZ_PACKETS_H
#define EFS_FUZZ_PACKETS_H

#include "expertfs-protocol.h"

#define FUZZ_SHAPE(number, name, sender, handler, ...) [number] = __VA_ARGS__,

/* The number of items with which a packet of this kind and size is valid, if there is one; else any. */
static inline uint32_t fuzz_items(uint32_t kind, uint32_t bytes)
{
    static const struct efs_export_shape all[EFS_EXPORT_KINDS] = {EFS_EXPORT_PACKETS(FUZZ_SHAPE)};
    const struct efs_export_shape shape = kind < EFS_EXPORT_KINDS ? all[kind] : all[0];
    return bytes < shape.fixed_bytes ? 0 : shape.item_bytes ? (bytes - shape.fixed_bytes) / shape.item_bytes : 1;
}

#endif
