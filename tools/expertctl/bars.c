/* SPDX-License-Identifier: Apache-2.0 */
/* bars.c - see bars.h. Escape sequences are those of ECMA-48 and, for line wrap, of DEC terminals. */
#include "bars.h"

#include "size.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LABEL_COLUMNS 16u
#define ESCAPE "\033["

bool ctl_screen_is_terminal(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) && kind && *kind && strcmp(kind, "dumb") != 0;
}

static struct winsize terminal_size(void)
{
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row < 2 || size.ws_col < 2)
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    return size;
}

void ctl_bars_add(struct ctl_bars *bars, const double part[CTL_BAR_COUNT])
{
    if (bars->count == CTL_BARS_SAMPLES)
        memmove(bars->part[0], bars->part[1], --bars->count * sizeof(bars->part[0]));
    for (int kind = 0; kind < CTL_BAR_COUNT; kind++)
        bars->part[bars->count][kind] = (float)(part[kind] > 1 ? 1 : part[kind]);
    bars->count++;
}

void ctl_bars_print(const struct ctl_bars *bars, double seconds)
{
    static const char *const names[] = {[CTL_BAR_MEMORY] = "memory", [CTL_BAR_HITS] = "hits", [CTL_BAR_DISK] = "disk"},
                             *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, *const letters[] = {"_", ".",
                                                                                                             ":", "-",
                                                                                                             "=", "+",
                                                                                                             "*", "#"};
    setlocale(LC_CTYPE, "");
    const char *const *levels = strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? blocks : letters;
    size_t columns = terminal_size().ws_col, room = columns > LABEL_COLUMNS ? columns - LABEL_COLUMNS : 0;
    size_t first = bars->count > room ? bars->count - room : 0;
    char time[24];
    for (int kind = 0; kind < CTL_BAR_COUNT && bars->count; kind++) {
        double now = (double)bars->part[bars->count - 1][kind];
        if (now < 0)
            printf("%-8s     -  ", names[kind]);
        else
            printf("%-8s %3.0f %%  ", names[kind], 100 * now);
        for (size_t i = first; i < bars->count; i++)
            printf("%s", bars->part[i][kind] < 0 ? " " : levels[(int)(bars->part[i][kind] * 7.999f)]);
        putchar('\n');
    }
    tools_duration_print(seconds * (double)(bars->count - first), time, sizeof(time));
    printf("%-*s the last %s\n\n", (int)LABEL_COLUMNS - 1, "", time);
}

void ctl_screen_draw(struct ctl_bars *bars, const char *text)
{
    printf("%s" ESCAPE "H" ESCAPE "?7l", bars->drawn ? "" : ESCAPE "2J"); /* lines that are too long are cut */
    for (unsigned row = 1; *text && row < terminal_size().ws_row; row++) {
        int bytes = (int)strcspn(text, "\n");
        printf("%.*s" ESCAPE "K\n", bytes, text);
        text += bytes + (text[bytes] == '\n');
    }
    printf(ESCAPE "J" ESCAPE "?7h");
    bars->drawn = true;
}
