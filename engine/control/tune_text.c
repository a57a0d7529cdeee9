/* SPDX-License-Identifier: Apache-2.0 */
/* tune_text.c - see tune_text.h. */
#include "tune_text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char pool_letters[] = "FCSE"; /* indexed by enum efs_pool */

static int plan_pool_of(char letter)
{
    const char *at = isalpha((unsigned char)letter) ? strchr(pool_letters, toupper((unsigned char)letter)) : NULL;
    return at ? (int)(at - pool_letters) : -1;
}

#define DECIMAL_PARTS 1e6 /* numbers are rounded to 1/DECIMAL_PARTS: printing returns the same digits */

/* Parses an unsigned decimal number without exponent. Returns its end; NULL: no number, or over 31 characters. */
static const char *parse_decimal(const char *text, double *number)
{
    size_t whole = strspn(text, "0123456789");
    size_t bytes = whole;
    if (text[bytes] == '.') {
        size_t part = strspn(text + bytes + 1, "0123456789");
        bytes += part ? 1 + part : 0;
    }
    char digits[32];
    if (!whole || bytes >= sizeof(digits))
        return NULL;
    memcpy(digits, text, bytes);
    digits[bytes] = '\0';
    *number = round(strtod(digits, NULL) * DECIMAL_PARTS) / DECIMAL_PARTS;
    return text + bytes;
}

/* Prints a number as parse_decimal() parses it: without exponent or trailing zeros of the fraction. */
static void print_decimal(double number, char *text, size_t room)
{
    char digits[EFS_TUNE_TEXT];
    int n = snprintf(digits, sizeof(digits), "%.6f", number);
    while (n > 1 && digits[n - 1] == '0')
        digits[--n] = '\0';
    if (n > 1 && !(digits[n - 1] >= '0' && digits[n - 1] <= '9'))
        digits[--n] = '\0';
    snprintf(text, room, "%s", digits);
}

errint_t efs_parse_budget(const char *text, uint64_t *bytes, struct efs_error *err)
{
    if (strcmp(text, "auto") == 0) {
        *bytes = 0;
        return 0;
    }
    uint64_t size;
    if (efs_parse_size(text, &size) || !size)
        return efs_fail(err, -EINVAL, "budget=%.64s: allowed are auto and sizes such as 8G, 512M or 65536", text);
    *bytes = size;
    return 0;
}

errint_t efs_tune_pools(const char *text, unsigned *pools, struct efs_error *err)
{
    unsigned bits = 0;
    for (const char *p = text; *p; p++) {
        int pool = plan_pool_of(*p);
        unsigned bit = pool < 0 ? 0 : EFS_PLAN_POOL((unsigned)pool);
        if (!bit || (bits & bit)) {
            bits = 0;
            break;
        }
        bits |= bit;
    }
    if (!bits)
        return efs_fail(err, -EINVAL, "pools=%.64s: allowed are FCSE or some of these letters, each once", text);
    *pools = bits;
    return 0;
}

/* Parses one share, such as `F=10`, and the separator after it, ',' or ':'. Returns the end; NULL: malformed, or the
 * pool occurred before. */
static const char *parse_share(const char *text, bool seen[EFS_POOLS], double ratio[EFS_POOLS])
{
    int pool = plan_pool_of(*text);
    double percent;
    if (pool < 0 || seen[pool] || text[1] != '=')
        return NULL;
    const char *end = parse_decimal(text + 2, &percent);
    if (!end || percent > 100)
        return NULL;
    seen[pool] = true;
    ratio[pool] = percent / 100;
    end += *end == '%';
    if ((*end == ',' || *end == ':') && end[1]) /* ':' because ',' separates mount options */
        return end + 1;
    return *end ? NULL : end;
}

errint_t efs_tune_plan(const char *text, struct efs_tune_plan *plan, struct efs_error *err)
{
    struct efs_tune_plan made = {.automatic = strcmp(text, "auto") == 0};
    bool seen[EFS_POOLS] = {false};
    double sum = 0;
    const char *p = made.automatic ? "" : text;
    while (p && *p)
        p = parse_share(p, seen, made.ratio);
    for (int pool = 0; pool < EFS_POOLS && p; pool++)
        sum += made.ratio[pool];
    if (!made.automatic && (sum <= 0 || sum > 1 + 1e-9)) {
        return efs_fail(err, -EINVAL,
                        "plan=%.64s: allowed are auto and shares in percent such as F=10:C=70:S=10:E=10, each pool at "
                        "most once, together more than 0 and at most 100",
                        text);
    }
    *plan = made;
    return 0;
}

void efs_tune_print_budget(uint64_t bytes, char *text, size_t room)
{
    if (bytes)
        snprintf(text, room, "%llu", (unsigned long long)bytes);
    else
        snprintf(text, room, "auto");
}

void efs_tune_print_pools(unsigned pools, char *text, size_t room)
{
    size_t used = 0;
    for (unsigned pool = 0; pool < EFS_POOLS && used + 1 < room; pool++)
        if (pools & EFS_PLAN_POOL(pool))
            text[used++] = pool_letters[pool];
    text[used] = '\0';
}

void efs_tune_print_plan(const struct efs_tune_plan *plan, char *text, size_t room)
{
    if (plan->automatic) {
        snprintf(text, room, "auto");
        return;
    }
    size_t used = 0;
    for (unsigned pool = 0; pool < EFS_POOLS && used < room; pool++) {
        char percent[EFS_TUNE_TEXT];
        print_decimal(100 * plan->ratio[pool], percent, sizeof(percent));
        int n = snprintf(text + used, room - used, "%s%c=%s", pool ? ":" : "", pool_letters[pool], percent);
        used += n > 0 ? (size_t)n : 0;
    }
}
