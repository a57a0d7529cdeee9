/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_expert.c - finds the matrices of an expert by the roles of its tensors. Biases select the clamped kind of
 * gpt-oss, the only known family that has any. wi and wo alone are the two matrices of Switch.
 */
#include "ffn.h"

#include "layout.h"
#include "sys.h"

#include <errno.h>
#include <string.h>

/* Whether the sizes of the shards match shard_elements. A mount may have sent them, so they are not trusted. */
static bool is_cut_right(const struct efs_tensor *t, uint64_t elements)
{
    if (t->shard_elements == 0 || t->shard_count != (elements + t->shard_elements - 1) / t->shard_elements)
        return false;
    for (uint32_t i = 0; i < t->shard_count; i++, elements -= t->shard_elements)
        if (t->shards[i].elements != (elements < t->shard_elements ? elements : t->shard_elements))
            return false;
    return true;
}

/* Takes shards of split BF16 or F16 numbers, or, of a small tensor, one shard of uncoded bytes. */
static errint_t bind_shards(struct efs_matrix *w, struct efs_matrix_shard *out, const struct efs_tensor *t)
{
    const uint64_t numbers = (uint64_t)w->rows * w->cols;
    if (t->bytes == 2 * numbers && is_cut_right(t, t->bytes)) { /* elements are bytes */
        w->plain = t->shard_count == 1 && !t->shards[0].e && t->shards[0].sm_bytes == t->bytes ? t->shards[0].sm : NULL;
        return w->plain ? 0 : -EOPNOTSUPP;
    }
    if (!is_cut_right(t, numbers))
        return -EUCLEAN;
    const enum efs_format format = w->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    for (uint32_t i = 0; i < t->shard_count; i++) {
        const struct efs_coded_shard *s = &t->shards[i];
        if (!s->e || !s->sm || s->sm_bytes != efs_sm_bytes(format, s->elements)) /* bytes coded without the split */
            return -EOPNOTSUPP;
        out[i] = (struct efs_matrix_shard){.e = s->e,
                                           .sm = s->sm,
                                           .e_bytes = s->e_bytes,
                                           .sm_bytes = s->sm_bytes,
                                           .form = s->codec == EFS_CODEC_CASCADE ? EFS_E_CASCADE : EFS_E_CALLBACK};
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
    errint_t rc = t->data ? 0 : bind_shards(w, shards, t);
    return rc == -EUCLEAN ? efs_fail(err, rc, "%s: its shards do not add up to the matrix", t->name)
           : rc < 0       ? efs_fail(err, rc, "%s: coded in a way that only the full form serves", t->name)
                          : 0;
}

/* Reads a bias of count numbers, full or coded, as floats. The caller frees *bias, also after an error. */
static errint_t read_bias(float **bias, const struct efs_tensor *t, uint64_t count, struct efs_error *err)
{
    const size_t number = t->dtype == EFS_DTYPE_F32 ? 4 : 2;
    const enum efs_format format = efs_object_format(t->dtype, EFS_CHOOSE_AUTO);
    if (t->dtype != EFS_DTYPE_F32 && t->dtype != EFS_DTYPE_BF16 && t->dtype != EFS_DTYPE_F16)
        return efs_fail(err, -EOPNOTSUPP, "%s: not a bias of F32, BF16 or F16 numbers", t->name);
    if (t->dims != 1 || t->shape[0] != count || t->bytes != count * number)
        return efs_fail(err, -EINVAL, "%s: not %llu numbers", t->name, (unsigned long long)count);
    uint8_t *raw = efs_sys_malloc(count * 4);
    errint_t rc = raw ? 0 : -ENOMEM;
    struct efs_codec_scratch *scratch = NULL;
    size_t at = 0;
    if (rc == 0 && t->data)
        memcpy(raw, t->data, t->bytes);
    else if (rc == 0)
        rc = efs_codec_scratch_new(t->shard_elements, &scratch);
    for (uint32_t i = 0; i < t->shard_count && rc == 0 && !t->data; i++) {
        const struct efs_coded_shard *s = &t->shards[i];
        const bool split = s->e && s->sm; /* else bytes, coded or not */
        const struct efs_shard_view view = efs_ffn_shard_view(s, split ? format : EFS_FORMAT_BYTES);
        const size_t bytes = !s->e ? s->sm_bytes : s->elements * (split ? number : 1);
        if (bytes > t->bytes - at || s->elements > t->shard_elements)
            rc = -EUCLEAN;
        else if (!s->e)
            memcpy(raw + at, s->sm, bytes);
        else
            rc = efs_shard_decode(&view, 0, s->elements, raw + at, false, scratch);
        at += bytes;
    }
    efs_codec_scratch_free(scratch);
    if (rc == 0 && !t->data && at != t->bytes)
        rc = -EUCLEAN;
    if (rc == 0 && t->dtype != EFS_DTYPE_F32)
        efs_widen(t->dtype == EFS_DTYPE_F16, raw, count);
    *bias = (void *)raw;
    return rc < 0 ? efs_fail(err, rc, "%s: %s", t->name, strerror(-rc)) : 0;
}

#define ROLE(role) (1u << EFS_ROLE_##role)
#define THREE (ROLE(GATE) | ROLE(UP) | ROLE(DOWN))
#define FUSED (ROLE(GATE_UP) | ROLE(DOWN))
#define BIASES (ROLE(GATE_BIAS) | ROLE(UP_BIAS) | ROLE(DOWN_BIAS))
#define FUSED_BIASES (ROLE(GATE_UP_BIAS) | ROLE(DOWN_BIAS))

/* The known kinds of experts, by the roles of their tensors; optional: those that may be missing. */
static const struct kind {
    uint32_t roles, optional;
    unsigned layout;
    enum efs_ffn_kind kind;
    enum efs_role first, last; /* of the matrices before and after the activation, apart from up */
} kinds[] = {
    {THREE, 0, 0, EFS_FFN_SWIGLU, EFS_ROLE_GATE, EFS_ROLE_DOWN},
    {THREE, BIASES, 0, EFS_FFN_CLAMPED, EFS_ROLE_GATE, EFS_ROLE_DOWN},
    {FUSED, 0, 0, EFS_FFN_FUSED, EFS_ROLE_GATE_UP, EFS_ROLE_DOWN},
    {FUSED, 0, EFS_LAYOUT_TRANSPOSED, EFS_FFN_FUSED, EFS_ROLE_GATE_UP, EFS_ROLE_DOWN},
    {FUSED | FUSED_BIASES, 0, EFS_LAYOUT_TRANSPOSED | EFS_LAYOUT_INTERLEAVED, EFS_FFN_CLAMPED, EFS_ROLE_GATE_UP,
     EFS_ROLE_DOWN},
    {ROLE(IN) | ROLE(OUT), 0, 0, EFS_FFN_RELU, EFS_ROLE_IN, EFS_ROLE_OUT},
};

/* The kind of expert that tensors of these roles form in this layout; NULL: none. */
static const struct kind *kind_of(uint32_t roles, unsigned layout)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].layout == layout && (roles & ~kinds[i].optional) == kinds[i].roles)
            return &kinds[i];
    return NULL;
}

