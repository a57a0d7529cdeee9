/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_plan.c - see cluster.h: makes a placement from counts. */
#include "cluster.h"

#include "expertctl.h"
#include "expertfs-private.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Times of a call of another server, which the rules weigh against each other: two messages of .5 ms, and two vectors
 * of 2048 numbers at 1 Gbit/s. Equal for all servers, so that only their ratio matters. */
#define PASS_S 1e-3
#define CALL_S 65e-6
#define LOAD_BYTES_PER_SECOND 1e9
#define SEED 1u

struct plan {
    struct efs_place_problem problem;
    struct efs_place_server *server;
    double *calls;
    char (*name)[EFS_SERVER_NAME_BYTES];
    uint8_t *held;
};

static void plan_free(struct plan *p)
{
    free(p->server);
    free(p->calls);
    free(p->name);
    free(p->held);
}

/* The servers whose counts can be used. */
static errint_t plan_new(const struct ctl_cluster *c, const struct ctl_server *servers, uint32_t count, struct plan *p)
{
    const size_t cells = (size_t)c->layers * c->experts;
    p->server = calloc(count, sizeof(*p->server));
    p->calls = calloc(count * cells, sizeof(*p->calls));
    p->name = calloc(count, sizeof(*p->name));
    p->held = calloc(count, cells);
    if (!p->server || !p->calls || !p->name || !p->held)
        return -ENOMEM;
    uint32_t used = 0;
    for (uint32_t n = 0; n < count; n++) {
        const struct ctl_server *s = &servers[n];
        if (*s->fault)
            continue;
        uint64_t passes = 0;
        for (uint32_t l = 0; l < c->layers; l++)
            passes = s->count.passes[l] > passes ? s->count.passes[l] : passes;
        for (size_t i = 0; i < cells; i++)
            p->calls[used * cells + i] = s->count.counts[i];
        memcpy(p->name[used], s->name, sizeof(s->name));
        p->server[used++] = (struct efs_place_server){.gpus = 1,
                                                      .gpu_bytes = {s->memory_bytes},
                                                      .load_bytes_per_second = LOAD_BYTES_PER_SECOND,
                                                      .passes = (double)passes,
                                                      .remote_s = PASS_S + CALL_S,
                                                      .pass_s = PASS_S,
                                                      .call_s = CALL_S};
    }
    p->problem = (struct efs_place_problem){.servers = used,
                                            .layers = c->layers,
                                            .experts = c->experts,
                                            .expert_bytes = c->expert_bytes,
                                            .server = p->server,
                                            .calls = p->calls};
    return 0;
}

static errint_t place(const struct ctl_cluster *c, struct plan *p, enum efs_place_rule rule, struct efs_error *err)
{
    const unsigned long long all = (unsigned long long)c->layers * c->experts;
    unsigned long long slots = 0;
    if (p->problem.servers == 0)
        return efs_fail(err, -ENODATA, "%s: no server has counts that can be used: nothing is written", c->file);
    for (uint32_t n = 0; n < p->problem.servers; n++)
        slots += efs_place_slots(&p->problem, n);
    int rc = efs_place_by(rule, &p->problem, SEED, p->held);
    if (rc == -ENOSPC)
        return efs_fail(err, rc,
                        "%s: %u server%s memory for %llu of %llu experts: nothing is written\nhint: give them "
                        "more by --servers, or more servers",
                        c->file, p->problem.servers, p->problem.servers == 1 ? " has" : "s have", slots, all);
    return rc < 0 ? efs_fail(err, rc, "%s: not placed: %s", c->file, strerror(-rc)) : 0;
}

/* One more than the number of the placement in force; its version in a pool. */
static errint_t next_number(const struct ctl_cluster *c, uint64_t *number, uint64_t *version, struct efs_error *err)
{
    struct efs_cluster_placement before;
    errint_t rc = ctl_cluster_placement(c, &before, version, err);
    *number = rc == 0 ? before.number + 1 : 1;
    efs_placement_free(&before);
    return rc == -ENOENT ? 0 : rc;
}

/* ---- in a pool: one program plans, and a late one cannot write ---- */

