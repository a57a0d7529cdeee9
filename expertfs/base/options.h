/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the command line and the -o options of mount(8), from one table that parses, checks and explains them.
 */
#ifndef EFSD_OPTIONS_H
#define EFSD_OPTIONS_H

#include <stdio.h>

#include "expertfs-private.h"

enum efsd_direct_io { EFSD_DIRECT_IO_AUTO, EFSD_DIRECT_IO_ON, EFSD_DIRECT_IO_OFF };

/* Names for efs_set(): extended attributes of the root, and mount options. */
enum efsd_tunable {
    EFSD_TUNE_BUDGET,
    EFSD_TUNE_POOLS,
    EFSD_TUNE_PLAN,
    EFSD_TUNE_POLICY,
    EFSD_TUNE_GOAL,
    EFSD_TUNE_PREFETCH,
    EFSD_TUNABLES
};
extern const char *const efsd_tunables[EFSD_TUNABLES];

struct efsd_options {
    char *store; /* as given; main makes both absolute */
    char *mountpoint;
    bool foreground, debug;
    bool nonempty;           /* mount over what the directory holds */
    bool remount, read_only; /* read_only: of a remount; all mounts begin as rw */
    uint64_t budget_bytes;   /* 0: auto */
    uint64_t workers;        /* decode threads; 0: all cores */
    unsigned direct_io;      /* enum efsd_direct_io */
    bool no_passthrough;
    bool prealloc;             /* take all memory of the budget at the mount */
    char *mount;               /* options for the kernel's mount, comma-separated; NULL when there are none */
    char *tune[EFSD_TUNABLES]; /* values for efs_open(), unchecked; NULL: not given. That of budget is budget_bytes */
    bool no_state;             /* neither read nor write profile, counts and what guesses learned */
    char *fsname;              /* shown as the mount's source; NULL: the store's path */
    char *subtype;             /* NULL: "expertfs" */
};

/* Set the defaults. */
void efsd_options_init(struct efsd_options *options);
void efsd_options_free(struct efsd_options *options);
/* Is this option (of those that the kernel's mount is given) among them? */
bool efsd_options_mounts_with(const struct efsd_options *options, const char *name);
/* Take one comma-separated list as -o has it. -EINVAL with the reason in err. */
errint_t efsd_options_parse(struct efsd_options *options, const char *list, struct efs_error *err);
/* One line for each -o option: name, values, what it does. */
void efsd_options_help(FILE *out);
#endif
