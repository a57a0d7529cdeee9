/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_python.c - JSON as Python's json module reads it. Checkpoints are written and read by it, and it takes what no
 * standard allows: NaN and Infinity (the time_step_limit of Mamba models), integers of any size, a byte order mark,
 * escapes of half a surrogate pair. Of two members of one name the last counts; jansson does that by itself.
 *
 * jansson has no numbers but finite ones: others become their name as a string, so that a caller who needs a number
 * refuses them. A name cannot hold U+0000 and no string half a pair: both become U+FFFD.
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

#define INTEGER_DIGITS 18u /* that always fit in 64 bits */
#define NUMBER_MAX 4301u   /* characters of a number that are looked at; Python refuses integers of more digits */
#define ESCAPE_BYTES 6u    /* of \uXXXX */
#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-."

/* A number that is not finite: its name in Python, as a JSON string; NULL: it is finite, or no number. number: the
 * word, or "" if it is too long. */
static const char *not_finite(const char *number)
{
    static const char *const names[] = {"\"NaN\"", "\"Infinity\"", "\"-Infinity\""};
    bool negative = number[0] == '-';
    char *end;

    if (strcmp(number, "NaN") == 0)
        return names[0];
    if (strcmp(number + negative, "Infinity") == 0)
        return names[1 + negative];
    bool digits = isdigit((unsigned char)number[negative]) && !strpbrk(number, "xX"); /* strtod() reads 0x1p9 */
    return digits && isinf(strtod(number, &end)) && !*end ? names[1 + negative] : NULL;
}

/* A word outside of strings in a form that jansson reads; returns its length. to has room for 2 * bytes + 2. */
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
        memcpy(to + count, "e0", 2); /* a real number */
        count += 2;
    }
    return count;
}

/* The code unit of an escape \uXXXX; UINT_MAX: there is none. */
static unsigned escape_unit(const char *text, size_t bytes)
{
    char digits[5] = "";

    if (bytes < ESCAPE_BYTES || text[0] != '\\' || text[1] != 'u')
        return UINT_MAX;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (unsigned)strtoul(digits, NULL, 16) : UINT_MAX;
}

/* An escape, or a surrogate pair of two, in a form that jansson reads; returns its length, the same as before. */
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

/* The text in a form that jansson reads; returns its length. */
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
