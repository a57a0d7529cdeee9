/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_experts.c - assigns tensors to experts by their names.
 *
 * A name consists of a prefix (a part of the model) and a rest that matches a pattern of the table. The prefix gives
 * the stack: common parts ("model", "language_model", "transformer") are dropped, so "model.layers.3..." is in stack ""
 * and "encoder.block.3..." in stack "encoder".
 *
 * Patterns: {L} and {E} are decimal numbers without leading zeros, {a|b} is one of the words, * at the end is one
 * character or more, any other character matches itself. The first matching row is used.
 */
#include "source.h"

#include "dtype.h"
#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_MAX 99999u /* a larger number does not match */
#define EXPERT_MAX 999999u
#define FUSED_EXPERTS_MAX 65536u
#define EXPERTS_MAX (1u << 24)
#define STACK_BYTES_MAX 31u /* with layer and expert it forms a file name */
#define STACKS_MAX 256u

enum row_kind { ROW_EXPERT, ROW_FUSED };

struct row {
    const char *family;
    enum row_kind kind;
    const char *pattern;
};

/* More specific rows precede more general ones: the family of a checkpoint is that of the first row that any of its
 * tensors matches. */
static const struct row table[] = {
    {"mixtral", ROW_EXPERT, "layers.{L}.block_sparse_moe.experts.{E}.*"},
    {"switch", ROW_EXPERT, "block.{L}.layer.{1|2}.mlp.experts.expert_{E}.*"},
    {"llama4", ROW_FUSED, "layers.{L}.feed_forward.experts.{gate_up_proj|down_proj}"},
    {"llama4", ROW_EXPERT, "layers.{L}.feed_forward.experts.{E}.*"},
    {"gpt-oss", ROW_FUSED, "layers.{L}.mlp.experts.{gate_up_proj|down_proj}_{blocks|scales|bias}"},
    {"qwen-moe", ROW_EXPERT, "layers.{L}.mlp.experts.{E}.*"},
    {"qwen3.5-moe", ROW_FUSED, "layers.{L}.mlp.experts.{gate_up_proj|down_proj}"},
    {"mlx", ROW_FUSED, "layers.{L}.{mlp|block_sparse_moe|feed_forward|mixer}.switch_mlp.*"},
    {"mlx", ROW_FUSED, "layers.{L}.{mlp|feed_forward}.experts.{gate|up|down}_proj.{weight|scales|biases|bias}"},
    {"mlx", ROW_FUSED, "layers.{L}.experts.switch_glu.*"},
    {"gguf", ROW_FUSED, "blk.{L}.ffn_{gate_up|gate|up|down}_exps.{weight|bias}"},
    {"gguf", ROW_EXPERT, "blk.{L}.ffn_{gate|up|down}.{E}.{weight|bias}"},
};
#define ROWS (sizeof(table) / sizeof(table[0]))

/* Parts of a prefix that do not distinguish stacks. */
static const char *const common_parts[] = {"model", "language_model", "transformer"};

struct match {
    const struct row *row;
    uint32_t layer, expert;
    char stack[STACK_BYTES_MAX + 1];
};

/* Matches a number of at most max without leading zeros; returns the text after it, or NULL. */
static const char *match_number(const char *text, uint32_t max, uint32_t *number)
{
    uint64_t n = 0;

    if (!isdigit((unsigned char)*text) || (text[0] == '0' && isdigit((unsigned char)text[1])))
        return NULL;
    for (; isdigit((unsigned char)*text); text++) {
        n = n * 10 + (uint64_t)(*text - '0');
        if (n > max)
            return NULL;
    }
    *number = (uint32_t)n;
    return text;
}

/* Matches one of the words of "{a|b}" (pattern points after the brace) at the start of text; returns the text after
 * it, or NULL. In the table, a word precedes any word that is its prefix. */
static const char *match_word(const char *pattern, const char *text)
{
    while (*pattern != '}') {
        size_t n = strcspn(pattern, "|}");
        if (strncmp(pattern, text, n) == 0)
            return text + n;
        pattern += n + (pattern[n] == '|');
    }
    return NULL;
}

static bool match_pattern(const char *pattern, const char *text, struct match *match)
{
    while (*pattern) {
        if (*pattern == '*')
            return *text != '\0';
        if (*pattern != '{') {
            if (*pattern++ != *text++)
                return false;
            continue;
        }
        if (strncmp(pattern, "{L}", 3) == 0)
            text = match_number(text, LAYER_MAX, &match->layer);
        else if (strncmp(pattern, "{E}", 3) == 0)
            text = match_number(text, EXPERT_MAX, &match->expert);
        else
            text = match_word(pattern + 1, text);
        if (!text)
            return false;
        pattern = strchr(pattern, '}') + 1;
    }
    return *text == '\0';
}

