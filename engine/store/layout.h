/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - the on-disk format of a store. expertfs-store(5) describes it in words.
 *
 * Little-endian. A store consists of the superblock (4 KiB), chunks (each at a multiple of 64 bytes, without gaps
 * beyond that alignment), and index tables (from a 4 KiB boundary on).
 *
 * An expert, a dense tensor, or a range of bytes of a file outside of all tensors (a *blob*) is a *group*. A group has
 * *objects*: a tensor's slice that belongs to the group, or the blob. An object is divided into *shards* of
 * shard_elements elements. A shard has two *chunks*: the E-chunk (coded exponents) and the SM-chunk (signs and
 * mantissas, not coded). A shard without exponents has one of them: its coded bytes as E, or its raw bytes as SM. A
 * group's chunks are laid out in *runs* of consecutive shards: the E-chunks of the run's shards, then their SM-chunks,
 * then their page checksums.
 * A group of up to EFS_RUN_BYTES raw bytes is one run.
 *
 * Chunks are aligned for vector loads, reads are aligned to pages. A reader rounds the range of the requested chunks
 * out to pages (efs_page_*()). A page that two ranges share is read with each of them.
 */
#ifndef EFS_LAYOUT_H
#define EFS_LAYOUT_H

#include <assert.h>
#include <stdint.h>

#define EFS_MAGIC "expertfs"
#define EFS_VERSION 3u
#define EFS_VERSION_OLDEST 2u                  /* without feature bits; written where none is needed */
#define EFS_INCOMPAT_CHECKS UINT64_C(1)        /* shards have page checksums, and E-chunks short spans */
#define EFS_INCOMPAT_KNOWN EFS_INCOMPAT_CHECKS /* check_superblock() rejects a store with any other bit set */
#define EFS_COMPAT_FILE_FLAGS UINT64_C(1)      /* efs_disk_file.flags is in use */
#define EFS_COMPAT_KNOWN EFS_COMPAT_FILE_FLAGS /* feature bits whose fields are checked; unknown bits are ignored */
#define EFS_ALIGN 4096u                        /* a page: reads and writes start and end at multiples of this */
#define EFS_CHUNK_ALIGN 64u                    /* chunks and tables start at multiples of this */
#define EFS_RUN_BYTES (64u << 20)              /* limit of a run in raw bytes; a run has at least one shard */
#define EFS_SHARD_ELEMENTS_DEFAULT (512u << 10)
#define EFS_SHARD_ELEMENTS_MIN (8u << 10) /* a multiple of EFS_BLOCK */
#define EFS_SHARD_ELEMENTS_MAX (4u << 20)
#define EFS_SMALL_READS_BYTES (1u << 20) /* objects outside experts from this size on are made for small reads */
#define EFS_CHECKS_BLOCK 64u             /* see struct efs_disk_shard */
#define EFS_CHECKS_PER_BLOCK 15u
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
    EFS_TABLE_REPORT,  /* bytes: JSON, the report of packing; informational */
    EFS_TABLE_PARTS,   /* struct efs_disk_part, by address */
    EFS_TABLE_COUNT
};
/* Slots for tables in the superblock. Those from EFS_TABLE_COUNT on are zero; later tables, such as an index of
 * entry points for parallel decoding of E-chunks, will use them with a feature bit. */
#define EFS_TABLE_PLACES 16

/* Codecs of an E-chunk; the rows of codec_table.c. A new codec gets the next number and a bit of EFS_INCOMPAT_KNOWN,
 * so that older programs can report the missing feature. */
enum efs_disk_codec {
    EFS_CODEC_NONE = 0, /* no E-chunk: the SM-chunk holds the raw bytes (the object's format is BYTES) */
    EFS_CODEC_CASCADE = 1,
    EFS_CODEC_ZSTD = 2,
    EFS_CODEC_LZ4 = 3,
    EFS_CODEC_COUNT
};

enum efs_disk_group_kind { EFS_GROUP_EXPERT = 0, EFS_GROUP_DENSE = 1, EFS_GROUP_BLOB = 2 };

struct efs_disk_table {
    uint64_t offset; /* a multiple of EFS_CHUNK_ALIGN; of EFS_ALIGN for the first table */
    uint64_t bytes;
    uint64_t hash; /* XXH3_64 of the bytes */
    uint32_t record_bytes;
    uint32_t count; /* bytes == count * record_bytes; STRINGS and REPORT have records of 1 byte */
};

