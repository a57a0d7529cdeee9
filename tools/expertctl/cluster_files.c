/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_files.c - see cluster.h: the store, counts and placement of a cluster, in files or in a pool of Ceph. */
#include "cluster.h"

#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "names.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

errint_t ctl_cluster_open(struct ctl_cluster *c, struct efs_error *err)
{
    char path[4400];
    struct efs_store *store;
    struct efs_store_info info;
    errint_t rc = ctl_name_open(c->store, path, sizeof(path), &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    efs_store_close(store);
    if (info.in_place)
        return efs_fail(err, -EOPNOTSUPP,
                        "%s: not packed, so that it has no hash of its content\nhint: mkexpertfs packs it", path);
    if (info.experts == 0 || info.layers > EFS_PLACE_LAYERS_MAX || info.layer_experts > EFS_PLACE_EXPERTS_MAX ||
        info.experts != info.layers * info.layer_experts)
        return efs_fail(err, -EOPNOTSUPP, "%s: no experts, too many, or layers with different numbers of them", path);
    c->content_hash = info.content_hash;
    c->layers = (uint32_t)info.layers;
    c->experts = (uint32_t)info.layer_experts;
    c->expert_bytes = (info.expert_coded_bytes + info.experts - 1) / info.experts;
    return efs_is_rados(c->file) ? efs_cluster_open(c->file, &c->pool, err) : 0;
}

/* A clock that has jumped makes counts look old or ahead: they are not used, and the line says so. */
static void check_age(struct ctl_server *s)
{
    if (s->age_seconds > CTL_CLUSTER_OLD_SECONDS)
        snprintf(s->fault, sizeof(s->fault), "its counts are %.0f minutes old: it is lost, or a clock is wrong",
                 s->age_seconds / 60);
    else if (s->age_seconds < -CTL_CLUSTER_OLD_SECONDS)
        snprintf(s->fault, sizeof(s->fault), "its counts are %.0f minutes ahead: a clock is wrong",
                 -s->age_seconds / 60);
}

static void fail_counts(struct ctl_server *s, const char *where, const char *why)
{
    snprintf(s->fault, sizeof(s->fault), "no counts: %.200s: %.*s", where, (int)strcspn(why, "\n"), why);
}

static void file_counts(const struct ctl_cluster *c, struct ctl_server *s)
{
    char path[4400];
    struct stat st;
    struct efs_error err = {""};
    snprintf(path, sizeof(path), "%.4000s/%s/counts-%016" PRIx64 ".bin", c->counts, s->name, c->content_hash);
    if (stat(path, &st) < 0) {
        fail_counts(s, path, strerror(errno));
        return;
    }
    s->age_seconds = difftime(time(NULL), st.st_mtim.tv_sec);
    check_age(s);
    if (!*s->fault && efs_counts_read(path, c->content_hash, c->layers, c->experts, &s->count, &err) < 0)
        snprintf(s->fault, sizeof(s->fault), "%.390s", err.text);
}

static void pool_counts(const struct ctl_cluster *c, struct ctl_server *s)
{
    void *data;
    size_t bytes;
    time_t modified;
    char reason[300];
    errint_t rc =
        efs_cluster_counts(c->pool, s->name, efs_counts_bytes(c->layers, c->experts), &data, &bytes, &modified);
    if (rc == 0)
        rc = efs_history_init(&s->count, c->layers, c->experts);
    if (rc < 0) {
        fail_counts(s, c->file, efs_cluster_reason(rc, reason, sizeof(reason)));
    } else {
        const char *wrong = efs_counts_unpack(data, bytes, c->content_hash, &s->count);
        s->age_seconds = difftime(time(NULL), modified);
        check_age(s);
        if (wrong)
            snprintf(s->fault, sizeof(s->fault), "%s", wrong);
    }
    free(data);
}

void ctl_cluster_counts(const struct ctl_cluster *c, struct ctl_server *s)
{
    s->age_seconds = NAN;
    if (c->pool)
        pool_counts(c, s);
    else if (c->counts)
        file_counts(c, s);
    else
        snprintf(s->fault, sizeof(s->fault), "no counts: --counts names their folder");
    if (*s->fault)
        efs_history_free(&s->count);
}

static errint_t file_text(const char *path, char **text, size_t *bytes, struct efs_error *err)
{
    struct stat st;
    *text = NULL;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    errint_t rc = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) ? efs_placement_read(fd, text, bytes) : -EINVAL;
    close(fd);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, rc == -EINVAL ? "not a regular file" : strerror(-rc)) : 0;
}

static errint_t pool_text(const struct ctl_cluster *c, char **text, size_t *bytes, uint64_t *version,
                          struct efs_error *err)
{
    char reason[300];
    errint_t rc = efs_cluster_placement(c->pool, version, text, bytes);
    return rc < 0 ? efs_fail(err, rc, "%s: the placement: %s", c->file, efs_cluster_reason(rc, reason, sizeof(reason)))
                  : 0;
}

errint_t ctl_cluster_placement(const struct ctl_cluster *c, struct efs_cluster_placement *p, uint64_t *version,
                               struct efs_error *err)
{
    char *text;
    size_t bytes;
    const char *wrong = NULL;
    *p = (struct efs_cluster_placement){.held = NULL};
    *version = 0;
    errint_t rc = c->pool ? pool_text(c, &text, &bytes, version, err) : file_text(c->file, &text, &bytes, err);
    if (rc < 0)
        return rc;
    rc = efs_placement_parse(text, bytes, NULL, p, &wrong);
    free(text);
    if (rc == 0 && p->content_hash != c->content_hash)
        wrong = "a placement of another store";
    else if (rc == 0 && (p->layers != c->layers || p->experts != c->experts))
        wrong = "a placement of other layers and experts";
    return wrong ? efs_fail(err, -EUCLEAN, "%s: %s\nhint: name another one, or delete this one", c->file, wrong) : 0;
}

void ctl_servers_free(struct ctl_server *servers, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++)
        efs_history_free(&servers[n].count);
    free(servers);
}
