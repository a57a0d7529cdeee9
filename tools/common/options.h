/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the command line of a tool: one table for parsing, checking and --help.
 *
 * common/ has what the tools share: command lines, messages, signals, progress, sizes, and readers of a mount's control
 * files. All tools in C call it, ggml/ only for read_wait.h. It never opens a store and never includes a header of a
 * tool.
 *
 * Wrong usage prints a message and exits with status 2, by argp_error(). Not thread-safe.
 */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tools_option_kind {
    TOOLS_HEADING,  /* no option: --help prints .help above the options that follow */
    TOOLS_FLAG,     /* bool: true */
    TOOLS_CLEAR,    /* bool: false */
    TOOLS_TEXT,     /* const char * */
    TOOLS_NUMBER,   /* uint64_t from .least to .most */
    TOOLS_UNSIGNED, /* the same as unsigned or uint32_t */
    TOOLS_DECIMAL,  /* double from .least to .most, such as 0.25; stored times .scale */
    TOOLS_SIZE,     /* uint64_t from .least to .most bytes, such as 64M */
    TOOLS_WORD,     /* unsigned or an enum: the index of the value in .words, "request|all|no" */
    TOOLS_NUMBERS,  /* struct tools_numbers: from .least to .most, separated by commas */
    TOOLS_LIST,     /* struct tools_list: words separated by commas */
    TOOLS_CALL,     /* .parse parses the value, which is NULL if the option has none */
};

struct tools_option {
    const char *name;     /* without --; NULL only for a heading */
    char letter;          /* 0: none */
    const char *argument; /* in --help: "N"; NULL: the option takes no value */
    const char *help;
    enum tools_option_kind kind;
    size_t at;            /* offset in the struct that tools_parse() fills */
    uint64_t least, most; /* most 0: no limit */
    double scale;         /* 0: 1 */
    const char *words;
    /* May modify value, which stays valid. into: that of tools_parse(). Reports wrong values by argp_error(). */
    void (*parse)(const struct argp_state *state, const struct tools_option *option, char *value, void *into);
};

#define TOOLS_LIST_MAX 32u
struct tools_numbers {
    uint64_t number[TOOLS_LIST_MAX];
    uint32_t count;
};
struct tools_list {
    char *word[TOOLS_LIST_MAX];
    uint32_t count;
};
/* The arguments that are not options, in order. */
struct tools_arguments {
    char **word; /* of argv */
    uint32_t count;
};

struct tools_command {
    const struct tools_option *options; /* ends with {0} */
    /* The arguments, for --help and for the check of their number: "STORE DIR", "PATH [NAME...]"; one form a line.
     * NULL: the command takes none. */
    const char *arguments;
    const char *help; /* as of argp_parse(): the text after \v is printed below the options */
    size_t at;        /* offset of the struct tools_arguments; unused without arguments */
    bool in_order;    /* stop parsing options at the first argument: the rest is another program's command line */
    /* Checks of combinations of options, after parsing; may be NULL. */
    void (*finish)(const struct argp_state *state, void *into);
};

/* Parses the command line into *into, where the caller has set the defaults. --version prints the name in argv[0] and
 * the version. */
void tools_parse(const struct tools_command *command, int argc, char **argv, void *into);

/* ---- for .parse ---- */

/* Splits value at its commas, in place: list points into value. */
void tools_option_words(const struct argp_state *state, const char *option, char *value, struct tools_list *list);
/* The value of --option: a size such as 64M, from least to most bytes. */
uint64_t tools_option_size(const struct argp_state *state, const char *option, const char *value, uint64_t least,
                           uint64_t most);
#endif
