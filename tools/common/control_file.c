/* SPDX-License-Identifier: Apache-2.0 */
/* control_file.c - see control_file.h. */
#include "control_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

errint_t tools_control_read(const char *root, const char *file, char **text, struct efs_error *err)
{
    char path[4300];
    struct stat st;
    size_t room = 0;
    *text = NULL;
    snprintf(path, sizeof(path), "%s/.expertfs/%s", root, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* outside of a mount it may be a FIFO */
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
    errint_t rc = 0;
    if (in && fstat(fd, &st) == 0 && st.st_size > 0) /* files of a mount have st_size 0 */
        rc = efs_fail(err, -ENODEV, "%s: the checkpoint has an .expertfs of its own in its place", path);
    else if (!in || getdelim(text, &room, '\0', in) < 0)
        rc = efs_fail(err, errno ? -errno : -EIO, "%s: %s", path, strerror(errno));
    if (in)
        fclose(in);
    else if (fd >= 0)
        close(fd);
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

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

uint64_t tools_line_number(const char *lines, const char *name)
{
    const char *value = tools_line_value(lines, name);
    return value ? strtoull(value, NULL, 10) : 0;
}

const char *tools_line_text(const char *lines, const char *name, char *text, size_t room)
{
    const char *value = tools_line_value(lines, name);
    snprintf(text, room, "%.*s", value ? (int)strcspn(value, "\n") : 0, value ? value : "");
    return text;
}

const char *tools_line_path(const char *lines, const char *name, char *path, size_t room)
{
    tools_line_text(lines, name, path, room);
    char *to = path;
    for (const char *from = path; *from; from++) {
        bool escaped = from[0] == '\\' && from[1];
        from += escaped;
        *to++ = escaped && *from == 'n' ? '\n' : *from;
    }
    *to = '\0';
    return path;
}
