/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs.h - libexpertfs: request experts from a mount or a store, read the files of a store, inspect a store.
 *
 * Further headers: expertfs-stats.h has counters; expertfs-pack.h packs, verifies and unpacks stores;
 * expertfs-compute.h runs experts, expertfs-peer.h on other machines, too; expertfs-gpu.h loads them into GPU memory;
 * expertfs-protocol.h is the protocol of a mount's socket, for programs without the library.
 *
 * Functions return 0 or -errno (errint_t) unless they say otherwise, never print and never exit. struct efs_error
 * receives a message with the file, the offset and a way out, for the caller to print once; it may be NULL.
 *
 * Structs may change until release 1.0.0: build a program with the headers of its library. In a struct that the caller
 * fills in, 0 selects the default of every member.
 *
 * Threads may use the same struct efs, efs_store, efs_stream, efs_client or efs_client_request at once. The call that
 * ends or frees an object must be the last on it, while no other call on it is active. A team (expertfs-compute.h) runs
 * one mixture at a time.
 *
 * Objects belong to the process that opened them, except efs_store and efs_stream. In a child of fork(2) the calls that
 * end an object release the child's copy without waiting; efs_client_drop() does nothing, efs_stats() returns zeros,
 * all other calls fail with -ECHILD.
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
    /* One line without a newline; a way out may follow as a second one, "\nhint: ...". "": no error. */
    char text[1024];
};
/* printf into err (may be NULL) and return code. */
EFS_API errint_t efs_fail(struct efs_error *err, errint_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

EFS_API const char *efs_version(void); /* "0.1.0" */
/* Bytes of a public struct ("efs_tensor"), for bindings that declare it themselves to compare; 0: no such struct. */
EFS_API size_t efs_struct_bytes(const char *name);

/* ---- element types ------------------------------------------------------------------------------------------- */

/* dtypes as safetensors names them; a GGUF block type is EFS_DTYPE_GGML + its ggml number. The values are part of the
 * store format. */
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

/* ---- looking into a store ------------------------------------------------------------------------------------ */

struct efs_store; /* an open store: its index in memory, read-only */

/* Open a store and check its superblock and index; or make the index of a checkpoint that is not packed: a GGUF file, a
 * split one by one of its parts, a safetensors file, or a directory with such files. -EUCLEAN: damaged;
 * -EPROTONOSUPPORT: another format version, or features that this library lacks; -ENODATA: an incomplete checkpoint. */
EFS_API errint_t efs_store_open(const char *path, struct efs_store **store, struct efs_error *err);
EFS_API void efs_store_close(struct efs_store *store); /* NULL is fine */

/* Name of a codec by its number (CODECS in expertfs-store(5)): "none", "cascade", ...; NULL: no such codec. */
#define EFS_CODECS 16
EFS_API const char *efs_codec_name(uint32_t codec);

struct efs_store_info {
    uint64_t store_bytes, source_bytes, index_bytes, content_hash, files, tensors, experts, layers, groups, objects,
        shards;
    uint64_t layer_experts; /* of the widest layer */
    uint64_t codec_shards[EFS_CODECS], codec_raw_bytes[EFS_CODECS], codec_coded_bytes[EFS_CODECS]; /* by codec */
    uint64_t expert_raw_bytes, expert_coded_bytes;
    uint32_t version, shard_elements;
    const char *report_json; /* measured by packing; valid until the store is closed; not terminated */
    size_t report_bytes;
    /* The store's file when it was opened: */
    bool direct; /* it can be read with O_DIRECT */
    /* Of the store's file. Of a checkpoint in place: mode, those that all its files have; group and mtime, of its first
     * file; device and inode, of the path that was opened, which may be a directory. */
    unsigned mode;          /* read permissions: bits of 0444, without those that an access control list may deny */
    unsigned group;         /* gid of its group */
    struct timespec mtime;  /* time of its last change */
    uint64_t device, inode; /* st_dev, st_ino */
    bool in_place;          /* a checkpoint that is not packed, so that it has no checksums */
};
EFS_API void efs_store_info(const struct efs_store *store, struct efs_store_info *info);

/* ---- a client of a mount or a store -------------------------------------------------------------------------- */

struct efs_client;
enum efs_log_level { EFS_LOG_ERROR, EFS_LOG_WARNING, EFS_LOG_INFO };
struct efs_client_options {
    /* For a store, which is opened in this process; not for a mount. */
    unsigned workers;        /* decode threads; 0: all cores */
    uint64_t budget_bytes;   /* limit of all memory of this store; 0: half of what cgroup and machine have free */
    uint64_t reserved_bytes; /* memory of the caller that the budget includes */
    bool coded_only;         /* keep no decoded experts: EFS_FORM_FULL is refused */
    bool no_state;           /* neither read nor write the state directory */
    bool warm;               /* read all experts into empty memory while the disk is idle, if all of them fit */
    const char *prefetch;    /* a value for efs_set(); NULL: off */
    /* Called by any thread; may be NULL. line may contain a hint, as efs_error.text. */
    void (*log)(void *arg, enum efs_log_level level, const char *line);
    void *log_arg;
};

/*
 * Open the directory of a mount, or anything that efs_store_open() opens. A mount hands out experts over its socket.
 * options may be NULL. -ENODEV: a directory that is neither a mount nor a checkpoint; -ENOENT, -EACCES, -ECONNREFUSED:
 * the socket cannot be reached; -ENOMEM: the budget is below its minimum, which err names; errors of efs_store_open()
 * and of the system.
 */
EFS_API errint_t efs_client_open(const char *path, const struct efs_client_options *options, struct efs_client **client,
                                 struct efs_error *err);
/* The same for the directory of a mount only: a program that opens clients by this call and links libexpertfs.a does
 * not contain the engine. */
EFS_API errint_t efs_client_open_mount(const char *path, struct efs_client **client, struct efs_error *err);
/* Call after the last request was released. Reports uses to the mount. NULL is fine. */
EFS_API void efs_client_close(struct efs_client *client);
/* The store that is open in this process, owned by the client; NULL: a mount. */
struct efs;
EFS_API struct efs *efs_client_fs(struct efs_client *client);

struct efs_need {
    uint32_t expert; /* number in the layer */
    uint32_t tokens; /* routed to it, 1 or more */
};
enum efs_form {
    EFS_FORM_FULL,   /* decoded; refused by a store that was opened with coded_only */
    EFS_FORM_CODED,  /* its chunks in the chunk pool, checked: for products on the coded form */
    EFS_FORM_ANY,    /* each expert in the cheaper form: full if it is decoded in memory, else coded */
    EFS_FORM_DEVICE, /* decoded, in GPU memory: expertfs-gpu.h */
    EFS_FORM_SHARED  /* only for efs_client_ffn(): each expert on the GPU or the CPU */
};

/* A shard of a tensor in coded form: e and sm are NULL where the shard has no such chunk. */
struct efs_coded_shard {
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes, elements;
    uint32_t codec; /* efs_codec_name(); 0: none, sm is the raw bytes */
};
/* A tensor of an expert; of a fused tensor the expert's slice, without the expert dimension. */
struct efs_tensor {
    const char *name; /* terminated */
    enum efs_dtype dtype;
    uint32_t dims;
    uint64_t shape[8];                    /* slowest first */
    uint64_t bytes;                       /* raw */
    const void *data;                     /* EFS_FORM_FULL: mapped read-only; EFS_FORM_DEVICE: device address */
    const struct efs_coded_shard *shards; /* EFS_FORM_CODED */
    uint32_t shard_count, shard_elements;
};

/* Part of a tensor in its expert, by the end of its name: gate_proj, w1, ffn_gate_exps, ...; OTHER: not known. */
enum efs_role {
    EFS_ROLE_GATE,
    EFS_ROLE_UP,
    EFS_ROLE_DOWN,
    EFS_ROLE_GATE_BIAS,
    EFS_ROLE_UP_BIAS,
    EFS_ROLE_DOWN_BIAS,
    EFS_ROLE_IN, /* wi and wo of Switch */
    EFS_ROLE_OUT,
    EFS_ROLE_GATE_UP, /* both in one: see enum efs_layout */
    EFS_ROLE_GATE_UP_BIAS,
    EFS_ROLE_OTHER
};
EFS_API enum efs_role efs_tensor_role(const char *name);

/* An expert as it is listed. */
struct efs_listed_expert {
    const char *stack; /* terminated; "" for models with one */
    uint32_t layer, expert;
    const struct efs_tensor *tensors; /* in the order of its file, without data and shards */
    uint32_t tensor_count;
};
/* List all experts of a mount or a store in the order of stack, layer and number, with their tensors, without loading
 * any. The caller frees *experts, and with it all that it points to, by free(3). Blocks. -EUCLEAN: the mount sends a
 * wrong list; -ENOENT: its daemon is older than this call; -ENOMEM. */
EFS_API errint_t efs_client_experts(struct efs_client *client, struct efs_listed_expert **experts, uint32_t *count,
                                    struct efs_error *err);

struct efs_client_request;
/*
 * Request experts of a layer by their numbers in it, each once, as in experts/L03/E017.safetensors. stack is "" for
 * models with one. The experts are read and decoded in the order of needs. Does not block. Each expert is leased and
 * does not change until it is dropped or the request is released. The caller owns *request.
 *
 * A mount is notified; if all experts are mapped already, with a delay. A mount takes at most 512 experts in a request.
 *
 * -EINVAL: an unknown form, no tokens, an expert twice, too many experts; -ENOENT: no such layer or expert (for a mount
 * without the view, efs_client_wait_any() reports it); -EIO: the daemon of the mount has ended; -ENOMEM.
 */
EFS_API errint_t efs_client_begin(struct efs_client *client, const char *stack, uint32_t layer,
                                  const struct efs_need *needs, uint32_t count, enum efs_form form,
                                  struct efs_client_request **request, struct efs_error *err);
/*
 * Wait for the next expert that is loaded or has failed. 1: *index is its index in needs, *status 0 or its error
 * (-ENOMEM, -EIO, -EUCLEAN, -ECANCELED; with a mount also -EIO after the daemon has ended, and -EDEADLK: clients
 * hold the memory that it needs, and have released none for 30 s). 0: all were reported or dropped. -ETIMEDOUT: none
 * in timeout_ms (< 0: no limit). -EDEADLK, at once, without a limit: only this thread's drops can release the memory,
 * of experts of this request or, for a store in this process, of any request that this thread has made; or, for such a
 * store, threads that wait for each other without a limit hold all of it: then one of them gets it. A program that
 * drops experts by another thread than that which requested them waits with a limit.
 */
EFS_API int efs_client_wait_any(struct efs_client_request *request, int timeout_ms, uint32_t *index, errint_t *status);
/* An eventfd to poll: readable while efs_client_wait_any() would return at once. Owned by the request, the same at each
 * call. -EMFILE, ... */
EFS_API int efs_client_event(struct efs_client_request *request);
/*
 * Wait for all experts: 0, or the error of the first in needs that failed. All must fit into memory at once, coded ones
 * into half of the planned chunk pool. -EDEADLK, at once: they do not (a mount reports it over its socket); or, for a
 * store in this process, only drops of other requests that this thread has made, or of threads that wait for each
 * other, can release the memory (a mount ends the request with -EDEADLK after 30 s). The request stays valid for
 * efs_client_wait_any() and drops. A request that waits for memory holds none.
 */
EFS_API errint_t efs_client_wait(struct efs_client_request *request);
/* For callers that look for signals while they wait: waits as efs_client_wait_any() without a limit or, if all, as
 * efs_client_wait(), but takes no expert. 0: that call will not block; -EDEADLK, -ECHILD: as that call; -EINTR: not yet
 * after step_ms (< 0: without a limit); call it again, as the thread is counted as one that waits. */
EFS_API errint_t efs_client_wait_step(struct efs_client_request *request, bool all, int step_ms);
/* The tensors of a loaded expert, in the order of its file; valid until it is dropped. -EAGAIN: not loaded yet; the
 * expert's error if it failed; -EINVAL: no such index, or dropped; -ENOMEM. */
EFS_API errint_t efs_client_tensors(struct efs_client_request *request, uint32_t index,
                                    const struct efs_tensor **tensors, uint32_t *count);
/* End the use of one expert. */
EFS_API void efs_client_drop(struct efs_client_request *request, uint32_t index);
/* End the use of all experts; loads in flight complete in the background. NULL is fine. Call before
 * efs_client_close(). */
EFS_API void efs_client_release(struct efs_client_request *request);

/*
 * The program begins to compute: it has the model's files mapped or reads them for each token, all but the experts and
 * disk_bytes of tables that it leaves on disk, and has allocated what else it needs. budget=auto leaves memory to these
 * files from now on, in place of half of the available memory: of a store, until it is closed; of a mount, within a
 * second, and until all clients that say so are closed (of several, the smallest disk_bytes counts). No effect where
 * the budget is a size. Call it again when disk_bytes changes.
 *
 * Does not wait. 0; -EINVAL: disk_bytes is UINT64_MAX or the number before; -EPIPE: the daemon of the mount has ended.
 */
EFS_API errint_t efs_client_leave(struct efs_client *client, uint64_t disk_bytes, struct efs_error *err);

/* ---- prefetch ------------------------------------------------------------------------------------------------ */

/* The experts of a layer for a sequence. A sequence is the tokens of one text; the caller numbers it. */
#define EFS_ROUTING_EXPERTS 512u /* at most */
struct efs_routing {
    uint32_t sequence;
    const char *stack; /* NULL or "": the only one of the model */
    uint32_t layer;
    uint32_t count;
    const uint32_t *experts; /* [count] numbers in the layer, each once; the router's first choice first, if known */
    /* [count] or NULL. efs_observe(): the router's scores, 0 to 1e6; NULL: not known. efs_hint(): probabilities, 0 to
     * 1; NULL: 1. */
    const float *weights;
};
/*
 * With the setting prefetch (efs_set()) experts of later layers are read in idle disk time. They are predicted from the
 * requests; with several concurrent sequences efs_observe() predicts better: report the router's choice for each layer
 * in order, before its experts are requested. count 0 ends the sequence. efs_hint() replaces the prediction for a layer
 * of a sequence by the caller's. Neither requests an expert, counts as a use or evicts experts that the policy keeps.
 *
 * Neither blocks. 0, also while prefetch is off; -ENOENT: no such layer or expert (a mount logs it instead); -EINVAL:
 * an expert twice, too many, a weight out of range; -EPIPE: the daemon of the mount has ended.
 */
EFS_API errint_t efs_observe(struct efs_client *client, const struct efs_routing *chosen, struct efs_error *err);
EFS_API errint_t efs_hint(struct efs_client *client, const struct efs_routing *guessed, struct efs_error *err);

/* ---- the store in this process ------------------------------------------------------------------------------- */

/* struct efs: a store served by this process: I/O thread, decode threads, caches, one hard budget. */
EFS_API const struct efs_store *efs_get_store(const struct efs *fs);

/* An expert by its number in the store, from 0 to efs_expert_count() - 1, across all layers of all stacks. A separate
 * type, so that it is not confused with the number in a layer. */
struct efs_expert_id {
    uint32_t number;
};
static inline struct efs_expert_id efs_id(uint32_t number)
{
    struct efs_expert_id id = {number};
    return id;
}

/*
 * Files by number from 0: the files of the checkpoint, then one safetensors file for each expert:
 * experts/L03/E017.safetensors, with a stack experts/encoder-L03/E017.safetensors. A checkpoint that itself contains
 * experts/ or .expertfs has no expert files; its experts can be requested.
 */
enum efs_file_kind { EFS_FILE_CHECKPOINT, EFS_FILE_EXPERT };
struct efs_file_info {
    char path[1024]; /* relative to the root, no leading '/' */
    uint64_t bytes;
    enum efs_file_kind kind;
    struct efs_expert_id expert; /* EFS_FILE_EXPERT; else its number is UINT32_MAX */
};
EFS_API uint32_t efs_file_count(const struct efs *fs);
EFS_API errint_t efs_file_info(const struct efs *fs, uint32_t file, struct efs_file_info *info);

/*
 * A stream is a source of reads, such as an open file. Readers that go through a file in order are detected among the
 * reads of all streams, and extents are read ahead for them. Free a stream after the last efs_read() on it has been
 * called; NULL is fine to free. -EINVAL: no such hint; -ENOMEM.
 */
enum efs_stream_hint {
    EFS_STREAM_SEQUENTIAL = 0,  /* detect sequential readers */
    EFS_STREAM_NO_READAHEAD = 1 /* the caller reads ahead itself: load only what is read */
};
struct efs_stream;
EFS_API errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **stream); /* hints: bits of these */
EFS_API void efs_stream_free(struct efs_stream *stream);

