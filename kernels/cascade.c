/*
 * cascade.c - the cascade coder's chunk: its layout and checks, the choice of levels, the walk over blocks.
 *
 * What is done to the symbols of a block is in the processors' files (ops.h). Everything read from a chunk is checked
 * here before it is used, except what the planes say, which the paths check.
 */
#include "cascade_chunk.h"

#include <errno.h>
#include <string.h>

#define SYMBOLS_MAX (1u << 30)

static uint16_t read_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t read_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void write_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof(v));
}

static void write_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}

static size_t block_count(size_t symbols)
{
    return (symbols + EFS_BLOCK - 1) / EFS_BLOCK;
}

size_t efs_cascade_bound(size_t n)
{
    /* A block never needs more than its symbols as bytes: that is level 0. */
    return EFS_CHUNK_HEADER + block_count(n) * (4 + EFS_BLOCK_HEADER) + n + EFS_CASCADE_SLACK;
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

#define RANKS (3 * EFS_LEVELS)

/* A level costs time whenever the block is read, however few its symbols are: it must save more than this share of a
 * byte a symbol of the block (64 bytes of a whole one). */
#define LEVEL_PAYS_SHARE 128

/* Ranks the symbols by (count descending, symbol ascending), and takes as many levels as pay. */
static void plan_block(const uint64_t counts[256], uint32_t n, struct efs_cascade_block *plan)
{
    uint8_t ranked[RANKS];
    uint64_t ranked_count[RANKS];
    unsigned ranks = 0;

    for (unsigned symbol = 0; symbol < 256; symbol++) {
        uint64_t count = counts[symbol];
        unsigned at = ranks;
        if (count == 0 || (ranks == RANKS && count <= ranked_count[RANKS - 1]))
            continue;
        if (ranks < RANKS)
            ranks++;
        else
            at = RANKS - 1;
        for (; at > 0 && ranked_count[at - 1] < count; at--) {
            ranked[at] = ranked[at - 1];
            ranked_count[at] = ranked_count[at - 1];
        }
        ranked[at] = (uint8_t)symbol;
        ranked_count[at] = count;
    }

    memset(plan, 0, sizeof(*plan));
    plan->size[0] = n;
    size_t plane_bytes = 0, best_bytes = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t left = plan->size[level];
        for (unsigned r = 0; r < 3 && 3 * level + r < ranks; r++) {
            plan->table[level][r] = ranked[3 * level + r];
            plan->ranked[level] = (uint8_t)(r + 1);
            left -= (uint32_t)ranked_count[3 * level + r];
        }
        plan->size[level + 1] = left;
        plane_bytes += efs_plane_bytes(plan->size[level], 2);
        if (plane_bytes + left + n / LEVEL_PAYS_SHARE < best_bytes) {
            best_bytes = plane_bytes + left;
            plan->levels = level + 1;
        }
    }
}

/* Bytes of planes and rest. */
static size_t body_bytes(const struct efs_cascade_block *block)
{
    size_t bytes = block->size[block->levels];

    for (unsigned level = 0; level < block->levels; level++)
        bytes += efs_plane_bytes(block->size[level], 2);
    return bytes;
}

static size_t encode_block(const struct efs_kernel_ops *ops, const uint8_t *symbols, uint32_t n, uint8_t *dst)
{
    struct efs_cascade_block plan;
    uint64_t counts[256] = {0};

    ops->histogram(symbols, n, counts);
    plan_block(counts, n, &plan);
    memset(dst, 0, EFS_BLOCK_HEADER);
    dst[0] = (uint8_t)plan.levels;
    for (unsigned level = 0; level < plan.levels; level++) {
        write_u16(dst + 2 + 2 * level, (uint16_t)plan.size[level + 1]);
        memcpy(dst + 12 + 3 * level, plan.table[level], 3);
    }
    ops->encode(&plan, symbols, dst + EFS_BLOCK_HEADER);
    return EFS_BLOCK_HEADER + body_bytes(&plan);
}

size_t efs_cascade_encode(const uint8_t *symbols, size_t n, uint8_t *dst)
{
    const struct efs_kernel_ops *ops = efs_ops();
    size_t blocks = block_count(n);
    size_t at = EFS_CHUNK_HEADER + 4 * blocks;

    for (size_t b = 0; b < blocks; b++) {
        size_t first = b * EFS_BLOCK;
        uint32_t m = (uint32_t)(n - first < EFS_BLOCK ? n - first : EFS_BLOCK);
        write_u32(dst + EFS_CHUNK_HEADER + 4 * b, (uint32_t)at);
        at += encode_block(ops, symbols + first, m, dst + at);
    }
    memset(dst + at, 0, EFS_CASCADE_SLACK);
    at += EFS_CASCADE_SLACK;
    write_u32(dst, (uint32_t)n);
    write_u32(dst + 4, (uint32_t)blocks);
    write_u32(dst + 8, (uint32_t)at);
    write_u32(dst + 12, 0);
    return at;
}

/* ---- decoding ----------------------------------------------------------------------------------------------- */

