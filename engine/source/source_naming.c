/* SPDX-License-Identifier: Apache-2.0 */
/* source_naming.c - sets the experts of one tensor: how its first dimension divides, the number of its stack. */
#include "source_names.h"

#include "dtype.h"

#include <errno.h>
#include <string.h>

#define FUSED_EXPERTS_MAX 65536u
#define STACKS_MAX 256u

/* Whether the tensor has `dims` dimensions or more and divides into `count` slices of whole bytes, each with the shape
 * [shape[0] / count, ...]. */
static bool can_divide(const struct efs_source_tensor *tensor, uint32_t dims, uint64_t count)
{
    uint64_t shape[EFS_MAX_DIMS] = {0}, slice;

    if (!efs_dtype_info(tensor->dtype) || tensor->dims < dims || tensor->bytes == 0 || count == 0 ||
        count > FUSED_EXPERTS_MAX || tensor->shape[0] % count != 0)
        return false;
    memcpy(shape, tensor->shape, tensor->dims * sizeof(shape[0]));
    shape[0] /= count;
    return efs_dtype_tensor_bytes(tensor->dtype, tensor->dims, shape, &slice) == 0 && tensor->bytes % count == 0 &&
           tensor->bytes / count == slice;
}

/* The number of experts of a tensor with rows of all of them: the only one that divides it; 0: not known. */
static uint32_t rows_count(const struct efs_source_facts *facts, const struct efs_source_tensor *tensor)
{
    uint32_t count = 0;

    if (tensor->dims == EFS_MAX_DIMS)
        return 0;
    for (unsigned i = 0; facts && i < facts->count_count; i++)
        if (can_divide(tensor, 2, facts->counts[i])) {
            if (count)
                return 0;
            count = facts->counts[i];
        }
    return count;
}

static bool has_count(const struct efs_source_facts *facts, uint64_t count)
{
    for (unsigned i = 0; facts && i < facts->count_count; i++)
        if (facts->counts[i] == count)
            return true;
    return false;
}

/* Sets kind and count of a tensor whose first dimension is that of experts; count 0: it cannot be divided. A tensor
 * that only an expression matches may have rows of all experts. */
static void set_first_dimension(const struct efs_source_facts *facts, const struct efs_source_tensor *tensor,
                                const struct efs_name_match *match, struct efs_expert_range *range)
{
    bool fused = match->kind == EFS_NAME_FUSED && can_divide(tensor, 2, tensor->shape[0]);
    bool try_rows = match->kind == EFS_NAME_ROWS || (match->rank == 0 && !has_count(facts, tensor->shape[0]));
    uint32_t rows = try_rows ? rows_count(facts, tensor) : 0;

    range->fused = fused || rows;
    range->rows = rows;
    range->count = rows ? rows : fused ? (uint32_t)tensor->shape[0] : 0;
}

/* The index of a stack, which is added if it is new. STACKS_MAX if there are too many. */
static errint_t stack_index(struct efs_naming *naming, const char *stack, uint32_t *index)
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

errint_t efs_naming_set(struct efs_naming *naming, size_t index, const struct efs_name_match *match)
{
    struct efs_source_tensor *tensor = &naming->catalog->tensors[index];
    struct efs_expert_range range = {
        .family = match->family, .rank = match->rank, .layer = match->layer, .expert = match->expert, .count = 1};

    if (match->kind == EFS_NAME_SCALES) {
        range.fused = tensor->dims && tensor->shape[0] == match->count && can_divide(tensor, 1, match->count);
        range.count = range.fused ? match->count : 0;
    } else if (match->kind != EFS_NAME_EXPERT)
        set_first_dimension(naming->facts[tensor->file], tensor, match, &range);
    if (range.count == 0)
        return 0;
    errint_t ret = stack_index(naming, match->stack, &range.stack);
    if (ret < 0 || range.stack == STACKS_MAX)
        return ret;
    tensor->tensor_class = range.fused ? EFS_CLASS_FUSED : EFS_CLASS_EXPERT;
    naming->ranges[index] = range;
    return 0;
}
