/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.c - efs_want(): requests of a runtime. All lines are checked before the first one is acted upon; the chunks of
 * the experts that are asked for are then brought, in the order in which they were named.
 */
#include "want_text.h"
#include "expertfs-protocol.h"

#include "request.h"
#include "cache.h"

#include <errno.h>
#include <string.h>

/* The first expert of the layer that a request names; *end: the one after its last. */
static errint_t find_layer(const struct efs *fs, const struct efs_want *want, uint32_t *first, uint32_t *end,
                           struct efs_error *err)
{
    const struct efs_store *store = fs->store;
    const struct efs_cache *r = fs->cache;
    for (uint32_t l = 0; l < r->layers; l++) {
        const struct efs_disk_group *g = &store->groups[r->layer_first[l]];
        if (g->layer == want->layer && g->stack_bytes == strlen(want->stack) &&
            memcmp(store->strings + g->stack_offset, want->stack, g->stack_bytes) == 0) {
            *first = r->layer_first[l];
            *end = r->layer_first[l + 1];
            return 0;
        }
    }
    return efs_fail(err, -EINVAL, "there is no layer experts/%s%sL%02u", want->stack, *want->stack ? "-" : "",
                    want->layer);
}

/* Experts of a layer are in order; hardly ever does one lack. */
static uint32_t find_expert(const struct efs *fs, uint32_t first, uint32_t end, uint32_t number)
{
    while (first < end) {
        uint32_t middle = first + (end - first) / 2, at = fs->store->groups[middle].expert;
        if (at == number)
            return middle;
        if (at < number)
            first = middle + 1;
        else
            end = middle;
    }
    return UINT32_MAX;
}

/* Turn the numbers of a request into numbers of experts, in place. */
static errint_t resolve(const struct efs *fs, struct efs_want *want, struct efs_error *err)
{
    uint32_t first = 0, end = 0;
    errint_t rc = find_layer(fs, want, &first, &end, err);
    for (uint32_t i = 0; i < want->count && !rc; i++) {
        uint32_t found = find_expert(fs, first, end, want->expert[i].expert);
        if (found == UINT32_MAX)
            rc = efs_fail(err, -EINVAL, "layer %u has no expert %u", want->layer, want->expert[i].expert);
        want->expert[i].expert = found;
    }
    return rc;
}

errint_t efs_want(struct efs *fs, const char *text, size_t bytes, struct efs_error *err)
{
    struct efs_want want;
    const char *at = text;
    size_t left = bytes;
    int got;
    if (bytes > EFS_WANT_BYTES)
        return efs_fail(err, -EINVAL, "%zu bytes of requests at once; at most %u are taken", bytes, EFS_WANT_BYTES);
    while ((got = efs_want_next(&at, &left, &want, err)) > 0) {
        errint_t rc = resolve(fs, &want, err);
        if (rc)
            return rc;
    }
    if (got < 0)
        return got;
    errint_t rc = 0;
    for (at = text, left = bytes; rc == 0 && efs_want_next(&at, &left, &want, NULL) > 0;) {
        resolve(fs, &want, NULL);
        struct efs_need needs[EFS_WANT_EXPERTS];
        for (uint32_t i = 0; i < want.count; i++)
            needs[i] = (struct efs_need){want.expert[i].expert, want.expert[i].tokens};
        rc = efs_request_bring(fs, needs, want.count, err);
    }
    return rc;
}

errint_t efs_expert_find(const struct efs *fs, const char *stack, uint32_t layer, uint32_t expert,
                         struct efs_expert_id *id)
{
    struct efs_want want = {.layer = layer};
    uint32_t first = 0, end = 0;
    if (strlen(stack) >= sizeof(want.stack))
        return -ENOENT;
    memcpy(want.stack, stack, strlen(stack) + 1);
    if (find_layer(fs, &want, &first, &end, NULL) < 0)
        return -ENOENT;
    uint32_t number = find_expert(fs, first, end, expert);
    if (number == UINT32_MAX)
        return -ENOENT;
    *id = efs_id(number);
    return 0;
}
