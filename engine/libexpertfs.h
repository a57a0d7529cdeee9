/*
 * libexpertfs.h - the public interface of the engine: pack a checkpoint, look into a store, serve it.
 *
 * Functions return 0 or -errno (errint_t) unless they say otherwise, never print and never exit. What went wrong, with
 * file, offset and the way out, is put into struct efs_error for the caller to print once.
 */
#ifndef LIBEXPERTFS_H
#define LIBEXPERTFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 * What budget_bytes = 0 would choose now: half of the smallest of MemAvailable of /proc/meminfo and, for every memory
 * cgroup (v2 or v1) that this process is in, its limit less what it uses without its page cache. Half, since the
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

/* ---- long work ---------------------------------------------------------------------------------------------- */

/* Called from the calling thread now and then, at most some ten times a second, while packing, verifying or
 * unpacking. Return true to cancel: the call then returns -ECANCELED and leaves nothing behind. */
typedef bool efs_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase);

/* ---- packing ------------------------------------------------------------------------------------------------ */

enum efs_codec_choice { EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4, EFS_CHOOSE_RAW };

struct efs_pack_options {
    enum efs_codec_choice codec;
    unsigned threads;        /* 0: all cores */
    uint32_t shard_elements; /* 0: the default */
    bool force;              /* replace an existing store */
    bool verify;             /* decode and compare everything before the store gets its name */
    efs_progress_fn *progress;
    void *progress_arg;
};

/* One row of the closing table: all tensors of a dtype in a class ("expert", "dense", "other"). */
struct efs_pack_row {
    char tensor_class[8];
    char dtype[16];
    uint64_t tensors, raw_bytes, coded_bytes; /* coded: E and SM chunks with their padding */
    uint64_t elements;                        /* of formats with a coded exponent; else 0 */
    double exponent_bits, entropy_bits;       /* mean per element: as coded, and the entropy of one table a tensor */
    double bound_bytes;                       /* bytes at the entropy bound, per tensor */
};

#define EFS_PACK_ROWS 96
struct efs_pack_report {
    uint64_t source_bytes, store_bytes, files, experts, tensors;
    double seconds;
    char family[32];
    char notice[512]; /* "" or what the user should know: unknown family, hidden names, slow to decode */
    unsigned row_count;
    struct efs_pack_row rows[EFS_PACK_ROWS];
};

/*
 * Pack src (directory or file) into the store out. The store appears under its name only when complete and synced; a
 * failed or cancelled run leaves nothing. Blocks; uses at most 512 MiB whatever the model's size. The bytes depend on
 * the source, codec and shard size alone.
 */
EFS_API errint_t efs_pack(const char *src, const char *out, const struct efs_pack_options *options,
                          struct efs_pack_report *report, struct efs_error *err);

/* ---- looking into a store ----------------------------------------------------------------------------------- */

struct efs_store; /* an open store: its index in memory, read-only, shared by any number of threads */

/* Open and check superblock and index. -EUCLEAN: damaged; -EPROTONOSUPPORT: made by another version,
 * or with features that this one lacks. */
EFS_API errint_t efs_store_open(const char *path, struct efs_store **store, struct efs_error *err);
EFS_API void efs_store_close(struct efs_store *store); /* NULL is fine */

struct efs_store_info {
    uint64_t store_bytes, source_bytes, index_bytes, content_hash, files, tensors, experts, layers, groups, objects,
        shards;
    uint64_t codec_shards[4], codec_raw_bytes[4], codec_coded_bytes[4]; /* by enum efs_disk_codec */
    uint64_t expert_raw_bytes, expert_coded_bytes;
    uint32_t version, shard_elements;
    const char *report_json; /* what packing measured; lives as long as the store; not terminated */
    size_t report_bytes;
};
EFS_API void efs_store_info(const struct efs_store *store, struct efs_store_info *info);

/*
 * Read every chunk and check its checksum; decode it and check the raw checksum too if decode is set. Damage is told
 * to the callback (one line each: file, tensor, offset, chunk) and counted; the call goes on. 0 when all is well,
 * -EUCLEAN when damage was found, -EIO, -ECANCELED, ...
 */
