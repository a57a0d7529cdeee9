/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - SIGINT, SIGTERM and SIGHUP set a flag, so that the tool cleans up and exits, or end it at once. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

#define TOOLS_EXIT_INTERRUPTED 130

/* Installs handlers: the first signal sets the flag; another one two seconds later or more kills the process. Signals
 * that are ignored stay ignored. */
void tools_interrupt_catch(void);
/* Installs handlers that print a line and exit with status 130: for programs without files to clean up. */
void tools_interrupt_end(const char *program);
bool tools_interrupted(void);
/* Blocks until fd is readable or the flag is set. false: the flag is set. */
bool tools_interrupt_wait(int fd);
/* Reads a line from standard input: whether it is "yes". */
bool tools_answer_is_yes(void);
/* Blocks for ms milliseconds, or until the flag is set. Returns the flag. */
bool tools_interrupt_pause(unsigned ms);

#endif
