/* SPDX-License-Identifier: Apache-2.0 */
/* request_check.h - checks the experts of a client's request, for mounts and GPU memory. */
#ifndef EFS_REQUEST_CHECK_H
#define EFS_REQUEST_CHECK_H

#include "expertfs.h"

/* Checks 1 to `most` experts, each once and with tokens; layer is for the message. 0; -EINVAL. */
errint_t efs_request_check_experts(uint32_t layer, const struct efs_need *needs, uint32_t count, uint32_t most,
                                   struct efs_error *err);

#endif
