/* SPDX-License-Identifier: Apache-2.0 */
/*
 * death.h - says which case ended the program: by a failed assertion, a signal, a time-out (alarm(2)) or a sanitizer.
 */
#ifndef EFS_DEATH_H
#define EFS_DEATH_H

/* Calls report, which may only do what a signal handler may, before the program dies of any of these. Once a program.
 */
void death_report(void (*report)(void));

#endif
