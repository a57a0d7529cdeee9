/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c - UTF-8 as RFC 3629 has it. */
#include "utf8.h"

/* The range of the second byte keeps out characters that have a shorter form, surrogates, and numbers past U+10FFFF. */
size_t efs_utf8_character(const char *text, size_t bytes)
{
    if (bytes == 0)
        return 0;
    unsigned char lead = (unsigned char)text[0], low = 0x80, high = 0xBF;
    size_t n = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (n > bytes)
        return 0;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    for (size_t i = 1; i < n; i++, low = 0x80, high = 0xBF)
        if ((unsigned char)text[i] < low || (unsigned char)text[i] > high)
            return 0;
    return n;
}

bool efs_utf8_text(const char *text, size_t bytes)
{
    while (bytes > 0) {
        size_t n = efs_utf8_character(text, bytes);
        if (n == 0 || *text == '\0')
            return false;
        text += n;
        bytes -= n;
    }
    return true;
}
