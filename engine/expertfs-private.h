/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-private.h - calls for the programs of this project, in addition to the public headers. Not installed and not
 * in the shared library: daemon and tools link the archive. May change at any time.
 */
#ifndef EXPERTFS_PRIVATE_H
#define EXPERTFS_PRIVATE_H

#include "expertfs-protocol.h"
#include "expertfs.h"

#include <stdio.h>
#include <sys/types.h>

/* The code path that decodes on this processor: "scalar", "avx2", "avx512", "neon" (EXPERTFS_CPU can select one). */
const char *efs_cpu_path(void);
/*
 * Memory that this process can allocate now. available_bytes: the least of MemAvailable of /proc/meminfo and, for each
 * memory cgroup (v2 or v1) of the process, its limit (v2: also memory.high) less its usage without page cache.
 * free_bytes: the same with page cache counted as used. limit_bytes: the OOM limit, the least of MemTotal and the
 * cgroups' limits.
 */
struct efs_memory {
    uint64_t limit_bytes, available_bytes;
    bool cgroup; /* limit_bytes is that of a cgroup */
    uint64_t free_bytes;
};
void efs_memory(struct efs_memory *memory);
/* Whether files of that size stay in the page cache while a program computes with them: they are less than four fifths
 * of the available memory. */
bool efs_fits_memory(uint64_t bytes);
/* The budget that budget_bytes = 0 would choose now, while nothing is known of the programs: half of what is
 * available, which leaves the other half to the page cache. */
uint64_t efs_auto_budget(void);
/* The mount table of a process, "self" or its number, in the order of mounting. efs_mounts_next(): false after the last
 * line; strings are unescaped, and valid until the next line is read. efs_mounts_close() also after an error. */
struct efs_mount_entry {
    int id, parent;
    dev_t device;
    char *root;                           /* mounted directory of the file system: "/" except for bind mounts */
    char *path, *type, *source, *options; /* options: of the file system */
};
struct efs_mounts {
    FILE *table;
    char *line;
    size_t room;
};
errint_t efs_mounts_open(struct efs_mounts *mounts, const char *process);
bool efs_mounts_next(struct efs_mounts *mounts, struct efs_mount_entry *mount);
void efs_mounts_close(struct efs_mounts *mounts);
/* Makes a message of struct efs_error one line, for a log: replaces the newline before its hint by "; ". room: of text;
 * the message stays unchanged if the result does not fit. */
void efs_join_hint(char *text, size_t room);
/* Replaces control characters, and bytes that are not UTF-8, with '?', as efs_fail() does: text for people contains
 * names from outside, but no terminal escapes. newlines: they stay. */
void efs_make_printable(char *text, bool newlines);
/* Writes text into word as one word for the shell, on one line, for a command that a user copies; without special
 * characters as it is. A word that does not fit is the start of text, not quoted. Returns word. */
const char *efs_word(const char *text, char *word, size_t room);
#define EFS_WORD_BYTES sizeof(((struct efs_error *)NULL)->text)
#define EFS_WORD(text) efs_word(text, (char[EFS_WORD_BYTES]){""}, EFS_WORD_BYTES) /* for an error message */
/* Whether text ends with `end`, and has more before it. */
bool efs_ends_with(const char *text, const char *end);
/* For "did you mean": candidate if at most 2 edits, and half of its bytes, change it into word, and fewer than best,
 * else best (may be NULL). */
const char *efs_nearer_word(const char *word, const char *best, const char *candidate);
/* "8G", "512M", "1.5G", "65536", "2GiB": bytes, binary units K M G T. -EINVAL: not a size; -ERANGE: too large. */
errint_t efs_parse_size(const char *text, uint64_t *bytes);
/* The value of the setting budget: "auto" (*bytes = 0) or a size above 0. -EINVAL. */
errint_t efs_parse_budget(const char *text, uint64_t *bytes, struct efs_error *err);
/* *choice: the position of value in choices, which '|' separates, counted from 0. -EINVAL: none of them; err names the
 * setting and the choices. */
errint_t efs_choice_parse(const char *name, const char *choices, const char *value, unsigned *choice,
                          struct efs_error *err);
/* Writes the choice at this position, which must be one, into text. */
void efs_choice_name(const char *choices, unsigned choice, char *text, size_t room);

