/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_peer.c - any bytes as a request, or as an answer: an accepted one has every number in bounds. The first byte
 * chooses, the next two are what the answer must match.
 */
#include "fuzz.h"
#include "wire.h"

#include <string.h>

static void request(const void *body, size_t bytes)
{
    struct efs_wire_work work;
    if (efs_wire_take_request(body, bytes, &work) < 0)
        return;
    const struct efs_wire_request *r = &work.head;
    uint64_t pairs = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t t = 0; t < work.expert[e].count; t++, pairs++)
            CHECK(work.token[pairs] < r->tokens);
    CHECK(pairs == r->pairs && strlen(r->stack) < sizeof(r->stack) && strlen(r->hidden_act) < sizeof(r->hidden_act));
    for (unsigned m = 0; m < EFS_WIRE_MATRICES; m++)
        CHECK(strlen(r->matrix[m]) < sizeof(r->matrix[m]));
    CHECK(r->matrix[0][0] || r->rows == r->hidden);
    CHECK(efs_wire_answer_bytes(EFS_WIRE_LAYER, r->pairs, r->rows) > 0);
    const uint8_t *end = (const uint8_t *)work.x + (size_t)r->tokens * r->hidden * efs_wire_number_bytes(r);
    CHECK(end == (const uint8_t *)body + bytes);
}

static void answer(const void *body, size_t bytes, uint32_t pairs, uint32_t hidden)
{
    const uint8_t *held;
    const float *vectors;
    uint32_t layer_experts;
    if (efs_wire_take_answer(body, bytes, 0, pairs, hidden, &held, &layer_experts, &vectors) < 0)
        return;
    CHECK(layer_experts <= EFS_WIRE_LAYER);
    CHECK((const uint8_t *)(vectors + (size_t)pairs * hidden) == (const uint8_t *)body + bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    void *body = malloc(size > 3 ? size - 3 : 1); /* aligned as a received one */
    CHECK(body);
    memcpy(body, data + 3, size - 3);
    if (data[0] % 2)
        request(body, size - 3);
    else
        answer(body, size - 3, data[1], data[2]);
    free(body);
    return 0;
}
