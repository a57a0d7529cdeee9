/* SPDX-License-Identifier: Apache-2.0 */
/* escape.c - names that come from outside, in texts that have a meaning for each line. */
#include "expertfs-private.h"

#include <stdio.h>

void efs_print_escaped(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\\' || *text == '"')
            fprintf(out, "\\%c", *text);
        else if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
}
