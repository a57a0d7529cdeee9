/* control_trace.c - see control_trace.h. expertctl(1) has the format. */
#include "control_trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CHOSEN_MOST 64u /* of a token and layer, by the format */

/* What a layer asked for in a pass: ids[first .. first + count), each expert once for each of its tokens. */
struct cell {
    size_t first, count;
};

struct trace {
    uint32_t layers, experts;
    uint16_t *ids;
    size_t id_count, id_room;
    struct cell *cells; /* [passes][layers] */
    uint32_t *tokens;   /* [passes]: 1 to EFSD_TRACE_TOKENS */
    size_t passes, pass_room;
    uint32_t layer; /* of the pass under way */
    bool open;      /* there is one: its cells are those behind the last pass */
};

static struct cell *cells_of(const struct trace *t, size_t pass)
{
    return t->cells + pass * t->layers;
}

/* ---- passes ------------------------------------------------------------------------------------------------- */

static errint_t begin_pass(struct trace *t)
{
    if (t->passes + 1 > t->pass_room) {
        size_t room = t->pass_room ? 2 * t->pass_room : 64;
        struct cell *cells = reallocarray(t->cells, room * t->layers, sizeof(*cells));
        t->cells = cells ? cells : t->cells;
        uint32_t *tokens = cells ? reallocarray(t->tokens, room, sizeof(*tokens)) : NULL;
        t->tokens = tokens ? tokens : t->tokens;
        if (!tokens) {
            return -ENOMEM;
        }
        t->pass_room = room;
    }
    memset(cells_of(t, t->passes), 0, t->layers * sizeof(*t->cells));
    t->tokens[t->passes] = 1;
    t->open = true;
    return 0;
}

/* The pass under way counts if all of its layers asked; else it is forgotten. */
static void end_pass(struct trace *t)
{
    bool whole = t->open;
    for (uint32_t l = 0; l < t->layers && whole; l++) {
        whole = cells_of(t, t->passes)[l].count > 0;
    }
    t->passes += whole;
    t->open = false;
}

static bool asked_already(const struct trace *t, const struct cell *cell, uint16_t id)
{
    for (size_t i = 0; i < cell->count; i++) {
        if (t->ids[cell->first + i] == id) {
            return true;
        }
    }
    return false;
}

static errint_t add_expert(struct trace *t, uint32_t layer, uint16_t id, uint32_t tokens)
{
    errint_t rc = t->open ? 0 : begin_pass(t);
    if (rc) {
        return rc;
    }
    if (t->id_count + tokens > t->id_room) {
        size_t room = 2 * t->id_room + EFSD_TRACE_TOKENS + 1024;
        uint16_t *ids = reallocarray(t->ids, room, sizeof(*ids));
        if (!ids) {
            return -ENOMEM;
        }
        t->ids = ids;
        t->id_room = room;
    }
    struct cell *cell = &cells_of(t, t->passes)[layer];
    if (!cell->count) {
        cell->first = t->id_count;
    }
    cell->count += tokens;
    if (tokens > t->tokens[t->passes]) {
        t->tokens[t->passes] = tokens;
    }
    for (uint32_t i = 0; i < tokens; i++) {
        t->ids[t->id_count++] = id;
    }
    t->layer = layer;
    return 0;
}

/* ---- the text ----------------------------------------------------------------------------------------------- */

static bool take_number(const char **at, const char *end, uint64_t *number)
{
    const char *begin = *at;
    *number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        if (__builtin_mul_overflow(*number, 10u, number) ||
            __builtin_add_overflow(*number, (uint64_t)(**at - '0'), number)) {
            return false;
        }
    }
    return *at > begin;
}

static bool take(const char **at, const char *end, char c)
{
    bool there = *at < end && **at == c;
    *at += there;
    return there;
}

