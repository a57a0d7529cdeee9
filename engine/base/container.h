/* SPDX-License-Identifier: Apache-2.0 */
/* container.h - from a member back to the struct that it is in. */
#ifndef EFS_CONTAINER_H
#define EFS_CONTAINER_H

#include <stddef.h>

#define EFS_CONTAINER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

#endif
