/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - error messages and the version string. */
#include "expertfs.h"

#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifndef EFS_VERSION_STRING
#define EFS_VERSION_STRING "unversioned"
#endif

const char *efs_version(void)
{
    return EFS_VERSION_STRING;
}

/* Messages contain names from outside: replaces newlines, control characters and bytes that are not UTF-8 with '?',
 * so that a message is one line and contains no terminal escapes. */
static void make_printable(char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        unsigned char c = (unsigned char)text[0];
        size_t n = efs_utf8_character(text, left);
        bool control = c < 0x20 || c == 0x7F || (n == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0);
        if (n == 0 || control) {
            n = n ? n : 1;
            memset(text, '?', n);
        }
        text += n;
        left -= n;
    }
}

errint_t efs_fail(struct efs_error *err, errint_t code, const char *format, ...)
{
    va_list args;

    if (!err)
        return code;
    va_start(args, format);
    if (vsnprintf(err->text, sizeof(err->text), format, args) < 0)
        err->text[0] = '\0';
    va_end(args);
    make_printable(err->text);
    return code;
}
