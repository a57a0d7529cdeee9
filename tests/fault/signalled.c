/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signalled.c - linked with sys_fault.c and the objects of mkexpertfs: a mkexpertfs that sends itself a signal before
 * its nth call that changes files, so that tests stop it at a fixed place and not after a time.
 * EXPERTFS_TEST_SIGNAL=NUMBER@N sends signal NUMBER at call N. EXPERTFS_TEST_CALLS=FILE counts the calls: the program
 * writes their number to FILE when it exits.
 */
#include "sys_fault.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("EXPERTFS_TEST_SIGNAL");
    int number = 0;
    unsigned nth = 0;
    if (text && sscanf(text, "%d@%u", &number, &nth) != 2)
        abort();
    fault_power(nth, false);
    fault_power_signal(number);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("EXPERTFS_TEST_CALLS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%u\n", fault_power_calls());
        fclose(file);
    }
}
