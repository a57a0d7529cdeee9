/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - error messages and the version string. */
#include "expertfs-private.h"
#include "text.h"

#include <errno.h>
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

#define HINT "\nhint: "

/* The last HINT in text, if it is one of the format or of a message that the format ends with; NULL: none. A name with
 * a newline in it makes none. */
static char *hint_of(char *text, const char *format)
{
    size_t bytes = strlen(format);
    bool allowed = strstr(format, HINT) || (bytes >= 2 && strcmp(format + bytes - 2, "%s") == 0);
    char *hint = NULL;

    for (char *at = text; allowed && (at = strstr(at, HINT)); at++)
        hint = at;
    return hint;
}

void efs_make_printable(char *text, bool newlines)
{
    size_t left = strlen(text);

    while (left > 0) {
        unsigned char c = (unsigned char)text[0];
        size_t n = efs_utf8_character(text, left);
        bool control = c < 0x20 || c == 0x7F || (n == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0);
        if (n == 0 || (control && !(newlines && c == '\n'))) {
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
    char *hint = hint_of(err->text, format); /* the only newline */
    if (hint) {
        efs_make_printable(hint + 1, false);
        *hint = '\0';
    }
    efs_make_printable(err->text, false);
    if (hint)
        *hint = '\n';
    return code;
}

errint_t efs_choice_parse(const char *name, const char *choices, const char *value, unsigned *choice,
                          struct efs_error *err)
{
    char allowed[256];
    size_t used = 0;
    unsigned position = 0;

    for (const char *at = choices; at; position++) {
        size_t bytes = strcspn(at, "|");
        if (strlen(value) == bytes && memcmp(at, value, bytes) == 0) {
            *choice = position;
            return 0;
        }
        if (used < sizeof(allowed))
            used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s%.*s", position ? ", " : "", (int)bytes,
                                     at);
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return efs_fail(err, -EINVAL, "%s=%.64s: allowed are %s", name, value, allowed);
}

void efs_choice_name(const char *choices, unsigned choice, char *text, size_t room)
{
    for (; choice > 0; choice--)
        choices = strchr(choices, '|') + 1;
    snprintf(text, room, "%.*s", (int)strcspn(choices, "|"), choices);
}

void efs_join_hint(char *text, size_t room)
{
    char *hint = strstr(text, HINT);
    size_t used = hint ? strlen(text) + 1 : 0;

    if (!hint || used == room)
        return;
    memmove(hint + 1, hint, used - (size_t)(hint - text));
    memcpy(hint, "; ", 2);
}