/* ---- tunables ---------------------------------------------------------------------------------------------------- */

/* The settings of efs_set(), which are also mount options, attributes and lines of .expertfs/config. */
#define EFS_TUNABLE_NAMES(X) X(budget) X(pools) X(plan) X(policy) X(goal) X(prefetch) X(warm) X(local_fill)
enum efs_tunable_number {
#define EFS_TUNABLE_NUMBER(name) EFS_TUNE_##name,
    EFS_TUNABLE_NAMES(EFS_TUNABLE_NUMBER)
#undef EFS_TUNABLE_NUMBER
        EFS_TUNABLES
};
struct efs;
struct efs_tunable {
    const char *name, *help;
    const char *values; /* with choose: the choices, separated by '|'; else what values look like */
    const char *start;  /* the value of a mount without an option for it */
    /* For choices: sets the one at this position, without lock; returns the present one. */
    errint_t (*choose)(struct efs *fs, unsigned choice, struct efs_error *err);
    unsigned (*chosen)(struct efs *fs); /* lock held */
    /* For other values. held_bytes: as efs_set(), for budget only */
    errint_t (*set)(struct efs *fs, const char *value, uint64_t *held_bytes, struct efs_error *err);
    void (*get)(struct efs *fs, char *text, size_t room); /* lock held */
};
extern const struct efs_tunable efs_tunables[EFS_TUNABLES];
const struct efs_tunable *efs_tunable_find(const char *name); /* NULL: no such name */
/* Checks a value without a served store: 0, or -EINVAL with the allowed values in err. */
errint_t efs_tunable_check(const struct efs_tunable *tunable, const char *value, struct efs_error *err);

/* ---- serving a store --------------------------------------------------------------------------------------------- */

/* How the store is read. O_DIRECT also passes by the page cache of a network file system and by FS-Cache, so that each
 * read of an evicted expert goes to the server: by default only a local store is read so. If the kernel refuses
 * O_DIRECT the page cache is used. */
enum efs_store_direct { EFS_STORE_DIRECT_AUTO, EFS_STORE_DIRECT_ON, EFS_STORE_DIRECT_OFF };

struct efs_options {
    unsigned workers;        /* decode threads L; 0: all cores */
    uint64_t budget_bytes;   /* 0: auto (from what cgroup and machine have free) */
    uint64_t reserved_bytes; /* the caller's own fixed memory (reply buffers, stacks): counted in the budget */
    uint64_t per_file_bytes; /* the same for each served file, such as for its name */
    bool full_pool;          /* keep leased experts in memfds (for passthrough and the client runtime) */
    bool lease_wait;         /* an open's lease without room waits for a release; false: it fails with -ENOMEM */
    bool prealloc; /* allocate all memory of the pools in efs_open(); with full_pool, the first plan has a pool F */
    enum efs_store_direct store_direct;
    const char *local;     /* folder of a local copy of what is read (local/local.h); NULL: none */
    uint64_t local_bytes;  /* its size */
    const char *placement; /* file that says which experts this server holds (expertfs-placement(5)); NULL: none */
    const char *server;    /* its name there; NULL: the host's */
    /* Values as for efs_set(); NULL: the engine's default. budget: budget_bytes is used. Read only during efs_open().
     */
    union {
        const char *tune[EFS_TUNABLES];
        struct {
#define EFS_TUNABLE_TEXT(name) const char *name;
            EFS_TUNABLE_NAMES(EFS_TUNABLE_TEXT)
#undef EFS_TUNABLE_TEXT
        };
    };
    bool no_state;                                                      /* neither read nor write the state directory */
    void (*log)(void *arg, enum efs_log_level level, const char *line); /* any thread; may be NULL */
    void *log_arg;
    bool exports; /* with full_pool: keep all pools in memory that other processes can map, to hand out experts */
};

/* Whether the kernel lets the engine find out that a closed file is still mapped, by fcntl(2) F_SETLEASE: 0, also where
 * this cannot be tried; -errno where it refuses: -EINVAL with sysctl fs.leases-enable=0, -EPERM or -ENOSYS by a seccomp
 * filter. Then every file that was passed to another process counts as mapped. */
errint_t efs_leases_probe(void);
/* Starts a thread with a stack of EFS_STACK_BYTES (base/thread.h) and all signals blocked. The caller joins or detaches
 * it: pthread_t is unsigned long. 0 or -errno. */
