/* text.h - append to a buffer of known size, or only count what it would take. */
#ifndef EFS_TEXT_H
#define EFS_TEXT_H

#include <stddef.h>

struct efs_text {
    char *data;      /* NULL: count only */
    size_t capacity; /* of data */
    size_t bytes;    /* appended so far, those that found no room too */
};

void efs_text_bytes(struct efs_text *text, const char *bytes, size_t count);
void efs_text_format(struct efs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes, prefix (plain ASCII) in front; bytes is UTF-8. */
void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count);

#endif
