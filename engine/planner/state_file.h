/* SPDX-License-Identifier: Apache-2.0 */
/* state_file.h - files of the state directory: data about a store, named by its content hash. */
#ifndef EFS_STATE_FILE_H
#define EFS_STATE_FILE_H

#include "expertfs-profile-private.h"

#define EFS_STATE_PATH_BYTES 4096

#endif
