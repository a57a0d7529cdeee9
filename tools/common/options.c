/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - see options.h. */
#include "options.h"

#include "size.h"

#include <stdio.h>
#include <string.h>

uint64_t tools_option_number(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                             uint64_t most)
{
    uint64_t n = 0;
    if (!tools_number_parse(value, least, most, &n))
        argp_error(state, "--%s %s: a number from %llu to %llu", option, value, (unsigned long long)least,
                   (unsigned long long)most);
    return n;
}

uint32_t tools_option_numbers(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                              uint64_t most, uint64_t *numbers, uint32_t room)
{
    char list[256], *rest = list, *word;
    uint32_t count = 0;
    if ((size_t)snprintf(list, sizeof(list), "%s", value) >= sizeof(list))
        argp_error(state, "--%s: too long", option);
    while ((word = strsep(&rest, ","))) {
        if (count == room)
            argp_error(state, "--%s: more than %u numbers", option, room);
        numbers[count++] = tools_option_number(state, option, word, least, most);
    }
    return count;
}

uint32_t tools_option_words(const struct argp_state *state, const char *option, char *value, char **words,
                            uint32_t room)
{
    uint32_t count = 0;
    for (char *rest = value, *word; (word = strsep(&rest, ","));) {
        if (!*word)
            argp_error(state, "--%s: an empty entry in the list", option);
        if (count == room)
            argp_error(state, "--%s: more than %u entries", option, room);
        else
            words[count++] = word;
    }
    return count;
}

uint64_t tools_option_size(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                           uint64_t most)
{
    uint64_t bytes = 0;
    char text[16];
    if (!tools_size_parse(value, &bytes) || bytes < least || bytes > most)
        argp_error(state, "--%s %s: a size such as 64M, up to %s", option, value,
                   tools_size_print(most, text, sizeof(text)));
    return bytes;
}

error_t tools_option_argument(const struct argp_state *state, int key, const char *value, const char *what,
                              const char **place)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "more than one %s", what);
        *place = value;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "%s is needed", what);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}