static bool is_common_part(const char *part, size_t bytes)
{
    for (size_t i = 0; i < sizeof(common_parts) / sizeof(common_parts[0]); i++)
        if (strlen(common_parts[i]) == bytes && memcmp(common_parts[i], part, bytes) == 0)
            return true;
    return false;
}

/* Converts a prefix to a stack: "model.encoder." to "encoder", "thinker.model." to "thinker". false: not usable in a
 * file name. */
static bool stack_of(const char *prefix, size_t bytes, char stack[STACK_BYTES_MAX + 1])
{
    size_t used = 0;

    while (bytes > 0) {
        size_t part = (size_t)((const char *)memchr(prefix, '.', bytes) - prefix);
        if (!is_common_part(prefix, part)) {
            if (part == 0 || used + (used > 0) + part > STACK_BYTES_MAX)
                return false;
            if (used)
                stack[used++] = '-';
            for (size_t i = 0; i < part; i++) {
                if (!isalnum((unsigned char)prefix[i]) && prefix[i] != '_')
                    return false;
                stack[used++] = prefix[i];
            }
        }
        prefix += part + 1;
        bytes -= part + 1;
    }
    stack[used] = '\0';
    return true;
}

/* Finds the shortest prefix of whole parts (maybe none) after which a row matches the name, and the first such row. */
static bool match_name(const char *name, struct match *match)
{
    for (const char *text = name; text; text = strchr(text, '.'), text = text ? text + 1 : NULL)
        for (size_t i = 0; i < ROWS; i++) {
            match->row = &table[i];
            match->expert = 0;
            if (match_pattern(table[i].pattern, text, match))
                return stack_of(name, (size_t)(text - name), match->stack);
        }
    return false;
}

/* Whether a fused tensor can be split: at least two dimensions, and whole bytes per expert. */
static bool can_split(const struct efs_source_tensor *tensor)
{
    const struct efs_dtype_info *info = efs_dtype_info(tensor->dtype);
    uint64_t experts = tensor->shape[0], slice;

    if (!info || tensor->dims < 2 || tensor->bytes == 0 || experts > FUSED_EXPERTS_MAX)
        return false;
    return efs_dtype_tensor_bytes(tensor->dtype, tensor->dims - 1, tensor->shape + 1, &slice) == 0 &&
           tensor->bytes % experts == 0 && tensor->bytes / experts == slice;
}

/* The experts of one tensor (count 0: none, the tensor is dense), or one expert. */
struct expert_range {
    const struct row *row;
    uint32_t stack; /* index into stacks */
    uint32_t layer, expert, count;
};

struct naming {
    struct efs_catalog *catalog;
    struct expert_range *ranges; /* one per tensor */
    char **stacks;
    size_t stack_count, stack_capacity;
    struct expert_range *experts; /* one per expert; has duplicates until sorted */
    size_t expert_count, expert_capacity;
    const struct row *first_row; /* the first row that any tensor matches */
    uint32_t index;              /* file of the model's index; EFS_NONE: none */
};

/* The index of a stack, which is added if it is new. STACKS_MAX if there are too many. */
static errint_t stack_index(struct naming *naming, const char *stack, uint32_t *index)
{
    for (*index = 0; *index < naming->stack_count; ++*index)
        if (strcmp(naming->stacks[*index], stack) == 0)
            return 0;
    if (naming->stack_count == STACKS_MAX)
        return 0;
    errint_t ret = efs_source_grow((void **)&naming->stacks, naming->stack_count, &naming->stack_capacity,
                                   sizeof(*naming->stacks));
    if (ret < 0)
        return ret;
    naming->stacks[naming->stack_count] = strdup(stack);
    if (!naming->stacks[naming->stack_count])
        return -ENOMEM;
    naming->stack_count++;
    return 0;
}

/* Sets the class of one tensor and its experts. */
static errint_t names_classify(struct naming *naming, struct efs_source_tensor *tensor,
                               struct expert_range *expert_range)
{
    struct match match;

    if (!match_name(tensor->name, &match) || (match.row->kind == ROW_FUSED && !can_split(tensor)))
        return 0;
    errint_t ret = stack_index(naming, match.stack, &expert_range->stack);
    if (ret < 0 || expert_range->stack == STACKS_MAX)
        return ret;
    bool fused = match.row->kind == ROW_FUSED;
    tensor->tensor_class = fused ? EFS_CLASS_FUSED : EFS_CLASS_EXPERT;
    expert_range->layer = match.layer;
    expert_range->expert = match.expert;
    expert_range->count = fused ? (uint32_t)tensor->shape[0] : 1;
    expert_range->row = match.row;
    return 0;
}

