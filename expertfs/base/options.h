/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the command line and the -o options of mount(8), from one table that parses, checks and explains them.
 */
#ifndef EFSD_OPTIONS_H
#define EFSD_OPTIONS_H

#include <stdio.h>

#include "expertfs.h"

enum efsd_direct_io { EFSD_DIRECT_IO_AUTO, EFSD_DIRECT_IO_ON, EFSD_DIRECT_IO_OFF };
enum efsd_lease_mode {
    EFSD_LEASE_READ, /* no room for a lease: the open is served without one */
    EFSD_LEASE_WAIT, /* ... waits until another expert is closed */
    EFSD_LEASE_FAIL, /* ... fails with ENOMEM */
};

struct efsd_options {
    char *store; /* as given; main makes both absolute */
    char *mountpoint;
    bool foreground, debug;
    bool nonempty;            /* mount over what the directory holds */
    bool remount, read_only;  /* read_only: of a remount; all mounts begin as rw */
    uint64_t budget_bytes;    /* 0: auto */
    uint64_t workers;         /* decode threads; 0: all cores */
    uint64_t threads;         /* receiving threads; 0: half of the cores, 2 to 8 */
    uint64_t readahead_bytes; /* the kernel's, of mappings and cached reads; 0: as the system has it */
    uint64_t ahead_bytes;     /* the engine's, of sequential readers; 0: the engine's default */
    unsigned direct_io;       /* enum efsd_direct_io */
    unsigned lease;           /* enum efsd_lease_mode */
    bool no_passthrough;
    bool prealloc;  /* take all memory of the budget at the mount */
    bool warm;      /* fill memory that is empty while the disk rests */
    bool no_direct; /* read the store through the page cache */
    char *mount;    /* options for the kernel's mount, comma-separated; NULL when there are none */
    char *policy, *pools, *plan, *goal, *delta, *schedule; /* for efs_set(), unchecked; NULL: the engine's defaults */
    char *predictor, *prefetch;                            /* the same */
    char *history; /* a routing trace to plan from; NULL: what earlier mounts counted. main makes it absolute */
    bool no_state; /* neither read nor write profile, counts and what guesses learned */
    char *fsname;  /* shown as the mount's source; NULL: the store's path */
    char *subtype; /* NULL: "expertfs" */
};

#define EFSD_READAHEAD_DEFAULT UINT64_MAX /* not given: by the memory that there is (readahead.c) */

/* Set the defaults. */
void efsd_options_init(struct efsd_options *options);
void efsd_options_free(struct efsd_options *options);
/* Is this option (of those that the kernel's mount is given) among them? */
bool efsd_options_mounts_with(const struct efsd_options *options, const char *name);
/* Take one comma-separated list as -o has it. -EINVAL with the reason in err. */
errint_t efsd_options_parse(struct efsd_options *options, const char *list, struct efs_error *err);
/* Is "budget=8G", or "budget", an option of -o by its name? Its form then: as it stands, or with the values that lack.
 */
bool efsd_options_form(const char *item, char *form, size_t room);
/* One line for each -o option: name, values, what it does. */
void efsd_options_help(FILE *out);
#endif
