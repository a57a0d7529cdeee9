/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c - see lines.h. */
#include "lines.h"

#include <stdbool.h>
#include <string.h>

const char *tools_line_value(const char *lines, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *line = lines; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, bytes) == 0 && strncmp(line + bytes, ": ", 2) == 0)
            return line + bytes + 2;
    }
    return NULL;
}

void tools_line_unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        bool escaped = from[0] == '\\' && from[1];
        from += escaped;
        *to++ = escaped && *from == 'n' ? '\n' : *from;
    }
    *to = '\0';
}
