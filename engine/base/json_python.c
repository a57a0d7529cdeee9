/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_python.c - parses JSON as Python's json module does.
 *
 * Checkpoints are written and read by that module, which accepts more than the JSON standard: NaN and Infinity
 * (time_step_limit of Mamba models), integers of any size, a byte order mark, escapes of unpaired surrogates. If a
 * member name is repeated, the last value is used; jansson does the same.
 *
 * jansson supports only finite numbers. Other numbers are converted to strings of their Python name, which a caller
 * that requires a number rejects. jansson rejects U+0000 in names and unpaired surrogates in strings: escapes of both
 * are replaced with U+FFFD.
 */
#include "expertfs-private.h"
#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTEGER_DIGITS 18u /* decimal integers up to this length fit in 64 bits */
#define NUMBER_MAX 4301u   /* longest number that is examined; Python rejects integers of more than 4300 digits */
#define ESCAPE_BYTES 6u    /* length of \uXXXX */
#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-."

/* The Python name, as a JSON string, of a number that is not finite; NULL: it is finite or not a number. number: the
 * word, or "" if it is longer than NUMBER_MAX. */
static const char *not_finite(const char *number)
{
    static const char *const names[] = {"\"NaN\"", "\"Infinity\"", "\"-Infinity\""};
    bool negative = number[0] == '-';
    char *end;

    if (strcmp(number, "NaN") == 0)
        return names[0];
    if (strcmp(number + negative, "Infinity") == 0)
        return names[1 + negative];
    bool digits = isdigit((unsigned char)number[negative]) && !strpbrk(number, "xX"); /* not 0x1p9 */
    return digits && isinf(strtod(number, &end)) && !*end ? names[1 + negative] : NULL;
}

/* Copies a word outside of strings in a form that jansson accepts and returns the length written. Requires room for
 * 2 * bytes + 2 bytes in `to`. */
static size_t put_word(char *to, const char *word, size_t bytes)
{
    char number[NUMBER_MAX + 1] = "";

    if (bytes <= NUMBER_MAX)
        memcpy(number, word, bytes);
    number[bytes <= NUMBER_MAX ? bytes : 0] = '\0';
    const char *name = not_finite(number);
    size_t count = name ? strlen(name) : bytes;
    memcpy(to, name ? name : word, count);
    if (!name && bytes > INTEGER_DIGITS && number[0] && strspn(number, "-0123456789") == bytes) {
        memcpy(to + count, "e0", 2); /* jansson then parses it as a real number */
        count += 2;
    }
    return count;
}

/* The code unit of the escape \uXXXX at text, or UINT_MAX if text does not start with one. */
static unsigned escape_unit(const char *text, size_t bytes)
{
    char digits[5] = "";

    if (bytes < ESCAPE_BYTES || text[0] != '\\' || text[1] != 'u')
        return UINT_MAX;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (unsigned)strtoul(digits, NULL, 16) : UINT_MAX;
}

/* Copies one escape, or a surrogate pair of two, in a form that jansson accepts. Returns its length, which does not
 * change. */
static size_t put_escape(char *to, const char *text, size_t bytes)
{
    unsigned unit = escape_unit(text, bytes);
    bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
    unsigned next = high ? escape_unit(text + ESCAPE_BYTES, bytes - ESCAPE_BYTES) : UINT_MAX;
    bool pair = next >= 0xDC00 && next < 0xE000;
    size_t count = unit == UINT_MAX ? (bytes > 1 ? 2 : 1) : ESCAPE_BYTES * (1 + pair);

    memcpy(to, unit == 0 || low || (high && !pair) ? "\\uFFFD" : text, count);
    return count;
}

/* Copies the text in a form that jansson accepts and returns the length written. */
static size_t put_text(char *to, const char *text, size_t bytes)
{
    size_t count = 0;
    bool string = false;

    for (size_t i = 0, taken; i < bytes; i += taken) {
        size_t word = 0;
        while (!string && i + word < bytes && text[i + word] && strchr(WORD, text[i + word]))
            word++;
        taken = 1;
        if (word) {
            count += put_word(to + count, text + i, word);
            taken = word;
        } else if (string && text[i] == '\\') {
            taken = put_escape(to + count, text + i, bytes - i);
            count += taken;
        } else {
            string ^= text[i] == '"';
            to[count++] = text[i];
        }
    }
    return count;
}

json_t *efs_json_python(const char *text, size_t bytes, struct efs_error *err)
{
    json_error_t where;

    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    char *standard = efs_sys_malloc(2 * bytes + 2);
    if (!standard) {
        efs_fail(err, -ENOMEM, "no memory");
        return NULL;
    }
    json_t *root = json_loadb(standard, put_text(standard, text, bytes), JSON_ALLOW_NUL, &where);
    free(standard);
    if (!root)
        efs_fail(err, -EUCLEAN, "line %d: %s", where.line, where.text);
    return root;
}