typedef void efs_damage_fn(void *arg, const char *line);
EFS_API errint_t efs_store_verify(struct efs_store *store, bool decode, unsigned threads, efs_progress_fn *progress,
                                  efs_damage_fn *damage, void *arg, uint64_t *damaged_chunks, struct efs_error *err);

/* Restore all files below directory (made if missing; existing files are refused unless force). A file appears under
 * its name when it is complete. */
EFS_API errint_t efs_store_unpack(struct efs_store *store, const char *directory, bool force, unsigned threads,
                                  efs_progress_fn *progress, void *arg, struct efs_error *err);

/* ---- serving a store ---------------------------------------------------------------------------------------- */

struct efs; /* a store being served: I/O thread, decode workers, caches, one hard budget. Thread-safe. */

enum efs_log_level { EFS_LOG_ERROR, EFS_LOG_WARNING, EFS_LOG_INFO };

struct efs_options {
    uint64_t budget_bytes;    /* 0: auto (what cgroup and machine leave) */
    unsigned workers;         /* decode threads L; 0: all cores */
    uint64_t readahead_bytes; /* of a sequential reader; 0: default (32 MiB, less under a small budget) */
    uint64_t reserved_bytes;  /* the caller's own fixed memory (reply buffers, stacks): counted in the budget */
    bool full_pool;           /* keep leased experts in memfds (for passthrough and the client runtime) */
    bool lease_wait;          /* all leased and no room: true wait, false -ENOMEM */
    bool prealloc;            /* take all memory of the pools in efs_open(); with full_pool, F is planned for at once */
    bool no_direct;           /* read the store through the page cache (also chosen when O_DIRECT is refused) */
    /* Texts as efs_set() takes them; NULL: the default. Needed during efs_open() only. */
    const char *policy, *pools, *plan, *goal, *delta, *schedule;
    const char *history_path; /* a .route trace to plan from; NULL: the counts of earlier mounts, if any */
    bool no_state;            /* neither read nor write the state directory (profile, counts) */
    bool warm;                /* fill memory that is empty while the disk rests, with what the history expects most */
    void (*log)(void *arg, enum efs_log_level level, const char *line); /* any thread; may be NULL */
    void *log_arg;
};

/* Open store and start serving. -ENOMEM with the floor in err when the budget is below it. */
EFS_API errint_t efs_open(const char *store_path, const struct efs_options *options, struct efs **fs,
                          struct efs_error *err);
/* Finish or fail (-ECANCELED) what is under way, join all threads, free everything. No other call may be active. */
EFS_API void efs_close(struct efs *fs);
/* The caller holds bytes more than it said in reserved_bytes: they count in the budget from now on. */
EFS_API void efs_reserve(struct efs *fs, uint64_t bytes);
EFS_API const struct efs_store *efs_get_store(const struct efs *fs);

/*
 * The files served, by number from 0: first the checkpoint's own, then those under "experts/": one safetensors file
 * an expert (experts/L03/E017.safetensors, with a stack: experts/encoder-L03/E017.safetensors), the other tensors
 * (experts/dense.safetensors), the small files beside the weights again (config, tokenizer), and
 * experts/model.safetensors.index.json. A checkpoint that has a top-level "experts" or ".expertfs" itself is served
 * alone: view_hidden is then true.
 */
enum efs_file_kind { EFS_FILE_CHECKPOINT, EFS_FILE_EXPERT, EFS_FILE_VIEW };
struct efs_file_info {
    char path[1024]; /* relative to the root, no leading '/' */
    uint64_t bytes;
    enum efs_file_kind kind;
    uint32_t expert; /* EFS_FILE_EXPERT: expert number, else UINT32_MAX */
};
EFS_API uint32_t efs_file_count(const struct efs *fs);
EFS_API bool efs_view_hidden(const struct efs *fs);
EFS_API errint_t efs_file_info(const struct efs *fs, uint32_t file, struct efs_file_info *info);

/* One open handle's memory of where it read, for read-ahead. Owned by the caller; zero it first. */
struct efs_stream {
    uint64_t next_offset; /* where a sequential reader would go on */
    uint64_t ahead_until; /* read-ahead was asked for up to here */
    uint64_t run_begin;   /* where this sequential run began */
    uint32_t run;         /* sequential reads so far */
    uint32_t group;       /* 1 + the group (expert, tensor) it reads, UINT32_MAX once there were several; 0: none yet */
    uint32_t busy;        /* a call is looking at it */
};