errint_t efs_thread_start(void *(*run)(void *), void *arg, const char *name, unsigned long *thread);

/* Open a store and start serving it. -ENOMEM: the budget is below the minimum, which err names. */
errint_t efs_open(const char *store_path, const struct efs_options *options, struct efs **fs, struct efs_error *err);
/* The same for an open store, which is closed with *fs, or after an error. */
errint_t efs_open_store(struct efs_store *store, const struct efs_options *options, struct efs **fs,
                        struct efs_error *err);
/* Finish or cancel (-ECANCELED) all operations, join all threads, free everything. No other call may be active. */
void efs_close(struct efs *fs);
/* Add bytes to reserved_bytes. -ENOMEM: the budget is now below the minimum, which err names, and all reads fail until
 * it is raised. */
errint_t efs_reserve(struct efs *fs, uint64_t bytes, struct efs_error *err);
/* Charge bytes of the caller to the budget, as fixed, and end that. The pools shrink for them. -ENOMEM: the rest of the
 * budget would not hold the memory that is pinned now. Any thread, without a lock that callbacks need. */
errint_t efs_charge(struct efs *fs, uint64_t bytes);
void efs_uncharge(struct efs *fs, uint64_t bytes);
/* With budget=auto: leave memory to the model's files without their experts, which programs have mapped, and read for
 * each token, except disk_bytes of them, and 1/16 of the available memory for later allocations; but at least 1/8 of
 * that to the pools. EFS_LEAVE_MOST: a sixteenth to the pools, while a program loads its model. EFS_LEAVE_HALF: nothing
 * is known of programs. Reads the memory that is left, without waiting for evictions. Returns the budget in force.
 * Second call: the next reading, within 0.5 s, applies it. */
#define EFS_LEAVE_HALF UINT64_MAX
#define EFS_LEAVE_MOST (UINT64_MAX - 1)
uint64_t efs_budget_leave(struct efs *fs, uint64_t disk_bytes);
void efs_budget_leave_later(struct efs *fs, uint64_t disk_bytes);
/* Other programs read a file, through the page cache or past it: while they fill it, budget=auto leaves all memory to
 * it (budget/controller.h). Any thread. */
void efs_note_file_read(struct efs *fs, uint64_t bytes, bool cached);
/* Whether the checkpoint itself contains experts/ or .expertfs, so that its experts have no files. */
bool efs_view_hidden(const struct efs *fs);
/* A client of a store that the caller has opened, and must close after the client. -ENOMEM. */
errint_t efs_client_new(struct efs *fs, struct efs_client **client, struct efs_error *err);
/* Report to the mount what the program has counted of experts that it keeps in memory of a device itself, for
 * .expertfs/clients; sets the head. A packet for which the socket has no room is dropped: the next one has its counts,
 * too. No effect on a store in this process. Any thread. */
struct efs_export_device;
void efs_client_report_device(struct efs_client *client, struct efs_export_device *device);

/*
 * Lease a full expert: decode its file into a memory file with the same offsets, which does not change until all leases
 * on it are released. done gets the lease, which must be released once for each call, or an error. efs_close() ends the
 * remaining leases: their memory files are closed, never changed.
 */
struct efs_lease;
typedef void efs_leased_fn(void *arg, errint_t error, struct efs_lease *lease);
void efs_lease(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg);
/*
 * The memory file, opened for reading, owned by the engine until the last lease is released. A process that opens or
 * maps it, or splices its pages, sees this expert until it closes and unmaps them. It cannot be opened for writing.
 * -EBUSY: the expert is in a window; -errno.
 */
int efs_lease_fd(const struct efs_lease *lease);
void efs_lease_release(struct efs_lease *lease);

/* Pin an expert, or all of its layer, to pool 'F' or 'C'; '-' removes the pin. -ENOENT, -EINVAL. */
errint_t efs_pin(struct efs *fs, struct efs_expert_id expert, bool whole_layer, char pool, struct efs_error *err);

/* A pool of the cache (ZipMoE 3.4), 'F', 'C', 'S', 'E'; 'M': experts that are not kept. */
struct efs_pool_info {
    uint64_t capacity_bytes, used_bytes, experts;
    uint64_t hits;    /* requested experts that were in memory in this form; 'M': misses */
    uint64_t partial; /* hits that had to read some parts */
    uint64_t admitted, promoted, demoted, evicted;
    uint64_t saved_bytes; /* bytes that hits did not read from the store */
};
errint_t efs_pool_info(struct efs *fs, char pool, struct efs_pool_info *info);

