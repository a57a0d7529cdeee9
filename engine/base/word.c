/* SPDX-License-Identifier: Apache-2.0 */
/* word.c - a text as one word for the shell; how a text ends. */
#include "expertfs-private.h"
#include "text.h"

#include <string.h>

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 0x7f;
}

const char *efs_word(const char *text, char *word, size_t room)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-:=@%,";
    struct efs_text to = {.data = word, .capacity = room - 1};
    bool control = false, quoted = text[strspn(text, safe)] != '\0';

    for (const char *at = text; *at; at++)
        control |= is_control(*at);
    efs_text_string(&to, control ? "$'" : quoted ? "'" : "");
    for (const char *at = text; *at; at++)
        if (is_control(*at))
            efs_text_format(&to, "\\%03o", (unsigned)*at);
        else if (control && strchr("'\\", *at))
            efs_text_format(&to, "\\%c", *at);
        else
            efs_text_format(&to, *at == '\'' ? "'\\''" : "%c", *at);
    efs_text_string(&to, quoted ? "'" : "");
    if (to.bytes < room)
        word[to.bytes] = '\0';
    else
        *stpncpy(word, text, room - 1) = '\0';
    return word;
}

bool efs_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && memcmp(text + n - m, end, m) == 0;
}