/* error: 0 or -errno (-EIO a failed read, -EUCLEAN damage, -ECANCELED); bytes: how many of them are in dst. */
typedef void efs_done_fn(void *arg, errint_t error, size_t bytes);

/*
 * Read up to len bytes of file at offset into dst (less at the end of the file, 0 past it). done is called exactly
 * once, from this thread before the call returns (all was in memory) or from a worker. Never blocks on I/O. dst must
 * stay valid until done. stream may be NULL (no read-ahead) and is touched only inside the call; calls of several
 * threads may share one.
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
/* The same for efs_lease_window(): memory of the one use that nobody holds is left for that of the other. */
EFS_API void efs_lease_for_window(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg);
/*
 * The file, for reading, owned by the engine: whoever opens or maps it, or moves its pages elsewhere, sees this expert
 * for as long as he likes. Nobody can open it for writing. -EBUSY: it is a window; -errno.
 */
EFS_API int efs_lease_fd(const struct efs_lease *lease);
/*
 * Memory as a window: whoever keeps it mapped sees this expert until the lease is released, and then whatever comes
 * there next; he must hold a lease on what he reads, and until I/O has ended that he lets read it. number tells windows
 * apart and is never given again. -EBUSY: it was given out by efs_lease_fd(), or this process has no tmpfs of its own
 * (CAP_SYS_ADMIN).
 */
struct efs_window {
    uint32_t number;
    int fd; /* owned by the engine, valid while the lease is held, for reading; nobody can open it for writing */
    uint64_t bytes;
};
EFS_API errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window);
EFS_API const void *efs_lease_data(const struct efs_lease *lease); /* mapped read-only in this process */
EFS_API void efs_lease_release(struct efs_lease *lease);

/* ---- what it does ------------------------------------------------------------------------------------------- */

/* name, kind (counter or gauge), unit, help. The numbers of a served store; they add up as expertfs-proc(5) says. */
#define EFS_STATS(X)                                                                                                   \
    X(reads, counter, "", "read requests of files")                                                                    \
    X(read_bytes, counter, "bytes", "bytes handed to readers by read requests")                                        \
    X(read_errors, counter, "", "read requests that ended in an error")                                                \
    X(reads_f, counter, "", "pieces of reads copied from the full pool")                                               \
    X(reads_c, counter, "", "pieces of reads decoded from chunks that were in memory")                                 \
    X(reads_m, counter, "", "pieces of reads that waited for the disk")                                                \
    X(reads_generated, counter, "", "pieces of reads of generated headers and indexes")                                \
    X(leases, counter, "", "leases of full experts")                                                                   \
    X(leases_f, counter, "", "leases that found the expert full")                                                      \
    X(leases_c, counter, "", "leases filled from chunks that were in memory")                                          \
    X(leases_m, counter, "", "leases that waited for the disk")                                                        \
    X(leases_shared, counter, "", "leases that joined one being filled")                                               \
    X(leases_moved, counter, "",                                                                                       \
      "leases that had the expert brought again, from memory of a window to a file's or back")                         \
    X(lease_errors, counter, "", "leases that ended in an error")                                                      \
    X(lease_waits, counter, "", "leases that waited for room")                                                         \
    X(disk_reads, counter, "", "reads of the store submitted")                                                         \
    X(disk_bytes, counter, "bytes", "bytes read from the store")                                                       \
    X(disk_errors, counter, "", "reads of the store that failed")                                                      \
    X(disk_ns, counter, "ns", "time with at least one read of the store in flight")                                    \
    X(readahead_units, counter, "", "units read ahead")                                                                \
    X(warmed_units, counter, "", "units read into empty memory while the disk rested")                                 \
    X(decoded_bytes, counter, "bytes", "raw bytes decoded")                                                            \
    X(decode_ns, counter, "ns", "time of all threads in decoding and checking")                                        \
    X(chunks_checked, counter, "", "chunks whose checksum was checked")                                                \
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
    X(schedules, counter, "", "batches of experts that were put in order")                                             \
    X(schedule_ns, counter, "ns", "time in putting them in order")                                                     \
    X(plans, counter, "", "plans made")                                                                                \
    X(drifts, counter, "", "of them, because the workload had drifted from the plan")                                  \
    X(kept_lost, counter, "", "units that were to be kept and had to go for lack of memory, or were damaged")          \
    X(evictions_c, counter, "", "units dropped from the chunk pool")                                                   \
    X(memory_short, counter, "",                                                                                       \
      "times that memory within the budget was not taken, since the cgroup or the machine had none left")              \
    X(evictions_f, counter, "", "experts dropped from the full pool")                                                  \
    X(budget_bytes, gauge, "bytes", "the budget")                                                                      \
    X(fixed_bytes, gauge, "bytes", "held by index, tables, buffers and thread stacks")                                 \
    X(chunk_pool_bytes, gauge, "bytes", "held by the chunk pool")                                                      \
    X(chunk_used_bytes, gauge, "bytes", "of it in use")                                                                \
    X(chunk_units, gauge, "", "units in the chunk pool")                                                               \
    X(full_pool_bytes, gauge, "bytes", "held by the full pool")                                                        \
    X(full_experts, gauge, "", "experts in the full pool")                                                             \
    X(leased_bytes, gauge, "bytes", "of the full pool, leased")                                                        \
    X(leased_experts, gauge, "", "experts leased")                                                                     \
    X(inflight, gauge, "", "reads, leases and loads under way")                                                        \
    X(io_uring, gauge, "", "1: io_uring, 0: pread")                                                                    \
    X(direct_io, gauge, "", "1: the store is read with O_DIRECT")                                                      \
    X(registered_buffers, gauge, "", "1: the chunk pool is registered with io_uring")

