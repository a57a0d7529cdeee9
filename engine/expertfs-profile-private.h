/* SPDX-License-Identifier: Apache-2.0 */
/* expertfs-profile-private.h - measurements of a store that outlive a mount: profile, counts, routing traces; as
 * expertfs-private.h. */
#ifndef EXPERTFS_PROFILE_PRIVATE_H
#define EXPERTFS_PROFILE_PRIVATE_H

#include "expertfs.h"

/* ---- routing traces (expertfs-route(5)) ------------------------------------------------------------------------ */

/* The kind of a trace record. */
enum efs_route_kind {
    EFS_ROUTE_UNKNOWN,
    EFS_ROUTE_PROMPT,  /* a token of a prompt */
    EFS_ROUTE_DECODE,  /* a generated token */
    EFS_ROUTE_SEVERAL, /* several tokens at once, of a prompt or a batch: the experts of all of them */
    EFS_ROUTE_KINDS
};

/* ---- the profile --------------------------------------------------------------------------------------------- */

/*
 * Times and rates of this machine for reading and decoding this store: u, rho and c of ZipMoE 3.3 and further inputs of
 * the planner and the simulator. Sizes are averages over the experts; read and kept sizes include the padding to 4 KiB.
 * Only tensors of at least 1/25 of their expert count as tensors.
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
    X(disk_spread, "range of the disk's rate over its median: all rounds but the two extremes")                        \
    X(decode_spread, "the same of decoding")

struct efs_profile {
    uint64_t content_hash; /* of the store that was measured */
    int64_t measured_at;   /* seconds since 1970 */
#define EFS_PROFILE_FIELD(name, help) double name;
    EFS_PROFILE_NUMBERS(EFS_PROFILE_FIELD)
#undef EFS_PROFILE_FIELD
    uint64_t device;   /* st_dev of the store; 0: not known. Copies on two file systems have one content_hash. */
    bool direct_io;    /* reads bypassed the page cache */
    char cpu_path[16]; /* efs_cpu_path() when it was measured */
};

/*
 * Measure for about the given seconds (0.1 to 60): reads through an I/O thread as the engine's, decodes on workers
 * threads in parallel (0: all cores), both in rounds, of which the medians count. Blocks; takes some 100 MiB of memory.
 * -ENOENT: the store has no experts; -EIO, -EUCLEAN (damage), -ENOMEM.
 */
errint_t efs_profile_measure(struct efs_store *store, unsigned workers, double seconds, struct efs_profile *profile,
                             struct efs_error *err);

/* Whether the rounds agree, so that the profile may replace a saved one: another load on the machine makes them
 * differ. */
#define EFS_PROFILE_SPREAD_MAX 0.25
bool efs_profile_is_steady(const struct efs_profile *profile);

/* The path of a store's profile: below $EXPERTFS_STATE, else /var/lib/expertfs for root, else $XDG_STATE_HOME/expertfs
 * or ~/.local/state/expertfs. -ENOENT: no home, -ENAMETOOLONG. */
errint_t efs_profile_path(uint64_t content_hash, char *path, size_t room, struct efs_error *err);
/* The path KIND-HASH.ENDING below $EXPERTFS_STATE, else /var/lib/expertfs for root, else $XDG_STATE_HOME/expertfs or
 * ~/.local/state/expertfs. -ENOENT: no home; -ENAMETOOLONG. */
errint_t efs_state_path(const char *kind, uint64_t content_hash, const char *ending, char *path, size_t room,
                        struct efs_error *err);
/* Replace a file atomically; creates missing directories. Blocks until it is on disk. After an error of the system,
 * which err reports with the path, the old file remains. */
errint_t efs_state_save(const char *path, const void *data, size_t bytes, struct efs_error *err);
/* Deletes what the state directory has of a store: profile, counts, predictor, sources, and which files have its bytes.
 */
void efs_state_remove(uint64_t content_hash);
/* Save a profile at that path, atomically; creates missing directories. */
errint_t efs_profile_save(const struct efs_profile *profile, struct efs_error *err);
/* Load a profile. -ENOENT: no such file; -ESTALE: of another version, a number is missing; -EUCLEAN: not a profile, or
 * a number out of range. */
errint_t efs_profile_load(const char *path, struct efs_profile *profile, struct efs_error *err);
/* The profile as JSON; the caller frees it. NULL: no memory. */
char *efs_profile_json(const struct efs_profile *profile);

/* ---- the counts (expertfs-counts(5)) --------------------------------------------------------------------------- */

/* Save the history of a store as the counts for its next mount, in the directory of its profile; creates missing
 * directories. Blocks (fsync). After an error, which err reports with the path, the previous file remains. */
struct efs_history;
errint_t efs_counts_save(uint64_t content_hash, const struct efs_history *history, struct efs_error *err);
/* Reads the counts of a store with these numbers of layers and experts. Initialises history, which the caller frees,
 * also after an error. -ENOENT: no such file; -EUCLEAN: damaged, or of another version, store or size; -ENOMEM. */
errint_t efs_counts_read(const char *path, uint64_t content_hash, unsigned layers, unsigned experts,
                         struct efs_history *history, struct efs_error *err);
/* The bytes of a file of counts, which the caller frees; NULL: no memory. */
void *efs_counts_pack(uint64_t content_hash, const struct efs_history *history, size_t *bytes);
size_t efs_counts_bytes(unsigned layers, unsigned experts); /* their number */
/* Takes the numbers of such bytes, which it changes, into a history of that size. NULL, or the reason for refusing
 * them: then the history is empty. */
const char *efs_counts_unpack(void *data, size_t bytes, uint64_t content_hash, struct efs_history *history);

#endif