static void make_dense(struct naming *naming, struct efs_source_tensor *tensor)
{
    tensor->tensor_class = EFS_CLASS_DENSE;
    naming->ranges[tensor - naming->catalog->tensors].count = 0;
}

/* Chooses the model that has experts; tensors of the other models become dense. */
static errint_t choose_model(struct naming *naming)
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
static size_t choose_duplicate(const struct naming *naming, json_t **map, struct efs_source_tensor *const *same,
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
static errint_t sort_by_name(const struct naming *naming, bool experts, struct efs_source_tensor ***sorted,
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
static errint_t drop_superseded(struct naming *naming)
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
static errint_t drop_duplicates(struct naming *naming)
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
    const struct expert_range *x = a, *y = b;
    char *const *stacks = arg;
    int order = x->stack == y->stack ? 0 : strcmp(stacks[x->stack], stacks[y->stack]);

    if (order)
        return order;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* Collects the experts of all tensors, sorted, without duplicates. */
static errint_t collect_experts(struct naming *naming)
{
    size_t count = 0;

    for (size_t i = 0; i < naming->catalog->tensor_count; i++) {
        struct expert_range expert = naming->ranges[i];
        if (expert.count && (!naming->first_row || expert.row < naming->first_row))
            naming->first_row = expert.row;
        for (uint32_t left = expert.count; left > 0; left--, expert.expert++) {
            errint_t ret = naming->expert_count < EXPERTS_MAX ? 0 : -E2BIG;
            if (ret == 0)
                ret = efs_source_grow((void **)&naming->experts, naming->expert_count, &naming->expert_capacity,
                                      sizeof(*naming->experts));
            if (ret < 0)
                return ret;
            naming->experts[naming->expert_count++] = expert;
        }
    }
    if (naming->expert_count == 0)
        return 0;
    qsort_r(naming->experts, naming->expert_count, sizeof(*naming->experts), compare_experts, naming->stacks);
    for (size_t i = 0; i < naming->expert_count; i++)
        if (i == 0 || compare_experts(&naming->experts[count - 1], &naming->experts[i], naming->stacks))
            naming->experts[count++] = naming->experts[i];
    naming->expert_count = count;
    return 0;
}

/* Index of an expert in the sorted experts. */
static uint32_t find_expert(const struct naming *naming, const struct expert_range *expert)
{
    size_t low = 0, high = naming->expert_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (compare_experts(&naming->experts[middle], expert, naming->stacks) <= 0)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

static errint_t fill_catalog(const struct naming *naming)
{
    struct efs_catalog *catalog = naming->catalog;

    catalog->family = strdup(naming->first_row ? naming->first_row->family : "dense");
    if (!catalog->family)
        return -ENOMEM;
    if (naming->expert_count == 0)
        return 0;
    catalog->experts = efs_sys_calloc(naming->expert_count, sizeof(*catalog->experts));
    if (!catalog->experts)
        return -ENOMEM;
    for (size_t i = 0; i < naming->expert_count; i++) {
        const struct expert_range *expert = &naming->experts[i];
        char *stack = strdup(naming->stacks[expert->stack]);
        if (!stack)
            return -ENOMEM;
        catalog->experts[catalog->expert_count++] =
            (struct efs_source_expert){.stack = stack, .layer = expert->layer, .expert = expert->expert};
    }
    for (size_t i = 0; i < catalog->tensor_count; i++)
        if (naming->ranges[i].count)
            catalog->tensors[i].expert_first = find_expert(naming, &naming->ranges[i]);
    return 0;
}

errint_t efs_source_name_experts(struct efs_catalog *catalog, struct efs_error *err)
{
    struct naming naming = {.catalog = catalog, .index = EFS_NONE};
    errint_t ret = 0;

    naming.ranges = efs_sys_calloc(catalog->tensor_count + 1, sizeof(*naming.ranges));
    if (!naming.ranges)
        ret = -ENOMEM;
    for (size_t i = 0; ret == 0 && i < catalog->tensor_count; i++)
        ret = names_classify(&naming, &catalog->tensors[i], &naming.ranges[i]);
    if (ret == 0)
        ret = choose_model(&naming);
    if (ret == 0 && catalog->tensor_count)
        ret = naming.index != EFS_NONE ? drop_superseded(&naming) : drop_duplicates(&naming);
    if (ret == 0)
        ret = collect_experts(&naming);
    if (ret == 0)
        ret = fill_catalog(&naming);
    if (ret < 0)
        efs_fail(err, ret, "%s: %s", catalog->root, ret == -E2BIG ? "too many experts" : "out of memory");
    for (size_t i = 0; i < naming.stack_count; i++)
        free(naming.stacks[i]);
    free(naming.stacks);
    free(naming.experts);
    free(naming.ranges);
    return ret;
}