/* error: 0 or -errno (-EIO failed read, -EUCLEAN damage, -ECANCELED); bytes: number of bytes in dst. */
typedef void efs_done_fn(void *arg, errint_t error, size_t bytes);
/*
 * Read up to len bytes of file at offset into dst: fewer at the end of the file, 0 past it. Never blocks on I/O. done
 * is called once: by this thread before the call returns (all bytes were in memory), or by a decode thread; dst must
 * stay valid until then. stream may be NULL: no read-ahead.
 */
EFS_API void efs_read(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
                      efs_done_fn *done, void *arg);

struct efs_expert_info {
    char name[64]; /* "L03/E017", "encoder-L03/E017" */
    uint32_t layer, expert;
    uint32_t file;         /* number of its file; UINT32_MAX: none */
    char state;            /* in memory: 'F' full, 'C' all chunks, 'S' all SM, 'E' all E, 'P' some, 'M' none */
    char kept;             /* the pool in which the policy keeps it, 'F', 'C', 'S', 'E', 'M' */
    char pin;              /* 'F', 'C', '-' */
    uint32_t leases, rank; /* rank: in its layer, by the policy; 0: best */
    uint64_t count;        /* requests, as the policy counts them */
    uint64_t raw_bytes, coded_bytes, resident_bytes, touches;
};
EFS_API uint32_t efs_expert_count(const struct efs *fs);
EFS_API errint_t efs_expert_info(struct efs *fs, struct efs_expert_id expert, struct efs_expert_info *info);

/*
 * Settings by name: those of the root in expertfs-proc(5), such as budget, with values such as "8G". A smaller budget
 * evicts at once; *held_bytes (may be NULL) is the memory above it that leases and readers still hold. 0: err may have
 * a note on the value. After an error nothing has changed: -EINVAL: err names the allowed values; -ENOMEM: below the
 * minimum, which err names; -ENODATA: no such name.
 */
EFS_API errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes,
                         struct efs_error *err);
/* The value in the form that efs_set() takes. -ENODATA: no such name; -ERANGE: room is too small. */
EFS_API errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room);

#ifdef __cplusplus
}
#endif
#endif
