/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h - servers that hold different experts of a store: their counts, and the placement that they read. See
 * expertfs-placement(5).
 */
#ifndef EXPERTCTL_CLUSTER_H
#define EXPERTCTL_CLUSTER_H

#include "expertfs-placement-private.h"
#include "expertfs.h"
#include "history.h"
#include "place.h"

#include <time.h>

#define CTL_CLUSTER_OLD_SECONDS 300 /* of counts, which a server writes once a minute, before or after this clock */

struct ctl_cluster {
    const char *store, *file; /* as given; the placement: a file, or rados:POOL/NAME */
    const char *counts;       /* folder with SERVER/counts-HASH.bin, for a file */
    struct efs_cluster *pool; /* of rados:POOL/NAME; NULL: a file */
    uint64_t content_hash, expert_bytes;
    uint32_t layers, experts;
};

struct ctl_server {
    char name[EFS_SERVER_NAME_BYTES];
    uint64_t memory_bytes;    /* for experts, as given; 0: not given */
    struct efs_history count; /* not with a fault */
    double age_seconds;       /* of its counts; below 0: its clock is ahead; NAN: there are none */
    char fault[400];          /* why its counts are not used; "": they are */
};

/* Fills in what the store says, and connects to the pool. efs_cluster_close(pool) also after an error. -EOPNOTSUPP: it
 * has no hash, no experts, or layers of different widths. */
errint_t ctl_cluster_open(struct ctl_cluster *cluster, struct efs_error *err);
/* Reads the counts of a server, or says in its fault why they cannot be used. */
void ctl_cluster_counts(const struct ctl_cluster *cluster, struct ctl_server *server);
/* The placement in force, and in a pool its version. -ENOENT: there is none; -EUCLEAN: damaged, or of another store.
 * The caller frees it. */
errint_t ctl_cluster_placement(const struct ctl_cluster *cluster, struct efs_cluster_placement *placement,
                               uint64_t *version, struct efs_error *err);
void ctl_servers_free(struct ctl_server *servers, uint32_t count);

/* Places the experts by a rule on the servers whose counts can be used; each of the others is a line on stderr. The
 * servers are in the order of their names. json: prints JSON. Returns the exit status. */
int ctl_cluster_plan(const struct ctl_cluster *cluster, struct ctl_server *servers, uint32_t count,
                     enum efs_place_rule rule, bool json);

#endif
