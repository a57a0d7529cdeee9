/* SPDX-License-Identifier: Apache-2.0 */
/* readers.h - the processes that have files of the mount open, for .expertfs/readers. */
#ifndef EFSD_READERS_H
#define EFSD_READERS_H

#include <stdio.h>

struct efsd;

/* Prints a row for each process and user: pid, uid, open files, and the bytes requested from the daemon; reads that the
 * kernel serves without the daemon are not known. Reads /proc once for each thread that opened a file. Any thread. */
void efsd_readers_print(struct efsd *daemon, FILE *out);

#endif
