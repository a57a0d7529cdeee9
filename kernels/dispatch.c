/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.c - chooses the code path for this processor. The pointer below is the only mutable state of kernels/.
 */
#include "ops.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Best first. */
static const struct efs_kernel_ops *const paths[] = {
#if defined(__x86_64__)
    &efs_ops_avx512,
    &efs_ops_avx2,
#elif defined(__aarch64__)
    &efs_ops_neon,
#endif
    &efs_ops_scalar,
};
#define PATHS (sizeof(paths) / sizeof(paths[0]))

static _Atomic(const struct efs_kernel_ops *) chosen;

/* The path of that name if the processor supports it, else NULL. */
static const struct efs_kernel_ops *path_named(const char *name)
{
    for (size_t i = 0; i < PATHS; i++)
        if (strcmp(paths[i]->name, name) == 0)
            return paths[i]->supported() ? paths[i] : NULL;
    return NULL;
}

static const struct efs_kernel_ops *best_path(void)
{
    for (size_t i = 0; i < PATHS; i++)
        if (paths[i]->supported())
            return paths[i];
    return &efs_ops_scalar;
}

const struct efs_kernel_ops *efs_ops(void)
{
    const struct efs_kernel_ops *ops = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (ops == NULL) { /* concurrent first calls select the same path */
        const char *wanted = getenv("EXPERTFS_CPU");
        ops = wanted ? path_named(wanted) : NULL;
        if (ops == NULL)
            ops = best_path();
        atomic_store_explicit(&chosen, ops, memory_order_relaxed);
    }
    return ops;
}

const char *efs_cpu_name(void)
{
    return efs_ops()->name;
}

bool efs_cpu_force(const char *name)
{
    const struct efs_kernel_ops *ops = strcmp(name, "auto") == 0 ? best_path() : path_named(name);

    if (ops == NULL)
        return false;
    atomic_store_explicit(&chosen, ops, memory_order_relaxed);
    return true;
}
