/* SPDX-License-Identifier: Apache-2.0 */
/* size.c - see size.h. */
#include "size.h"

#include "expertfs-private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *tools_size_print(uint64_t bytes, char *text, size_t room)
{
    char size[EFS_SIZE_TEXT];
    snprintf(text, room, "%s", efs_size_text(bytes, size));
    return text;
}

char *tools_count_print(uint64_t n, const char *word, char *text, size_t room)
{
    snprintf(text, room, "%llu %s%s", (unsigned long long)n, word, n == 1 ? "" : "s");
    return text;
}

char *tools_duration_print(double seconds, char *text, size_t room)
{
    unsigned long s = seconds > 0 && seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 0;
    if (s < 60)
        snprintf(text, room, "%lus", s);
    else if (s < 3600)
        snprintf(text, room, "%lum%02lus", s / 60, s % 60);
    else
        snprintf(text, room, "%luh%02lum", s / 3600, s / 60 % 60);
    return text;
}

bool tools_number_parse(const char *text, uint64_t lowest, uint64_t highest, uint64_t *number)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *number >= lowest && *number <= highest;
}

bool tools_decimal_parse(const char *text, double lowest, double highest, double *number)
{
    size_t whole = strspn(text, "0123456789");
    const char *end = text + whole;
    if (*end == '.')
        end += 1 + strspn(end + 1, "0123456789");
    if (!whole || *end || end[-1] == '.')
        return false;
    *number = strtod(text, NULL);
    return *number >= lowest && *number <= highest;
}