struct efs_stats {
#define EFS_STATS_FIELD(name, kind, unit, help) uint64_t name;
    EFS_STATS(EFS_STATS_FIELD)
#undef EFS_STATS_FIELD
};
EFS_API void efs_stats(struct efs *fs, struct efs_stats *stats);

/* ---- tuning while it serves ---------------------------------------------------------------------------------- */

/*
 * By name: budget ("8G", "auto"), pools (which are allowed, some of "FCSE"), plan ("auto", or ratios of what the pools
 * may take in percent: "F=10,C=70,S=10,E=10"), policy (zipmoe, lru, lfu, fifo, marking), goal ("io", "makespan"), delta
 * (a number of ranks), schedule ("best", "request", "paper"). Shrinking evicts at once; *held_bytes (may be NULL) is
 * what leases and readers still hold above the new budget. -EINVAL: err says what is allowed; -ENOMEM: below the
 * floor, which err tells; -ENODATA: no such name. Nothing has changed then.
 */
EFS_API errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes,
                         struct efs_error *err);
/* The value as efs_set() would take it. -ENODATA: no such name; -ERANGE: room is too small. */
EFS_API errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room);
/* Pin an expert, or all of its layer, to pool 'F' or 'C' ('-': not any more). -ENOENT, -EINVAL. */
EFS_API errint_t efs_pin(struct efs *fs, uint32_t expert, bool whole_layer, char pool, struct efs_error *err);
/* "plan", "profile" or "memory" (nodes and pages of the chunk pool) as `name: value` lines, "sched" (the latest reads
 * and decodes of experts) and "requests" (the latest requests) a line each, "trace" (these as a .route trace, empty
 * before there is a pass); to be freed by the caller. -ENODATA: no such thing; -ENOMEM. */
EFS_API errint_t efs_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

/* A pool of the books (ZipMoE 3.4), 'F', 'C', 'S', 'E'; 'M': experts that are not kept. */
struct efs_pool_info {
    uint64_t capacity_bytes, used_bytes, experts;
    uint64_t hits;    /* experts asked for that were found so in memory; 'M': misses */
    uint64_t partial; /* of them, those of which a part had to be read */
    uint64_t admitted, promoted, demoted, evicted;
    uint64_t saved_bytes; /* that hits here did not read from the store */
};
EFS_API errint_t efs_pool_info(struct efs *fs, char pool, struct efs_pool_info *info);

/* Residency of one expert, for the experts file. */
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
EFS_API errint_t efs_expert_info(struct efs *fs, uint32_t expert, struct efs_expert_info *info);