/*
 * Read `count` rows of `bytes` bytes each, at most EFS_ROWS_MAX and EFS_ROW_BYTES_MAX, of tensors outside experts in a
 * file of a store that is not packed. Reads only their pages, all at once, and keeps these in at most half of the
 * pools. scratch: efs_rows_scratch_bytes(), of any alignment, not used by others meanwhile. Blocks. Any thread.
 * -EOPNOTSUPP: the store is packed, or a limit is exceeded; -EINVAL: no such bytes; -EBADF, -EIO.
 */
#define EFS_ROWS_MAX 4096u
#define EFS_ROW_BYTES_MAX (1u << 20)
struct efs_row {
    uint64_t offset; /* in the file */
    void *dst;
};
size_t efs_rows_scratch_bytes(uint32_t count, size_t bytes); /* 0: a limit is exceeded */
errint_t efs_read_rows(struct efs *fs, uint32_t file, const struct efs_row *rows, uint32_t count, size_t bytes,
                       void *scratch);

/* A hint of efs_stream_new(): efs_read() of a few pages of a dense tensor may wait for the disk on the calling thread,
 * which takes fewer changes of threads. */
#define EFS_STREAM_MAY_BLOCK 0x100u
/* Another one: the bytes read stay in the page cache. An extent whose bytes were all read with it is evicted first,
 * before the pool grows, and is not warmed. */
#define EFS_STREAM_STAYS 0x200u

/* Whether any of these bytes of a file are an expert's. */
bool efs_file_holds_expert(const struct efs *fs, uint32_t file, uint64_t offset, uint64_t bytes);

/*
 * Rows of a matrix of an expert (efs_client_tensors(), full or coded, any dtype) as the checkpoint has them, from row
 * on: *count is the most, and receives the number. *rows points to them in the tensor's memory, or in scratch, which
 * has room for *count rows: a row that is split in memory, or rows that are coded. Does not block. Any thread. -EINVAL:
 * no such rows; -EUCLEAN: damage; -ENOMEM.
 */
errint_t efs_tensor_rows(const struct efs_tensor *tensor, uint64_t row, uint32_t *count, void *scratch,
                         const void **rows, struct efs_error *err);

/* ---- which file has which bytes ---------------------------------------------------------------------------------- */

/* A tensor of the checkpoint with the matrices of all experts of a layer in their order, as in GGUF. */
struct efs_stacked {
    const char *name; /* name_bytes, not terminated; in the store */
    uint32_t name_bytes;
    uint32_t layer, experts;
    uint32_t file;          /* of the store */
    uint64_t offset, bytes; /* of all experts, in that file */
};
/* The stacked tensors of the model that has the experts of the store, of stack ""; the caller frees the list. -ENOMEM.
 */
errint_t efs_stacked_list(const struct efs_store *store, struct efs_stacked **list, uint32_t *count);
/*
 * Whether [offset, offset + bytes) of a file of the store are the bytes at fd_offset of the open file fd, which may be
 * open with O_DIRECT. Of a packed store the whole range of fd is read and compared with the checksums of the store,
 * which is not read; of a store that is served in place fd must be the file itself. Blocks. Any thread. 0: the same;
 * -ESTALE: they differ; -ENODATA: not known (another file, or the range divides a shard); -EINVAL, -ENOMEM, -errno.
 */
errint_t efs_same_bytes(const struct efs_store *store, uint32_t file, uint64_t offset, uint64_t bytes, int fd,
                        uint64_t fd_offset);
/*
 * Results of efs_same_bytes() that are kept in the state directory, so that a file is read only once. They hold for the
 * file's device, inode, size and times. efs_same_known(): 1: the same, -ESTALE: they differ, 0: not known.
 * efs_same_remember() records a result for the st_* that the file had at `seen`, a time of CLOCK_REALTIME before its
 * bytes were read; it does nothing if the file had changed less than two seconds before, because a later change could
 * leave the same times. Errors are ignored: the range is compared again. Any thread; block.
 */
