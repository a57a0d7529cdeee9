/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.c - expertctl unpack STORE DIR: the packed files again. */
#include "expertctl.h"

#include "interrupt.h"
#include "expertfs-pack.h"
#include "mountpoint.h"
#include "options.h"
#include "progress.h"
#include "size.h"

#include <argp.h>
#include <stdio.h>

#define THREADS_MAX 1024

struct arguments {
    const char *store, *directory;
    bool force, quiet;
    unsigned threads;
};

static const struct argp_option options[] = {
    {"force", 'f', NULL, 0, "Replace files that exist", 0},
    {"threads", 't', "N", 0, "Use N threads (default: all cores)", 0},
    {"quiet", 'q', NULL, 0, "No progress and no closing line", 0},
    {0},
};

static error_t unpack_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'f':
        a->force = true;
        return 0;
    case 't':
        a->threads = (unsigned)tools_option_number(state, "threads", value, 1, THREADS_MAX);
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->store = value;
        else if (state->arg_num == 1)
            a->directory = value;
        else
            argp_error(state, "too many arguments");
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "STORE and DIR are needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int unpack_run(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = unpack_parse,
        .args_doc = "STORE DIR",
        .doc = "Restore the files of STORE below DIR, which is made if it is missing. Each file appears when it is "
               "complete; if anything fails, the files that were made are removed again."};
    struct arguments a = {0};
    static const struct ctl_mount_hint of_a_mount = {
        "unpack", " DIR", "restores its files; those in the mount, beside experts/, can be copied, too"};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    struct tools_progress progress;
    char size[16];
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = ctl_store_open(a.store, &of_a_mount, &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    rc = efs_store_unpack(store, a.directory, a.force, a.threads, tools_progress_tell, &progress, &err);
    tools_progress_clear(&progress);
    efs_store_info(store, &info, sizeof(info));
    if (rc == 0 && !a.quiet)
        printf("%s: %llu files, %s\n", a.directory, (unsigned long long)info.files,
               tools_size_print(info.source_bytes, size, sizeof(size)));
    efs_store_close(store);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_unpack = {"unpack", "restore the packed files", unpack_run};
