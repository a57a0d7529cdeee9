/* SPDX-License-Identifier: Apache-2.0 */
/* run_values.h - the settings that the ggml backend takes from the environment, checked before a program is started:
 * it may hide what the backend logs. */
#ifndef CTL_RUN_VALUES_H
#define CTL_RUN_VALUES_H

#include "expertfs.h"

struct ctl_run_memory {
    uint64_t expert_bytes; /* of all experts, as they are stored */
    uint64_t budget_bytes; /* for them; 0: auto */
};
/* Checks the variables by themselves: the name of a device only for its form, because the program knows which ones
 * there are. -EINVAL. */
errint_t ctl_run_values_check(struct efs_error *err);
/* Opens a store once, so that damage is reported here and not by the program or the daemon. backend: it opens the store
 * with EXPERTFS_BUDGET, which must suffice. */
errint_t ctl_run_values_check_store(const char *source, bool backend, struct ctl_run_memory *memory,
                                    struct efs_error *err);

#endif
