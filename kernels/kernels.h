/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - splits and merges floats, codes and decodes exponents.
 *
 * kernels/ does the arithmetic on weights in memory: it splits, codes, decodes and multiplies them, on the CPU and, in
 * cuda/, on GPUs. store/, pack/, cache/, planner/, serve/, gpu/ and compute/ of the engine and tools/bench_kernels call
 * it. It never does I/O, starts threads or allocates.
 *
 * Every function is reentrant. The only state is the code path in use, chosen at the first call by the CPU's features
 * (or by EXPERTFS_CPU, see efs_cpu_name()).
 *
 * A float of any supported format is cut in two (ZipMoE 3.1, "bit-field decomposition"):
 *   E   one byte an element that holds the exponent field (BYTES: the whole byte),
 *   SM  sign and mantissa, packed (see efs_sm_bytes()).
 * Elements are handled in blocks of EFS_BLOCK; E and SM of a block are readable without the blocks before it.
 */
#ifndef EFS_KERNELS_H
#define EFS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Elements per block: the unit of random access inside a chunk. */
#define EFS_BLOCK_LOG2 13
#define EFS_BLOCK (1u << EFS_BLOCK_LOG2)

/* Formats that have an exponent worth coding. The values are part of the store format. */
enum efs_format {
    EFS_FORMAT_BYTES = 0, /* E = the byte itself, no SM: scales, text, anything */
    EFS_FORMAT_BF16 = 1,  /* 1 sign, 8 exponent, 7 mantissa */
    EFS_FORMAT_F16 = 2,   /* 1, 5, 10 */
    EFS_FORMAT_F32 = 3,   /* 1, 8, 23 */
    EFS_FORMAT_E4M3 = 4,  /* 1, 4, 3 */
    EFS_FORMAT_E5M2 = 5,  /* 1, 5, 2 */
    EFS_FORMAT_COUNT
};

/* Bytes of one element; 0 for an unknown format. */
size_t efs_format_bytes(enum efs_format format);
/*
 * Bytes of the SM stream of n elements, n in elements from a block boundary. The SM of block b starts at
 * b * efs_sm_bytes(format, EFS_BLOCK). A block of m elements (m = EFS_BLOCK, the last block may have fewer) stores, in
 * order:
 *
 *   BF16  m bytes: sign << 7 | mantissa
 *   F32   m bytes: sign << 7 | top 7 mantissa bits, then m little-endian u16: the low 16 mantissa bits
 *   F16   m bytes: low 8 mantissa bits, then ceil(m/4) bytes: the top two mantissa bits in 2-bit planes, then
 *         ceil(m/8) bytes: the signs in 1-bit planes
 *   E4M3  ceil(m/2) bytes: sign << 3 | mantissa in 4-bit planes
 *   E5M2  ceil(m/4) bytes: mantissa in 2-bit planes, then ceil(m/8) bytes: the signs in 1-bit planes
 *
 * A b-bit plane stream of m values has w = ceil(m * b / 8) bytes; byte j holds, from its low bits up, the
 * values j, w + j, 2w + j, ... (absent values are 0), so that unpacking is a shift and a mask.
 */
size_t efs_sm_bytes(enum efs_format format, size_t n);

/* Split n elements of src into E (n bytes) and SM (efs_sm_bytes(format, n) bytes). Buffers must not overlap. */
void efs_split(enum efs_format format, const void *src, size_t n, uint8_t *e, uint8_t *sm);
/* The same with blocks of EFS_SHORT_BLOCK elements, for efs_cascade_encode_short(). SM has as many bytes; for BF16 it
 * is the same. */
void efs_split_short(enum efs_format format, const void *src, size_t n, uint8_t *e, uint8_t *sm);
#define EFS_SHORT_BLOCK 1024u
/* The inverse: n elements, from a block boundary, into dst. */
void efs_merge(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t n, void *dst);

/* Add the byte counts of data to counts[256]. */
void efs_histogram(const uint8_t *data, size_t n, uint64_t counts[256]);

/*
 * The cascade coder (expertfs-store(5)). Symbols are coded in spans of EFS_SPAN_BLOCKS blocks. Those of a span are
 * ranked by frequency; level 1 gives each symbol 2 bits: rank 0, 1, 2 or escape; the escaped symbols, in order, form
 * level 2, and so on for up to 5 levels; the symbols that escape the last level (the "rest") are stored as bytes. The
 * codes of a level are stored in 2-bit planes, those of level 1 block by block. Spans are self-contained; a block of a
 * span needs the span's lower levels and its own part of level 1.
 *
 * Chunk (little-endian):
 *   u32 symbols, u32 spans (= ceil(symbols / EFS_SPAN)), u32 code_bytes (from the chunk's start to the end of the last
 *   span's code), u32 0
 *   a header for each span: u32 offset of its code from the chunk's start; u16 count[5]: count[l-1] = symbols that
 *           escape level l; u16 entry[3]: symbols that escape level 1 in the blocks before block 1, 2, 3 of the span
 *           (count[0] where there is no such block, 0 where there are no levels); u8 levels (0..5); u8 table[15]:
 *           table[3*(l-1) + r] = the symbol of rank r at level l. Unused fields are 0.
 *   the code of each span, without gaps, in the order in which a decoder reads it: the rest,
 *           count[levels-1] bytes (levels = 0: all symbols as bytes); the planes of level `levels` down to level 2,
 *           ceil(count[l-2]/4) bytes each; the planes of level 1, ceil(m/4) bytes for each block of m symbols
 *   reserved bytes (for example for an index for parallel decoders): encoders write none, decoders skip them
 *   EFS_CASCADE_SLACK zero bytes, so that vector loads can read past the last span
 */
