/* SPDX-License-Identifier: Apache-2.0 */
/* stacked.c - the tensors that hold all experts of a layer, as in GGUF: where the experts of the model are in its
 * files. */
#include "store.h"

#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* Whether an expert's object is its slice of a tensor that has the experts in their order. */
static bool is_slice(const struct efs_store *store, const struct efs_disk_group *group,
                     const struct efs_disk_object *object)
{
    const struct efs_disk_tensor *t = &store->tensors[object->tensor];
    uint64_t at;
    return group->stack_bytes == 0 && t->expert_dim == 1 && object->bytes > 0 && t->bytes % object->bytes == 0 &&
           t->bytes / object->bytes <= UINT32_MAX && !__builtin_mul_overflow(object->bytes, group->expert, &at) &&
           object->tensor_offset == at;
}

/* Counts the slices of each tensor. */
static void count_slices(const struct efs_store *store, uint32_t *slices)
{
    for (uint32_t g = 0; g < store->expert_count; g++) {
        const struct efs_disk_group *group = &store->groups[g];
        for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++)
            if (store->objects[o].tensor != EFS_NONE && is_slice(store, group, &store->objects[o]))
                slices[store->objects[o].tensor]++;
    }
}

static struct efs_stacked stacked_of(const struct efs_store *store, const struct efs_disk_group *group,
                                     const struct efs_disk_object *object)
{
    const struct efs_disk_tensor *t = &store->tensors[object->tensor];
    return (struct efs_stacked){.name = store->strings + t->name_offset,
                                .name_bytes = t->name_bytes,
                                .layer = group->layer,
                                .experts = (uint32_t)(t->bytes / object->bytes),
                                .file = t->file,
                                .offset = t->file_offset,
                                .bytes = t->bytes};
}

errint_t efs_stacked_list(const struct efs_store *store, struct efs_stacked **list, uint32_t *count)
{
    uint32_t *slices = efs_sys_calloc((size_t)store->tensor_count + 1, sizeof(*slices));
    *list = efs_sys_calloc((size_t)store->tensor_count + 1, sizeof(**list));
    *count = 0;
    if (!slices || !*list) {
        free(slices);
        free(*list);
        *list = NULL;
        return -ENOMEM;
    }
    count_slices(store, slices);
    for (uint32_t g = 0; g < store->expert_count; g++) {
        const struct efs_disk_group *group = &store->groups[g];
        for (uint32_t o = group->object_first; group->expert == 0 && o < group->object_first + group->object_count;
             o++) {
            const struct efs_disk_object *object = &store->objects[o];
            if (object->tensor == EFS_NONE || !is_slice(store, group, object))
                continue;
            const struct efs_stacked s = stacked_of(store, group, object);
            if (slices[object->tensor] == s.experts)
                (*list)[(*count)++] = s;
        }
    }
    free(slices);
    return 0;
}
