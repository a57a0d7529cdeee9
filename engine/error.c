/* error.c - how the engine says what went wrong, and which version it is. */
#include "libexpertfs.h"

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

/* Cut a UTF-8 character that does not end inside text. */
static void trim_partial_character(char *text)
{
    size_t n = strlen(text);
    size_t tail = 0;

    while (tail < n && tail < 3 && ((unsigned char)text[n - 1 - tail] & 0xC0) == 0x80)
        tail++;
    if (tail == n)
        return;
    unsigned char lead = (unsigned char)text[n - 1 - tail];
    size_t wanted = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (tail < wanted)
        text[n - 1 - tail] = '\0';
}

errint_t efs_fail(struct efs_error *err, errint_t code, const char *format, ...)
{
    va_list args;

    if (!err)
        return code;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    if (n < 0)
        err->text[0] = '\0';
    if (n >= (int)sizeof(err->text))
        trim_partial_character(err->text);
    /* Names come from outside: one line, and nothing that a terminal obeys. */
    for (char *c = err->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    return code;
}