/* ---- requests ------------------------------------------------------------------------------------------------- */

/*
 * What layers of the model need next: a line each with the layer, and its experts with the tokens that each gets (1 if
 * not said), `3: 17*12 4 9*2`. Layers and experts have the numbers of experts/L03/E017.safetensors; a model with
 * several stacks needs their names, `encoder-L03: 17`. Each line is one request, scheduled as a whole; opens and reads
 * of these experts find, or wait for, what it brings. Text needs no terminator, its last line no newline. Does not
 * block. -EINVAL: a line is wrong, a layer or expert is not there, or the text is too long; no request was taken then,
 * and err has the reason. -ENOMEM.
 */
#define EFS_WANT_LINE_BYTES 4096u /* at most, and of a text: */
#define EFS_WANT_BYTES 65536u
EFS_API errint_t efs_want(struct efs *fs, const char *text, size_t bytes, struct efs_error *err);

/*
 * One request by ioctl(2) on a mount's root or its file .expertfs/want, for models with one stack. size is that of the
 * struct, flags are 0, count is 1 to 64, what is behind count is not looked at. EINVAL, EPERM (not who mounted it).
 */
#define EFS_WANT_IOCTL_EXPERTS 64u
struct efs_want_ioctl {
    uint32_t size, layer, count, flags;
    struct {
        uint32_t expert, tokens;
    } want[EFS_WANT_IOCTL_EXPERTS];
};
#define EFS_IOC_WANT _IOW(0xEF, 1, struct efs_want_ioctl) /* 0x4210EF01; needs <sys/ioctl.h> */

/*
 * Experts of a mount handed out without files, over a socket of type SOCK_SEQPACKET whose abstract name is in
 * .expertfs/handout. A client sends asks and gets an answer for each item that has a tag, in any order; what was handed
 * out is held until its tag is dropped, or the socket closed. The memory comes as windows (efs_lease_window()), each
 * with its descriptor in the first answer that names it. libexpertfs uses it by itself.
 */
#define EFS_HANDOUT_VERSION 1u
#define EFS_HANDOUT_ITEMS 64u
#define EFS_HANDOUT_TAGS 16384u     /* tags are below that */
#define EFS_HANDOUT_TOLD UINT32_MAX /* in place of a tag: the expert is used, and is held by the client already */
enum efs_handout_kind {
    EFS_HANDOUT_ASK = 1,    /* a layer's experts, as one request (expertfs-proc(5), want); tags are free ones, or
                               EFS_HANDOUT_TOLD: with these alone nothing is answered */
    EFS_HANDOUT_DROP = 2,   /* what was handed out under these tags, or is on its way */
    EFS_HANDOUT_FORGET = 3, /* windows, in place of tags, that the client unmapped */
};
struct efs_handout_ask {
    uint32_t version, kind, layer, count;
    char stack[32]; /* "" for models with one; ended */
    struct {
        uint32_t expert, tokens, tag;
    } item[EFS_HANDOUT_ITEMS]; /* a packet ends behind the last */
};
struct efs_handout_answer {
    uint32_t version, tag;
    int32_t error; /* 0 or -errno: open the expert's file instead */
    uint32_t window;
    uint64_t window_bytes, file_bytes; /* the file begins where the window does */
};

/* ---- the client runtime: a layer's experts in this process ------------------------------------------------------ */

/* The number of an expert, as in efs_expert_info(): stack is "" for models with one. -ENOENT. */
EFS_API errint_t efs_expert_find(const struct efs *fs, const char *stack, uint32_t layer, uint32_t expert,
                                 uint32_t *number);

struct efs_need {
    uint32_t expert; /* number */
    uint32_t tokens; /* that it gets, 1 or more */
};
enum efs_form {
    EFS_FORM_FULL,  /* decoded; needs efs_options.full_pool */
    EFS_FORM_CODED, /* its chunks as they lie in the chunk pool, checked: for products on the coded form */
    EFS_FORM_ANY    /* each expert as it is cheaper now: full if it is full already, else coded */
};

