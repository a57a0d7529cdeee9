/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - output of the option --json of all commands. */
#include "expertctl.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 character at text; 0: it is none. */
static size_t character_bytes(const char *text)
{
    unsigned char first = (unsigned char)*text;
    size_t bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    json_t *one = strnlen(text, bytes) == bytes ? json_stringn(text, bytes) : NULL;
    bool good = one != NULL;
    json_decref(one);
    return good ? bytes : 0;
}

json_t *ctl_json_text(const char *text)
{
    static const char other[] = "\xef\xbf\xbd"; /* U+FFFD */
    json_t *json = json_string(text);
    if (json)
        return json;
    char *good = calloc(strlen(text) + 1, sizeof(other)), *to = good;
    while (good && *text) {
        size_t bytes = character_bytes(text);
        to = mempcpy(to, bytes ? text : other, bytes ? bytes : sizeof(other) - 1);
        text += bytes ? bytes : 1;
    }
    json = good ? json_string(good) : NULL;
    free(good);
    return json;
}

int ctl_print_json(json_t *json)
{
    bool good = json && json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) == 0;
    json_decref(json);
    if (good)
        putchar('\n');
    else
        fprintf(stderr, "expertctl: JSON was not written: no memory, or standard output is full\n");
    return good ? CTL_OK : CTL_FAILED;
}
