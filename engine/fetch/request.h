/* SPDX-License-Identifier: Apache-2.0 */
/* request.h - inside the engine: a layer's experts, brought for someone who will come for them. */
#ifndef EFS_REQUEST_H
#define EFS_REQUEST_H

#include "serve.h"

/* Bring these into memory, full where there is a full pool, and let go: opens and reads will find them. As
 * efs_request_begin(), which checks the same. No lock. */
errint_t efs_request_bring(struct efs *fs, const struct efs_need *needs, uint32_t count, struct efs_error *err);

#endif
