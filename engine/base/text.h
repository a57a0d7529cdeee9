/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - texts in a buffer of known size, or only counted; UTF-8; numbers with a point. */
#ifndef EFS_TEXT_H
#define EFS_TEXT_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct efs_text {
    char *data;      /* NULL: count only */
    size_t capacity; /* of data */
    size_t bytes;    /* appended so far, those that found no room too */
};

void efs_text_bytes(struct efs_text *text, const char *bytes, size_t count);
void efs_text_string(struct efs_text *text, const char *string);
/* Decimal, with zeros in front up to `digits` digits. Names of tens of thousands of files are printed before a mount is
 * there: this and efs_text_string() take a tenth of the time of efs_text_format(). */
void efs_text_number(struct efs_text *text, uint64_t value, unsigned digits);
void efs_text_format(struct efs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes, prefix (plain ASCII) in front; bytes is UTF-8. */
void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count);

/* Bytes of the UTF-8 character that begins the bytes at text; 0: they begin with none, or there are none. */
size_t efs_utf8_character(const char *text, size_t bytes);
/* Whether the bytes are UTF-8 text without NUL characters. */
bool efs_utf8_text(const char *text, size_t bytes);

/* The locale "C" is part of the C library: nothing is allocated, and it cannot fail there. Where it does, nothing
 * changes. */
static inline locale_t efs_points_begin(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void efs_points_end(const locale_t *before)
{
    uselocale(*before);
}

/* At the start of a block: until its end, printf(3) and strtod(3) of this thread write and read numbers with a point,
 * whatever the locale of the program that links us says. */
#define EFS_WITH_POINTS                                                                                                \
    const locale_t efs_locale_before __attribute__((cleanup(efs_points_end), unused)) = efs_points_begin()

#endif