bool efs_same_lasts(int fd); /* whether a result for the file may be kept: false if its times may miss a change */
struct efs_same_range {
    uint32_t file; /* of the store */
    uint64_t offset, bytes, fd_offset;
};
struct stat;
int efs_same_known(uint64_t content_hash, const struct stat *st, const struct efs_same_range *range);
void efs_same_remember(uint64_t content_hash, const struct stat *st, const struct timespec *seen,
                       const struct efs_same_range *range, bool same);

/* Parse JSON as Python's json module does, for config.json and index files: with a byte order mark, NaN (null here),
 * Infinity (1e308) and integers of any size (real where 64 bits do not hold them); the last of two members of a name
 * counts. The caller owns the result; NULL: err has "line N: reason". */
struct json_t;
struct json_t *efs_json_python(const char *text, size_t bytes, struct efs_error *err);

/* ---- running experts --------------------------------------------------------------------------------------------- */

struct efs_team;
struct efs_mixture;
/* efs_client_ffn() for experts in the caller's memory, in BF16, row-major: gate and up [inner][hidden], down
 * [hidden][inner]. experts[i] is run for mixture->experts[i]; its number and mixture->form are ignored. */
struct efs_plain_expert {
    const void *gate, *up, *down;
    uint32_t inner;
};
errint_t efs_plain_ffn(struct efs_team *team, const struct efs_mixture *mixture, const struct efs_plain_expert *experts,
                       struct efs_error *err);

/* Whether an address of a peer is HOST:PORT. 0, or -EINVAL. */
errint_t efs_peer_check(const char *address, struct efs_error *err);

/* The state of an expert, as efs_expert_info.state, without the rest. 'M': no such expert, or a forked process. */
char efs_expert_state(struct efs *fs, uint32_t expert);

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* A text, which the caller frees: "plan", "profile" or "memory" (nodes and pages of the chunk pool) as `name: value`
 * lines; "predict" (benefit of prefetch) as such lines and a table; "trace" (the latest requests as a .route trace,
 * empty before the first pass); "layers" (the tensors of all experts, constant). -ENODATA: no such text; -ENOMEM. */
errint_t efs_describe(struct efs *fs, const char *what, char **text, size_t *bytes);
/* Closes a stream of open_memstream(3). 0; -ENOMEM: a write or the end has failed, *text is freed, and NULL. */
errint_t efs_text_stream_end(FILE *stream, char **text);
/* Print a size in powers of 1024 with three digits, "1.70 GiB" or "512 B", into text, of EFS_SIZE_TEXT bytes; returns
 * text. */
#define EFS_SIZE_TEXT 16
char *efs_size_text(uint64_t bytes, char *text);
/* Print a path for such a line or a label of Prometheus: a newline as \n, and \ before " and \. */
void efs_print_escaped(FILE *out, const char *text);
void efs_print_escaped_bytes(FILE *out, const char *text, size_t bytes);
/* The absolute path of an existing file, without symbolic links; the caller frees it; NULL after an error. -EXDEV: no
 * other path than the given one leads to the file. Errors of realpath(3). */
errint_t efs_absolute_path(const char *path, char **absolute, struct efs_error *err);
/* The same of what efs_store_open() opens. A checkpoint's file keeps the name in path, which may be a link: in caches
 * of the Hugging Face Hub the target has a checksum for a name. */
errint_t efs_source_path(const char *path, char **absolute, struct efs_error *err);
/* Whether path is an address: rados:, or SCHEME://, of which https://, http:// and s3:// are read; rados:. hf:// is
 * none, but the name of a model. */
bool efs_is_address(const char *path);
bool efs_is_rados(const char *path);
/* Where the Hugging Face Hub is: HF_ENDPOINT, or its own address. */
const char *efs_hub_endpoint(void);
/* A path as a part of a URL: all but unreserved characters and '/' as %XX. The caller frees it; NULL: no memory. */
char *efs_url_encode(const char *path);
/* What a server sends at a URL, of at most `most` bytes, not terminated; the caller frees it. With the token of the
 * address, HF_TOKEN or EXPERTFS_HTTP_TOKEN; name: in messages. Redirects, retries and errors as of files on servers:
 * -ENOENT, -EACCES, -EINVAL, -EIO, -ENOMEM; -ENOSYS: no libcurl. Blocks. */