/* A shard of a tensor in coded form: e and sm are NULL where the shard has no such chunk. */
struct efs_coded_shard {
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes, elements;
    uint32_t codec; /* 0 none (sm is the raw bytes), 1 cascade, 2 zstd, 3 lz4 */
};
/* A tensor of an expert; a slice of a fused one without the expert dimension. */
struct efs_tensor {
    const char *name; /* terminated */
    enum efs_dtype dtype;
    uint32_t dims;
    uint64_t shape[8];                    /* slowest first */
    uint64_t bytes;                       /* raw */
    const void *data;                     /* EFS_FORM_FULL: in the mapped memfd, read-only */
    const struct efs_coded_shard *shards; /* EFS_FORM_CODED */
    uint32_t shard_count, shard_elements;
};

/*
 * Name the experts that a layer needs, each once, all of the same layer: scheduled as a whole, brought in the order
 * that lets the layer go on soonest. Does not block. Each expert is leased, unchanging, until it is dropped or the
 * request released. -EINVAL: a number, a form, an expert twice or of another layer; -ENOMEM. *request is the caller's.
 */
struct efs_request;
EFS_API errint_t efs_request_begin(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_form form,
                                   struct efs_request **request, struct efs_error *err);
/* Wait until an expert is there that no call has told of yet: 0 with its index in needs, or -errno of that expert with
 * its index (-ENOMEM, -EIO, -EUCLEAN, -ECANCELED). timeout_ms < 0: for ever; -ETIMEDOUT. -ENOENT: all were told of. */
EFS_API errint_t efs_request_wait_any(struct efs_request *request, int timeout_ms, uint32_t *index);
/* Wait for all. 0, or the error of the first in needs that has one. */
EFS_API errint_t efs_request_wait(struct efs_request *request);
/* The tensors of an expert that is there, in the order of its file; valid until it is dropped. -EAGAIN: not there yet;
 * its error; -EINVAL; -ENOMEM. */
EFS_API errint_t efs_request_tensors(struct efs_request *request, uint32_t index, const struct efs_tensor **tensors,
                                     uint32_t *count);
/* This one is not needed any more. */
EFS_API void efs_request_drop(struct efs_request *request, uint32_t index);
/* None is; what is still under way ends by itself. NULL is fine. Before efs_close(). */
EFS_API void efs_request_release(struct efs_request *request);

/* ---- running experts --------------------------------------------------------------------------------------------- */

/* Threads for products, the caller's among them. Several layers may be run with it, one after the other. */
struct efs_team;
EFS_API errint_t efs_team_new(unsigned threads, struct efs_team **team); /* 0: all cores; -ENOMEM, -EINVAL */
EFS_API void efs_team_free(struct efs_team *team);                       /* NULL is fine */

/*
 * In what the vectors are that meet the matrices. F32: products as they are, the same to the bit on every processor.
 * BF16: x is BF16, and h = silu(gate x) * (up x), which is F32, is rounded to BF16 before down (to nearest, ties to
 * even; a NaN stays one), as runtimes do whose products are of BF16; processors with a BF16 dot product use it, so
 * that sums, which are F32 in both, may be rounded otherwise on another kind of processor.
 */
enum efs_activation { EFS_ACTIVATION_F32, EFS_ACTIVATION_BF16 };

/* An expert of a mixture, and the tokens that it gets. */
struct efs_route_to {
    uint32_t expert;       /* number, as in efs_expert_find() */
    uint32_t count;        /* 1 or more */
    const uint32_t *token; /* [count]: rows of x and y, each once */
    const float *weight;   /* [count] */
};

/* What a layer is to compute: y[t] = the sum over its experts of weight * down h, h = silu(gate x[t]) * (up x[t]). */
struct efs_mixture {
    const struct efs_route_to *experts;
    uint32_t expert_count; /* each expert once, all of one layer */
    enum efs_activation activation;
    const void *x;             /* [tokens][x_stride], in the activation's type */
    uint32_t tokens, hidden;   /* hidden: columns of gate and up, rows of down */
    size_t x_stride, y_stride; /* elements from one token to the next */
    float *y;                  /* [tokens][y_stride], overwritten; tokens of no expert get zeros */
    enum efs_form form;
};

