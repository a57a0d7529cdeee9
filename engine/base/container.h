/* SPDX-License-Identifier: Apache-2.0 */
/* container.h - converts a pointer to a member into a pointer to its struct. */
#ifndef EFS_CONTAINER_H
#define EFS_CONTAINER_H

#include <stddef.h>

#define EFS_CONTAINER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

#endif
