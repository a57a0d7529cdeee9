/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs.h - libexpertfs: look into a store, serve it in this process, ask it or a mount for experts.
 *
 * expertfs-pack.h makes and checks stores, expertfs-compute.h runs experts, expertfs-gpu.h has them in memory of a
 * graphics processor, expertfs-protocol.h is what a mount is told without the library.
 *
 * Functions return 0 or -errno (errint_t) unless they say otherwise, never print and never exit. What went wrong, with
 * file, offset and the way out, is put into struct efs_error for the caller to print once.
 *
 * Structs may change until release 1.0.0: build a program with the headers of its library. In a struct that the caller
 * fills zero is the default of every member.
 *
 * Any number of threads may use these at once: struct efs, efs_store, efs_stream, efs_client, and efs_client_request
 * and efs_lease but for what ends them. What ends or frees an object is called once, when no other call for it is
 * active. A team (expertfs-compute.h) runs one mixture at a time. Structs with members belong to who fills them.
 *
 * They belong to the process that opened them, but for efs_store and efs_stream. In a child of fork(2) what ends an
 * object closes and frees what the child has of it, without a wait or a word to the mount; efs_client_drop() and
 * efs_lease_release() do nothing, efs_stats() returns zeros, efs_lease_data() NULL; all else fails with -ECHILD.
 */
#ifndef EXPERTFS_H
#define EXPERTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int errint_t; /* 0 or -errno */

#define EFS_API __attribute__((visibility("default")))

