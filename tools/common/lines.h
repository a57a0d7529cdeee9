/* SPDX-License-Identifier: Apache-2.0 */
/* lines.h - what a mount tells of itself: `name: value`, a line each. */
#ifndef TOOLS_LINES_H
#define TOOLS_LINES_H

/* What stands behind `name: ` at a line's begin, up to the line's end and on; NULL: there is no such line. */
const char *tools_line_value(const char *lines, const char *name);
/* Undo, in place, how paths stand in such lines: \n is a line's end, other characters behind a \ are themselves. */
void tools_line_unescape(char *text);

#endif
