/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h - copies, compares and removes directories of regular files. A failure ends the test (cmocka). */
#ifndef EFS_TEST_TREE_H
#define EFS_TEST_TREE_H

#include <stdbool.h>

/* Copies a directory with its contents, modes and modification times. */
void tree_copy(const char *from, const char *to);
/* Whether both have the same names, contents, modes, and modification times of files; the first difference is printed.
 */
bool tree_same(const char *a, const char *b);
bool tree_same_bytes(const char *a, const char *b);
/* Removes it, if there is one. */
void tree_remove(const char *path);

#endif