struct efs_error {
    char text[1024]; /* one line, no newline; "" when there is none */
};
/* printf into err (may be NULL) and return code. */
EFS_API errint_t efs_fail(struct efs_error *err, errint_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

EFS_API const char *efs_version(void); /* "0.1.0" */
/* Which code decodes on this processor: "scalar", "avx2", "avx512", "neon" (EXPERTFS_CPU chooses, too). */
EFS_API const char *efs_cpu_path(void);
/*
 * The memory that this process can have now. available_bytes: the smallest of MemAvailable of /proc/meminfo and, for
 * every memory cgroup (v2 or v1) that it is in, its limit (v2: memory.high, too) less what it uses without its page
 * cache. free_bytes: the same, page cache counted as used. limit_bytes: above it processes are killed; the smallest of
 * MemTotal and of the cgroups' limits.
 */
struct efs_memory {
    uint64_t limit_bytes, available_bytes;
    bool cgroup; /* limit_bytes is that of a cgroup */
    uint64_t free_bytes;
};
EFS_API void efs_memory(struct efs_memory *memory);
/*
 * What budget_bytes = 0 would choose now: half of what is available. Half, since the
 * readers' page cache lives beside us, and a system without page cache is slower than one with a smaller pool.
 */
EFS_API uint64_t efs_auto_budget(void);
/* "8G", "512M", "1.5G", "65536", "2GiB": bytes, binary units K M G T. -EINVAL: not a size; -ERANGE: too large. */
EFS_API errint_t efs_parse_size(const char *text, uint64_t *bytes);

/* ---- element types ------------------------------------------------------------------------------------------ */

/* dtypes as safetensors names them; a GGUF block type is EFS_DTYPE_GGML + its ggml number. Values are on disk. */
enum efs_dtype {
    EFS_DTYPE_NONE = 0,
    EFS_DTYPE_BOOL,
    EFS_DTYPE_U8,
    EFS_DTYPE_I8,
    EFS_DTYPE_U16,
    EFS_DTYPE_I16,
    EFS_DTYPE_F16,
    EFS_DTYPE_BF16,
    EFS_DTYPE_U32,
    EFS_DTYPE_I32,
    EFS_DTYPE_F32,
    EFS_DTYPE_U64,
    EFS_DTYPE_I64,
    EFS_DTYPE_F64,
    EFS_DTYPE_C64,
    EFS_DTYPE_F8_E4M3,
    EFS_DTYPE_F8_E5M2,
    EFS_DTYPE_F8_E8M0,
    EFS_DTYPE_F4,
    EFS_DTYPE_F6_E2M3,
    EFS_DTYPE_F6_E3M2,
    EFS_DTYPE_F8_E4M3FNUZ,
    EFS_DTYPE_F8_E5M2FNUZ,
    EFS_DTYPE_COUNT,
    EFS_DTYPE_GGML = 256
};
/* "BF16", "ggml:Q4_0", ...; writes into a static table, never NULL. */
EFS_API const char *efs_dtype_name(enum efs_dtype dtype);

/* ---- looking into a store ----------------------------------------------------------------------------------- */

struct efs_store; /* an open store: its index in memory, read-only, shared by any number of threads */

/* Open and check superblock and index. -EUCLEAN: damaged; -EPROTONOSUPPORT: made by another version,
 * or with features that this one lacks. */
EFS_API errint_t efs_store_open(const char *path, struct efs_store **store, struct efs_error *err);
EFS_API void efs_store_close(struct efs_store *store); /* NULL is fine */

/* Codecs go by numbers below EFS_CODECS, see CODECS in expertfs-store(5): "none", "cascade", ...; NULL: no such codec.
 */
#define EFS_CODECS 16
EFS_API const char *efs_codec_name(uint32_t codec);

struct efs_store_info {
    uint64_t store_bytes, source_bytes, index_bytes, content_hash, files, tensors, experts, layers, groups, objects,
        shards;
    uint64_t layer_experts; /* of the widest layer */
    uint64_t codec_shards[EFS_CODECS], codec_raw_bytes[EFS_CODECS], codec_coded_bytes[EFS_CODECS]; /* by codec */
    uint64_t expert_raw_bytes, expert_coded_bytes;
    uint32_t version, shard_elements;
    const char *report_json; /* what packing measured; lives as long as the store; not terminated */
    size_t report_bytes;
    /* Of the store's file when it was opened: */
    bool direct;    /* it can be read with O_DIRECT */
    unsigned mode;  /* who may read it: bits of 0444; those that an access control list leaves in doubt are off */
    unsigned group; /* gid of its group */
    struct timespec mtime;  /* when it was written */
    uint64_t device, inode; /* st_dev, st_ino */
};
EFS_API void efs_store_info(const struct efs_store *store, struct efs_store_info *info);

/* ---- serving a store ---------------------------------------------------------------------------------------- */

struct efs; /* a store being served: I/O thread, decode workers, caches, one hard budget. Thread-safe. */

enum efs_log_level { EFS_LOG_ERROR, EFS_LOG_WARNING, EFS_LOG_INFO };

struct efs_options {
    unsigned workers;         /* decode threads L; 0: all cores */
    uint64_t budget_bytes;    /* 0: auto (what cgroup and machine leave) */
    uint64_t readahead_bytes; /* of a sequential reader; 0: default (32 MiB, less under a small budget) */
    uint64_t reserved_bytes;  /* the caller's own fixed memory (reply buffers, stacks): counted in the budget */
    uint64_t per_file_bytes;  /* the same, for each file that is served: its names and the like */
    bool full_pool;           /* keep leased experts in memfds (for passthrough and the client runtime) */
    bool lease_wait;          /* all held by others and no room: true wait, false -ENOMEM */
    bool prealloc;            /* take all memory of the pools in efs_open(); with full_pool, F is planned for at once */
    bool no_direct;           /* read the store through the page cache (also chosen when O_DIRECT is refused) */
    /* Texts as efs_set() takes them; NULL: the default. Needed during efs_open() only. */
    const char *policy, *pools, *plan, *goal;
    bool no_state; /* neither read nor write the state directory */
    bool warm;     /* fill memory that is empty while the disk rests, with what the history expects most */
    void (*log)(void *arg, enum efs_log_level level, const char *line); /* any thread; may be NULL */
    void *log_arg;
    /* As above. */
    const char *prefetch;
    /* With full_pool, and CAP_SYS_ADMIN: keep the chunk pool in memory that a daemon can let others map, so that it
     * hands out coded experts, too. */
    bool chunk_windows;
};

/* Open store and start serving. -ENOMEM with the floor in err when the budget is below it. */
EFS_API errint_t efs_open(const char *store_path, const struct efs_options *options, struct efs **fs,
                          struct efs_error *err);
/* Finish or fail (-ECANCELED) what is under way, join all threads, free everything. No other call may be active. */
EFS_API void efs_close(struct efs *fs);
/* The caller holds bytes more than it said in reserved_bytes: they count in the budget from now on. -ENOMEM with the
 * floor in err: the budget is below it now, and nothing can be read until it is raised. */
EFS_API errint_t efs_reserve(struct efs *fs, uint64_t bytes, struct efs_error *err);
EFS_API const struct efs_store *efs_get_store(const struct efs *fs);

/*
 * An expert of a store: its number from 0, below efs_expert_count(), through all layers of all stacks. A type of its
 * own, so that it is not taken for the number in a layer, which is that of experts/L03/E017.safetensors.
 */
struct efs_expert_id {
    uint32_t number;
};
static inline struct efs_expert_id efs_id(uint32_t number)
{
    struct efs_expert_id id = {number};
    return id;
}

/*
 * The files served, by number from 0: first the checkpoint's own, then those under "experts/": one safetensors file
 * an expert (experts/L03/E017.safetensors, with a stack: experts/encoder-L03/E017.safetensors). A checkpoint that has a
 * top-level "experts" or ".expertfs" itself is served alone: view_hidden is then true, and experts have no files, but
 * can be requested.
 */
enum efs_file_kind { EFS_FILE_CHECKPOINT, EFS_FILE_EXPERT };
struct efs_file_info {
    char path[1024]; /* relative to the root, no leading '/' */
    uint64_t bytes;
    enum efs_file_kind kind;
    struct efs_expert_id expert; /* EFS_FILE_EXPERT; else its number is UINT32_MAX */
};
EFS_API uint32_t efs_file_count(const struct efs *fs);
EFS_API bool efs_view_hidden(const struct efs *fs);
EFS_API errint_t efs_file_info(const struct efs *fs, uint32_t file, struct efs_file_info *info);

/*
 * Who reads, through an open handle or on other ways: a stream for each, or one for all of whom the same is known.
 * Readers that go through a file in order are found among the requests of all streams, however their reads are cut and
 * mixed, and read ahead. Streams are thread-safe; free them when no efs_read() is begun with one any more, before or
 * after efs_close(). NULL is fine to free. -EINVAL: no such hint; -ENOMEM.
 */
enum efs_stream_hint {
    EFS_STREAM_SEQUENTIAL = 0,  /* maybe in order: it is found out */
    EFS_STREAM_NO_READAHEAD = 1 /* in order, but somebody else reads ahead: neither what comes next is loaded, nor the
                                 * rest of an expert */
};
struct efs_stream;
EFS_API errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **stream); /* hints: some of these */
EFS_API void efs_stream_free(struct efs_stream *stream);