/*
 * Run it: names the experts, computes each as it arrives, on all threads of the team, and adds up in the order of
 * experts, so that the result is the same to the bit for every form, number of threads and order of arrival. Blocks.
 * -EINVAL; -EOPNOTSUPP: the experts are no SwiGLU of three BF16 matrices (err names the tensor), or coded in a way that
 * only the full form serves; what efs_request_begin() and _wait_any() return.
 */
EFS_API errint_t efs_expert_ffn(struct efs *fs, struct efs_team *team, const struct efs_mixture *mixture,
                                struct efs_error *err);

/* The same for experts that lie in the caller's memory as plain BF16, row-major: gate and up [inner][hidden], down
 * [hidden][inner]. experts stand beside those of the mixture, whose form and numbers of experts are not looked at. */
struct efs_plain_expert {
    const void *gate, *up, *down;
    uint32_t inner;
};
EFS_API errint_t efs_plain_ffn(struct efs_team *team, const struct efs_mixture *mixture,
                               const struct efs_plain_expert *experts, struct efs_error *err);

/* ---- a mount or a store, by the same calls -------------------------------------------------------------------- */

struct efs_client; /* thread-safe */
#define EFS_KEEP_AUTO UINT64_MAX
struct efs_client_options {
    const struct efs_options *store; /* of a store file; NULL: full_pool and lease_wait, the rest as it comes */
    /*
     * Of a mount: experts that no request has any more stay open and mapped up to that many bytes, those that were
     * used last, so that the next request for them costs no system call. What is open is leased: the mount cannot let
     * it go, so leave it less than its budget. 0: nothing is kept. EFS_KEEP_AUTO: of the experts that the mount keeps
     * full itself, all but an eighth at most.
     */
    uint64_t keep_bytes;
    unsigned threads; /* of a mount: files that are opened at once, at most 64; 0: 32 */
};

/*
 * path is the directory of a mount, whose experts are then handed out over its socket, or opened and mapped by threads
 * of the client, or a store file, which is then opened in this process (efs_open). options may be NULL. -ENODEV: a
 * directory, but no mount; what efs_open() returns; what the system says.
 */
EFS_API errint_t efs_client_open(const char *path, const struct efs_client_options *options, struct efs_client **client,
                                 struct efs_error *err);
/* After the last request was released. Tells the mount what was used, and blocks until what is being opened is open.
 * NULL is fine. */
EFS_API void efs_client_close(struct efs_client *client);
/* The store that is open in this process, owned by the client; NULL: it is a mount. */
EFS_API struct efs *efs_client_fs(struct efs_client *client);

/*
 * Name the experts that a layer needs: as efs_request_begin(), but by the numbers of experts/L03/E017.safetensors:
 * stack is "" for models with one, needs[].expert is the number in the layer, each once. A mount is told by its socket
 * or by .expertfs/want, where the caller may use them, has at most 512 experts in a request, and hands out full experts
 * alone; for requests whose experts are all mapped it is told a moment later. -ENOENT: no such layer or expert; of one
 * that was there before, waiting for it tells. -EOPNOTSUPP: coded, of a mount.
 */
struct efs_client_request;
EFS_API errint_t efs_client_begin(struct efs_client *client, const char *stack, uint32_t layer,
                                  const struct efs_need *needs, uint32_t count, enum efs_form form,
                                  struct efs_client_request **request, struct efs_error *err);
/* As efs_request_wait_any(), _wait(), _tensors(), _drop() and _release(). Errors of an expert of a mount are those of
 * its open, -EIO, and -EUCLEAN for a file that is not what it should be. */
EFS_API errint_t efs_client_wait_any(struct efs_client_request *request, int timeout_ms, uint32_t *index);
EFS_API errint_t efs_client_wait(struct efs_client_request *request);
EFS_API errint_t efs_client_tensors(struct efs_client_request *request, uint32_t index,
                                    const struct efs_tensor **tensors, uint32_t *count);
EFS_API void efs_client_drop(struct efs_client_request *request, uint32_t index);
EFS_API void efs_client_release(struct efs_client_request *request);

/* ---- routing traces ------------------------------------------------------------------------------------------ */

/* Which experts a model chose, token by token, layer by layer: a .route file, zstd-compressed or plain. Owned by the
 * caller, who frees it with efs_route_free(). */
