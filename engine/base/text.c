/* text.c - see text.h. */
#include "text.h"

#include <stdarg.h>
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

void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count)
{
    efs_text_bytes(text, "\"", 1);
    efs_text_bytes(text, prefix, strlen(prefix));
    size_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        efs_text_bytes(text, bytes + begin, i - begin);
        efs_text_format(text, c < 0x20 ? "\\u%04x" : "\\%c", c);
        begin = i + 1;
    }
    efs_text_bytes(text, bytes + begin, count - begin);
    efs_text_bytes(text, "\"", 1);
}
