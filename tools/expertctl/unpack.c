/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.c - expertctl unpack STORE DIR: restores the packed files. */
#include "expertctl.h"

#include "interrupt.h"
#include "expertfs-pack.h"
#include "names.h"
#include "options.h"
#include "progress.h"
#include "size.h"

#include <jansson.h>
#include <stdio.h>

#define THREADS_MAX 1024

struct arguments {
    struct tools_arguments paths; /* STORE DIR */
    bool force, quiet, json;
    unsigned threads;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"force", 'f', NULL, "Replace files that exist", TOOLS_FLAG, .at = AT(force)},
    {"threads", 't', "N", "Use N threads (default: all cores)", TOOLS_UNSIGNED, AT(threads), .least = 1,
     .most = THREADS_MAX},
    {"quiet", 'q', NULL, "No progress and no closing line", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|NAME DIR",
    .help = "Restore the files of STORE below DIR, which is made if it is missing. Each file appears when it is "
            "complete; if anything fails, the files that were made are removed again.\v"
            "Examples:\n  expertctl unpack model.efs model/\n  expertctl unpack --force -q model.efs model/",
    .at = AT(paths)};

static int unpack_run(int argc, char **argv)
{
    struct arguments a = {.threads = 0};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    struct tools_progress progress;
    char size[16], files[32];
    char path[4400], name[256];
    tools_parse(&command, argc, argv, &a);
    const char *directory = a.paths.word[1];
    errint_t rc = ctl_name_open(a.paths.word[0], path, sizeof(path), &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    rc = efs_store_unpack(store, directory, a.force, a.threads, tools_progress_report, &progress, &err);
    tools_progress_clear(&progress);
    efs_store_info(store, &info);
    if (rc < 0 && info.in_place && ctl_store_of_checkpoint(path, name, sizeof(name)))
        efs_fail(&err, rc,
                 "%s: is a checkpoint, not a store\nhint: its store is %s: `expertctl unpack` takes that name", path,
                 name);
    if (rc == 0 && a.json)
        ctl_print_json(json_pack("{s:o, s:I, s:I}", "directory", ctl_json_text(directory), "files",
                                 (json_int_t)info.files, "bytes", (json_int_t)info.source_bytes));
    else if (rc == 0 && !a.quiet)
        ctl_print_line(stdout, "%s: %s, %s", directory, tools_count_print(info.files, "file", files, sizeof(files)),
                       tools_size_print(info.source_bytes, size, sizeof(size)));
    efs_store_close(store);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_unpack = {"unpack", "restore the packed files", unpack_run};