/*
 * A chunk with short spans, for data that is read a few KiB at a time. A span has 2^span_log2 symbols, 12 or 13, and
 * its header is at the start of its code; SM has blocks of EFS_SHORT_BLOCK elements:
 *   u32 symbols, u32 spans, u32 code_bytes as above, u32 span_log2; u8 table[15]: the shared table; u8 0
 *   u16 length of each span in bytes, header included
 *   the spans, without gaps: u8 levels (0..5), plus 128: the span has its own table; u16 count[levels]; with an own
 *   table u8 table[3 * levels]; then its code as above, with planes of level 1 of ceil(n/4) bytes for its n symbols
 *   reserved bytes and zero bytes as above
 */
#define EFS_CASCADE_SLACK 64
#define EFS_SPAN_BLOCKS 4
#define EFS_SPAN_LOG2 (EFS_BLOCK_LOG2 + 2)
#define EFS_SPAN (EFS_SPAN_BLOCKS * EFS_BLOCK)
/* Working memory for coding and decoding, aligned to 64 bytes; one for each thread. Not on the stack, because programs'
 * threads can have small ones. It is fastest if a thread uses the same memory for all its calls. */
#define EFS_CASCADE_SCRATCH_BYTES (14 * EFS_BLOCK + 128)
/* Upper bound of a chunk's bytes for n symbols. */
size_t efs_cascade_bound(size_t n);
/* Code n symbols (n <= 2^30) into dst of at least efs_cascade_bound(n) bytes; returns the bytes used. The result is
 * the same on every processor. */
size_t efs_cascade_encode(const uint8_t *symbols, size_t n, uint8_t *dst, void *scratch);
/* The same with short spans of 2^span_log2 symbols, 12 or 13. All functions below decode both. */
size_t efs_cascade_encode_short(const uint8_t *symbols, size_t n, unsigned span_log2, uint8_t *dst, void *scratch);
/* Decode symbols [first, first + count) of a chunk of exactly chunk_bytes bytes. 0, or -EUCLEAN when the chunk is not
 * well formed: the contents of out are then undefined. Never accesses memory outside out, chunk and scratch. -EINVAL:
 * the range ends past the last symbol. */
int efs_cascade_decode(const uint8_t *chunk, size_t chunk_bytes, size_t first, size_t count, uint8_t *out,
                       void *scratch);
/*
 * Decode and merge in one pass: elements [first, first + count) of a shard whose E is the cascade chunk and whose SM
 * is sm (sm_bytes bytes: the whole shard's). dst has room for count elements. stream: use non-temporal stores (for
 * targets that are larger than the cache and not read soon). Errors as efs_cascade_decode(); -EUCLEAN also when
 * sm_bytes does not fit.
 */
int efs_cascade_merge(enum efs_format format, const uint8_t *chunk, size_t chunk_bytes, const uint8_t *sm,
                      size_t sm_bytes, size_t first, size_t count, void *dst, bool stream, void *scratch);

/*
 * Decode a range of a chunk with short spans from the pieces that it needs: first the chunk's head,
 * efs_cascade_head_bytes() for n symbols, then the bytes that efs_cascade_locate() names.
 */
struct efs_cascade_range {
    uint32_t code_begin, code_end; /* of the E-chunk */
    size_t sm_begin, sm_end;       /* of the SM-chunk; both 0 for BYTES */
};
size_t efs_cascade_head_bytes(size_t n);
/* Sets sm_begin and sm_end of *range for elements [first, first + count), count > 0, of a shard of n, which include
 * them: they do not depend on the E-chunk. */
void efs_cascade_locate_sm(enum efs_format format, size_t n, size_t first, size_t count,
                           struct efs_cascade_range *range);
/* Sets *range for elements [first, first + count), count > 0, of a shard of n. -EUCLEAN: not a well-formed head of a
 * chunk of chunk_bytes bytes with short spans and n symbols; -EINVAL: the range ends past n. */
int efs_cascade_locate(enum efs_format format, const uint8_t *head, size_t head_bytes, size_t chunk_bytes, size_t n,
                       size_t first, size_t count, struct efs_cascade_range *range);
/* As efs_cascade_merge(), for the same elements: code has the E-chunk's bytes [code_begin, code_end) and
 * EFS_CASCADE_SLACK readable bytes after them, sm the SM-chunk's bytes [sm_begin, sm_end) and as many. */
int efs_cascade_merge_range(enum efs_format format, const uint8_t *head, size_t head_bytes, size_t chunk_bytes,
                            const uint8_t *code, const uint8_t *sm, size_t first, size_t count, void *dst,
                            void *scratch);

/* The same for a chunk without short spans: of its E-chunk and SM efs_cascade_merge() reads for these elements only the
 * head, whose efs_cascade_long_head_bytes() for n symbols are at head, and *range. -EUCLEAN: not such a head. */
size_t efs_cascade_long_head_bytes(size_t n);
int efs_cascade_long_locate(enum efs_format format, const uint8_t *head, size_t chunk_bytes, size_t n, size_t first,
                            size_t count, struct efs_cascade_range *range);

/* Name of the code path in use: "scalar", "avx2", "avx512", "neon". EXPERTFS_CPU=scalar|avx2|avx512|neon|auto in the
 * environment of the first call selects a path; if the processor does not support it, the best supported one is used.
 */
const char *efs_cpu_name(void);
/* For tests and benchmarks: select a path; false if the processor does not support it. Not thread-safe. */
bool efs_cpu_force(const char *name);

#ifdef __cplusplus
}
#endif
#endif
