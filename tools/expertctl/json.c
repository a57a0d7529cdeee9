/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - output of the option --json of all commands. */
#include "expertctl.h"

#include <jansson.h>
#include <stdio.h>

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