/* "AT_NS LAYER NUMBER: EXPERT*TOKENS ...": LAYER counts those that have experts, NUMBER is the model's. */
static errint_t add_line(struct trace *t, const char *at, const char *end)
{
    uint64_t when, layer, number, expert, tokens;
    if (!take_number(&at, end, &when) || !take(&at, end, ' ') || !take_number(&at, end, &layer) ||
        !take(&at, end, ' ') || !take_number(&at, end, &number) || !take(&at, end, ':') || layer >= t->layers) {
        return -EPROTO;
    }
    bool again = false; /* the layer asked for one of these before: a model with one layer goes on to the next pass */
    const char *experts = at;
    while (at < end) {
        if (!take(&at, end, ' ') || !take_number(&at, end, &expert) || !take(&at, end, '*') ||
            !take_number(&at, end, &tokens) || expert >= t->experts) {
            return -EPROTO;
        }
        again = again || (t->open && asked_already(t, &cells_of(t, t->passes)[layer], (uint16_t)expert));
    }
    if (t->open && (layer < t->layer || (layer == t->layer && again))) {
        end_pass(t);
    }
    errint_t rc = 0;
    for (at = experts; at < end && !rc;) {
        take(&at, end, ' ');
        take_number(&at, end, &expert);
        take(&at, end, '*');
        take_number(&at, end, &tokens);
        tokens = tokens ? tokens : 1;
        rc = add_expert(t, (uint32_t)layer, (uint16_t)expert,
                        tokens > EFSD_TRACE_TOKENS ? EFSD_TRACE_TOKENS : (uint32_t)tokens);
    }
    return rc;
}

/* ---- the trace ---------------------------------------------------------------------------------------------- */

static void put(FILE *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        putc((int)(value >> (8 * i) & 0xff), out);
    }
}

/* Experts that token n of a pass gets from a cell, which are cell->first + n, + n + tokens, ... */
static size_t share_of(const struct cell *cell, uint32_t n, uint32_t tokens)
{
    size_t share = cell->count > n ? (cell->count - n + tokens - 1) / tokens : 0;
    return share < CHOSEN_MOST ? share : CHOSEN_MOST;
}

/* A token that gets fewer experts than others, or none, has one of them twice. */
static void put_row(FILE *out, const struct trace *t, const struct cell *cell, uint32_t n, uint32_t tokens,
                    size_t chosen)
{
    size_t share = share_of(cell, n, tokens);
    for (size_t i = 0; i < chosen; i++) {
        size_t at = share ? n + tokens * (i < share ? i : share - 1) : 0;
        put(out, t->ids[cell->first + at], 2);
    }
}

static void put_trace(FILE *out, const struct trace *t, const char *name)
{
    size_t chosen = 1, rows = 0;
    for (size_t p = 0; p < t->passes; p++) {
        for (uint32_t l = 0; l < t->layers; l++) {
            size_t share = share_of(&cells_of(t, p)[l], 0, t->tokens[p]);
            chosen = share > chosen ? share : chosen;
        }
        rows += t->tokens[p];
    }
    fwrite("MOETRACE", 1, 8, out);
    const uint32_t head[] = {1, t->layers, t->experts, (uint32_t)chosen, 0, (uint32_t)strlen(name)};
    for (size_t i = 0; i < sizeof(head) / sizeof(*head); i++) {
        put(out, head[i], 4);
    }
    put(out, rows, 8);
    fputs(name, out);
    for (uint32_t n = 0; n < EFSD_TRACE_TOKENS; n++) { /* tokens of a sequence lie one after the other */
        for (size_t p = 0; p < t->passes; p++) {
            if (n >= t->tokens[p]) {
                continue;
            }
            put(out, n, 4);
            for (uint32_t l = 0; l < t->layers; l++) {
                put_row(out, t, &cells_of(t, p)[l], n, t->tokens[p], chosen);
            }
        }
    }
}

errint_t efsd_trace_write(const char *text, size_t bytes, uint32_t layers, uint32_t experts, const char *name,
                          FILE *out)
{
    struct trace t = {.layers = layers, .experts = experts < UINT16_MAX ? experts : UINT16_MAX};
    const char *end = text + bytes;
    errint_t rc = 0;
    for (const char *line = text; line < end && !rc;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        rc = add_line(&t, line, newline ? newline : end);
        line = newline ? newline + 1 : end;
    }
    end_pass(&t);
    if (!rc && t.passes) {
        put_trace(out, &t, name);
    }
    free(t.ids);
    free(t.cells);
    free(t.tokens);
    return rc;
}
