/* SPDX-License-Identifier: Apache-2.0 */
/* served_local.h - opens the local copy of a served store. */
#ifndef EFS_SERVED_LOCAL_H
#define EFS_SERVED_LOCAL_H

#include "efs.h"

/* Memory that it takes, also if it cannot be opened; 0: options.local is NULL. */
uint64_t efs_served_local_bytes(const struct efs *fs);
/* Opens it after the cache state is built, and starts its thread; fs->local stays NULL, with a warning, if that fails.
 */
void efs_served_local_open(struct efs *fs);

#endif
