/* SPDX-License-Identifier: Apache-2.0 */
/* llama_flags.c - see llama_flags.h. */
#include "llama_flags.h"

#include <stdbool.h>
#include <string.h>

#define LOCKS "takes all of the file into memory and leaves nothing to gain"
#define COPIES "copies the file into memory; experts are left to the processor"
#define LEAVES "experts are left to the processor, not computed as the store has them"

static const struct {
    const char *names[3];
    const char *values; /* of which each hurts, with commas around; NULL: it has none; "*": any but 0 */
    const char *part;   /* or a value that holds this */
    const char *text;
} flags[] = {
    {{"--mlock"}, NULL, NULL, LOCKS},
    {{"--no-mmap"}, NULL, NULL, COPIES},
    {{"-mmp", "--mmap"}, ",0,", NULL, COPIES},
    {{"-lm", "--load-mode"}, ",mlock,mmap+mlock,", NULL, LOCKS},
    {{"-lm", "--load-mode"}, ",none,dio,", NULL, COPIES},
    {{"-dio", "--direct-io"}, NULL, NULL, COPIES},
    {{"-cmoe", "--cpu-moe"}, NULL, NULL, LEAVES},
    {{"-ncmoe", "--n-cpu-moe"}, "*", NULL, LEAVES},
    {{"-ot", "--override-tensor"}, NULL, "exps", LEAVES},
};

static bool flag_named(size_t flag, const char *word)
{
    for (size_t i = 0; i < 3 && flags[flag].names[i]; i++)
        if (strcmp(word, flags[flag].names[i]) == 0)
            return true;
    return false;
}

static bool flag_value_hurts(size_t flag, const char *value)
{
    if (!flags[flag].values && !flags[flag].part)
        return true;
    if (!value)
        return false;
    if (flags[flag].part)
        return strstr(value, flags[flag].part) != NULL;
    if (strcmp(flags[flag].values, "*") == 0)
        return strcmp(value, "0") != 0;
    size_t length = strlen(value);
    for (const char *at = flags[flag].values; length && (at = strstr(at, value)); at++)
        if (at > flags[flag].values && at[-1] == ',' && at[length] == ',')
            return true;
    return false;
}

void ctl_llama_flags(char *const *words, size_t count, void (*tell)(void *arg, const char *flag, const char *text),
                     void *arg)
{
    for (size_t flag = 0; flag < sizeof(flags) / sizeof(flags[0]); flag++)
        for (size_t i = 0; i < count; i++)
            if (flag_named(flag, words[i]) && flag_value_hurts(flag, i + 1 < count ? words[i + 1] : NULL)) {
                tell(arg, words[i], flags[flag].text);
                break;
            }
}