int efs_chunk_open(const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk)
{
    if (chunk_bytes < EFS_CHUNK_HEADER + EFS_CASCADE_SLACK || chunk_bytes > UINT32_MAX)
        return -EUCLEAN;
    chunk->bytes = bytes;
    chunk->symbols = read_u32(bytes);
    chunk->blocks = read_u32(bytes + 4);
    if (chunk->symbols > SYMBOLS_MAX || chunk->blocks != block_count(chunk->symbols) ||
        read_u32(bytes + 8) != chunk_bytes || read_u32(bytes + 12) != 0)
        return -EUCLEAN;
    chunk->blocks_begin = EFS_CHUNK_HEADER + 4 * chunk->blocks; /* at most 2^17 blocks */
    chunk->blocks_end = (uint32_t)chunk_bytes - EFS_CASCADE_SLACK;
    return chunk->blocks_begin <= chunk->blocks_end ? 0 : -EUCLEAN;
}

/* Levels, sizes and table of the block whose EFS_BLOCK_HEADER bytes are at p. False when they contradict. */
static bool parse_block_header(const uint8_t *p, uint32_t n, struct efs_cascade_block *block)
{
    block->levels = p[0];
    if (block->levels > EFS_LEVELS || p[1] != 0 || p[EFS_BLOCK_HEADER - 1] != 0)
        return false;
    block->size[0] = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t escaped = read_u16(p + 2 + 2 * level);
        const uint8_t *table = p + 12 + 3 * level;
        if (level < block->levels ? escaped > block->size[level]
                                  : escaped != 0 || table[0] != 0 || table[1] != 0 || table[2] != 0)
            return false;
        block->size[level + 1] = escaped;
        memcpy(block->table[level], table, 3);
        block->table[level][3] = 0;
    }
    return true;
}

int efs_chunk_block(const struct efs_chunk *chunk, uint32_t b, struct efs_cascade_block *block)
{
    const uint8_t *offsets = chunk->bytes + EFS_CHUNK_HEADER;
    uint32_t begin = read_u32(offsets + 4 * (size_t)b);
    uint32_t end = b + 1 < chunk->blocks ? read_u32(offsets + 4 * ((size_t)b + 1)) : chunk->blocks_end;
    uint32_t left = chunk->symbols - b * EFS_BLOCK;

    if (begin < chunk->blocks_begin || end > chunk->blocks_end || begin > end || end - begin < EFS_BLOCK_HEADER)
        return -EUCLEAN;
    if (!parse_block_header(chunk->bytes + begin, left < EFS_BLOCK ? left : EFS_BLOCK, block))
        return -EUCLEAN;
    if (body_bytes(block) != end - begin - EFS_BLOCK_HEADER)
        return -EUCLEAN;

    const uint8_t *at = chunk->bytes + begin + EFS_BLOCK_HEADER;
    for (unsigned level = 0; level < block->levels; level++) {
        block->planes[level] = at;
        at += efs_plane_bytes(block->size[level], 2);
    }
    block->rest = at;
    return 0;
}

/* Decode and merge the elements [skip, skip + take) of a block that is not wanted whole. */
static bool merge_part(const struct efs_kernel_ops *ops, enum efs_format format, const struct efs_cascade_block *block,
                       const uint8_t *sm, size_t skip, size_t take, uint8_t *dst)
{
    uint8_t whole[4 * EFS_BLOCK]; /* F32 has the largest elements */
    size_t element_bytes = efs_format_bytes(format);

    if (!ops->decode_merge(format, block, sm, whole, false))
        return false;
    memcpy(dst, whole + skip * element_bytes, take * element_bytes);
    return true;
}

int efs_cascade_merge(enum efs_format format, const uint8_t *chunk_bytes, size_t chunk_size, const uint8_t *sm,
                      size_t sm_bytes, size_t first, size_t count, void *dst, bool stream)
{
    const struct efs_kernel_ops *ops = efs_ops();
    size_t element_bytes = efs_format_bytes(format), sm_step = efs_sm_bytes(format, EFS_BLOCK);
    uint8_t *to = dst;
    struct efs_chunk chunk;
    int r;

    if (element_bytes == 0)
        return -EINVAL;
    r = efs_chunk_open(chunk_bytes, chunk_size, &chunk);
    if (r != 0)
        return r;
    if (sm_bytes != efs_sm_bytes(format, chunk.symbols))
        return -EUCLEAN;
    if (first > chunk.symbols || count > chunk.symbols - first)
        return -EINVAL;

    while (count > 0 && r == 0) {
        struct efs_cascade_block block;
        uint32_t b = (uint32_t)(first / EFS_BLOCK);
        size_t skip = first % EFS_BLOCK;

        r = efs_chunk_block(&chunk, b, &block);
        if (r != 0)
            break;
        const uint8_t *block_sm = sm_step != 0 ? sm + b * sm_step : sm;
        size_t left = block.size[0] - skip;
        size_t take = count < left ? count : left;
        bool good = take == block.size[0] ? ops->decode_merge(format, &block, block_sm, to, stream)
                                          : merge_part(ops, format, &block, block_sm, skip, take, to);
        if (!good)
            r = -EUCLEAN;
        to += take * element_bytes;
        first += take;
        count -= take;
    }
    if (stream && ops->stream_end)
        ops->stream_end();
    return r;
}

int efs_cascade_decode(const uint8_t *chunk, size_t chunk_bytes, size_t first, size_t count, uint8_t *out)
{
    return efs_cascade_merge(EFS_FORMAT_BYTES, chunk, chunk_bytes, NULL, 0, first, count, out, false);
}
