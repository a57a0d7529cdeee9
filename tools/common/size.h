/* SPDX-License-Identifier: Apache-2.0 */
/* size.h - sizes as people write and read them. */
#ifndef TOOLS_SIZE_H
#define TOOLS_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "1.5 GiB", "512 B": three digits or so, into text of at least 16 bytes; returns text. */
char *tools_size_print(uint64_t bytes, char *text, size_t room);
/* "2m05s", "1h02m", "9s". */
char *tools_duration_print(double seconds, char *text, size_t room);
/* A whole number from lowest to highest. */
bool tools_number_parse(const char *text, uint64_t lowest, uint64_t highest, uint64_t *number);
/* Digits, and more behind a point, "2" or "0.25", from lowest to highest: no sign, exponent or blank. */
bool tools_decimal_parse(const char *text, double lowest, double highest, double *number);

#endif
