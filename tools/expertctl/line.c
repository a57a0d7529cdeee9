/* SPDX-License-Identifier: Apache-2.0 */
/* line.c - lines for people. */
#include "expertctl.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t ctl_character_bytes(const char *text)
{
    unsigned char first = (unsigned char)*text;
    size_t bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    json_t *one = strnlen(text, bytes) == bytes ? json_stringn(text, bytes) : NULL;
    bool good = one != NULL;
    json_decref(one);
    return good ? bytes : 0;
}

void ctl_make_printable(char *text, bool newlines)
{
    for (size_t left = strlen(text); left > 0;) {
        const unsigned char c = (unsigned char)*text;
        size_t n = ctl_character_bytes(text);
        bool control = c < 0x20 || c == 0x7F || (n == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0);
        if (n == 0 || (control && !(newlines && c == '\n'))) {
            n = n ? n : 1;
            memset(text, '?', n);
        }
        text += n;
        left -= n;
    }
}

void ctl_print_line(FILE *to, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (bytes < 0)
        return;
    ctl_make_printable(text, false);
    fprintf(to, "%s\n", text);
    free(text);
}
