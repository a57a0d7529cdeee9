/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - append to a buffer of known size, or only count what it would take. */
#ifndef EFS_TEXT_H
#define EFS_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct efs_text {
    char *data;      /* NULL: count only */
    size_t capacity; /* of data */
    size_t bytes;    /* appended so far, those that found no room too */
};

void efs_text_bytes(struct efs_text *text, const char *bytes, size_t count);
void efs_text_string(struct efs_text *text, const char *string);
/* Decimal, with zeros in front up to `digits` digits. Names of tens of thousands of files are printed before a mount is
 * there: this and efs_text_string() take a tenth of the time of efs_text_format(). */
void efs_text_number(struct efs_text *text, uint64_t value, unsigned digits);
void efs_text_format(struct efs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes, prefix (plain ASCII) in front; bytes is UTF-8. */
void efs_text_json(struct efs_text *text, const char *prefix, const char *bytes, size_t count);

#endif
