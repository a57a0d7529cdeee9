/* SPDX-License-Identifier: Apache-2.0 */
/* bars.h - the screen of `status -w` on a terminal: bars of the latest samples, and text that is redrawn in place. */
#ifndef EXPERTCTL_BARS_H
#define EXPERTCTL_BARS_H

#include <stdbool.h>
#include <stddef.h>

enum ctl_bar { CTL_BAR_MEMORY, CTL_BAR_HITS, CTL_BAR_DISK, CTL_BAR_COUNT };
#define CTL_BARS_SAMPLES 200u

/* Parts, 0 to 1, oldest first; < 0: not known. */
struct ctl_bars {
    float part[CTL_BARS_SAMPLES][CTL_BAR_COUNT];
    size_t count;
    bool drawn; /* a screen was drawn */
};

/* Whether standard output is a terminal on which a screen can be redrawn. */
bool ctl_screen_is_terminal(void);
/* Adds a sample. */
void ctl_bars_add(struct ctl_bars *bars, const double part[CTL_BAR_COUNT]);
/* Prints a line for each kind to stdout, as wide as the terminal. seconds: between two samples. */
void ctl_bars_print(const struct ctl_bars *bars, double seconds);
/* Draws text, as many lines as the terminal has, over the screen that was drawn before. */
void ctl_screen_draw(struct ctl_bars *bars, const char *text);

#endif