errint_t efs_ffn_check_act(const char *hidden_act, enum efs_ffn_kind kind, const char *name, struct efs_error *err)
{
    static const char *const computed[] = {
        [EFS_FFN_SWIGLU] = "silu", [EFS_FFN_FUSED] = "silu", [EFS_FFN_CLAMPED] = "silu", [EFS_FFN_RELU] = "relu"};
    const char *act = hidden_act && strcmp(hidden_act, "swish") == 0 ? "silu" : hidden_act;
    if (!act || strcmp(act, computed[kind]) == 0)
        return 0;
    return efs_fail(err, -EOPNOTSUPP, "%s: an expert with the activation %.32s; for its tensors %s is computed", name,
                    hidden_act, computed[kind]);
}

const char *efs_ffn_reason(errint_t error)
{
    return error == -EUCLEAN  ? "it is damaged\nhint: restore the store from a copy, or pack it again; "
                                "`expertctl verify` lists all its damage"
           : error == -ENOENT ? "there is no such layer, stack or expert"
                              : strerror(-error);
}

/* Sets e->inner; checks the shapes, and that the matrices have one dtype. both: gate has the rows of up, too. */
static errint_t check_matrices(struct efs_ffn_expert *e, bool both, const char *name, uint32_t hidden,
                               struct efs_error *err)
{
    const bool transposed = e->layout & EFS_LAYOUT_TRANSPOSED, up = e->kind != EFS_FFN_RELU && !both;
    const uint32_t rows = transposed ? e->gate.cols : e->gate.rows, cols = transposed ? e->gate.rows : e->gate.cols;
    e->inner = both ? rows / 2 : rows;
    if ((up && e->up.f16 != e->gate.f16) || e->down.f16 != e->gate.f16)
        return efs_fail(err, -EOPNOTSUPP, "%s: matrices of BF16 and of F16 in one expert", name);
    if (transposed && (!e->gate.plain || !e->down.plain))
        return efs_fail(err, -EOPNOTSUPP, "%s: transposed, which only the full form serves", name);
    if ((up && (e->gate.rows != e->up.rows || e->up.cols != hidden)) || cols != hidden || (both && rows % 2 != 0) ||
        e->down.rows != (transposed ? e->inner : hidden) || e->down.cols != (transposed ? hidden : e->inner))
        return efs_fail(err, -EINVAL, "%s: shapes do not fit a hidden size of %u", name, hidden);
    return 0;
}

