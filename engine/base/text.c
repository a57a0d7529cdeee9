/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - see text.h. */
#include "text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void efs_text_bytes(struct efs_text *text, const char *bytes, size_t count)
{
    if (text->data && text->bytes < text->capacity) {
        size_t room = text->capacity - text->bytes;
        memcpy(text->data + text->bytes, bytes, count < room ? count : room);
    }
    text->bytes += count;
}

void efs_text_string(struct efs_text *text, const char *string)
{
    efs_text_bytes(text, string, strlen(string));
}

void efs_text_number(struct efs_text *text, uint64_t value, unsigned digits)
{
    char line[20]; /* UINT64_MAX has as many */
    size_t at = sizeof(line);
    do {
        line[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (at > 0 && (value || sizeof(line) - at < digits));
    efs_text_bytes(text, line + at, sizeof(line) - at);
}

void efs_text_format(struct efs_text *text, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (n > 0)
        efs_text_bytes(text, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

/* Eight bytes at once: a byte's high bit is set in the difference, and was not before, where it was less. */
static bool are_plain(const char *bytes)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t w;
    memcpy(&w, bytes, sizeof(w));
    uint64_t quote = w ^ (ones * '"'), backslash = w ^ (ones * '\\');
    uint64_t less = ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash);
    return (less & high) == 0;
}

void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count)
{
    efs_text_bytes(text, "\"", 1);
    efs_text_bytes(text, prefix, strlen(prefix));
    size_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        while (count - i >= sizeof(uint64_t) && are_plain(bytes + i))
            i += sizeof(uint64_t);
        if (i == count)
            break;
        unsigned char c = (unsigned char)bytes[i];
        if (is_plain(c))
            continue;
        efs_text_bytes(text, bytes + begin, i - begin);
        efs_text_format(text, c < 0x20 ? "\\u%04x" : "\\%c", c);
        begin = i + 1;
    }
    efs_text_bytes(text, bytes + begin, count - begin);
    efs_text_bytes(text, "\"", 1);
}
