/* SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mk_files_free(struct mk_files *files)
{
    for (uint32_t f = 0; f < files->count; f++) {
        for (uint32_t s = 0; s < files->files[f].count; s++)
            free(files->files[f].segments[s].literal);
        free(files->files[f].segments);
    }
    free(files->files);
    memset(files, 0, sizeof(*files));
}

struct mk_file *mk_files_add(struct mk_files *files, const char *name)
{
    if (files->count == files->room) {
        uint32_t room = files->room ? 2 * files->room : 16;
        struct mk_file *more = reallocarray(files->files, room, sizeof(*more));
        if (!more)
            return NULL;
        files->files = more;
        files->room = room;
    }
    struct mk_file *file = &files->files[files->count++];
    memset(file, 0, sizeof(*file));
    snprintf(file->name, sizeof(file->name), "%s", name);
    return file;
}

static struct mk_segment *add_segment(struct mk_file *file, uint64_t bytes)
{
    if (file->count == file->room) {
        uint32_t room = file->room ? 2 * file->room : 16;
        struct mk_segment *more = reallocarray(file->segments, room, sizeof(*more));
        if (!more)
            return NULL;
        file->segments = more;
        file->room = room;
    }
    struct mk_segment *segment = &file->segments[file->count++];
    memset(segment, 0, sizeof(*segment));
    segment->offset = file->bytes;
    segment->bytes = bytes;
    file->bytes += bytes;
    return segment;
}

int mk_file_literal(struct mk_file *file, char *text, uint64_t bytes)
{
    struct mk_segment *segment = text ? add_segment(file, bytes) : NULL;
    if (!segment) {
        free(text);
        return -ENOMEM;
    }
    segment->literal = text;
    return 0;
}

int mk_file_tensor(struct mk_file *file, const struct mk_tensor *tensor)
{
    struct mk_segment *segment = add_segment(file, tensor->bytes);
    if (!segment)
        return -ENOMEM;
    segment->tensor = tensor;
    return 0;
}

int mk_files_text(struct mk_files *files, const char *name, char *text)
{
    struct mk_file *file = text ? mk_files_add(files, name) : NULL;
    if (!file) {
        free(text);
        return -ENOMEM;
    }
    return mk_file_literal(file, text, strlen(text));
}

uint64_t mk_files_bytes(const struct mk_files *files)
{
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < files->count; f++)
        bytes += files->files[f].bytes;
    return bytes;
}
