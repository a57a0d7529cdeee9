/* SPDX-License-Identifier: Apache-2.0 */
/* expertfs-placement-private.h - which server holds which experts (expertfs-placement(5)); as expertfs-private.h. */
#ifndef EXPERTFS_PLACEMENT_PRIVATE_H
#define EXPERTFS_PLACEMENT_PRIVATE_H

#include "expertfs.h"

#define EFS_PLACEMENT_BYTES_MAX (1u << 20) /* of its text */
#define EFS_SERVER_NAME_BYTES 64u          /* with the final 0 */
#define EFS_PLACEMENT_RULE_BYTES 16u

struct efs_cluster_placement {
    uint64_t content_hash, number; /* of the store; one more than that of the placement that it replaces */
    uint32_t layers, experts;      /* as in the store's counts: those of all stacks, experts of the widest layer */
    uint32_t servers;
    int64_t made_at; /* seconds since 1970, for people alone */
    char rule[EFS_PLACEMENT_RULE_BYTES];
    char (*name)[EFS_SERVER_NAME_BYTES]; /* [servers], ascending */
    uint8_t *held;                       /* [servers][layers][experts]: 1, the server holds the expert; else 0 */
};

/* 1 to 63 characters of a-z A-Z 0-9 . _ -, the first of which is no dot. */
bool efs_server_name_valid(const char *name);
/* -EINVAL: option server cannot have this name. */
errint_t efs_server_name_check(const char *name, struct efs_error *err);

/* Reads a text of which nothing is trusted. only: the server whose experts are wanted, so that `held` has one row, 0 if
 * it is not named; NULL: all. 0, -EUCLEAN with the reason in *wrong, -ENOMEM. The caller frees
 * *placement with efs_placement_free(), also after an error. */
errint_t efs_placement_parse(const char *text, size_t bytes, const char *only, struct efs_cluster_placement *placement,
                             const char **wrong);
/* As text, which the caller frees. -EINVAL: names that are not valid or not ascending, or too large; -ENOMEM. */
errint_t efs_placement_print(const struct efs_cluster_placement *placement, char **text, size_t *bytes);
void efs_placement_free(struct efs_cluster_placement *placement);
/* Replaces a file atomically. After an error the old one remains. */
errint_t efs_placement_save(const char *path, const struct efs_cluster_placement *placement, struct efs_error *err);
/* Reads an open file into *text, which the caller frees. -EFBIG: longer than EFS_PLACEMENT_BYTES_MAX. */
errint_t efs_placement_read(int fd, char **text, size_t *bytes);

/*
 * A cluster in a pool of Ceph, rados:POOL/NAME: the placement is the object NAME.placement, a server's counts
 * NAME.counts.SERVER; the lock on NAME.planner is held by the only program that plans. Calls block, at most for the
 * timeouts of efs_rados_connect(). Not thread-safe. Errors without err are those of librados, which
 * efs_cluster_reason() makes text.
 */
#define EFS_CLUSTER_LEASE_SECONDS 30 /* of the lock, unless it is renewed */
struct efs_cluster;
errint_t efs_cluster_open(const char *address, struct efs_cluster **cluster, struct efs_error *err);
void efs_cluster_close(struct efs_cluster *cluster); /* NULL is fine */
const char *efs_cluster_reason(errint_t rc, char *text, size_t room);

/* Reads the placement if its version is another one than *version, which is set. 0: *text is NULL or, if it was read,
 * a text that the caller frees; -ENOENT: there is none, *version is 0; -EFBIG. */
errint_t efs_cluster_placement(struct efs_cluster *cluster, uint64_t *version, char **text, size_t *bytes);
/* Writes it over that version; 0: where there is none. -ESTALE: there is another one now. */
errint_t efs_cluster_place(struct efs_cluster *cluster, uint64_t version, const char *text, size_t bytes);
/* Counts, as the bytes of a file of counts; modified: seconds since 1970, by the writer's clock. The caller frees
 * *data. -EFBIG: more than `most`. */
errint_t efs_cluster_counts(struct efs_cluster *cluster, const char *server, size_t most, void **data, size_t *bytes,
                            time_t *modified);
errint_t efs_cluster_count(struct efs_cluster *cluster, const char *server, const void *data, size_t bytes);

/* Takes the lock, for `owner`, a word. -EBUSY: it is held. Renews it: any other error if it was lost. */
errint_t efs_cluster_lock(struct efs_cluster *cluster, const char *owner);
errint_t efs_cluster_renew(struct efs_cluster *cluster);
void efs_cluster_unlock(struct efs_cluster *cluster);
/* The owner of the lock; "": it is free. */
errint_t efs_cluster_owner(struct efs_cluster *cluster, char *owner, size_t room);

#endif
