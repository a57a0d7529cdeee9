/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_python.c - JSON as Python's json module reads it. Checkpoints are written and read by it, and it takes what no
 * standard allows: NaN and Infinity (the time_step_limit of Mamba models), integers of any size, a byte order mark.
 * Of two members of one name the last counts; jansson does that by itself.
 */
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTEGER_DIGITS 18u /* that always fit in 64 bits */
#define NUMBER_MAX 400u    /* characters that are looked at for an overflow */
#define LARGEST "1e308"
#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-."

/* A word outside of strings in a form that jansson reads; returns its length. to has room for bytes * 4 / 3 + 2. */
static size_t put_word(char *to, const char *word, size_t bytes)
{
    char number[NUMBER_MAX + 1];
    bool negative = word[0] == '-';
    const char *in_place = NULL;

    if (bytes == 3 && memcmp(word, "NaN", 3) == 0)
        in_place = "null";
    else if (bytes - negative == 8 && memcmp(word + negative, "Infinity", 8) == 0)
        in_place = negative ? "-" LARGEST : LARGEST;
    if (!in_place && bytes <= NUMBER_MAX) {
        memcpy(number, word, bytes);
        number[bytes] = '\0';
        if (strspn(number, "+-.0123456789eE") == bytes && isinf(strtod(number, NULL)))
            in_place = negative ? "-" LARGEST : LARGEST;
    }
    size_t count = in_place ? strlen(in_place) : bytes;
    memcpy(to, in_place ? in_place : word, count);
    if (!in_place && bytes > INTEGER_DIGITS && bytes <= NUMBER_MAX && strspn(number, "-0123456789") == bytes) {
        memcpy(to + count, "e0", 2); /* a real number */
        count += 2;
    }
    return count;
}

/* The text in a form that jansson reads; returns its length. */
static size_t put_text(char *to, const char *text, size_t bytes)
{
    size_t count = 0;
    bool string = false;

    for (size_t i = 0; i < bytes;) {
        size_t word = 0;
        while (!string && i + word < bytes && text[i + word] && strchr(WORD, text[i + word]))
            word++;
        if (word) {
            count += put_word(to + count, text + i, word);
            i += word;
            continue;
        }
        string ^= text[i] == '"';
        if (string && text[i] == '\\' && i + 1 < bytes)
            to[count++] = text[i++];
        to[count++] = text[i++];
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
    char *standard = efs_sys_malloc(bytes + bytes / 2 + 2);
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
