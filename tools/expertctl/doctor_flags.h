/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_flags.h - programs that run on a mount or a store, and what in their arguments hurts there. */
#ifndef EXPERTCTL_DOCTOR_FLAGS_H
#define EXPERTCTL_DOCTOR_FLAGS_H

/* For each such argument of a process that names a file of the mount, or was begun by `expertctl run` on it or on the
 * store: program is its name, with its number. Processes of other users are seen only as far as the system shows them.
 */
void ctl_doctor_flags(const char *path,
                      void (*tell)(void *arg, const char *program, const char *flag, const char *text), void *arg);

#endif
