/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - what argp parsers of the tools share. Wrong usage is told, and ends the program, by argp_error(). */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <argp.h>
#include <stdint.h>

/* The value of --option: a whole number from least to most. */
uint64_t tools_option_number(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                             uint64_t most);
/* The same, several with commas between: how many there are, at most room. */
uint32_t tools_option_numbers(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                              uint64_t most, uint64_t *numbers, uint32_t room);
/* The same, words: value is cut at its commas, and stays in use. */
uint32_t tools_option_words(const struct argp_state *state, const char *option, char *value, char **words,
                            uint32_t room);
/* The value of --option: a size such as 64M, from least to most. */
uint64_t tools_option_size(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                           uint64_t most);
/* For the keys that are no options, where one argument is needed, what ("STORE"): it goes to place. */
error_t tools_option_argument(const struct argp_state *state, int key, const char *value, const char *what,
                              const char **place);

#endif
