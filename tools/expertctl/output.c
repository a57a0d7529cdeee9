/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - what all subcommands print the same way: failures and JSON. */
#include "expertctl.h"

#include "failure.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ctl_fail(int rc, const struct efs_error *err)
{
    return tools_fail("expertctl", rc, err);
}

json_t *ctl_json_text(const char *text)
{
    json_t *json = json_string(text);
    char *ascii = json ? NULL : strdup(text);
    for (char *c = ascii; c && *c; c++)
        if (*c & 0x80)
            *c = '?';
    if (ascii)
        json = json_string(ascii);
    free(ascii);
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
