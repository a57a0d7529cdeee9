/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - see text.h; also parses sizes and escapes names. */
#include "text.h"

#include "expertfs-private.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
    char line[20]; /* digits of UINT64_MAX */
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

/* Tests eight bytes at once: (x - n) & ~x sets the high bit of each byte of x that is less than n. A borrow can also
 * set it for the next byte; that byte then takes the slow path. */
static bool are_plain(const char *bytes)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t w;
    memcpy(&w, bytes, sizeof(w));
    uint64_t quote = w ^ (ones * '"'), backslash = w ^ (ones * '\\');
    uint64_t less = ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash);
    return (less & high) == 0;
}

errint_t efs_text_stream_end(FILE *stream, char **text)
{
    const bool failed = ferror(stream);
    if (fclose(stream) == 0 && !failed)
        return 0;
    free(*text);
    *text = NULL;
    return -ENOMEM;
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

/* ---- UTF-8 (RFC 3629) ---- */

/* The range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF. */
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

/* ---- names and sizes ---- */

#define WORD_MOST 31u
#define EDITS_MOST 2u

/* Levenshtein distance; UINT_MAX for a word of more than WORD_MOST bytes. */
static unsigned edit_distance(const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to);
    unsigned row[WORD_MOST + 1];
    if (from_bytes > WORD_MOST || to_bytes > WORD_MOST)
        return UINT_MAX;
    for (unsigned j = 0; j <= to_bytes; j++)
        row[j] = j;
    for (unsigned i = 1; i <= from_bytes; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= to_bytes; j++) {
            unsigned least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            unsigned changed = diagonal + (from[i - 1] != to[j - 1]);
            diagonal = row[j];
            row[j] = changed < least ? changed : least;
        }
    }
    return row[to_bytes];
}

const char *efs_nearer_word(const char *word, const char *best, const char *candidate)
{
    unsigned edits = edit_distance(word, candidate);
    bool near = edits <= EDITS_MOST && 2 * edits <= strlen(candidate) && 2 * edits <= strlen(word);
    return near && (!best || edits < edit_distance(word, best)) ? candidate : best;
}

void efs_print_escaped_bytes(FILE *out, const char *text, size_t bytes)
{
    for (const char *end = text + bytes; text < end; text++)
        if (*text == '\\' || *text == '"')
            fprintf(out, "\\%c", *text);
        else if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
}

void efs_print_escaped(FILE *out, const char *text)
{
    efs_print_escaped_bytes(out, text, strlen(text));
}

errint_t efs_parse_size(const char *text, uint64_t *bytes)
{
    uint64_t whole = 0, part = 0, scale = 1;
    const char *p = text;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return -ERANGE;
    if (*p == '.') {
        if (p[1] < '0' || p[1] > '9')
            return -EINVAL;
        for (p++; *p >= '0' && *p <= '9'; p++) {
            if (scale < 1000000) { /* the seventh and later digits are ignored */
                part = part * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
        }
    }
    static const char units[] = "KMGT";
    unsigned shift = 0;
    const char *unit = isalpha((unsigned char)*p) ? strchr(units, toupper((unsigned char)*p)) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        p++;
        if (p[0] == 'i' && (p[1] == 'B' || p[1] == 'b'))
            p += 2;
        else if (*p == 'B' || *p == 'b')
            p++;
    }
    if (*p || (scale > 1 && !shift))
        return -EINVAL;
    uint64_t fraction = (uint64_t)(((unsigned __int128)part << shift) / scale);
    if (__builtin_mul_overflow(whole, UINT64_C(1) << shift, &whole) || __builtin_add_overflow(whole, fraction, bytes))
        return -ERANGE;
    return 0;
}

char *efs_size_text(uint64_t bytes, char *text)
{
    double n = (double)bytes;
    int unit = -1;
    while (n >= 1023.5 && unit < 5) {
        n /= 1024;
        unit++;
    }
    if (unit < 0)
        snprintf(text, EFS_SIZE_TEXT, "%u B", (unsigned)bytes);
    else
        snprintf(text, EFS_SIZE_TEXT, "%.*f %ciB", n < 9.995 ? 2 : n < 99.95 ? 1 : 0, n, "KMGTPE"[unit]);
    return text;
}
