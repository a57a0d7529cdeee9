/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - what is text and what is not. */
#ifndef EFS_UTF8_H
#define EFS_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 character that begins the bytes at text; 0: they begin with none, or there are none. */
size_t efs_utf8_character(const char *text, size_t bytes);
/* Whether the bytes are UTF-8 text without NUL characters. */
bool efs_utf8_text(const char *text, size_t bytes);

#endif