/* error: 0 or -errno (-EIO a failed read, -EUCLEAN damage, -ECANCELED); bytes: how many of them are in dst. */
typedef void efs_done_fn(void *arg, errint_t error, size_t bytes);

/*
 * Read up to len bytes of file at offset into dst (less at the end of the file, 0 past it). done is called exactly
 * once, from this thread before the call returns (all was in memory) or from a worker. Never blocks on I/O. dst must
 * stay valid until done. stream may be NULL: reads without order, no read-ahead.
 */
EFS_API void efs_read(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
                      efs_done_fn *done, void *arg);

/*
 * Lease an expert's file in full: it is decoded into a file in memory that has the file's own offsets, and stays there,
 * unchanged, until every lease on it was released. done gets the lease (to be released once for each call) or an error.
 * Leases that are still held at efs_close() end with it: the file is closed, never changed.
 */
struct efs_lease;
typedef void efs_leased_fn(void *arg, errint_t error, struct efs_lease *lease);
EFS_API void efs_lease(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg);
/*
 * The file, for reading, owned by the engine until the last lease is released: whoever opens or maps it, or moves its
 * pages elsewhere, sees this expert for as long as that lasts. Nobody can open it for writing. -EBUSY: it is a window;
 * -errno.
 */
EFS_API int efs_lease_fd(const struct efs_lease *lease);
EFS_API const void *efs_lease_data(const struct efs_lease *lease); /* mapped read-only in this process */
EFS_API void efs_lease_release(struct efs_lease *lease);

/* ---- what it does ------------------------------------------------------------------------------------------- */

/* name, kind (counter or gauge), unit, help. The numbers of a served store; they add up as expertfs-proc(5) says. New
 * ones come at the end. */
