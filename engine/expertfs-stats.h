/* SPDX-License-Identifier: Apache-2.0 */
/* expertfs-stats.h - counters and gauges of a store that is served in this process. */
#ifndef EXPERTFS_STATS_H
#define EXPERTFS_STATS_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, kind (counter or gauge), unit, help. expertfs-proc(5) states the sums that hold between them. */
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
    X(placed_bytes, counter, "bytes", "of experts read because a placement puts them here")                            \
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
    X(evictions_first, counter, "", "of evictions_c, extents that were used up, so that the pool need not grow")       \
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
    X(reads_small, counter, "", "of reads_c and reads_m, those of a few pages of a tensor that is not in memory")      \
    X(reads_edge, counter, "", "of reads_m, those that read one shard alone: what was read around another expert")     \
    X(coded, counter, "", "experts asked for in coded form")                                                           \
    X(coded_c, counter, "", "of them, those whose chunks were all in memory")                                          \
    X(coded_m, counter, "", "of them, those that waited for the disk")                                                 \
    X(coded_errors, counter, "", "of them, those that ended in an error")                                              \
    X(coded_waits, counter, "", "of them, those that waited for room")                                                 \
    X(coded_bytes, gauge, "bytes", "of the chunk pool, handed out coded or on the way")                                \
    X(coded_experts, gauge, "", "experts handed out coded or on the way")                                              \
    X(effective_budget_bytes, gauge, "bytes", "of the budget, what can be had now: the pools are planned for it")      \
    X(reads_past, counter, "",                                                                                         \
      "pieces of reads and leases that went past the chunk pool: coded experts had all of it")                         \
    X(local_bytes, counter, "bytes", "of disk_bytes, those that the local copy had")                                   \
    X(local_written_bytes, counter, "bytes", "written to the local copy")                                              \
    X(local_evicted_bytes, counter, "bytes", "dropped from the local copy for others")                                 \
    X(local_damaged, counter, "", "pages of the local copy whose checksum was wrong: they were read from the store")   \
    X(local_held_bytes, gauge, "bytes", "in the local copy")                                                           \
    X(fetched_bytes, counter, "bytes", "bytes received from the servers of an address since it was opened")

struct efs_stats {
#define EFS_STATS_FIELD(name, kind, unit, help) uint64_t name;
    EFS_STATS(EFS_STATS_FIELD)
#undef EFS_STATS_FIELD
};
EFS_API void efs_stats(struct efs *fs, struct efs_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
