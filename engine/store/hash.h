/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.h - XXH3_64 of memory: the checksum of chunks, tables and raw shards. It is part of the store format.
 */
#ifndef EFS_HASH_H
#define EFS_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3_64bits with seed 0 of `bytes` bytes at data. The result is the same on every CPU. */
uint64_t efs_hash(const void *data, size_t bytes);

#endif