#define EFS_STATS(X)                                                                                                   \
    X(reads, counter, "", "read requests of files")                                                                    \
    X(read_bytes, counter, "bytes", "bytes handed to readers by read requests")                                        \
    X(read_errors, counter, "", "read requests that ended in an error")                                                \
    X(reads_f, counter, "", "pieces of reads copied from the full pool")                                               \
    X(reads_c, counter, "", "pieces of reads decoded from chunks that were in memory")                                 \
    X(reads_m, counter, "", "pieces of reads that waited for the disk")                                                \
    X(reads_generated, counter, "", "pieces of reads of generated headers")                                            \
    X(leases, counter, "", "leases of full experts")                                                                   \
    X(leases_f, counter, "", "leases that found the expert full")                                                      \
    X(leases_c, counter, "", "leases filled from chunks that were in memory")                                          \
    X(leases_m, counter, "", "leases that waited for the disk")                                                        \
    X(leases_shared, counter, "", "leases that joined one being filled")                                               \
    X(lease_errors, counter, "", "leases that ended in an error")                                                      \
    X(lease_waits, counter, "", "leases that waited for room")                                                         \
    X(disk_reads, counter, "", "reads of the store submitted")                                                         \
    X(disk_bytes, counter, "bytes", "bytes read from the store")                                                       \
    X(disk_errors, counter, "", "reads of the store that failed")                                                      \
    X(disk_ns, counter, "ns", "time with at least one read of the store in flight")                                    \
    X(readahead_extents, counter, "", "extents read ahead")                                                            \
    X(warmed_extents, counter, "", "extents read into empty memory while the disk rested")                             \
    X(decoded_bytes, counter, "bytes", "raw bytes decoded")                                                            \
    X(decode_ns, counter, "ns", "time of all threads in decoding and checking")                                        \
    X(chunks_damaged, counter, "", "chunks whose checksum or code was wrong")                                          \
    X(requests_f, counter, "", "experts asked for that were full in memory")                                           \
    X(requests_c, counter, "", "experts asked for whose chunks were all in memory")                                    \
    X(requests_s, counter, "", "experts asked for whose SM-chunks were in memory")                                     \
    X(requests_e, counter, "", "experts asked for whose E-chunks were in memory")                                      \
    X(requests_p, counter, "", "experts asked for of which other parts were in memory")                                \
    X(requests_m, counter, "", "experts asked for that were not in memory")                                            \
    X(demotions, counter, "", "experts moved to a lower pool")                                                         \
    X(recoded_bytes, counter, "bytes", "bytes of full experts split and coded again")                                  \
    X(policy_ns, counter, "ns", "time in counting and deciding what is kept")                                          \
    X(plans, counter, "", "plans made")                                                                                \
    X(kept_lost, counter, "", "extents that were to be kept and had to go for lack of memory, or were damaged")        \
    X(evictions_c, counter, "", "extents dropped from the chunk pool")                                                 \
    X(memory_short, counter, "",                                                                                       \
      "times that the cgroup or the machine left less of the budget than before, or none of what was wanted of it")    \
    X(evictions_f, counter, "", "experts dropped from the full pool")                                                  \
    X(budget_bytes, gauge, "bytes", "the budget")                                                                      \
    X(fixed_bytes, gauge, "bytes", "held by index, tables, buffers and thread stacks")                                 \
    X(chunk_pool_bytes, gauge, "bytes", "held by the chunk pool")                                                      \
    X(chunk_used_bytes, gauge, "bytes", "of it in use")                                                                \
    X(chunk_extents, gauge, "", "extents in the chunk pool")                                                           \
    X(full_pool_bytes, gauge, "bytes", "held by the full pool")                                                        \
    X(full_experts, gauge, "", "experts in the full pool")                                                             \
    X(leased_bytes, gauge, "bytes", "of the full pool, leased")                                                        \
    X(leased_experts, gauge, "", "experts leased")                                                                     \
    X(inflight, gauge, "", "reads, leases and loads under way")                                                        \
    X(io_uring, gauge, "", "1: io_uring, 0: pread")                                                                    \
    X(direct_io, gauge, "", "1: the store is read with O_DIRECT")                                                      \
    X(guessed_extents, counter, "", "extents read since their expert was guessed to be asked for")                     \
    X(reads_edge, counter, "", "of reads_m, those that read one shard alone: what was read around another expert")     \
    X(coded, counter, "", "experts asked for in coded form")                                                           \
    X(coded_c, counter, "", "of them, those whose chunks were all in memory")                                          \
    X(coded_m, counter, "", "of them, those that waited for the disk")                                                 \
    X(coded_errors, counter, "", "of them, those that ended in an error")                                              \
    X(coded_waits, counter, "", "of them, those that waited for room")                                                 \
    X(coded_bytes, gauge, "bytes", "of the chunk pool, handed out coded or on the way")                                \
    X(coded_experts, gauge, "", "experts handed out coded or on the way")                                              \
    X(effective_budget_bytes, gauge, "bytes", "of the budget, what can be had now: the pools are planned for it")      \
    X(reads_past, counter, "", "pieces of reads and leases that went past the chunk pool: coded experts had all of it")

