/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_bytes.c - numbers and strings in a row of bytes, little-endian; the first error lasts. */
#include "reclaim.h"
#include "sys.h"

#include <string.h>

void efs_bytes_put(struct efs_bytes *b, const void *data, size_t count)
{
    if (b->bad || count == 0)
        return;
    if (b->capacity - b->count < count) {
        size_t capacity = 2 * b->capacity + count;
        uint8_t *grown = efs_sys_realloc(b->data, capacity);
        if (!grown) {
            b->bad = true;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->count, data, count);
    b->count += count;
}

void efs_bytes_put_u64(struct efs_bytes *b, uint64_t value)
{
    efs_bytes_put(b, &value, sizeof(value));
}

void efs_bytes_put_string(struct efs_bytes *b, const char *text)
{
    size_t count = strlen(text);
    efs_bytes_put_u64(b, count);
    efs_bytes_put(b, text, count);
}

void efs_bytes_get(struct efs_bytes *b, void *data, size_t count)
{
    if (b->bad || count > b->count - b->at) {
        b->bad = true;
        memset(data, 0, count);
        return;
    }
    memcpy(data, b->data + b->at, count);
    b->at += count;
}

uint64_t efs_bytes_get_u64(struct efs_bytes *b)
{
    uint64_t value;
    efs_bytes_get(b, &value, sizeof(value));
    return value;
}

uint64_t efs_bytes_get_below(struct efs_bytes *b, uint64_t limit)
{
    uint64_t value = efs_bytes_get_u64(b);
    b->bad |= value >= limit;
    return b->bad ? 0 : value;
}

char *efs_bytes_get_string(struct efs_bytes *b)
{
    uint64_t count = efs_bytes_get_u64(b);
    if (b->bad || count > b->count - b->at) {
        b->bad = true;
        return NULL;
    }
    char *text = efs_sys_malloc(count + 1);
    if (!text) {
        b->bad = true;
        return NULL;
    }
    efs_bytes_get(b, text, count);
    text[count] = '\0';
    return text;
}
