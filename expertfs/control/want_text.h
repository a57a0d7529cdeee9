/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want_text.h - syntax of a runtime's requests, one per line: the layer, and its experts, each with its number of
 * tokens (default 1).
 *
 *     3: 17*12 4 9*2
 *     encoder-L03: 17          a model with several stacks: the name of the directory below experts/
 *
 * And of hints: the predicted experts of a later layer, each with its probability (default 1).
 *
 *     5: 17?0.62 4?0.3
 *
 * Checks the syntax only: the caller checks that the layer and the experts exist.
 */
#ifndef EFSD_WANT_TEXT_H
#define EFSD_WANT_TEXT_H

#include "expertfs.h"

#define EFSD_WANT_EXPERTS 512u /* maximum per line */
#define EFSD_WANT_STACK 32u

struct efsd_want {
    char stack[EFSD_WANT_STACK];              /* "" if the line has only a number */
    uint32_t layer, count;                    /* count is 1 or more; no expert twice */
    struct efs_need needs[EFSD_WANT_EXPERTS]; /* experts by their numbers in the layer */
};

/* Parses the next line of *text, which has *bytes bytes and needs no terminator, and advances both. Skips blank lines;
 * the last line may lack its newline. 1: *want is filled in; 0: no line left; -EINVAL: err has the line and the
 * expected syntax. */
int efsd_want_next(const char **text, size_t *bytes, struct efsd_want *want, struct efs_error *err);

struct efsd_hint {
    char stack[EFSD_WANT_STACK];
    uint32_t layer, count; /* count is 1 or more; no expert twice */
    uint32_t experts[EFSD_WANT_EXPERTS];
    float probabilities[EFSD_WANT_EXPERTS]; /* 0 to 1 */
};
/* As efsd_want_next(). */
int efsd_hint_next(const char **text, size_t *bytes, struct efsd_hint *hint, struct efs_error *err);

#endif
