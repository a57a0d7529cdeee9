/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - the bytes of a store on disk, and nothing else. expertfs-store(5) says the same in words.
 *
 * Little-endian. A store is: superblock (4 KiB), chunks (each at a multiple of 64 bytes, one right after the other),
 * index tables (from a 4 KiB boundary on).
 * An expert (or a dense tensor, or a run of verbatim bytes) is a *group*; a group has *objects* (a tensor's slice that
 * belongs to the group, or a blob); an object is cut in *shards* of shard_elements elements; a shard has an E-chunk and
 * an SM-chunk. A group's chunks are laid out in runs: E-chunks of the run's shards, then their SM-chunks. A group up to
 * EFS_RUN_BYTES raw is one run.
 *
 * Chunks are as dense as vector loads allow; pages are what is read. A reader rounds the range of the chunks that it
 * wants out to pages and finds them inside: efs_page_*(). A page at the border of two ranges is read with either.
 */
#ifndef EFS_LAYOUT_H
#define EFS_LAYOUT_H

#include <assert.h>
#include <stdint.h>

#define EFS_MAGIC "expertfs"
#define EFS_VERSION 2u
#define EFS_INCOMPAT_KNOWN                                                                                             \
    UINT64_C(0) /* feature bits that this program understands; a store with others is refused                          \
                 */
#define EFS_COMPAT_FILE_FLAGS UINT64_C(1)      /* files have flags */
#define EFS_COMPAT_KNOWN EFS_COMPAT_FILE_FLAGS /* feature bits whose fields this program checks; others are ignored */
#define EFS_ALIGN 4096u           /* a page: what is read and written begins and ends at multiples of this */
#define EFS_CHUNK_ALIGN 64u       /* chunks and tables begin at multiples of this */
#define EFS_RUN_BYTES (64u << 20) /* raw bytes of one run at most (but one shard at least) */
#define EFS_SHARD_ELEMENTS_DEFAULT (512u << 10)
#define EFS_SHARD_ELEMENTS_MIN (8u << 10) /* a multiple of EFS_BLOCK */
#define EFS_SHARD_ELEMENTS_MAX (4u << 20)
#define EFS_MAX_DIMS 8
#define EFS_NONE UINT32_MAX

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "expertfs stores are read in place: a little-endian machine is needed"
#endif

/* Index tables, in this order. */
enum efs_table {
    EFS_TABLE_STRINGS, /* bytes: UTF-8, no terminators; a string is (offset, length) */
    EFS_TABLE_FILES,   /* struct efs_disk_file, in path order */
    EFS_TABLE_EXTENTS, /* struct efs_disk_extent, files in order, each covered without gap or overlap */
    EFS_TABLE_TENSORS, /* struct efs_disk_tensor */
    EFS_TABLE_GROUPS,  /* struct efs_disk_group: experts first, in (stack, layer, expert) order */
    EFS_TABLE_OBJECTS, /* struct efs_disk_object, groups in order */
    EFS_TABLE_SHARDS,  /* struct efs_disk_shard, objects in order */
    EFS_TABLE_REPORT,  /* bytes: JSON, what packing measured; informational */
    EFS_TABLE_PARTS,   /* struct efs_disk_part, by address */
    EFS_TABLE_COUNT
};
/* Places for tables in the superblock. Those behind EFS_TABLE_COUNT are zero; later tables, such as an index of where
 * in each E-chunk many threads can begin, are added there with a feature bit. */
#define EFS_TABLE_PLACES 16

/* Codecs of an E-chunk, by the rows of codec_table.c. A later one gets the next number and a bit of
 * EFS_INCOMPAT_KNOWN, so that programs of before say what they lack. */
enum efs_disk_codec {
    EFS_CODEC_NONE = 0, /* no E-chunk: the element is in the SM-chunk as it is (the object's format is BYTES) */
    EFS_CODEC_CASCADE = 1,
    EFS_CODEC_ZSTD = 2,
    EFS_CODEC_LZ4 = 3,
    EFS_CODEC_COUNT
};

enum efs_disk_group_kind { EFS_GROUP_EXPERT = 0, EFS_GROUP_DENSE = 1, EFS_GROUP_BLOB = 2 };

struct efs_disk_table {
    uint64_t offset; /* a multiple of EFS_CHUNK_ALIGN; the first table's of EFS_ALIGN */
    uint64_t bytes;
    uint64_t hash; /* XXH3_64 of the bytes */
    uint32_t record_bytes;
    uint32_t count; /* bytes == count * record_bytes; STRINGS and REPORT have records of 1 byte */
};

