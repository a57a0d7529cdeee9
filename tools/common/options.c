/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - see options.h. */
#include "options.h"

#include "expertfs-private.h"
#include "size.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_USAGE = 2, OPTIONS_MAX = 96, KEY_FIRST = 256 };

/* ---- values --------------------------------------------------------------------------------------------------- */

static uint64_t parse_number(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                             uint64_t most)
{
    uint64_t n = 0;
    if (!tools_number_parse(value, least, most, &n))
        argp_error(state, "--%s %s: a number from %llu to %llu", option, value, (unsigned long long)least,
                   (unsigned long long)most);
    return n;
}

void tools_option_words(const struct argp_state *state, const char *option, char *value, struct tools_list *list)
{
    list->count = 0;
    for (char *rest = value, *word; (word = strsep(&rest, ","));) {
        if (!*word)
            argp_error(state, "--%s: an empty entry in the list", option);
        if (list->count == TOOLS_LIST_MAX)
            argp_error(state, "--%s: more than %u entries", option, TOOLS_LIST_MAX);
        list->word[list->count++] = word;
    }
}

static void parse_numbers(const struct argp_state *state, const struct tools_option *option, char *value, uint64_t most,
                          struct tools_numbers *numbers)
{
    struct tools_list words;
    tools_option_words(state, option->name, value, &words);
    numbers->count = words.count;
    for (uint32_t i = 0; i < words.count; i++)
        numbers->number[i] = parse_number(state, option->name, words.word[i], option->least, most);
}

uint64_t tools_option_size(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                           uint64_t most)
{
    uint64_t bytes = 0;
    char low[16], high[16];
    const char *example = most < 64 << 20 ? "1M" : least > 64 << 20 ? "8G" : "64M";
    if (efs_parse_size(value, &bytes) < 0 || bytes < least || bytes > most)
        argp_error(state, "--%s %s: a size such as %s, from %s to %s", option, value, example,
                   tools_size_print(least, low, sizeof(low)), tools_size_print(most, high, sizeof(high)));
    return bytes;
}

static double parse_decimal(const struct argp_state *state, const struct tools_option *option, const char *value,
                            uint64_t most)
{
    double number = 0;
    if (!tools_decimal_parse(value, (double)option->least, (double)most, &number))
        argp_error(state, "--%s %s: a number from %llu to %llu", option->name, value, (unsigned long long)option->least,
                   (unsigned long long)most);
    return option->scale != 0 ? number * option->scale : number;
}

static unsigned parse_word(const struct argp_state *state, const struct tools_option *option, const char *value)
{
    size_t bytes = strlen(value);
    unsigned place = 0;
    for (const char *word = option->words; word; place++) {
        size_t length = strcspn(word, "|");
        if (length == bytes && memcmp(word, value, bytes) == 0)
            return place;
        word = word[length] ? word + length + 1 : NULL;
    }
    argp_error(state, "--%s %s: must be one of %s", option->name, value, option->words);
    return 0;
}

static void parse_value(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    void *at = (char *)into + option->at;
    uint64_t most = option->most ? option->most : option->kind == TOOLS_UNSIGNED ? UINT32_MAX : UINT64_MAX;
    struct tools_numbers *numbers = at;
    struct tools_list *list = at;
    switch (option->kind) {
    case TOOLS_HEADING:
        break;
    case TOOLS_FLAG:
    case TOOLS_CLEAR:
        *(bool *)at = option->kind == TOOLS_FLAG;
        break;
    case TOOLS_TEXT:
        *(const char **)at = value;
        break;
    case TOOLS_NUMBER:
        *(uint64_t *)at = parse_number(state, option->name, value, option->least, most);
        break;
    case TOOLS_UNSIGNED:
        *(unsigned *)at = (unsigned)parse_number(state, option->name, value, option->least, most);
        break;
    case TOOLS_DECIMAL:
        *(double *)at = parse_decimal(state, option, value, most);
        break;
    case TOOLS_SIZE:
        *(uint64_t *)at = tools_option_size(state, option->name, value, option->least, most);
        break;
    case TOOLS_WORD:
        *(unsigned *)at = parse_word(state, option, value);
        break;
    case TOOLS_NUMBERS:
        parse_numbers(state, option, value, most, numbers);
        break;
    case TOOLS_LIST:
        tools_option_words(state, option->name, value, list);
        break;
    case TOOLS_CALL:
        option->parse(state, option, value, into);
        break;
    }
}

/* ---- arguments ------------------------------------------------------------------------------------------------ */

/* Parses command->arguments: the least and most number of arguments over all forms, and the name of argument `place` of
 * the first form. forms NULL: no arguments. */
