/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_report.h - names the test case that ended the program: by a failed assertion, a signal, alarm(2) or a
 * sanitizer.
 */
#ifndef EFS_CRASH_REPORT_H
#define EFS_CRASH_REPORT_H

/* Calls report() before the program dies of any of these. report() must be async-signal-safe. Call once per program. */
void crash_report(void (*report)(void));

#endif