struct efs_route {
    uint32_t layers, experts, chosen; /* 1..1024, 1..4096, 1..64 (at most experts) */
    uint64_t tokens;                  /* 1 or more */
    uint32_t *sequence;               /* [tokens]: tokens of one request have the same number, one after the other */
    uint16_t *ids;                    /* [tokens][layers][chosen], each below experts */
    char name[64];                    /* of the model; printable, cut if longer */
};

/* Read and check all of a trace. Blocks. -EUCLEAN: not a trace, or its numbers are out of bounds; -EFBIG: more than
 * 1 GiB; -ENOMEM; what the system says. */
EFS_API errint_t efs_route_read(const char *path, struct efs_route *route, struct efs_error *err);
EFS_API void efs_route_free(struct efs_route *route); /* a zeroed one is fine */

/* ---- the profile --------------------------------------------------------------------------------------------- */

/*
 * What this machine takes to read and decode this store: u, rho and c of ZipMoE 3.3 and what else the planner and the
 * simulator go by. Sizes are averages over the experts; read and kept sizes include the padding to 4 KiB. Only tensors
 * of at least 1/25 of their expert count as tensors.
 */
#define EFS_PROFILE_NUMBERS(X)                                                                                         \
    X(layers, "layers that have experts, those of all stacks")                                                         \
    X(experts, "experts of the widest layer")                                                                          \
    X(tensors, "tensors of an expert")                                                                                 \
    X(shards, "K: shards of a tensor")                                                                                 \
    X(workers, "L: decode threads")                                                                                    \
    X(full_bytes, "an expert in full (F)")                                                                             \
    X(coded_bytes, "both its chunks (C)")                                                                              \
    X(sm_bytes, "its SM-chunks (S)")                                                                                   \
    X(e_bytes, "its E-chunks (E)")                                                                                     \
    X(rho, "coded size of E over its size")                                                                            \
    X(disk_bytes_per_second, "reads of experts, many in flight")                                                       \
    X(read_latency_ns, "a read of 4 KiB by itself")                                                                    \
    X(sm_read_ns, "u: read the SM-chunks of a tensor")                                                                 \
    X(e_read_ns, "v: read an E-chunk")                                                                                 \
    X(decode_ns, "c: decode a shard and merge it, all workers at work")                                                \
    X(decode_bytes_per_second, "the same in raw bytes, one worker")                                                    \
    X(copy_bytes_per_second, "copy raw bytes in memory, one thread")                                                   \
    X(recode_bytes_per_second, "code raw bytes again, one thread")

struct efs_profile {
    uint64_t content_hash; /* of the store that was measured */
    int64_t measured_at;   /* seconds since 1970 */
#define EFS_PROFILE_FIELD(name, help) double name;
    EFS_PROFILE_NUMBERS(EFS_PROFILE_FIELD)
#undef EFS_PROFILE_FIELD
    bool direct_io;    /* reads went past the page cache */
    char cpu_path[16]; /* that decoded: efs_cpu_path() */
};

/*
 * Measure for about that many seconds (0.1 to 60): reads through the I/O thread of the engine, decodes by workers
 * (0: all cores) at once. Blocks; takes some 100 MiB of memory. -ENOENT: the store has no experts; -EIO, -EUCLEAN
 * (damage), -ENOMEM.
 */
EFS_API errint_t efs_profile_measure(struct efs_store *store, unsigned workers, double seconds,
                                     struct efs_profile *profile, struct efs_error *err);

/* The file of a store's profile: below $EXPERTFS_STATE, else /var/lib/expertfs for root, else $XDG_STATE_HOME/expertfs
 * or ~/.local/state/expertfs. -ENOENT: no home, -ENAMETOOLONG. */
EFS_API errint_t efs_profile_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err);
/* Save it there, atomically; directories are made. */
EFS_API errint_t efs_profile_save(const struct efs_profile *profile, struct efs_error *err);
/* -ENOENT: there is none; -EUCLEAN: not a profile, or a number that cannot be. */
EFS_API errint_t efs_profile_load(const char *path, struct efs_profile *profile, struct efs_error *err);
/* As JSON, to be freed by the caller; NULL: no memory. */
EFS_API char *efs_profile_json(const struct efs_profile *profile);

#ifdef __cplusplus
}
#endif
#endif
