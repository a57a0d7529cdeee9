/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_expert.c - from the tensors of an expert to the three matrices of a SwiGLU. Names as in DESIGN, section 6: gate
 * is gate_proj, w1 or ffn_gate_exps, up is up_proj, w3 or ffn_up_exps, down is down_proj, w2 or ffn_down_exps.
 */
#include "ffn.h"

#include "layout.h"
#include "sys.h"

#include <errno.h>
#include <string.h>

static const char *const names[3][3] = {
    {"gate_proj", "w1", "ffn_gate_exps"}, {"up_proj", "w3", "ffn_up_exps"}, {"down_proj", "w2", "ffn_down_exps"}};

/* Is `part` one of the parts of a name between dots, the last or the last but ".weight"? */
static bool is_named(const char *name, const char *part)
{
    size_t bytes = strlen(part), end = strlen(name);
    if (end > 7 && strcmp(name + end - 7, ".weight") == 0)
        end -= 7;
    return end > bytes && name[end - bytes - 1] == '.' && memcmp(name + end - bytes, part, bytes) == 0;
}

static int role_of(const char *name)
{
    for (int role = 0; role < 3; role++)
        for (int n = 0; n < 3; n++)
            if (is_named(name, names[role][n]))
                return role;
    return -1;
}

/* A shard of BF16 or F16 numbers: in two halves, or (small tensors) as it is. */
static errint_t take_shards(struct efs_matrix *w, struct efs_matrix_shard *out, const struct efs_tensor *t)
{
    if (t->shard_count == 1 && !t->shards[0].e) {
        w->plain = t->shards[0].sm;
        return w->plain && t->shards[0].sm_bytes == t->bytes ? 0 : -EOPNOTSUPP;
    }
    const enum efs_format format = w->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    for (uint32_t i = 0; i < t->shard_count; i++) {
        const struct efs_coded_shard *s = &t->shards[i];
        if (!s->e || !s->sm ||
            s->sm_bytes != efs_sm_bytes(format, s->elements)) /* bytes coded as they are, not split */
            return -EOPNOTSUPP;
        out[i] = (struct efs_matrix_shard){.e = s->e,
                                           .sm = s->sm,
                                           .e_bytes = s->e_bytes,
                                           .sm_bytes = s->sm_bytes,
                                           .form = s->codec == EFS_CODEC_CASCADE ? EFS_E_CASCADE : EFS_E_ASK};
    }
    w->shards = out;
    w->shard_elements = t->shard_elements;
    return 0;
}

errint_t efs_ffn_matrix(struct efs_matrix *w, struct efs_matrix_shard *shards, const struct efs_tensor *t,
                        struct efs_error *err)
{
    if ((t->dtype != EFS_DTYPE_BF16 && t->dtype != EFS_DTYPE_F16) || t->dims != 2 || t->shape[0] == 0 ||
        t->shape[1] == 0 || t->shape[0] > UINT32_MAX || t->shape[1] > EFS_COLS_MAX)
        return efs_fail(err, -EOPNOTSUPP, "%s: not a matrix of BF16 or F16 numbers", t->name);
    *w = (struct efs_matrix){.rows = (uint32_t)t->shape[0],
                             .cols = (uint32_t)t->shape[1],
                             .f16 = t->dtype == EFS_DTYPE_F16,
                             .plain = t->data};
    errint_t rc = t->data ? 0 : take_shards(w, shards, t);
    return rc < 0 ? efs_fail(err, rc, "%s: coded in a way that only the full form serves", t->name) : 0;
}

errint_t efs_ffn_matrices(struct efs_ffn_expert *e, const struct efs_tensor *tensors, uint32_t count, uint32_t hidden,
                          struct efs_error *err)
{
    struct efs_matrix *matrices[3] = {&e->gate, &e->up, &e->down};
    const struct efs_tensor *of[3] = {NULL};
    size_t shards = 0;
    for (uint32_t i = 0; i < count; i++) {
        int role = role_of(tensors[i].name);
        if (role < 0 || of[role])
            return efs_fail(err, -EOPNOTSUPP, "%s: not part of a SwiGLU of three matrices", tensors[i].name);
        of[role] = &tensors[i];
        shards += tensors[i].shard_count;
    }
    if (!of[0] || !of[1] || !of[2])
        return efs_fail(err, -EOPNOTSUPP, "an expert of %u tensors is not a SwiGLU of three matrices", count);
    e->shards = efs_sys_calloc(shards + 1, sizeof(*e->shards));
    if (!e->shards)
        return efs_fail(err, -ENOMEM, "no memory for the shards of an expert");
    struct efs_matrix_shard *at = e->shards;
    for (int role = 0; role < 3; role++) {
        errint_t rc = efs_ffn_matrix(matrices[role], at, of[role], err);
        if (rc < 0)
            return rc;
        e->coded[role] = of[role]->shards;
        for (uint32_t i = 0; i < of[role]->shard_count; i++)
            e->asks = e->asks || at[i].form == EFS_E_ASK;
        at += of[role]->shard_count;
    }
    if (e->up.f16 != e->gate.f16 || e->down.f16 != e->gate.f16)
        return efs_fail(err, -EOPNOTSUPP, "%s: matrices of BF16 and of F16 in one expert", of[0]->name);
    if (e->gate.rows != e->up.rows || e->gate.cols != hidden || e->up.cols != hidden || e->down.rows != hidden ||
        e->down.cols != e->gate.rows)
        return efs_fail(err, -EINVAL, "%s: shapes do not fit a hidden size of %u", of[0]->name, hidden);
    e->inner = e->gate.rows;
    return 0;
}
