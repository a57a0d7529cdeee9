/* SPDX-License-Identifier: Apache-2.0 */
/* size.h - prints sizes and durations for people; parses numbers of the command line. */
#ifndef TOOLS_SIZE_H
#define TOOLS_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "1.50 GiB", "512 B": three or four digits, into text of at least 16 bytes. Returns text. */
char *tools_size_print(uint64_t bytes, char *text, size_t room);
/* "1 file", "10 files": `word` gets an s unless n is 1. text: at least 32 bytes. Returns text. */
char *tools_count_print(uint64_t n, const char *word, char *text, size_t room);
/* "2m05s", "1h02m", "9s". */
char *tools_duration_print(double seconds, char *text, size_t room);
/* Parses decimal digits. false: not a number from lowest to highest. */
bool tools_number_parse(const char *text, uint64_t lowest, uint64_t highest, uint64_t *number);
/* The same for a decimal number such as "2" or "0.25", without sign, exponent or blank. */
bool tools_decimal_parse(const char *text, double lowest, double highest, double *number);

#endif