errint_t efs_remote_text(const char *name, const char *url, size_t most, char **text, size_t *bytes,
                         struct efs_error *err);
/* Cuts from an address what may be secret, its query and fragment: for messages and tables that all users see. */
void efs_hide_secret(char *path);

/* -ECHILD: fs was opened by the process from which this one was forked; then only efs_close() works. */
errint_t efs_check_process(const struct efs *fs, struct efs_error *err);

/* ---- requests of one store --------------------------------------------------------------------------------------- */

/* Replace the experts' numbers in the layer by their numbers in the store. -ENOENT: no such layer or expert, which err
 * names; some numbers may have been replaced. */
errint_t efs_experts_find(const struct efs *fs, const char *stack, uint32_t layer, struct efs_need *needs,
                          uint32_t count, struct efs_error *err);

/* Called when an expert of a request is loaded, and held until efs_client_drop(request, index); or when it has failed:
 * request is then NULL, and the expert is not held. */
typedef void efs_arrived_fn(void *arg, errint_t error, struct efs_client_request *request, uint32_t index);
/* Called when the experts of a request do not fit into memory at once, with the argument of the one that will be
 * admitted last; when own_drops changes, the number of those that wait for drops of this request
 * (efs_request_waits_for_drops()); and, when those that wait fit, again with the same argument and oversize false.
 * Called with the engine's lock held: it must not block or call the engine. */
typedef void efs_oversize_fn(void *arg, bool oversize, uint32_t own_drops);

/* All 0: each expert is leased in full until it is dropped or the request is released. */
/* A program that requests experts: those that it holds are counted over all of its requests. The caller and each
 * request have a reference. NULL: no memory. */
struct efs_holder;
struct efs_holder *efs_holder_new(void);
void efs_holder_unref(struct efs_holder *holder); /* NULL is fine */
/* With a form of efs_client_begin(): the experts are in the counts already, here or on the machine that has chosen
 * them. They are used all the same: the cache keeps them. */
#define EFS_FORM_COUNTED 0x100u
struct efs_request_how {
    enum efs_form form;
    bool counted; /* as EFS_FORM_COUNTED */
    /* For other processes, as windows: called once for each expert, on any thread, possibly before the call returns.
     * The request ends when the last expert is dropped. args[i] is the argument for expert i. */
    efs_arrived_fn *arrived;
    void *const *args;
    efs_oversize_fn *oversize; /* with arrived; may be NULL */
    struct efs_holder *holder; /* with arrived: the program that requests; NULL: it has no other request */
    bool opened; /* with arrived: each expert is for an open of its file, in a memory file that other processes open */
};
/*
 * Request experts of one layer by their numbers in the store, each once. They are read and decoded in this order. Does
 * not block. -EINVAL: a wrong number or form, an expert twice or of another layer; -ENOMEM; after an error arrived is
 * not called. The caller owns *request, whose calls are in expertfs.h; it is NULL with arrived.
 * Release it before efs_close().
 */
errint_t efs_request_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                            const struct efs_request_how *how, struct efs_client_request **request,
                            struct efs_error *err);
/* Experts of one layer that a program needs next: they are counted as used, and read ahead as far as memory allows,
 * without holding them. Errors as above. */
errint_t efs_experts_want(struct efs *fs, const struct efs_need *needs, uint32_t count, struct efs_error *err);
/* Whether its experts do not fit into memory at once: the next one arrives after drops. Any thread. */
bool efs_client_is_oversize(struct efs_client_request *request);
/* Experts with `arrived` that wait for room, and for whose argument cancelled() is true, leave the queue unread:
 * arrived gets -ECANCELED. Experts that are being loaded are not affected. cancelled() is called with the engine's lock
 * held. */
typedef bool efs_cancelled_fn(const void *arg);
void efs_requests_cancel(struct efs *fs, efs_cancelled_fn *cancelled);
/* The same for those of requests that hold nothing and wait for memory that programs hold, also their own by other
 * requests: arrived gets -EDEADLK. The caller has decided that those do not release it in time. Returns the number of
 * experts. */
uint32_t efs_requests_refuse(struct efs *fs, efs_cancelled_fn *chosen);
/* From now on, calls this when a request starts to wait so, and each time that it is tried again. progressed: since the
 * last call, one that waited was admitted in its turn, or pinned memory became less than it was since then. Experts
 * that are dropped and requested again while another program holds them are no progress. With the engine's lock held:
 * it must not block or call the engine. NULL: ends the calls. */