/* Reads the biases; of one for gate and up in turns it makes two. */
static errint_t read_biases(struct efs_ffn_expert *e, const struct efs_tensor *const of[EFS_ROLE_OTHER],
                            uint32_t hidden, struct efs_error *err)
{
    errint_t rc = 0;
    for (int role = 0; role < 3 && rc == 0; role++)
        if (of[EFS_ROLE_GATE_BIAS + role])
            rc = read_bias(&e->bias[role], of[EFS_ROLE_GATE_BIAS + role], role == 2 ? hidden : e->inner, err);
    if (rc < 0 || !of[EFS_ROLE_GATE_UP_BIAS])
        return rc;
    rc = read_bias(&e->bias[0], of[EFS_ROLE_GATE_UP_BIAS], 2ull * e->inner, err);
    e->bias[1] = rc == 0 ? efs_sys_malloc(e->inner * sizeof(float)) : NULL;
    if (rc == 0 && !e->bias[1])
        rc = efs_fail(err, -ENOMEM, "no memory for a bias");
    for (uint32_t i = 0; rc == 0 && i < e->inner; i++) {
        e->bias[1][i] = e->bias[0][2 * i + 1];
        e->bias[0][i] = e->bias[0][2 * i];
    }
    return rc;
}

errint_t efs_ffn_matrices(struct efs_ffn_expert *e, const struct efs_tensor *tensors, uint32_t count, uint32_t hidden,
                          struct efs_error *err)
{
    struct efs_matrix *matrices[3] = {&e->gate, &e->up, &e->down};
    const struct efs_tensor *of[EFS_ROLE_OTHER] = {NULL};
    uint32_t roles = 0;
    size_t shards = 0;
    for (uint32_t i = 0; i < count; i++) {
        const enum efs_role role = efs_tensor_role(tensors[i].name);
        if (role == EFS_ROLE_OTHER || of[role])
            return efs_fail(err, -EOPNOTSUPP, "%s: not part of an expert of a known kind", tensors[i].name);
        of[role] = &tensors[i];
        roles |= 1u << role;
        shards += tensors[i].shard_count;
    }
    const struct kind *kind = kind_of(roles, e->layout);
    if (!kind)
        return efs_fail(err, -EOPNOTSUPP,
                        "an expert of %u tensors is neither gate, up and down, nor gate_up and down in a known layout, "
                        "nor wi and wo",
                        count);
    const struct efs_tensor *in[3] = {of[kind->first], of[EFS_ROLE_UP], of[kind->last]};
    e->kind = kind->kind;
    e->shards = efs_sys_calloc(shards + 1, sizeof(*e->shards));
    if (!e->shards)
        return efs_fail(err, -ENOMEM, "no memory for the shards of an expert");
    struct efs_matrix_shard *at = e->shards;
    for (int role = 0; role < 3; role++) {
        if (!in[role])
            continue;
        errint_t rc = efs_ffn_matrix(matrices[role], at, in[role], err);
        if (rc < 0)
            return rc;
        e->coded[role] = in[role]->shards;
        if (in[role]->shards && in[role]->shard_elements > e->shard_elements)
            e->shard_elements = in[role]->shard_elements;
        for (uint32_t i = 0; i < in[role]->shard_count; i++)
            e->needs_exponents = e->needs_exponents || at[i].form == EFS_E_CALLBACK;
        at += in[role]->shard_count;
    }
    errint_t rc = check_matrices(e, kind->first == EFS_ROLE_GATE_UP, in[0]->name, hidden, err);
    return rc < 0 ? rc : read_biases(e, of, hidden, err);
}
