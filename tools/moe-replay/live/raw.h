/* SPDX-License-Identifier: Apache-2.0 */
/* raw.h - files of a checkpoint, out of the page cache. */
#ifndef MOE_REPLAY_RAW_H
#define MOE_REPLAY_RAW_H

#include <stdint.h>

/* Take a file's pages out of the page cache. Returns the bytes that are still there (someone has them mapped). */
uint64_t replay_drop_cache(const char *path);

#endif
