/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_report.h - names the test case that ended the program: by a failed assertion, a signal, alarm(2) or a sanitizer.
 */
#ifndef EFS_DEATH_H
#define EFS_DEATH_H

/* Calls report() before the program dies of any of these. report() must be async-signal-safe. Call once per program. */
void death_report(void (*report)(void));

#endif
