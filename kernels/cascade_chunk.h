/*
 * cascade_chunk.h - a cascade chunk opened and checked, block by block. Private to kernels/.
 */
#ifndef EFS_KERNELS_CASCADE_CHUNK_H
#define EFS_KERNELS_CASCADE_CHUNK_H

#include "ops.h"

struct efs_chunk {
    const uint8_t *bytes;
    uint32_t symbols, blocks;
    uint32_t blocks_begin, blocks_end; /* where the blocks lie, offsets in bytes */
};

/* Checks the header of a chunk of chunk_bytes bytes. 0 or -EUCLEAN. The chunk must stay while it is in use. */
int efs_chunk_open(const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk);
/* Block b < chunk->blocks, with all that ops.h says of an opened block. 0 or -EUCLEAN. */
int efs_chunk_block(const struct efs_chunk *chunk, uint32_t b, struct efs_cascade_block *block);

#endif
