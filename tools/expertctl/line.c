/* SPDX-License-Identifier: Apache-2.0 */
/* line.c - lines, lists and names for people. */
#include "expertctl.h"
#include "expertfs-private.h"

#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void ctl_list_add(char *list, size_t room, const char *entry)
{
    const size_t used = strlen(list);
    const bool fits = used == 0 || used + strlen(entry) + sizeof(", , ...") <= room;
    if (!efs_ends_with(list, " ..."))
        snprintf(list + used, room - used, "%s%s", used ? ", " : "", fits ? entry : "...");
}

const char *ctl_user_name(uid_t user, char text[32])
{
    const struct passwd *known = getpwuid(user);
    snprintf(text, 32, "%u", (unsigned)user);
    return known ? known->pw_name : text;
}

const char *ctl_process_name(pid_t pid, char text[32])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(text, 32, file))
        strcpy(text, "?");
    text[strcspn(text, "\n")] = '\0';
    if (file)
        fclose(file);
    return text;
}