static void arguments_read(const char *forms, uint32_t *least, uint32_t *most, uint32_t place, char name[32])
{
    *least = forms ? UINT32_MAX : 0;
    *most = 0;
    for (bool first = true; forms; first = false) {
        uint32_t needed = 0, all = 0;
        size_t line = strcspn(forms, "\n");
        for (const char *word = forms, *end = forms + line; word < end; word += strspn(word, " ")) {
            size_t bytes = strcspn(word, " \n");
            if (first && all == place)
                snprintf(name, 32, "%.*s", (int)bytes, word);
            needed += *word != '[' && *word != '-';
            all = memmem(word, bytes, "...", 3) ? UINT32_MAX : all + (*word != '-');
            word += bytes;
            if (all == UINT32_MAX)
                break;
        }
        *least = needed < *least ? needed : *least;
        *most = all > *most ? all : *most;
        forms = forms[line] ? forms + line + 1 : NULL;
    }
}

static void arguments_add(const struct argp_state *state, const struct tools_command *command, char **words,
                          uint32_t count, void *into)
{
    uint32_t least, most;
    char name[32] = "";
    arguments_read(command->arguments, &least, &most, count, name);
    if (count < least)
        argp_error(state, "%s is needed", name);
    if (count > most)
        argp_error(state, "%s: more arguments than it takes", words[most]);
    if (command->arguments)
        *(struct tools_arguments *)((char *)into + command->at) = (struct tools_arguments){words, count};
}

/* ---- the parser ----------------------------------------------------------------------------------------------- */

struct parse {
    const struct tools_command *command;
    void *into;
};

static int option_key(const struct tools_command *command, const struct tools_option *option)
{
    return option->letter ? option->letter : KEY_FIRST + (int)(option - command->options);
}

/* Reports the first unknown long option that resembles a known one. argp reports the others, without a hint. Values
 * that begin with "--" are skipped. */
static void suggest_option(const struct argp_state *state, const struct tools_command *command)
{
    for (int i = 1; i < state->argc && strcmp(state->argv[i], "--") != 0; i++) {
        const char *word = state->argv[i], *best = NULL;
        char name[32];
        if (word[0] != '-' && command->in_order)
            return;
        if (word[0] != '-' || word[1] != '-')
            continue;
        size_t bytes = strcspn(word + 2, "=");
        snprintf(name, sizeof(name), "%.*s", (int)bytes, word + 2);
        bool known = strncmp("help", name, bytes) == 0 || strncmp("usage", name, bytes) == 0 ||
                     strncmp("version", name, bytes) == 0;
        for (const struct tools_option *option = command->options; option->help && !known; option++) {
            if (!option->name)
                continue;
            known = strncmp(option->name, name, bytes) == 0;
            i += known && option->argument && !word[2 + bytes];
            best = efs_nearer_word(name, best, option->name);
        }
        if (!known && best)
            argp_error(state, "unrecognized option '--%s'\nhint: did you mean --%s?", name, best);
    }
}

static error_t parse_key(int key, char *value, struct argp_state *state)
{
    const struct parse *parse = state->input;
    const struct tools_command *command = parse->command;
    switch (key) {
    case ARGP_KEY_INIT:
        state->name = basename(state->argv[0]); /* argp sets it after this call */
        suggest_option(state, command);
        return 0;
    case ARGP_KEY_ARGS:
        arguments_add(state, command, state->argv + state->next, (uint32_t)(state->argc - state->next), parse->into);
        return 0;
    case ARGP_KEY_NO_ARGS:
        arguments_add(state, command, NULL, 0, parse->into);
        return 0;
    case ARGP_KEY_SUCCESS:
        if (command->finish)
            command->finish(state, parse->into);
        return 0;
    default:
        break;
    }
    for (const struct tools_option *option = command->options; option->help; option++) {
        if (option->kind == TOOLS_HEADING || option_key(command, option) != key)
            continue;
        parse_value(state, option, value, parse->into);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static void print_version(FILE *to, struct argp_state *state)
{
    (void)state;
    fprintf(to, "%s (expertfs) %s\n", program_invocation_short_name, efs_version());
}

void tools_parse(const struct tools_command *command, int argc, char **argv, void *into)
{
    struct argp_option known[OPTIONS_MAX + 1] = {{0}};
    struct parse parse = {command, into};
    const struct argp argp = {known, parse_key, command->arguments, command->help, NULL, NULL, NULL};
    int group = 0;
    unsigned count = 0;
    for (const struct tools_option *option = command->options; option->help; option++, count++) {
        assert(count < OPTIONS_MAX);
        group += option->kind == TOOLS_HEADING;
        known[count] = (struct argp_option){.name = option->name,
                                            .key = option->name ? option_key(command, option) : 0,
                                            .arg = option->argument,
                                            .doc = option->help,
                                            .group = group};
    }
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version_hook = print_version;
    argp_parse(&argp, argc, argv, command->in_order ? ARGP_IN_ORDER : 0, NULL, &parse);
}