typedef void efs_memory_short_fn(void *arg, bool progressed);
void efs_on_memory_short(struct efs *fs, efs_memory_short_fn *call, void *arg);
/* Whether a request waits for memory that programs hold. An oversize request that only its own program can admit, by
 * drops, does not count. */
bool efs_memory_short(struct efs *fs);
/* Replaces efs_client_drop() for an expert that arrived has reported: after efs_close(), or when its lease was passed
 * on. */
void efs_request_detach(struct efs_client_request *request, uint32_t index);

/* ---- prefetch ---------------------------------------------------------------------------------------------------- */

/* efs_observe(), efs_hint() and efs_client_count() for a store. observer: a number, or 0: the mount, which has one
 * sequence for all clients without an observer. */
enum efs_routing_kind {
    EFS_ROUTING_CHOSEN,
    EFS_ROUTING_PREDICTED,
    EFS_ROUTING_COUNTED /* weights: numbers of tokens */
};
errint_t efs_routing_submit(struct efs *fs, uint32_t observer, enum efs_routing_kind kind,
                            const struct efs_routing *routing, struct efs_error *err);
/* Check routing as far as possible without a store, and copy it: stack is not NULL in the copy. */
errint_t efs_routing_check(const struct efs_routing *from, struct efs_routing *to, enum efs_routing_kind kind,
                           struct efs_error *err);
/* Returns a new observer, 1 or more. */
uint32_t efs_routing_observer(struct efs *fs);
/* Ends the observer and its sequences. */
void efs_routing_observer_end(struct efs *fs, uint32_t observer);

/* ---- experts as windows ---------------------------------------------------------------------------------------- */

/*
 * A window is memory that other processes keep mapped. An expert in it does not change while it is held; after a drop
 * the engine decodes another one there. A process must hold an expert while it, or its I/O, reads it. Numbers of
 * windows are not reused. The calls take the index of an expert that the request holds.
 */
struct efs_window {
    uint32_t number;
    bool once;                  /* its content never changes: to be unmapped with its last expert, to free its memory */
    int fd;                     /* for reading; cannot be reopened for writing. < 0: not open */
    uint64_t bytes, file_bytes; /* file_bytes: of a full expert's file at the start of the window; else 0 */
};
/* EFS_FORM_FULL or EFS_FORM_CODED. */
enum efs_form efs_request_form(const struct efs_client_request *request, uint32_t index);
/* The window of a full expert; its fd is not opened. -EBUSY: there were too few descriptors. */
errint_t efs_request_window(const struct efs_client_request *request, uint32_t index, struct efs_window *window);
/* The windows and offsets of a coded expert's extents, in the order of its layout; the caller frees them. -EOPNOTSUPP:
 * other processes cannot map the memory; -ENOMEM. */
errint_t efs_request_places(const struct efs_client_request *request, uint32_t index, struct efs_export_place **places,
                            uint32_t *count);
/* Open the window of a full expert, or one of the windows of a coded one. The caller closes the descriptor. -EMFILE,
 * ... */
errint_t efs_request_open_window(const struct efs_client_request *request, uint32_t index, uint32_t number,
                                 struct efs_window *window);
/* The layout of a coded expert in the format of the protocol (struct efs_export_layout and the arrays after it),
 * constant while the store is served; the caller frees it. -ENOMEM. */
errint_t efs_request_layout(const struct efs_client_request *request, uint32_t index, struct efs_export_layout **layout,
                            size_t *bytes);

/* ---- the chunk pool's memory ------------------------------------------------------------------------------------ */

/* For code that registers segments with a driver: gone is called before a segment is released, mostly on a decode
 * thread, and never after efs_chunk_unwatch() has returned. It must not call the engine. */
struct efs_chunk_watch {
    struct efs_chunk_watch *next;
    void (*gone)(void *arg, void *base);
    void *arg;
};
void efs_chunk_watch(struct efs *fs, struct efs_chunk_watch *watch);
void efs_chunk_unwatch(struct efs *fs, struct efs_chunk_watch *watch);
/* The segment that contains a held chunk. false: no segment does. */
bool efs_chunk_segment(struct efs *fs, const void *chunk, void **base, size_t *bytes);

#endif
