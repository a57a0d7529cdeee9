/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters.h - counters of the daemon, shown with the prefix "fuse_"; the engine has its own (EFS_STATS).
 *
 * opens = opens_passthrough + opens_direct + opens_cached + opens_control + open_errors + open_interrupts + opens in
 * flight.
 */
#ifndef EFSD_COUNTERS_H
#define EFSD_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* name, help */
#define EFSD_COUNTERS(X)                                                                                               \
    X(opens, "requests to open a file")                                                                                \
    X(reads, "requests to read a file of the checkpoint or of the view")                                               \
    X(reads_experts, "of reads, those that touch bytes of experts")                                                    \
    X(wants, "messages to want, and requests of handout, that were taken")                                             \
    X(releases, "files closed for the last time")                                                                      \
    X(opens_passthrough, "opens that the kernel serves from the full pool by itself")                                  \
    X(opens_direct, "opens whose reads go past the page cache")                                                        \
    X(opens_cached, "opens whose reads go through the page cache")                                                     \
    X(opens_control, "opens of files below .expertfs")                                                                 \
    X(open_errors, "opens that failed")                                                                                \
    X(open_interrupts, "opens whose caller gave up while they waited for room, or was ended")                          \
    X(handouts, "experts handed out over the socket, without a file")                                                  \
    X(handouts_coded, "of them, coded ones")                                                                           \
    X(handout_clients, "connections to the socket")                                                                    \
    X(lease_fallbacks, "experts that were opened without a lease because the lease failed")                            \
    X(reply_waits, "reads that waited for a free reply buffer")                                                        \
    X(aheads, "blocks decoded ahead of a reader in order")                                                             \
    X(ahead_hits, "reads answered from blocks decoded ahead")                                                          \
    X(ahead_bytes, "bytes decoded ahead")                                                                              \
    X(ahead_hit_bytes, "bytes decoded ahead that were sent")                                                           \
    X(ahead_errors, "blocks whose decoding ahead failed")                                                              \
    X(read_interrupts, "reads whose caller was ended while they waited")                                               \
    X(reply_bytes, "bytes of files sent in replies")                                                                   \
    X(reply_errors, "reads that were answered with an error")

struct efsd_counters {
#define EFSD_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    EFSD_COUNTERS(EFSD_COUNTER_FIELD)
#undef EFSD_COUNTER_FIELD
};

static inline void efsd_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
