/* SPDX-License-Identifier: Apache-2.0 */
/* remote_ffn.c - a mixture of which peers compute some experts. The vectors are added in the order of the experts: the
 * sums have the bits of efs_ffn_run(). */
#include "peers.h"

#include "ffn.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct mixture {
    struct efs_remote remote;
    const struct efs_ffn_source *from; /* its choice is counted */
    struct efs_team *team;
    const struct efs_mixture *m;
    float *vectors; /* [pairs][hidden], of experts that are run here */
    struct efs_error *err;
};

/* Runs experts in this process: those that no peer was sent, or, failed, those that no peer has answered. */
static errint_t run_here(struct mixture *x, bool failed)
{
    const struct efs_mixture *m = x->m;
    struct efs_remote *r = &x->remote;
    struct efs_route_to *routes = efs_sys_calloc(m->expert_count, sizeof(*routes));
    float **rows = efs_sys_calloc(m->expert_count, sizeof(*rows));
    uint32_t count = 0;
    float *at = x->vectors;
    for (uint32_t i = 0; routes && rows && i < m->expert_count; at += (size_t)m->experts[i++].count * m->hidden) {
        if (r->vectors[i] || (r->where[i] != EFS_CHOOSE_HERE) != failed)
            continue;
        routes[count] = m->experts[i];
        r->vectors[i] = rows[count++] = at;
    }
    struct efs_mixture here = *m;
    here.experts = routes;
    here.expert_count = count;
    struct efs_ffn_source from = *x->from;
    from.rows = rows;
    errint_t rc = routes && rows ? 0 : efs_fail(x->err, -ENOMEM, "no memory for a mixture");
    if (rc == 0 && count)
        rc = efs_ffn_run(&from, x->team, &here, x->err);
    free(routes);
    free(rows);
    return rc;
}

static errint_t run_with_peers(struct mixture *x)
{
    struct efs_remote *r = &x->remote;
    x->vectors = efs_sys_calloc((size_t)r->pairs * x->m->hidden, sizeof(float));
    errint_t rc = x->vectors ? run_here(x, false) : efs_fail(x->err, -ENOMEM, "no memory for a mixture");
    if (rc == 0)
        efs_remote_measured(r);
    efs_remote_receive(r);
    if (rc == 0)
        rc = run_here(x, true);
    if (rc == 0)
        efs_ffn_sums_clear(x->m);
    for (uint32_t i = 0; rc == 0 && i < x->m->expert_count; i++)
        efs_ffn_sums_add(x->m, i, r->vectors[i]);
    free(x->vectors);
    return rc;
}

errint_t efs_peers_run(struct efs_peers *peers, const struct efs_ffn_source *from, struct efs_team *team,
                       const struct efs_mixture *m, struct efs_error *err)
{
    struct efs_ffn_source counted = *from;
    struct mixture x = {.from = &counted, .team = team, .m = m, .err = err};
    struct efs_remote *r = &x.remote;
    uint32_t sent = 0;
    *r = (struct efs_remote){.peers = peers,
                             .client = from->client,
                             .head = {.layer = from->layer,
                                      .hidden = m->hidden,
                                      .rows = m->hidden,
                                      .activation = m->activation,
                                      .layout = m->layout},
                             .experts = m->experts,
                             .expert_count = m->expert_count,
                             .tokens = m->tokens,
                             .x = m->x,
                             .x_stride = m->x_stride,
                             .part = 1};
    memcpy(r->head.stack, from->stack, strnlen(from->stack, sizeof(r->head.stack) - 1));
    if (m->hidden_act && strlen(m->hidden_act) >= sizeof(r->head.hidden_act))
        return efs_ffn_run(from, team, m, err); /* refused there */
    if (m->hidden_act)
        strcpy(r->head.hidden_act, m->hidden_act);
    errint_t rc = efs_remote_send(r, &sent);
    counted.counted = r->counted;
    if (rc == 0 && sent)
        rc = run_with_peers(&x);
    else if ((rc = efs_ffn_run(&counted, team, m, err)) == 0)
        efs_remote_measured(r);
    efs_remote_free(r);
    return rc;
}
