/* SPDX-License-Identifier: Apache-2.0 */
/* ffn_calls.c - efs_client_ffn() and efs_plain_ffn(): check the arguments and dispatch by form. */
#include "device_ops.h"
#include "ffn.h"
#include "peer_ops.h"
#include "team.h"

#include <errno.h>
#include <string.h>

#define EXPERTS_MOST (1u << 20) /* of a layer; bounds the memory for routes */

/* Of a router's output: sizes and types; efs_ffn_input_begin() checks the numbers. */
static errint_t check_routing(const struct efs_mixture *m, struct efs_error *err)
{
    const struct efs_router_output *r = m->routing;
    if (m->experts || m->expert_count || r->per_token == 0 || r->per_token > r->experts || r->experts > EXPERTS_MOST ||
        !r->indices || !r->weights || (r->index_type != EFS_DTYPE_I64 && r->index_type != EFS_DTYPE_I32) ||
        (r->weight_type != EFS_DTYPE_F32 && r->weight_type != EFS_DTYPE_BF16))
        return efs_fail(err, -EINVAL, "routing by %s to %u of %u experts, with weights of %s",
                        efs_dtype_name(r->index_type), r->per_token, r->experts, efs_dtype_name(r->weight_type));
    return 0;
}

static errint_t ffn_check(const struct efs_mixture *m, bool plain, struct efs_error *err)
{
    const uint32_t experts = m->routing ? m->routing->experts : m->expert_count;
    const int outputs = (m->y ? 1 : 0) + (m->y_bf16 ? 1 : 0);
    if (experts == 0 || m->tokens == 0 || m->hidden == 0 || m->hidden > EFS_COLS_MAX || m->x_stride < m->hidden ||
        (unsigned)m->activation > EFS_ACTIVATION_F16 || m->y_stride < m->hidden || !m->x || outputs != 1)
        return efs_fail(err, -EINVAL, "a mixture of %u experts, %u tokens, hidden size %u", experts, m->tokens,
                        m->hidden);
    if (m->layout > (EFS_LAYOUT_TRANSPOSED | EFS_LAYOUT_INTERLEAVED))
        return efs_fail(err, -EINVAL, "there is no layout %u", m->layout);
    if (m->layout && (plain || (m->form != EFS_FORM_FULL && m->form != EFS_FORM_ANY)))
        return efs_fail(err, -EOPNOTSUPP, "experts that are transposed or interleaved are run in full form alone");
    if (m->routing)
        return check_routing(m, err);
    for (uint32_t i = 0; i < m->expert_count; i++) {
        const struct efs_route_to *r = &m->experts[i];
        if (r->count == 0 || r->count > m->tokens)
            return efs_fail(err, -EINVAL, "expert %u gets %u of %u tokens", r->expert, r->count, m->tokens);
        for (uint32_t t = 0; t < r->count; t++)
            if (r->token[t] >= m->tokens)
                return efs_fail(err, -EINVAL, "expert %u gets token %u of %u", r->expert, r->token[t], m->tokens);
    }
    return 0;
}

static errint_t ffn_check_owner(const struct efs_ffn_source *from, const struct efs_team *team, struct efs_error *err)
{
    errint_t rc = from->client ? efs_client_check(from->client, err) : 0;
    return rc == 0 && team ? efs_team_check(team, err) : rc;
}

static errint_t ffn_by_form(const struct efs_ffn_source *from, struct efs_team *team, const struct efs_mixture *m,
                            struct efs_error *err)
{
    struct efs_ffn_input in = {.routes = NULL};
    struct efs_error unwanted;
    const bool device = (m->form == EFS_FORM_DEVICE || m->form == EFS_FORM_SHARED) && !from->plain;
    err = err ? err : &unwanted;
    err->text[0] = '\0';
    errint_t rc = ffn_check(m, from->plain, err);
    if (rc == 0)
        rc = ffn_check_owner(from, team, err);
    if (rc == 0)
        rc = efs_ffn_input_begin(m, &in, err);
    const struct efs_peer_ops *ops = NULL;
    struct efs_peers *peers = from->client ? efs_client_peers_of(from->client, &ops) : NULL;
    if (rc == 0 && !device && peers)
        rc = ops->run(peers, from, team, &in.mixture, err);
    else if (rc == 0 && !device)
        rc = efs_ffn_run(from, team, &in.mixture, err);
    else if (rc == 0 && m->form == EFS_FORM_DEVICE)
        rc = efs_ffn_device(from->client, from->stack, from->layer, &in.mixture, err);
    else if (rc == 0)
        rc = efs_ffn_share(from->client, team, from->stack, from->layer, &in.mixture, err);
    efs_ffn_input_end(m, &in, rc);
    if (rc < 0 && !err->text[0])
        efs_fail(err, rc, "an expert could not be run: %s", efs_ffn_reason(rc));
    return rc;
}

errint_t efs_client_ffn(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                        const struct efs_mixture *mixture, struct efs_error *err)
{
    const struct efs_ffn_source from = {.client = client, .stack = stack, .layer = layer};
    return ffn_by_form(&from, team, mixture, err);
}

errint_t efs_plain_ffn(struct efs_team *team, const struct efs_mixture *mixture, const struct efs_plain_expert *experts,
                       struct efs_error *err)
{
    const struct efs_ffn_source from = {.plain = experts};
    return ffn_by_form(&from, team, mixture, err);
}
