/* SPDX-License-Identifier: Apache-2.0 */
/* want_text.c - see want_text.h. */
#include "want_text.h"
#include "expertfs-protocol.h"

#include <errno.h>
#include <string.h>

/* What is left of a line. */
struct line {
    const char *at, *end;
};

static void line_skip_blanks(struct line *line)
{
    while (line->at < line->end && (*line->at == ' ' || *line->at == '\t'))
        line->at++;
}

static bool line_take(struct line *line, char c)
{
    if (line->at == line->end || *line->at != c)
        return false;
    line->at++;
    return true;
}

static bool line_take_number(struct line *line, uint32_t *number)
{
    const char *begin = line->at;
    *number = 0;
    for (; line->at < line->end && *line->at >= '0' && *line->at <= '9'; line->at++)
        if (__builtin_mul_overflow(*number, 10u, number) ||
            __builtin_add_overflow(*number, (uint32_t)(*line->at - '0'), number))
            return false;
    return line->at > begin;
}

/* "3:", "L03:" or "encoder-L03:" */
static bool line_take_layer(struct line *line, struct efsd_want *want)
{
    const char *colon = memchr(line->at, ':', (size_t)(line->end - line->at));
    const char *dash = colon ? memrchr(line->at, '-', (size_t)(colon - line->at)) : NULL;
    size_t stack_bytes = dash ? (size_t)(dash - line->at) : 0;
    if (!colon || stack_bytes >= sizeof(want->stack) || (dash && !stack_bytes))
        return false;
    memcpy(want->stack, line->at, stack_bytes);
    want->stack[stack_bytes] = '\0';
    line->at += dash ? stack_bytes + 1 : 0;
    line_take(line, 'L');
    if (!line_take_number(line, &want->layer))
        return false;
    line_skip_blanks(line);
    return line_take(line, ':');
}

static bool want_has(const struct efsd_want *want, uint32_t expert)
{
    for (uint32_t i = 0; i < want->count; i++)
        if (want->needs[i].expert == expert)
            return true;
    return false;
}

/* "17*12" or "17", then a blank or the end of the line */
static bool line_take_expert(struct line *line, struct efsd_want *want)
{
    struct efs_need expert = {.tokens = 1};
    if (want->count == EFSD_WANT_EXPERTS || !line_take_number(line, &expert.expert) || want_has(want, expert.expert) ||
        (line_take(line, '*') && (!line_take_number(line, &expert.tokens) || !expert.tokens)))
        return false;
    if (line->at < line->end && *line->at != ' ' && *line->at != '\t')
        return false;
    line_skip_blanks(line);
    want->needs[want->count++] = expert;
    return true;
}

static errint_t line_refuse(const char *begin, const char *end, struct efs_error *err)
{
    char shown[49];
    size_t bytes = (size_t)(end - begin), n = bytes < sizeof(shown) - 1 ? bytes : sizeof(shown) - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = begin[i] >= ' ' && begin[i] <= '~' ? begin[i] : '?';
    shown[n] = '\0';
    return efs_fail(err, -EINVAL,
                    "\"%s%s\": a request is LAYER: EXPERT*TOKENS EXPERT ..., such as 3: 17*12 4 9*2, with 1 to %u "
                    "experts, none twice, in at most %u bytes",
                    shown, n < bytes ? "..." : "", EFSD_WANT_EXPERTS, EFS_WANT_LINE_BYTES);
}

int efsd_want_next(const char **text, size_t *bytes, struct efsd_want *want, struct efs_error *err)
{
    struct line line;
    const char *begin;
    do {
        if (!*bytes)
            return 0;
        begin = *text;
        const char *newline = memchr(begin, '\n', *bytes);
        line = (struct line){.at = begin, .end = newline ? newline : begin + *bytes};
        size_t taken = (size_t)(line.end - begin) + (newline != NULL);
        *text += taken;
        *bytes -= taken;
        line_skip_blanks(&line);
    } while (line.at == line.end);
    want->count = 0;
    if ((size_t)(line.end - begin) > EFS_WANT_LINE_BYTES || !line_take_layer(&line, want))
        return line_refuse(begin, line.end, err);
    line_skip_blanks(&line);
    do {
        if (!line_take_expert(&line, want))
            return line_refuse(begin, line.end, err);
    } while (line.at < line.end);
    return 1;
}