struct efs_stats {
#define EFS_STATS_FIELD(name, kind, unit, help) uint64_t name;
    EFS_STATS(EFS_STATS_FIELD)
#undef EFS_STATS_FIELD
};
EFS_API void efs_stats(struct efs *fs, struct efs_stats *stats);

/* ---- tuning while it serves ---------------------------------------------------------------------------------- */

/*
 * By name: budget ("8G", "auto"), pools (which are allowed, some of "FCSE"), plan ("auto", or ratios of what the pools
 * may take in percent: "F=10:C=70:S=10:E=10"), policy (zipmoe, lru, lfu, fifo, marking), goal ("io", "makespan"),
 * prefetch ("off", "auto", "always"). Shrinking evicts at once; *held_bytes (may be NULL) is what leases and readers
 * still hold above the new budget. -EINVAL: err says what is allowed; -ENOMEM: below the floor, which err tells;
 * -ENODATA: no such name. Nothing has changed then. 0: err says what else is to be known of the value, or is left as it
 * was.
 */
EFS_API errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes,
                         struct efs_error *err);
/* The value as efs_set() would take it. -ENODATA: no such name; -ERANGE: room is too small. */
EFS_API errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room);
/* Pin an expert, or all of its layer, to pool 'F' or 'C' ('-': not any more). -ENOENT, -EINVAL. */
EFS_API errint_t efs_pin(struct efs *fs, struct efs_expert_id expert, bool whole_layer, char pool,
                         struct efs_error *err);

/* A pool of the cache (ZipMoE 3.4), 'F', 'C', 'S', 'E'; 'M': experts that are not kept. */
struct efs_pool_info {
    uint64_t capacity_bytes, used_bytes, experts;
    uint64_t hits;    /* experts asked for that were found so in memory; 'M': misses */
    uint64_t partial; /* of them, those of which a part had to be read */
    uint64_t admitted, promoted, demoted, evicted;
    uint64_t saved_bytes; /* that hits here did not read from the store */
};
EFS_API errint_t efs_pool_info(struct efs *fs, char pool, struct efs_pool_info *info);

/* Where one expert is kept, for the file `experts`. */
struct efs_expert_info {
    char name[64]; /* "L03/E017", "encoder-L03/E017" */
    uint32_t layer, expert;
    uint32_t file;         /* its file number, UINT32_MAX while the view is hidden */
    char state;            /* in memory: 'F' full, 'C' all chunks, 'S' all SM, 'E' all E, 'P' some, 'M' none */
    char kept;             /* the pool in which the policy keeps it, 'F', 'C', 'S', 'E', 'M' */
    char pin;              /* 'F', 'C', '-' */
    uint32_t leases, rank; /* rank in its layer, 0: most wanted */
    uint64_t count;        /* requests, as the policy counts them */
    uint64_t raw_bytes, coded_bytes, resident_bytes, touches;
};
EFS_API uint32_t efs_expert_count(const struct efs *fs);
EFS_API errint_t efs_expert_info(struct efs *fs, struct efs_expert_id expert, struct efs_expert_info *info);

/* ---- the client runtime: a layer's experts in this process ------------------------------------------------------ */

/* The expert of a layer: stack is "" for models with one. -ENOENT. */
EFS_API errint_t efs_expert_find(const struct efs *fs, const char *stack, uint32_t layer, uint32_t expert,
                                 struct efs_expert_id *id);

