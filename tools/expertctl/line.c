/* SPDX-License-Identifier: Apache-2.0 */
/* line.c - lines for people. */
#include "expertctl.h"
#include "expertfs-private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void ctl_print_line(FILE *to, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (bytes < 0)
        return;
    efs_make_printable(text, false);
    fprintf(to, "%s\n", text);
    free(text);
}
