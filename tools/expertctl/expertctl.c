/* SPDX-License-Identifier: Apache-2.0 */
/* expertctl.c - main(): finds the subcommand and runs it. */
#include "expertctl.h"

#include "expertfs-private.h"
#include "interrupt.h"

#include <stdio.h>
#include <string.h>

static const struct ctl_command *const commands[] = {&ctl_up,     &ctl_down,   &ctl_ls,      &ctl_rm,     &ctl_status,
                                                     &ctl_log,    &ctl_warmup, &ctl_get,     &ctl_set,    &ctl_info,
                                                     &ctl_verify, &ctl_unpack, &ctl_profile, &ctl_doctor, &ctl_cluster};

static void print_help(FILE *to)
{
    fprintf(to, "Usage: expertctl COMMAND [OPTION...] ...\n"
                "Mount models, tune mounts, look into stores.\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "\nexpertctl COMMAND --help explains one; expertctl --version prints the version.\n"
                "Exit status: 0 ok, 1 failed or damage found, 2 wrong usage, 130 interrupted.\n");
}

/* Reports an unknown command; for those of other tools, the command to use instead. */
static void print_unknown(const char *word)
{
    static const struct {
        const char *word, *instead;
    } others[] = {{"mount", "`expertctl up MODEL [MNT]` mounts"},
                  {"unmount", "`expertctl down MNT` unmounts"},
                  {"umount", "`expertctl down MNT` unmounts"},
                  {"list", "`expertctl ls` lists stores and mounts"},
                  {"run", "`expertctl up MODEL -- PROGRAM` runs a program on a model"},
                  {"pack", "`mkexpertfs SRC OUT.efs` packs"},
                  {"replay", "`moe-replay TRACE` replays"},
                  {"top", "`expertctl status -w 2 [MNT]` prints every 2 seconds"}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(word, others[i].word) == 0) {
            fprintf(stderr, "expertctl: no command \"%s\": %s\n", word, others[i].instead);
            return;
        }
    const char *best = NULL;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        best = efs_nearer_word(word, best, commands[i]->name);
    fprintf(stderr, "expertctl: unknown command \"%s\"\nhint: ", word);
    fprintf(stderr, best ? "did you mean %s?\n" : "`expertctl --help` lists the commands\n", best);
}

/* expertctl help [COMMAND], as expertctl [COMMAND] --help */
static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0 || strcmp(word, "-h") == 0 ||
           strcmp(word, "help") == 0;
}

int main(int argc, char **argv)
{
    static char name[64], help[] = "--help";
    const char *word = argc > 1 ? argv[1] : NULL;
    tools_init();
    if (argc == 2 && is_help(word)) {
        print_help(stdout);
        return CTL_OK;
    }
    if (word && (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0 || strcmp(word, "version") == 0)) {
        printf("expertctl (expertfs) %s\n", efs_version());
        return CTL_OK;
    }
    if (word && is_help(word)) {
        word = argv[2];
        argv[2] = help;
        argc = 3;
    }
    for (size_t i = 0; word && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i]->name, word) != 0)
            continue;
        snprintf(name, sizeof(name), "expertctl %s", word);
        argv[1] = name;
        tools_interrupt_end(
            "expertctl"); /* commands that clean up, or run a program, install their own handlers later */
        return commands[i]->run(argc - 1, argv + 1);
    }
    if (word)
        print_unknown(word);
    else
        print_help(stderr);
    return CTL_USAGE;
}
