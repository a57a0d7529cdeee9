/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune_text.h - parses and prints the values of efs_set() and efs_get().
 *
 * control/ sets and returns the tunables of a served store as text, and pins experts for users. serve/ calls it, and
 * base/ and control/ of the daemon and the tools by efs_set(), efs_get() and efs_pin(). It never keeps a value (the
 * room that the tunable belongs to does) and never starts a thread.
 *
 * The functions of this file, and efs_parse_budget(), are independent of a served store. Numbers are rounded to 1e-6.
 * The parsers return 0 or -EINVAL; err (may be NULL) then lists the allowed values.
 */
#ifndef EFS_TUNE_TEXT_H
#define EFS_TUNE_TEXT_H

#include "expertfs-private.h"

#include "pools.h"

/* The tunable plan: shares of the memory of the pools. */
struct efs_tune_plan {
    bool automatic;
    double ratio[EFS_POOLS]; /* if not automatic; the sum is at most 1 */
};

#define EFS_TUNE_TEXT 128 /* bytes; enough for every text printed here */

/* "FCSE" or some of these letters, each once, in any order and case: bits EFS_PLAN_POOL. */
errint_t efs_tune_pools(const char *text, unsigned *pools, struct efs_error *err);
/* "auto", or "F=10:C=70:S=10:E=10" (or with commas): percent with or without a fraction and a %, each pool at most
 * once, those left out 0; the sum is above 0 and at most 100. */
errint_t efs_tune_plan(const char *text, struct efs_tune_plan *plan, struct efs_error *err);

/* Print a value in the form that the parser accepts. room: bytes of text, at least EFS_TUNE_TEXT. */
void efs_tune_print_budget(uint64_t bytes, char *text, size_t room);
void efs_tune_print_pools(unsigned pools, char *text, size_t room);
void efs_tune_print_plan(const struct efs_tune_plan *plan, char *text, size_t room);

#endif
