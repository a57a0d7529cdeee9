/* SPDX-License-Identifier: Apache-2.0 */
/* want_text.c - see want_text.h. */
#include "want_text.h"
#include "expertfs-protocol.h"

#include <errno.h>
#include <string.h>

/* The unparsed rest of a line. */
struct line {
    const char *at, *end;
};

static void line_skip_blanks(struct line *line)
{
    while (line->at < line->end && (*line->at == ' ' || *line->at == '\t'))
        line->at++;
}

static bool line_skip(struct line *line, char c)
{
    if (line->at == line->end || *line->at != c)
        return false;
    line->at++;
    return true;
}

static bool line_parse_number(struct line *line, uint32_t *number)
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
static bool line_parse_layer(struct line *line, char stack[EFSD_WANT_STACK], uint32_t *layer)
{
    const char *colon = memchr(line->at, ':', (size_t)(line->end - line->at));
    const char *dash = colon ? memrchr(line->at, '-', (size_t)(colon - line->at)) : NULL;
    size_t stack_bytes = dash ? (size_t)(dash - line->at) : 0;
    if (!colon || stack_bytes >= EFSD_WANT_STACK || (dash && !stack_bytes))
        return false;
    memcpy(stack, line->at, stack_bytes);
    stack[stack_bytes] = '\0';
    line->at += dash ? stack_bytes + 1 : 0;
    line_skip(line, 'L');
    if (!line_parse_number(line, layer))
        return false;
    line_skip_blanks(line);
    return line_skip(line, ':');
}

/* True at the end of a word: at a blank, or at the end of the line. Skips blanks. */
static bool line_ends_word(struct line *line)
{
    bool ends = line->at == line->end || *line->at == ' ' || *line->at == '\t';
    line_skip_blanks(line);
    return ends;
}

/* "17*12" or "17" */
static bool line_parse_expert(struct line *line, void *into, uint32_t n)
{
    struct efs_need *needs = ((struct efsd_want *)into)->needs, *need = &needs[n];
    need->tokens = 1;
    bool good = line_parse_number(line, &need->expert) &&
                (!line_skip(line, '*') || (line_parse_number(line, &need->tokens) && need->tokens));
    for (uint32_t i = 0; i < n && good; i++)
        good = needs[i].expert != need->expert;
    return good;
}

/* "0.62", "1", "1.000": at most six decimal places */
static bool line_parse_probability(struct line *line, float *probability)
{
    uint32_t whole, part = 0, scale = 1;
    if (!line_parse_number(line, &whole) || whole > 1)
        return false;
    if (line_skip(line, '.')) {
        const char *begin = line->at;
        if (!line_parse_number(line, &part) || line->at - begin > 6)
            return false;
        for (const char *at = begin; at < line->at; at++)
            scale *= 10;
    }
    *probability = (float)whole + (float)part / (float)scale;
    return *probability <= 1;
}

/* "17?0.62" or "17" */
static bool line_parse_hinted(struct line *line, void *into, uint32_t n)
{
    struct efsd_hint *hint = into;
    hint->probabilities[n] = 1;
    bool good = line_parse_number(line, &hint->experts[n]) &&
                (!line_skip(line, '?') || line_parse_probability(line, &hint->probabilities[n]));
    for (uint32_t i = 0; i < n && good; i++)
        good = hint->experts[i] != hint->experts[n];
    return good;
}

static errint_t line_refuse(const char *begin, const char *end, const char *form, struct efs_error *err)
{
    char shown[49];
    size_t bytes = (size_t)(end - begin), n = bytes < sizeof(shown) - 1 ? bytes : sizeof(shown) - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = begin[i] >= ' ' && begin[i] <= '~' ? begin[i] : '?';
    shown[n] = '\0';
    return efs_fail(err, -EINVAL, "\"%s%s\": %s, with 1 to %u experts, none twice, in at most %u bytes", shown,
                    n < bytes ? "..." : "", form, EFSD_WANT_EXPERTS, EFS_WANT_LINE_BYTES);
}

/* Finds the next line that is not blank. false: no line left. */
static bool line_next(const char **text, size_t *bytes, struct line *line, const char **begin)
{
    do {
        if (!*bytes)
            return false;
        *begin = *text;
        const char *newline = memchr(*begin, '\n', *bytes);
        *line = (struct line){.at = *begin, .end = newline ? newline : *begin + *bytes};
        size_t taken = (size_t)(line->end - *begin) + (newline != NULL);
        *text += taken;
        *bytes -= taken;
        line_skip_blanks(line);
    } while (line->at == line->end);
    return true;
}

/* Parses a layer and its experts; take() parses one expert into element n of `into`. */
static int message_next(const char **text, size_t *bytes, char stack[EFSD_WANT_STACK], uint32_t *layer, uint32_t *count,
                        bool (*take)(struct line *line, void *into, uint32_t n), void *into, const char *form,
                        struct efs_error *err)
{
    struct line line;
    const char *begin;
    if (!line_next(text, bytes, &line, &begin))
        return 0;
    bool good = (size_t)(line.end - begin) <= EFS_WANT_LINE_BYTES && line_parse_layer(&line, stack, layer);
    line_skip_blanks(&line);
    *count = 0;
    do
        good = good && *count < EFSD_WANT_EXPERTS && take(&line, into, (*count)++) && line_ends_word(&line);
    while (good && line.at < line.end);
    return good ? 1 : line_refuse(begin, line.end, form, err);
}

int efsd_want_next(const char **text, size_t *bytes, struct efsd_want *want, struct efs_error *err)
{
    return message_next(text, bytes, want->stack, &want->layer, &want->count, line_parse_expert, want,
                        "a request is LAYER: EXPERT*TOKENS EXPERT ..., such as 3: 17*12 4 9*2", err);
}

int efsd_hint_next(const char **text, size_t *bytes, struct efsd_hint *hint, struct efs_error *err)
{
    return message_next(text, bytes, hint->stack, &hint->layer, &hint->count, line_parse_hinted, hint,
                        "a hint is LAYER: EXPERT?PROBABILITY EXPERT ..., such as 5: 17?0.62 4?0.3", err);
}
