/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the -o options of mount(8): one table for parsing, checks and help; and the parsed command line.
 */
#ifndef EFSD_OPTIONS_H
#define EFSD_OPTIONS_H

#include <stdio.h>

#include "expertfs-private.h"

enum efsd_direct_io { EFSD_DIRECT_IO_AUTO, EFSD_DIRECT_IO_ON, EFSD_DIRECT_IO_OFF };

struct efsd_options {
    char *store; /* store and mountpoint as given; main makes both absolute */
    char *mountpoint;
    bool foreground, debug;
    bool nonempty; /* mount on a directory that is not empty */
    bool remount, read_only;
    uint64_t budget_bytes; /* 0: auto */
    uint64_t workers;      /* decode threads; 0: all cores */
    unsigned direct_io;    /* enum efsd_direct_io */
    unsigned store_direct; /* enum efs_store_direct */
    char *local;           /* folder of the local copy; main makes it absolute; NULL: none */
    uint64_t local_bytes;  /* with local: its size */
    char *placement;       /* which experts are to be here; main makes it absolute; NULL: none */
    char *server;          /* the name of this server there; NULL: the host's */
    bool no_passthrough;
    bool no_experts;          /* the mount has no experts/ */
    bool prealloc;            /* allocate the whole budget when mounting */
    char *mount;              /* options for the kernel's mount, comma-separated; NULL: none */
    char *tune[EFS_TUNABLES]; /* values for efs_open(), unchecked; NULL: not given. budget: the text of budget_bytes */
    bool no_state;            /* neither load nor save the profile, the counts and the state of the predictor */
    char *fsname;             /* shown as the mount's source; NULL: the store's path */
    char *log;                /* file for messages; NULL: syslog, or stderr in the foreground */
    unsigned log_level;       /* enum efs_log_level: the lowest level that is logged */
};

/* Sets the defaults. */
void efsd_options_init(struct efsd_options *options);
void efsd_options_free(struct efsd_options *options);
/* True if the options for the kernel's mount contain the flag name. */
bool efsd_options_mounts_with(const struct efsd_options *options, const char *name);
/* Parses one comma-separated list, the argument of -o. -EINVAL or -ENOMEM with the reason in err. */
errint_t efsd_options_parse(struct efsd_options *options, const char *list, struct efs_error *err);
/* Sets one option; value NULL: it has none. -EINVAL or -ENOMEM with the reason in err. */
errint_t efsd_options_set(struct efsd_options *options, const char *item, const char *value, struct efs_error *err);
/* Checks options that need each other. -EINVAL with the reason in err. */
errint_t efsd_options_check(const struct efsd_options *options, struct efs_error *err);
/* Prints one line for each -o option: name, values, description. */
void efsd_options_help(FILE *out);
#endif
