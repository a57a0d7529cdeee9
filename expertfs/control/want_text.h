/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want_text.h - requests as a runtime writes them, a line each: the layer, and its experts with the tokens that each
 * gets (1 if not said).
 *
 *     3: 17*12 4 9*2
 *     encoder-L03: 17          of a model with several stacks, as the folder below experts/ is called
 *
 * And hints: what a layer to come will need, each expert with how probable that is (1 if not said).
 *
 *     5: 17?0.62 4?0.3
 *
 * Syntax alone: whether there is such a layer or expert is for the caller to see.
 */
#ifndef EFSD_WANT_TEXT_H
#define EFSD_WANT_TEXT_H

#include "expertfs.h"

#define EFSD_WANT_EXPERTS 512u /* in a line */
#define EFSD_WANT_STACK 32u

struct efsd_want {
    char stack[EFSD_WANT_STACK];              /* "" when only a number was said */
    uint32_t layer, count;                    /* count is 1 or more; no expert twice */
    struct efs_need needs[EFSD_WANT_EXPERTS]; /* by their numbers in the layer */
};

/*
 * Take the next line off *text (of *bytes, no terminator needed; the last line may lack its newline); blank lines are
 * skipped. 1: *want is filled in; 0: there is none left; -EINVAL: what the line may look like is in err.
 */
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
