/* SPDX-License-Identifier: Apache-2.0 */
/* size.c - sizes as people write them. */
#include "expertfs-private.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

errint_t efs_parse_size(const char *text, uint64_t *bytes)
{
    uint64_t whole = 0, part = 0, scale = 1;
    const char *p = text;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return -ERANGE;
    if (*p == '.') {
        if (p[1] < '0' || p[1] > '9')
            return -EINVAL;
        for (p++; *p >= '0' && *p <= '9'; p++) {
            if (scale < 1000000) { /* further digits are below a millionth */
                part = part * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
        }
    }
    static const char units[] = "KMGT";
    unsigned shift = 0;
    const char *unit = isalpha((unsigned char)*p) ? strchr(units, toupper((unsigned char)*p)) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        p++;
        if (p[0] == 'i' && (p[1] == 'B' || p[1] == 'b'))
            p += 2;
        else if (*p == 'B' || *p == 'b')
            p++;
    }
    if (*p || (scale > 1 && !shift))
        return -EINVAL;
    uint64_t fraction = (uint64_t)(((unsigned __int128)part << shift) / scale);
    if (__builtin_mul_overflow(whole, UINT64_C(1) << shift, &whole) || __builtin_add_overflow(whole, fraction, bytes))
        return -ERANGE;
    return 0;
}
