/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.h - Ctrl-C and friends ask a tool to clean up and end; one that comes two seconds later ends it at once. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

#define TOOLS_EXIT_INTERRUPTED 130

/* From now on SIGINT, SIGTERM and SIGHUP only set a mark. */
void tools_interrupt_catch(void);
/* From now on they end the program at once, with a line and status 130: for those with nothing on disk to clean up. */
void tools_interrupt_end(const char *program);
bool tools_interrupted(void);
/* Wait until fd can be read. false: interrupted, before it or now. */
bool tools_interrupt_wait(int fd);

#endif