struct efs_need {
    uint32_t expert; /* number */
    uint32_t tokens; /* that it gets, 1 or more */
};
enum efs_form {
    EFS_FORM_FULL,   /* decoded; needs efs_options.full_pool */
    EFS_FORM_CODED,  /* its chunks as they lie in the chunk pool, checked: for products on the coded form */
    EFS_FORM_ANY,    /* each expert as it is cheaper now: full if it is full already, else coded */
    EFS_FORM_DEVICE, /* decoded, in memory of a graphics processor: expertfs-gpu.h */
    EFS_FORM_SHARED  /* of efs_client_ffn() alone: each expert on a graphics processor or here, as is sooner done */
};

/* A shard of a tensor in coded form: e and sm are NULL where the shard has no such chunk. */
struct efs_coded_shard {
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes, elements;
    uint32_t codec; /* efs_codec_name(); 0: none, sm is the raw bytes */
};
/* A tensor of an expert; a slice of a fused one without the expert dimension. */
struct efs_tensor {
    const char *name; /* terminated */
    enum efs_dtype dtype;
    uint32_t dims;
    uint64_t shape[8];                    /* slowest first */
    uint64_t bytes;                       /* raw */
    const void *data;                     /* EFS_FORM_FULL: in mapped memory, read-only; EFS_FORM_DEVICE: address of
                                           * the device */
    const struct efs_coded_shard *shards; /* EFS_FORM_CODED */
    uint32_t shard_count, shard_elements;
};

/* ---- a mount or a store, by the same calls -------------------------------------------------------------------- */

struct efs_client;
#define EFS_KEEP_AUTO UINT64_MAX
struct efs_client_options {
    unsigned threads;                /* of a mount: files that are opened at once, at most 64; 0: 32 */
    const struct efs_options *store; /* of a store file; NULL: full_pool and lease_wait, the rest as it comes */
    /*
     * Of a mount: experts that no request has any more stay open and mapped up to that many bytes, those that were
     * used last, so that the next request for them costs no system call. What is open is leased: the mount cannot let
     * it go, so leave it less than its budget. 0: nothing is kept. EFS_KEEP_AUTO: of the experts that the mount keeps
     * full itself, as it tells by its socket, all but an eighth at most.
     */
    uint64_t keep_bytes;
};

/*
 * path is the directory of a mount, whose experts are then handed out over its socket, or opened and mapped by threads
 * of the client, or a store file, which is then opened in this process (efs_open). options may be NULL. -ENODEV: a
 * directory, but no mount; what efs_open() returns; what the system says.
 */
EFS_API errint_t efs_client_open(const char *path, const struct efs_client_options *options, struct efs_client **client,
                                 struct efs_error *err);
/* Of a store that the caller has opened in this process, and closes after the client. -ENOMEM. */
EFS_API errint_t efs_client_new(struct efs *fs, struct efs_client **client, struct efs_error *err);
/* After the last request was released. Tells the mount what was used, and blocks until what is being opened is open.
 * NULL is fine. */
EFS_API void efs_client_close(struct efs_client *client);
/* The store that is open in this process, owned by the client unless it is of efs_client_new(); NULL: it is a mount. */
EFS_API struct efs *efs_client_fs(struct efs_client *client);

/*
 * Name the experts that a layer needs, by the numbers of experts/L03/E017.safetensors: stack is "" for models with one,
 * needs[].expert is the number in the layer, each once. They are read and decoded in this order. Does not block. Each
 * is leased, unchanging, until it is dropped or the request released. -EINVAL: a form, no token, an expert twice, too
 * many; -ENOMEM. *request is the caller's. A mount is told by its socket or by .expertfs/want, where the caller may use
 * them, and has at most 512 experts in a request; for requests whose experts are all mapped it is told a moment later.
 * Coded experts come by its socket alone: -EOPNOTSUPP where it hands none out (no passthrough, or the caller may not
 * use it), and any are full then. -ENOENT: no such layer or expert; of one that was there before, waiting for it tells.
 * A mount without the view has no files of experts: there waiting tells this, and -EOPNOTSUPP where its socket hands
 * out no experts.
 */
struct efs_client_request;
EFS_API errint_t efs_client_begin(struct efs_client *client, const char *stack, uint32_t layer,
                                  const struct efs_need *needs, uint32_t count, enum efs_form form,
                                  struct efs_client_request **request, struct efs_error *err);