struct efs_disk_superblock {
    char magic[8];
    uint32_t version;
    uint32_t superblock_bytes; /* 4096 */
    uint64_t incompat;         /* feature bits; a reader rejects bits that it does not know */
    uint64_t compat;           /* feature bits that a reader may ignore */
    uint64_t store_bytes;      /* the file's size */
    uint64_t source_bytes;     /* sum of the sizes of all files */
    uint64_t content_hash;     /* XXH3_64 of the index tables' hashes: identifies the store */
    uint32_t shard_elements;   /* elements per shard, a multiple of 8192 */
    uint32_t block_elements;   /* 8192 */
    struct efs_disk_table tables[EFS_TABLE_PLACES];
    uint8_t zero[4096 - 64 - 8 - 32 * EFS_TABLE_PLACES];
    uint64_t hash; /* XXH3_64 of the preceding 4088 bytes */
};
static_assert(sizeof(struct efs_disk_superblock) == 4096, "superblock");

/* A range of the store's address space, in which chunks and tables are located, and the name of the object in an
 * object store that holds it. Currently there is one part, the file itself: address 0, no name. */
struct efs_disk_part {
    uint64_t address, bytes;
    uint32_t name_offset, name_bytes;
    uint64_t reserved;
};
static_assert(sizeof(struct efs_disk_part) == 32, "part");

struct efs_disk_file {
    uint32_t path_offset, path_bytes; /* relative, components separated by '/', no ".." */
    uint64_t bytes;
    uint32_t extent_first, extent_count;
    uint32_t flags; /* 0 without EFS_COMPAT_FILE_FLAGS */
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_file) == 32, "file");
#define EFS_FILE_OTHER_MODEL 1u /* its tensors do not belong to the model whose experts the store has */

struct efs_disk_extent {
    uint64_t file_offset;
    uint64_t bytes;         /* > 0 */
    uint64_t object_offset; /* offset in the raw bytes of the object */
    uint32_t object;
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_extent) == 32, "extent");

/* A whole tensor with its name in the checkpoint; its bytes are those of the objects that refer to it. If a zero
 * byte follows the name in STRINGS, dtype and shape are U8 and [bytes], and the text up to the next zero byte is the
 * type in the safetensors header: "dtype":"F8_E3M4","shape":[2,3]. */
struct efs_disk_tensor {
    uint32_t name_offset, name_bytes;
    uint16_t dtype; /* enum efs_dtype */
    uint8_t dims;
    uint8_t expert_dim; /* 1: the slowest dimension is the expert number (fused); 0: not */
    uint32_t file;
    uint64_t file_offset, bytes;
    uint64_t shape[EFS_MAX_DIMS]; /* slowest first, as in safetensors; GGUF's order is reversed */
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
    uint64_t tensor_offset; /* offset of the slice in the tensor's bytes */
    uint64_t bytes;         /* raw; a multiple of the format's element */
    uint32_t shard_first, shard_count;
    uint32_t format; /* enum efs_format (kernels.h) */
    uint32_t reserved;
};
static_assert(sizeof(struct efs_disk_object) == 40, "object");

/*
 * A shard with page checksums can be read in part: its E-chunk is a cascade with short spans (kernels.h), or there is
 * none. The page checksum of a chunk in a page of the store is the low 32 bits of XXH3_64 of the chunk's bytes in that
 * page. They are stored as u32 in blocks of 15, for the pages of the E-chunk in order, then those of the SM-chunk;
 * zeros fill the last block. The 16th u32 of a block is the low 32 bits of XXH3_64 of the other 60 bytes.
 */
struct efs_disk_shard {
    uint64_t e_offset, sm_offset; /* offsets in the store; 0 if the chunk is empty */
    uint64_t e_hash, sm_hash;     /* XXH3_64 of the chunk's bytes; 0 if it is empty */
    uint64_t raw_hash;            /* XXH3_64 of the shard's raw bytes */
    uint32_t e_bytes, sm_bytes;
    uint32_t codec;  /* enum efs_disk_codec */
    uint32_t checks; /* units of EFS_CHECKS_BLOCK from the SM-chunk (from the E-chunk if it is empty) to the page
                        checksums; 0: none */
};
static_assert(sizeof(struct efs_disk_shard) == 56, "shard");

/* The first offset for a chunk after one that ends at `end`. */
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

/* Bytes of the pages that contain [begin, end); 0 for an empty range. */
static inline uint64_t efs_page_span(uint64_t begin, uint64_t end)
{
    return begin == end ? 0 : efs_page_up(end) - efs_page_down(begin);
}

#endif