struct efs_disk_superblock {
    char magic[8];
    uint32_t version;
    uint32_t superblock_bytes; /* 4096 */
    uint64_t incompat;         /* feature bits; a reader refuses bits that it does not know */
    uint64_t compat;           /* feature bits that a reader may ignore */
    uint64_t store_bytes;      /* the file's size */
    uint64_t source_bytes;     /* all files together */
    uint64_t content_hash;     /* XXH3_64 over the index tables' hashes: names the store */
    uint32_t shard_elements;   /* elements per shard, a multiple of 8192 */
    uint32_t block_elements;   /* 8192 */
    struct efs_disk_table tables[EFS_TABLE_PLACES];
    uint8_t zero[4096 - 64 - 8 - 32 * EFS_TABLE_PLACES];
    uint64_t hash; /* XXH3_64 of the 4088 bytes before */
};
static_assert(sizeof(struct efs_disk_superblock) == 4096, "superblock");

/* A range of the store's addresses, which chunks and tables are given by, and the object of an object store that holds
 * it. Today there is one, which is the file itself: address 0, no name. */
struct efs_disk_part {
    uint64_t address, bytes;
    uint32_t name_offset, name_bytes;
    uint64_t reserved;
};
static_assert(sizeof(struct efs_disk_part) == 32, "part");

struct efs_disk_file {
    uint32_t path_offset, path_bytes; /* relative, '/' between parts, no ".." */
    uint64_t bytes;
    uint32_t extent_first, extent_count;
    uint32_t flags; /* 0 without EFS_COMPAT_FILE_FLAGS */
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_file) == 32, "file");
#define EFS_FILE_APART 1u /* its tensors are not of the model whose experts the store has */

struct efs_disk_extent {
    uint64_t file_offset;
    uint64_t bytes;         /* > 0 */
    uint64_t object_offset; /* in raw bytes of the object */
    uint32_t object;
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_extent) == 32, "extent");

/* A whole tensor as the checkpoint names it; its bytes are those of the objects that name it. Where a zero byte follows
 * the name in STRINGS, dtype and shape are U8 and [bytes], and the text up to the next zero byte is what the
 * safetensors file says of them: "dtype":"F8_E3M4","shape":[2,3]. */
struct efs_disk_tensor {
    uint32_t name_offset, name_bytes;
    uint16_t dtype; /* enum efs_dtype */
    uint8_t dims;
    uint8_t expert_dim; /* 1: the slowest dimension counts experts (fused), 0: not */
    uint32_t file;
    uint64_t file_offset, bytes;
    uint64_t shape[EFS_MAX_DIMS]; /* slowest first, as safetensors writes it; GGUF's order is reversed to this */
};
static_assert(sizeof(struct efs_disk_tensor) == 96, "tensor");

struct efs_disk_group {
    uint32_t kind;                      /* enum efs_disk_group_kind */
    uint32_t stack_offset, stack_bytes; /* "", "encoder", "decoder", "mtp", ...; experts only */
    uint32_t layer, expert;             /* experts only, else EFS_NONE */
    uint32_t object_first, object_count;
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_group) == 32, "group");

struct efs_disk_object {
    uint32_t tensor; /* EFS_NONE: a blob */
    uint32_t group;
    uint64_t tensor_offset; /* where in the tensor's bytes the slice begins */
    uint64_t bytes;         /* raw; a multiple of the format's element */
    uint32_t shard_first, shard_count;
    uint32_t format; /* enum efs_format (kernels.h) */
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_object) == 40, "object");

struct efs_disk_shard {
    uint64_t e_offset, sm_offset; /* in the store; 0 when the chunk has no bytes */
    uint64_t e_hash, sm_hash;     /* XXH3_64 of the chunk's bytes; 0 when it has none */
    uint64_t raw_hash;            /* XXH3_64 of the shard's raw bytes */
    uint32_t e_bytes, sm_bytes;
    uint32_t codec; /* enum efs_disk_codec */
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_shard) == 56, "shard");

/* Where the next chunk may begin behind one that ends at `end`. */
static inline uint64_t efs_chunk_up(uint64_t end)
{
    return (end + EFS_CHUNK_ALIGN - 1) & ~(uint64_t)(EFS_CHUNK_ALIGN - 1);
}

static inline uint64_t efs_page_up(uint64_t end)
{
    return (end + EFS_ALIGN - 1) & ~(uint64_t)(EFS_ALIGN - 1);
}

static inline uint64_t efs_page_down(uint64_t begin)
{
    return begin & ~(uint64_t)(EFS_ALIGN - 1);
}

/* Bytes of the pages that [begin, end) lies in; 0 for an empty range. */
static inline uint64_t efs_page_span(uint64_t begin, uint64_t end)
{
    return begin == end ? 0 : efs_page_up(end) - efs_page_down(begin);
}

#endif
