/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_pattern.c - finds experts whose names are not known, by the number of experts that config.json has.
 *
 * Names are cut into parts at ".". A part that is a number, or a word that ends with "_" and a number ("expert_3"), is
 * a number part. Tensors are of numbered experts if their names differ in one number part only, with each number from 0
 * to the number of experts - 1, and an earlier number part, the layer. A tensor of three or more dimensions has all
 * experts of a layer if its first dimension is the number of experts. Those of attention, convolutions, embeddings and
 * norms are left out. A tensor of two dimensions is not taken for fused: routers have that shape.
 */
#include "source_names.h"

#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FAMILY "pattern"

struct number_part {
    size_t begin, end; /* of the digits */
    uint32_t number;
    bool plain; /* the part is only the number */
};

/* The number part that begins at `at`. */
static bool parse_part(const char *name, size_t at, struct number_part *part)
{
    size_t end = at + strcspn(name + at, "."), digits = end;

    while (digits > at && isdigit((unsigned char)name[digits - 1]))
        digits--;
    *part = (struct number_part){.begin = digits, .end = end, .plain = digits == at};
    if (digits == end || (!part->plain && name[digits - 1] != '_'))
        return false;
    return efs_source_match_number(name + digits, EFS_SOURCE_EXPERT_MAX, &part->number) == name + end;
}

/* The first number part at or after `at`. */
static bool next_part(const char *name, size_t at, struct number_part *part)
{
    for (;; at++) {
        if (parse_part(name, at, part))
            return true;
        at += strcspn(name + at, ".");
        if (!name[at])
            return false;
    }
}

/* Sets layer and stack by the last number part before `end`, preferably a plain one. The stack is what precedes it and
 * its container, such as "layers". */
static bool find_layer(const char *name, size_t end, struct efs_name_match *match)
{
    struct number_part part, layer = {0};
    bool found = false;

    for (size_t at = 0; next_part(name, at, &part) && part.end < end; at = part.end)
        if (!found || part.plain || !layer.plain) {
            layer = part;
            found = true;
        }
    if (!found || layer.number > EFS_SOURCE_LAYER_MAX)
        return false;
    size_t prefix = layer.begin;
    if (layer.plain && prefix > 0)
        prefix--;
    while (prefix > 0 && name[prefix - 1] != '.')
        prefix--;
    match->layer = layer.number;
    return efs_source_stack_of(name, prefix, match->stack);
}

/* Whether the name has a part of the model that has no experts. */
static bool is_other(const char *name)
{
    static const char *const words[] = {"attn", "attention", "conv", "embed", "norm"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasestr(name, words[i]))
            return true;
    return false;
}

static bool is_count(const struct efs_source_facts *facts, uint64_t count)
{
    for (unsigned i = 0; i < facts->count_count; i++)
        if (facts->counts[i] == count)
            return true;
    return false;
}

/* The facts of a tensor whose model has a number of experts and no names that are known; or NULL. */
static const struct efs_source_facts *facts_of(const struct efs_naming *naming, size_t tensor)
{
    const struct efs_source_facts *facts = naming->facts[naming->catalog->tensors[tensor].file];

    return facts && facts->count_count && !facts->matched ? facts : NULL;
}

/* A number part of a tensor's name. key: a hash of the name without the number, and of the model. */
struct candidate {
    uint64_t key;
    uint32_t tensor, number;
    size_t begin;
};

struct candidates {
    struct candidate *list;
    size_t count, capacity;
};

/* Adds the number parts after the first one. */
static errint_t add_candidates(struct candidates *candidates, const char *name, uint32_t tensor,
                               const struct efs_source_facts *facts)
{
    struct number_part part;
    size_t bytes = strlen(name);

    if (!next_part(name, 0, &part))
        return 0;
    for (size_t at = part.end; next_part(name, at, &part); at = part.end) {
        if (part.end == bytes)
            break;
        errint_t ret = efs_source_grow((void **)&candidates->list, candidates->count, &candidates->capacity,
                                       sizeof(*candidates->list));
        if (ret < 0)
            return ret;
        uint64_t key = XXH3_64bits_withSeed(name, part.begin, (uint64_t)(uintptr_t)facts);
        key = XXH3_64bits_withSeed(name + part.end, bytes - part.end, key);
        candidates->list[candidates->count++] = (struct candidate){key, tensor, part.number, part.begin};
    }
    return 0;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Sets the experts of tensors with the same key, if they have all numbers. A tensor with several number parts that
 * qualify gets the last one; match_begin has its place + 1. */
static errint_t set_numbered(struct efs_naming *naming, const struct candidate *same, size_t count, size_t *match_begin)
{
    struct efs_name_match match = {.kind = EFS_NAME_EXPERT, .family = FAMILY, .rank = EFS_NAME_RANK_PATTERN};
    errint_t ret = 0;

    for (size_t i = 0; i < count; i++)
        if (same[i].number != i)
            return 0;
    if (!is_count(facts_of(naming, same[0].tensor), count))
        return 0;
    for (size_t i = 0; ret == 0 && i < count; i++) {
        const char *name = naming->catalog->tensors[same[i].tensor].name;
        match.expert = same[i].number;
        if (same[i].begin < match_begin[same[i].tensor] || !find_layer(name, same[i].begin, &match))
            continue;
        match_begin[same[i].tensor] = same[i].begin + 1;
        ret = efs_naming_set(naming, same[i].tensor, &match);
    }
    return ret;
}

static errint_t find_numbered(struct efs_naming *naming)
{
    const struct efs_catalog *catalog = naming->catalog;
    struct candidates candidates = {0};
    errint_t ret = 0;

    for (size_t i = 0; ret == 0 && i < catalog->tensor_count; i++) {
        const struct efs_source_facts *facts = facts_of(naming, i);
        if (facts && !is_other(catalog->tensors[i].name))
            ret = add_candidates(&candidates, catalog->tensors[i].name, (uint32_t)i, facts);
    }
    size_t *match_begin = efs_sys_calloc(catalog->tensor_count + 1, sizeof(*match_begin));
    if (ret == 0 && !match_begin)
        ret = -ENOMEM;
    if (ret == 0 && candidates.count)
        qsort(candidates.list, candidates.count, sizeof(*candidates.list), compare_candidates);
    for (size_t i = 0, next; ret == 0 && i < candidates.count; i = next) {
        for (next = i + 1; next < candidates.count && candidates.list[next].key == candidates.list[i].key;)
            next++;
        ret = set_numbered(naming, &candidates.list[i], next - i, match_begin);
    }
    free(match_begin);
    free(candidates.list);
    return ret;
}

static errint_t find_fused(struct efs_naming *naming)
{
    errint_t ret = 0;

    for (size_t i = 0; ret == 0 && i < naming->catalog->tensor_count; i++) {
        const struct efs_source_tensor *tensor = &naming->catalog->tensors[i];
        const struct efs_source_facts *facts = facts_of(naming, i);
        struct efs_name_match match = {.kind = EFS_NAME_FUSED, .family = FAMILY, .rank = EFS_NAME_RANK_PATTERN};
        if (facts && naming->ranges[i].count == 0 && tensor->dims >= 3 && is_count(facts, tensor->shape[0]) &&
            !is_other(tensor->name) && find_layer(tensor->name, strlen(tensor->name), &match))
            ret = efs_naming_set(naming, i, &match);
    }
    return ret;
}

errint_t efs_naming_by_count(struct efs_naming *naming)
{
    errint_t ret = find_numbered(naming);

    return ret == 0 ? find_fused(naming) : ret;
}