static errint_t lock(const struct ctl_cluster *c, struct efs_error *err)
{
    char owner[EFS_SERVER_NAME_BYTES + 16] = "", holder[100], reason[300], host[EFS_SERVER_NAME_BYTES] = "";
    if (!c->pool)
        return 0;
    gethostname(host, sizeof(host) - 1);
    snprintf(owner, sizeof(owner), "%s-%d", host, (int)getpid());
    errint_t rc = efs_cluster_lock(c->pool, owner);
    if (rc == -EBUSY && efs_cluster_owner(c->pool, holder, sizeof(holder)) == 0)
        return efs_fail(err, rc, "%s: %s plans\nhint: if it was killed, its lock ends after %u seconds", c->file,
                        *holder ? holder : "another program", EFS_CLUSTER_LEASE_SECONDS);
    return rc < 0 ? efs_fail(err, rc, "%s: the lock of the planner: %s", c->file,
                             efs_cluster_reason(rc, reason, sizeof(reason)))
                  : 0;
}

/* A plan may take longer than the lease: before it is written the lock must still be held. */
static errint_t renew(const struct ctl_cluster *c, struct efs_error *err)
{
    errint_t rc = c->pool ? efs_cluster_renew(c->pool) : 0;
    return rc < 0 ? efs_fail(err, rc, "%s: the lock of the planner was lost: nothing is written", c->file) : 0;
}

static errint_t write_placement(const struct ctl_cluster *c, const struct efs_cluster_placement *placement,
                                uint64_t version, struct efs_error *err)
{
    char *text, reason[300];
    size_t bytes;
    if (!c->pool)
        return efs_placement_save(c->file, placement, err);
    errint_t rc = efs_placement_print(placement, &text, &bytes);
    if (rc == 0)
        rc = efs_cluster_place(c->pool, version, text, bytes);
    free(text);
    if (rc == -ESTALE)
        return efs_fail(err, rc, "%s: another planner has written meanwhile: nothing is written", c->file);
    return rc < 0 ? efs_fail(err, rc, "%s: not written: %s", c->file, efs_cluster_reason(rc, reason, sizeof(reason)))
                  : 0;
}

static int print_plan(const struct ctl_cluster *c, const struct ctl_server *servers, uint32_t count,
                      const struct efs_cluster_placement *placement, bool json)
{
    json_t *left = json ? json_object() : NULL;
    for (uint32_t n = 0; json && n < count; n++)
        if (*servers[n].fault)
            json_object_set_new(left, servers[n].name, ctl_json_text(servers[n].fault));
    if (json)
        return ctl_print_json(json_pack("{s:o, s:I, s:s, s:i, s:o}", "placement", ctl_json_text(c->file), "number",
                                        (json_int_t)placement->number, "rule", placement->rule, "servers",
                                        (int)placement->servers, "left_out", left));
    ctl_print_line(stdout, "%s: placement %llu by %s, %u server%s", c->file, (unsigned long long)placement->number,
                   placement->rule, placement->servers, placement->servers == 1 ? "" : "s");
    return CTL_OK;
}

/* With the lock. */
static errint_t make_plan(const struct ctl_cluster *c, struct ctl_server *servers, uint32_t count,
                          enum efs_place_rule rule, struct plan *p, struct efs_cluster_placement *placement,
                          struct efs_error *err)
{
    uint64_t version;
    errint_t rc = next_number(c, &placement->number, &version, err);
    for (uint32_t n = 0; rc == 0 && n < count; n++) {
        ctl_cluster_counts(c, &servers[n]);
        if (*servers[n].fault)
            ctl_print_line(stderr, "expertctl: %s: %s: planned without it", servers[n].name, servers[n].fault);
    }
    if (rc == 0 && (rc = plan_new(c, servers, count, p)) < 0)
        efs_fail(err, rc, "no memory");
    if (rc == 0)
        rc = renew(c, err);
    if (rc == 0)
        rc = place(c, p, rule, err);
    placement->servers = p->problem.servers;
    placement->name = p->name;
    placement->held = p->held;
    snprintf(placement->rule, sizeof(placement->rule), "%s", efs_place_rule_name(rule));
    if (rc == 0)
        rc = renew(c, err);
    return rc == 0 ? write_placement(c, placement, version, err) : rc;
}

int ctl_cluster_plan(const struct ctl_cluster *c, struct ctl_server *servers, uint32_t count, enum efs_place_rule rule,
                     bool json)
{
    struct plan p = {.held = NULL};
    struct efs_error err = {""};
    struct efs_cluster_placement placement = {
        .content_hash = c->content_hash, .layers = c->layers, .experts = c->experts, .made_at = time(NULL)};
    errint_t rc = lock(c, &err);
    if (rc == 0) {
        rc = make_plan(c, servers, count, rule, &p, &placement, &err);
        if (c->pool)
            efs_cluster_unlock(c->pool);
    }
    int status = rc < 0 ? ctl_fail(rc, &err) : print_plan(c, servers, count, &placement, json);
    plan_free(&p);
    return status;
}
