/* SPDX-License-Identifier: Apache-2.0 */
/*
 * surroundings.h - prepares the process for what the caller may have left: closed standard files, SIGXFSZ.
 */
#ifndef TOOLS_SURROUNDINGS_H
#define TOOLS_SURROUNDINGS_H

/*
 * First thing in main(). Standard files that are closed are opened on /dev/null: else the next file that is opened, a
 * store that is being written, say, would be standard output. A limit on the size of files (ulimit -f) becomes an error
 * of the write in place of a signal that kills. A program that exits with 0 exits with 1, and a message, if standard
 * output was not written whole.
 */
void tools_surroundings(void);

#endif
