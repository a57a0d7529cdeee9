/* SPDX-License-Identifier: Apache-2.0 */
/* source_experts.c - assigns tensors to experts: by an expression that the user gives, by names that are known, or by
 * the number of experts; then drops those of other models. */
#include "source_names.h"

#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS_MAX (1u << 24)

/* Whether a tensor goes with a fused one: by its name, or as it has one dimension only. */
static bool has_scales(const struct efs_source_tensor *tensor, struct efs_name_match *match)
{
    if (!efs_source_match_name(tensor->name, match))
        return false;
    if (match->kind == EFS_NAME_FUSED && tensor->dims == 1)
        match->kind = EFS_NAME_SCALES;
    return match->kind == EFS_NAME_SCALES;
}

static int compare_layers(const void *a, const void *b)
{
    const struct efs_expert_range *x = a, *y = b;

    if (x->stack != y->stack)
        return x->stack < y->stack ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* The experts of the layer that a match names; layers: fused tensors, sorted. */
static uint32_t experts_of(const struct efs_naming *naming, const struct efs_expert_range *layers, size_t count,
                           const struct efs_name_match *match)
{
    struct efs_expert_range key = {.layer = match->layer};

    while (key.stack < naming->stack_count && strcmp(naming->stacks[key.stack], match->stack) != 0)
        key.stack++;
    const struct efs_expert_range *layer = bsearch(&key, layers, count, sizeof(*layers), compare_layers);
    return layer ? layer->count : 0;
}

/* Assigns scales to the experts of the fused tensors of their layers. */
static errint_t match_scales(struct efs_naming *naming)
{
    const struct efs_catalog *catalog = naming->catalog;
    struct efs_expert_range *layers = efs_sys_calloc(catalog->tensor_count + 1, sizeof(*layers));
    struct efs_name_match match;
    size_t count = 0;
    errint_t ret = layers ? 0 : -ENOMEM;

    for (size_t i = 0; ret == 0 && i < catalog->tensor_count; i++)
        if (naming->ranges[i].fused)
            layers[count++] = naming->ranges[i];
    if (count)
        qsort(layers, count, sizeof(*layers), compare_layers);
    for (size_t i = 0; ret == 0 && count && i < catalog->tensor_count; i++)
        if (naming->ranges[i].count == 0 && has_scales(&catalog->tensors[i], &match)) {
            match.count = experts_of(naming, layers, count, &match);
            ret = match.count ? efs_naming_set(naming, i, &match) : 0;
        }
    free(layers);
    return ret;
}

/* Finds experts by the expression and by names that are known. */
static errint_t match_names(struct efs_naming *naming, const regex_t *regex, struct efs_error *err)
{
    const struct efs_catalog *catalog = naming->catalog;
    struct efs_name_match match;
    bool used = false;
    errint_t ret = 0;

    for (size_t i = 0; ret == 0 && i < catalog->tensor_count; i++) {
        const struct efs_source_tensor *tensor = &catalog->tensors[i];
        bool by_regex = regex && efs_source_match_regex(tensor->name, regex, &match);
        if (by_regex || (efs_source_match_name(tensor->name, &match) && match.kind != EFS_NAME_SCALES))
            ret = efs_naming_set(naming, i, &match);
        used |= by_regex && naming->ranges[i].count;
        if (naming->ranges[i].count && naming->facts[tensor->file])
            naming->facts[tensor->file]->matched = true;
    }
    if (ret == 0)
        ret = match_scales(naming);
    if (ret == 0 && regex && !used)
        ret = efs_fail(err, -EINVAL, "%s: --experts '%s': finds no tensor of experts", catalog->root, naming->experts);
    return ret;
}

static errint_t match_all(struct efs_naming *naming, struct efs_error *err)
{
    regex_t regex;
    char why[256];

    if (!naming->experts)
        return match_names(naming, NULL, err);
    int bad = regcomp(&regex, naming->experts, REG_EXTENDED);
    if (bad) {
        regerror(bad, &regex, why, sizeof(why));
        return efs_fail(err, -EINVAL, "--experts '%s': %s", naming->experts, why);
    }
    errint_t ret = regex.re_nsub >= 1
                       ? match_names(naming, &regex, err)
                       : efs_fail(err, -EINVAL,
                                  "--experts '%s': has no group\nhint: ([0-9]+) for the layer, and for the expert if "
                                  "each has its tensor",
                                  naming->experts);
    regfree(&regex);
    return ret;
}

static void make_dense(struct efs_naming *naming, struct efs_source_tensor *tensor)
{
    tensor->tensor_class = EFS_CLASS_DENSE;
    naming->ranges[tensor - naming->catalog->tensors].count = 0;
}

/* Chooses the model that has experts; tensors of the other models become dense. */
static errint_t choose_model(struct efs_naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;

    uint64_t *expert_bytes = efs_sys_calloc(catalog->file_count + 1, sizeof(*expert_bytes));
    if (!expert_bytes)
        return -ENOMEM;
    for (size_t i = 0; i < catalog->tensor_count; i++)
        if (naming->ranges[i].count)
            expert_bytes[catalog->tensors[i].file] += catalog->tensors[i].bytes + 1; /* + 1 for empty tensors */
    errint_t ret = efs_source_choose_model(catalog, expert_bytes, &naming->index);
    free(expert_bytes);
    for (size_t i = 0; ret == 0 && i < catalog->tensor_count; i++)
        if (catalog->files[catalog->tensors[i].file].other_model)
            make_dense(naming, &catalog->tensors[i]);
    return ret;
}

static unsigned path_depth(const char *path)
{
    unsigned depth = 0;

    for (; *path; path++)
        depth += *path == '/';
    return depth;
}

/* By name, then by directory depth, smallest first. */
static int compare_names(const void *a, const void *b, void *arg)
{
    const struct efs_catalog *catalog = arg;
    const struct efs_source_tensor *x = *(struct efs_source_tensor *const *)a;
    const struct efs_source_tensor *y = *(struct efs_source_tensor *const *)b;
    int order = strcmp(x->name, y->name);

    if (order == 0 && x->file != y->file)
        order = (int)path_depth(catalog->files[x->file].path) - (int)path_depth(catalog->files[y->file].path);
    return order ? order : x < y ? -1 : x > y;
}

/* Chooses one of `count` tensors with the same name: the one in the file that the index has for the name, else the
 * first. */
static size_t choose_duplicate(const struct efs_naming *naming, json_t **map, struct efs_source_tensor *const *same,
                               size_t count)
{
    const struct efs_catalog *catalog = naming->catalog;
    const struct efs_source_file *index = &catalog->files[naming->index];

    if (!*map)
        *map = efs_source_index_map(catalog, index, NULL);
    const char *name = json_string_value(json_object_get(*map, same[0]->name));
    char *path = name ? efs_source_index_path(index, name) : NULL;
    size_t chosen = 0;
    for (size_t i = 0; path && i < count && chosen == 0; i++)
        chosen = strcmp(catalog->files[same[i]->file].path, path) == 0 ? i : 0;
    free(path);
    return chosen;
}

/*
 * Called if two files have the same tensor and the model has no index. Parts of a model have each tensor once, so
 * `other` belongs to a different model; so do all files in its directory, unless `chosen` is in that directory, too.
 */
static errint_t mark_other_model(struct efs_catalog *catalog, const struct efs_source_file *chosen,
                                 struct efs_source_file *other)
{
    struct efs_source_file *first = other, *last = other;
    size_t folder = efs_source_folder(other->path);
    struct efs_error text;

    if (other->other_model)
        return 0;
    if (strncmp(chosen->path, other->path, folder) != 0) {
        while (first > catalog->files && strncmp(first[-1].path, other->path, folder) == 0)
            first--;
        while (last + 1 < catalog->files + catalog->file_count && strncmp(last[1].path, other->path, folder) == 0)
            last++;
    }
    for (struct efs_source_file *file = first; file <= last; file++)
        file->other_model = file->has_tensors;
    efs_fail(&text, 0, "%s: has tensors that %s has; packed without experts", other->path, chosen->path);
    other->note = strdup(text.text);
    return other->note ? 0 : -ENOMEM;
}

/* The model's tensors (experts: only those of experts) sorted by name; the caller frees *sorted. */
static errint_t sort_by_name(const struct efs_naming *naming, bool experts, struct efs_source_tensor ***sorted,
                             size_t *count)
{
    struct efs_catalog *catalog = naming->catalog;

    *count = 0;
    *sorted = efs_sys_calloc(catalog->tensor_count, sizeof(struct efs_source_tensor *));
    for (size_t i = 0; *sorted && i < catalog->tensor_count; i++)
        if (!catalog->files[catalog->tensors[i].file].other_model && (!experts || naming->ranges[i].count))
            (*sorted)[(*count)++] = &catalog->tensors[i];
    if (*count)
        qsort_r(*sorted, *count, sizeof(struct efs_source_tensor *), compare_names, catalog);
    return *sorted ? 0 : -ENOMEM;
}

/* The number of tensors from sorted[0] on that have its name. */
static size_t count_same(struct efs_source_tensor *const *sorted, size_t count)
{
    size_t same = 1;

    while (same < count && strcmp(sorted[0]->name, sorted[same]->name) == 0)
        same++;
    return same;
}

/* Removes a tensor that the index has in a different file; its bytes remain in its file. */
static errint_t drop_tensor(struct efs_catalog *catalog, struct efs_source_tensor *tensor)
{
    struct efs_source_file *file = &catalog->files[tensor->file];
    struct efs_error text;

    efs_source_tensor_free(tensor);
    tensor->name = tensor->type = NULL;
    if (file->note)
        return 0;
    efs_fail(&text, 0, "%s: has tensors that the index has in another file; packed without these", file->path);
    file->note = strdup(text.text);
    return file->note ? 0 : -ENOMEM;
}

/* Removes tensors that the model's index has in a different file, for example in an overlay that replaces part of
 * the base. */
static errint_t drop_superseded(struct efs_naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;
    struct efs_source_tensor **sorted;
    json_t *map = NULL;
    size_t count, kept = 0;

    errint_t ret = sort_by_name(naming, false, &sorted, &count);
    for (size_t i = 0, same; i < count; i += same) {
        same = count_same(sorted + i, count - i);
        size_t chosen = same > 1 ? choose_duplicate(naming, &map, sorted + i, same) : 0;
        for (size_t s = 0; s < same && ret == 0; s++)
            ret = s == chosen ? 0 : drop_tensor(catalog, sorted[i + s]);
    }
    json_decref(map);
    free(sorted);
    for (size_t i = 0; i < catalog->tensor_count; i++)
        if (catalog->tensors[i].name) {
            catalog->tensors[kept] = catalog->tensors[i];
            naming->ranges[kept++] = naming->ranges[i];
        }
    catalog->tensor_count = kept;
    return ret;
}

/* Without an index: keeps one expert tensor of each name; the other ones become dense. */
static errint_t drop_duplicates(struct efs_naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;
    struct efs_source_tensor **sorted;
    size_t count;

    errint_t ret = sort_by_name(naming, true, &sorted, &count);
    for (size_t i = 0, same; i < count; i += same) {
        same = count_same(sorted + i, count - i);
        for (size_t s = 1; s < same && ret == 0; s++) {
            make_dense(naming, sorted[i + s]);
            if (sorted[i + s]->file != sorted[i]->file)
                ret = mark_other_model(catalog, &catalog->files[sorted[i]->file], &catalog->files[sorted[i + s]->file]);
        }
    }
    free(sorted);
    for (size_t i = 0; i < catalog->tensor_count; i++)
        if (catalog->files[catalog->tensors[i].file].other_model)
            make_dense(naming, &catalog->tensors[i]);
    return ret;
}

static int compare_experts(const void *a, const void *b, void *arg)
{
    const struct efs_expert_range *x = a, *y = b;
    char *const *stacks = arg;
    int order = x->stack == y->stack ? 0 : strcmp(stacks[x->stack], stacks[y->stack]);

    if (order)
        return order;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* Collects the experts of all tensors, sorted, without duplicates. */
static errint_t collect_experts(struct efs_naming *naming)
{
    size_t count = 0;

    for (size_t i = 0; i < naming->catalog->tensor_count; i++) {
        struct efs_expert_range expert = naming->ranges[i];
        for (uint32_t left = expert.count; left > 0; left--, expert.expert++) {
            errint_t ret = naming->found_count < EXPERTS_MAX ? 0 : -E2BIG;
            if (ret == 0)
                ret = efs_source_grow((void **)&naming->found, naming->found_count, &naming->found_capacity,
                                      sizeof(*naming->found));
            if (ret < 0)
                return ret;
            naming->found[naming->found_count++] = expert;
        }
    }
    if (naming->found_count == 0)
        return 0;
    qsort_r(naming->found, naming->found_count, sizeof(*naming->found), compare_experts, naming->stacks);
    for (size_t i = 0; i < naming->found_count; i++)
        if (i == 0 || compare_experts(&naming->found[count - 1], &naming->found[i], naming->stacks))
            naming->found[count++] = naming->found[i];
    naming->found_count = count;
    return 0;
}

/* Index of an expert in the sorted experts. */
static uint32_t find_expert(const struct efs_naming *naming, const struct efs_expert_range *expert)
{
    size_t low = 0, high = naming->found_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (compare_experts(&naming->found[middle], expert, naming->stacks) <= 0)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

/* Text of the report: the architecture of the model, else the family by names of its tensors. */
static const char *family_of(const struct efs_naming *naming)
{
    const struct efs_catalog *catalog = naming->catalog;
    const struct efs_expert_range *first = NULL;
    const struct efs_source_facts *facts = NULL;

    for (size_t i = 0; i < catalog->tensor_count; i++) {
        const struct efs_expert_range *range = &naming->ranges[i];
        const struct efs_source_file *file = &catalog->files[catalog->tensors[i].file];
        bool better = range->count && (!first || range->rank < first->rank);
        if (better || (!first && !facts && !file->other_model))
            facts = naming->facts[catalog->tensors[i].file];
        first = better ? range : first;
    }
    return facts && facts->architecture[0] ? facts->architecture : first ? first->family : "dense";
}

/* Gives a tensor with rows of all experts the number of experts as its first dimension. */
static void split_rows(struct efs_source_tensor *tensor, uint32_t count)
{
    memmove(tensor->shape + 1, tensor->shape, tensor->dims * sizeof(tensor->shape[0]));
    tensor->shape[0] = count;
    tensor->shape[1] /= count;
    tensor->dims++;
}

static errint_t fill_catalog(const struct efs_naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;

    catalog->family = strdup(family_of(naming));
    if (!catalog->family)
        return -ENOMEM;
    if (naming->found_count == 0)
        return 0;
    catalog->experts = efs_sys_calloc(naming->found_count, sizeof(*catalog->experts));
    if (!catalog->experts)
        return -ENOMEM;
    for (size_t i = 0; i < naming->found_count; i++) {
        const struct efs_expert_range *expert = &naming->found[i];
        char *stack = strdup(naming->stacks[expert->stack]);
        if (!stack)
            return -ENOMEM;
        catalog->experts[catalog->expert_count++] =
            (struct efs_source_expert){.stack = stack, .layer = expert->layer, .expert = expert->expert};
    }
    for (size_t i = 0; i < catalog->tensor_count; i++) {
        if (naming->ranges[i].count)
            catalog->tensors[i].expert_first = find_expert(naming, &naming->ranges[i]);
        if (naming->ranges[i].count && naming->ranges[i].rows)
            split_rows(&catalog->tensors[i], naming->ranges[i].count);
    }
    return 0;
}

static errint_t find_facts(struct efs_naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;
    errint_t ret = 0;

    naming->facts = efs_sys_calloc(catalog->file_count + 1, sizeof(struct efs_source_facts *));
    if (!naming->facts)
        return -ENOMEM;
    for (uint32_t f = 0; ret == 0 && f < catalog->file_count; f++)
        if (catalog->files[f].has_tensors)
            ret = efs_source_facts(catalog, f, &naming->facts[f]);
    return ret;
}

errint_t efs_source_name_experts(struct efs_catalog *catalog, const char *experts, struct efs_error *err)
{
    struct efs_naming naming = {.catalog = catalog, .experts = experts, .index = EFS_NONE};
    struct efs_error why = {""};

    naming.ranges = efs_sys_calloc(catalog->tensor_count + 1, sizeof(*naming.ranges));
    errint_t ret = naming.ranges ? find_facts(&naming) : -ENOMEM;
    if (ret == 0)
        ret = match_all(&naming, &why);
    if (ret == 0)
        ret = efs_naming_by_count(&naming);
    if (ret == 0)
        ret = choose_model(&naming);
    if (ret == 0 && catalog->tensor_count)
        ret = naming.index != EFS_NONE ? drop_superseded(&naming) : drop_duplicates(&naming);
    if (ret == 0)
        ret = collect_experts(&naming);
    if (ret == 0)
        ret = fill_catalog(&naming);
    if (ret < 0 && why.text[0])
        efs_fail(err, ret, "%s", why.text);
    else if (ret < 0)
        efs_fail(err, ret, "%s: %s", catalog->root, ret == -E2BIG ? "too many experts" : "out of memory");
    for (size_t i = 0; i < naming.stack_count; i++)
        free(naming.stacks[i]);
    free(naming.stacks);
    free(naming.found);
    free(naming.facts);
    free(naming.ranges);
    return ret;
}
