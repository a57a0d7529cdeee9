/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_python.c - JSON as Python's json module writes it for checkpoints, with what no standard allows: NaN and
 * Infinity (the time_step_limit of Mamba models), integers of any size, a byte order mark. Of two members of one name
 * the last counts; jansson does that by itself.
 *
 * jansson has no numbers but finite ones: others become their name as a string, so that a caller who needs a number
 * refuses them.
 */
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define INTEGER_DIGITS 18u /* that always fit in 64 bits */
#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-."

/* A word that is no JSON number: its name in Python, as a JSON string; NULL: it is another word. */
static const char *not_finite(const char *word, size_t bytes)
{
    static const char *const names[] = {"\"NaN\"", "\"Infinity\"", "\"-Infinity\""};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (bytes == strlen(names[i]) - 2 && memcmp(word, names[i] + 1, bytes) == 0)
            return names[i];
    return NULL;
}

static bool is_integer(const char *word, size_t bytes)
{
    size_t i = word[0] == '-';

    while (i < bytes && word[i] >= '0' && word[i] <= '9')
        i++;
    return i == bytes;
}

/* A word outside of strings in a form that jansson reads; returns its length. to has room for 2 * bytes + 2. */
static size_t put_word(char *to, const char *word, size_t bytes)
{
    const char *name = not_finite(word, bytes);
    size_t count = name ? strlen(name) : bytes;
    memcpy(to, name ? name : word, count);
    if (!name && bytes > INTEGER_DIGITS && is_integer(word, bytes)) {
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

    for (size_t i = 0, taken; i < bytes; i += taken) {
        size_t word = 0;
        while (!string && i + word < bytes && text[i + word] && strchr(WORD, text[i + word]))
            word++;
        taken = 1;
        if (word) {
            count += put_word(to + count, text + i, word);
            taken = word;
        } else {
            taken = string && text[i] == '\\' && i + 1 < bytes ? 2 : 1;
            string ^= text[i] == '"';
            memcpy(to + count, text + i, taken);
            count += taken;
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
