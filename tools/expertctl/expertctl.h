/* SPDX-License-Identifier: Apache-2.0 */
/* expertctl.h - the subcommands, one file each. To add one: its file, a line here, a line in expertctl.c's table. */
#ifndef EXPERTCTL_H
#define EXPERTCTL_H

enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2 };

struct ctl_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is "expertctl NAME"; returns the exit status */
};

extern const struct ctl_command ctl_info, ctl_verify, ctl_unpack, ctl_profile, ctl_list, ctl_get, ctl_set, ctl_status,
    ctl_run, ctl_doctor;

/* ---- what all of them print (output.c) ---- */

struct efs_error;
/* Print what went wrong and return the exit status for it. rc: -errno. */
int ctl_fail(int rc, const struct efs_error *err);

struct json_t;
/* A string; bytes that are no UTF-8 become '?'. NULL: no memory. */
struct json_t *ctl_json_text(const char *text);
/* Print an object and a newline, and free it; NULL, for which there was no memory, fails. Returns the exit status. */
int ctl_print_json(struct json_t *json);

#endif
