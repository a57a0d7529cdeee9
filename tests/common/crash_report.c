/* SPDX-License-Identifier: Apache-2.0 */
/* crash_report.c - see crash_report.h. */
#include "crash_report.h"

#include <signal.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void __sanitizer_set_death_callback(void (*callback)(void));
#endif

static void (*report_case)(void);

static void on_signal(int number)
{
    report_case();
    signal(number, SIG_DFL);
    raise(number);
}

void crash_report(void (*report)(void))
{
    report_case = report;
    signal(SIGABRT, on_signal);
    signal(SIGALRM, on_signal);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_death_callback(report);
#else
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGFPE, on_signal);
#endif
}
