/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c - see wire.h. */
#include "wire.h"

#include "matvec.h"

#include <errno.h>
#include <string.h>

size_t efs_wire_request_bytes(const struct efs_wire_request *r)
{
    if (r->experts == 0 || r->experts > EFS_WIRE_EXPERTS || r->tokens == 0 || r->tokens > EFS_WIRE_TOKENS ||
        r->hidden == 0 || r->hidden > EFS_COLS_MAX || r->rows == 0 || (!r->matrix[0][0] && r->rows != r->hidden) ||
        r->pairs < r->experts || r->pairs > (uint64_t)r->experts * r->tokens || r->activation > EFS_ACTIVATION_F16 ||
        efs_wire_answer_bytes(EFS_WIRE_LAYER, r->pairs, r->rows) == 0)
        return 0;
    const uint64_t bytes = sizeof(*r) + r->experts * sizeof(struct efs_wire_expert) + r->pairs * sizeof(uint32_t) +
                           (uint64_t)r->tokens * r->hidden * efs_wire_number_bytes(r);
    return bytes <= EFS_WIRE_BYTES ? bytes : 0;
}

size_t efs_wire_answer_bytes(uint32_t layer_experts, uint32_t pairs, uint32_t rows)
{
    if (layer_experts > EFS_WIRE_LAYER || rows > EFS_COLS_MAX)
        return 0;
    const uint64_t bytes =
        sizeof(struct efs_wire_answer) + efs_wire_held_bytes(layer_experts) + (uint64_t)pairs * rows * sizeof(float);
    return bytes <= EFS_WIRE_BYTES ? bytes : 0;
}

static bool are_names_right(const struct efs_wire_request *r)
{
    bool right = memchr(r->stack, '\0', sizeof(r->stack)) && memchr(r->hidden_act, '\0', sizeof(r->hidden_act));
    for (unsigned m = 0; m < EFS_WIRE_MATRICES; m++)
        right = right && memchr(r->matrix[m], '\0', sizeof(r->matrix[m]));
    return right;
}

static bool are_tokens_right(const uint32_t *token, uint32_t count, uint32_t tokens)
{
    for (uint32_t i = 0; i < count; i++)
        if (token[i] >= tokens)
            return false;
    return true;
}

errint_t efs_wire_take_request(const void *body, size_t bytes, struct efs_wire_work *work)
{
    struct efs_wire_request *r = &work->head;
    if (bytes < sizeof(*r))
        return -EBADMSG;
    memcpy(r, body, sizeof(*r));
    if (!are_names_right(r) || bytes != efs_wire_request_bytes(r)) /* 0, out of bounds, is no size of a body either */
        return -EBADMSG;
    const uint8_t *at = (const uint8_t *)body + sizeof(*r);
    work->expert = (const void *)at;
    at += r->experts * sizeof(*work->expert);
    work->token = (const void *)at;
    work->x = at + r->pairs * sizeof(uint32_t);
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < r->experts; i++) {
        const struct efs_wire_expert e = work->expert[i];
        if (e.count == 0 || e.count > r->tokens || e.expert >= EFS_WIRE_LAYER || pairs + e.count > r->pairs ||
            !are_tokens_right(work->token + pairs, e.count, r->tokens))
            return -EBADMSG;
        for (uint32_t j = 0; j < i; j++)
            if (work->expert[j].expert == e.expert)
                return -EBADMSG;
        pairs += e.count;
    }
    return pairs == r->pairs ? 0 : -EBADMSG;
}

static bool are_finite(const float *number, size_t count)
{
    const uint8_t *bytes = (const uint8_t *)number;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, bytes + 4 * i, 4);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return false;
    }
    return true;
}

errint_t efs_wire_take_answer(const void *body, size_t bytes, uint64_t id, uint32_t pairs, uint32_t rows,
                              const uint8_t **held, uint32_t *layer_experts, const float **vectors)
{
    struct efs_wire_answer a;
    if (bytes < sizeof(a))
        return -EBADMSG;
    memcpy(&a, body, sizeof(a));
    if (a.id != id || a.error > 4095 || a.error == EBADMSG)
        return -EBADMSG;
    if (a.error && a.error != ENODATA)
        return bytes == sizeof(a) ? -(errint_t)a.error : -EBADMSG;
    if (a.pairs != (a.error ? 0 : pairs) || a.rows != rows || a.layer_experts > EFS_WIRE_LAYER ||
        bytes != efs_wire_answer_bytes(a.layer_experts, a.pairs, rows))
        return -EBADMSG;
    *held = (const uint8_t *)body + sizeof(a);
    *layer_experts = a.layer_experts;
    if (a.error)
        return -ENODATA;
    *vectors = (const float *)(*held + efs_wire_held_bytes(a.layer_experts));
    return are_finite(*vectors, (size_t)pairs * rows) ? 0 : -EBADMSG;
}
