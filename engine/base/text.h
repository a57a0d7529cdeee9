/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - appends text to a buffer of fixed size, or only counts it; UTF-8; locale-independent numbers. */
#ifndef EFS_TEXT_H
#define EFS_TEXT_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct efs_text {
    char *data;      /* NULL: only counts */
    size_t capacity; /* of data */
    size_t bytes;    /* appended, including bytes that did not fit */
};

void efs_text_bytes(struct efs_text *text, const char *bytes, size_t count);
void efs_text_string(struct efs_text *text, const char *string);
/* Decimal, padded with zeros to `digits` digits. A mount prints tens of thousands of file names before it is ready:
 * this function and efs_text_string() take a tenth of the time of efs_text_format(). */
void efs_text_number(struct efs_text *text, uint64_t value, unsigned digits);
void efs_text_format(struct efs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a JSON string with quotes: prefix (plain ASCII), then bytes, which must be UTF-8. */
void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count);

/* Length of the UTF-8 character at text; 0 if bytes is 0 or text does not start with a valid character. */
size_t efs_utf8_character(const char *text, size_t bytes);
/* Whether the bytes are UTF-8 text without NUL characters. */
bool efs_utf8_text(const char *text, size_t bytes);

/* Selects the locale "C" for this thread. In glibc newlocale() returns a static object for it: it does not allocate
 * and cannot fail. If another C library fails, the locale stays unchanged. */
static inline locale_t efs_c_locale_begin(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void efs_c_locale_end(const locale_t *before)
{
    uselocale(*before);
}

/* Put it at the start of a block. Until the end of the block, printf(3) and strtod(3) of this thread use '.' as the
 * decimal point in any locale. */
#define EFS_C_LOCALE                                                                                                   \
    const locale_t efs_locale_before __attribute__((cleanup(efs_c_locale_end), unused)) = efs_c_locale_begin()

#endif
