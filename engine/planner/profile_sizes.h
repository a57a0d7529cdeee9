/* SPDX-License-Identifier: Apache-2.0 */
/* profile_sizes.h - the part of a profile that is not measured. Used by profile_measure.c alone. */
#ifndef EFS_PROFILE_SIZES_H
#define EFS_PROFILE_SIZES_H

struct efs_profile;
struct efs_store;

/* Sets layers, experts, tensors, shards, sizes and rho. The store has at least one expert. */
void efs_profile_sizes(struct efs_store *store, struct efs_profile *profile);

#endif