/*
 * Wait until an expert is there, or has failed, that no call has told of yet. 1: its index in needs is in *index, and
 * in *status 0 or why it failed (-ENOMEM, -EIO, -EUCLEAN, -ECANCELED; of a mount, what the open of its file said, or,
 * of coded ones, -EIO when it is gone). 0: all were told of, or dropped. timeout_ms < 0: for ever; -ETIMEDOUT: none
 * came in time.
 */
EFS_API int efs_client_wait_any(struct efs_client_request *request, int timeout_ms, uint32_t *index, errint_t *status);
/*
 * For event loops: an eventfd that is readable while efs_client_wait_any() would return at once. Owned by the request,
 * the same at each call, gone when it is released; only to be polled. -EMFILE, ...
 */
EFS_API int efs_client_event(struct efs_client_request *request);
/* Wait for all. 0, or the error of the first in needs that has one. All have to fit in at once, coded ones into half of
 * the planned chunk pool: -EDEADLK where what still waits for room cannot have it beside what this request holds, or
 * nobody else holds any; of a mount if its socket hands them out. Nothing of the request changes by that: it goes on by
 * efs_client_wait_any() and drops. */
EFS_API errint_t efs_client_wait(struct efs_client_request *request);
/* The tensors of an expert that is there, in the order of its file; valid until it is dropped. -EAGAIN: not there yet;
 * its error; -EINVAL: no such index, or it was dropped; -ENOMEM. */
EFS_API errint_t efs_client_tensors(struct efs_client_request *request, uint32_t index,
                                    const struct efs_tensor **tensors, uint32_t *count);
/* This one is not needed any more. */
EFS_API void efs_client_drop(struct efs_client_request *request, uint32_t index);
/* None is; what is still under way ends by itself. NULL is fine. Before efs_client_close(). */
EFS_API void efs_client_release(struct efs_client_request *request);

/* ---- what comes next ------------------------------------------------------------------------------------------ */

/* What a layer of a sequence chooses; a sequence is the tokens of a request, one after the other, by a number of the
 * caller's. Experts by the numbers of experts/L03/E017.safetensors, each once. */
#define EFS_ROUTING_EXPERTS 512u /* at most */
struct efs_routing {
    uint32_t sequence;
    const char *stack; /* NULL or "": of a model with one */
    uint32_t layer;
    uint32_t tokens; /* of the sequence in this pass through the layers: 0 or 1, or those of a prompt */
    uint32_t count;
    const uint32_t *experts; /* [count] the gate's favourite first, if that is known */
    /* [count] or NULL. Of efs_observe(): the gate's scores of these, 0 to 1e6; NULL: not known. Of efs_hint(): how
     * probable each is, 0 to 1; NULL: they are certain. */
    const float *weights;
};
/*
 * With prefetch on (efs_set()), experts of the layers to come are read while the disk has nothing else to do. What they
 * will be is predicted from what layers have asked for: from requests as they come, or, better where several sequences
 * are under way at once, from what the caller tells of each by efs_observe(), in the order of the layers, when a
 * layer's gate has chosen and before its experts are asked for. count 0: the sequence is over. A runtime that predicts
 * by itself says what a layer will choose, before it does, by efs_hint(): for a pass through the layers, nothing else
 * is guessed for that sequence then. Neither is a use of an expert, nor asks for one: nothing is counted, nothing that
 * is kept goes for it. A client that has a device with efs_gpu_options.ahead_bytes brings there what efs_hint() names:
 * expertfs-gpu.h; also where -EOPNOTSUPP is returned.
 *
 * Neither blocks. 0, also while prefetch is off; -ENOENT: no such layer or expert; -EINVAL: an expert twice, too many,
 * a weight out of range; -EOPNOTSUPP: a mount without a socket for this user, which predicts from requests alone
 * (efs_hint() writes to .expertfs/hint there, of one sequence); -EPIPE: the mount is gone. Of a mount, whether there
 * are such experts is not told: the mount's log tells.
 */
EFS_API errint_t efs_observe(struct efs_client *client, const struct efs_routing *chosen, struct efs_error *err);
EFS_API errint_t efs_hint(struct efs_client *client, const struct efs_routing *guessed, struct efs_error *err);

#ifdef __cplusplus
}
#endif
#endif
