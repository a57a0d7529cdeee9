/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.c - expertctl doctor [STORE|MOUNTPOINT]...: reports the serving path of this machine and what prevents a
 * better one. */
#include "expertctl.h"

#include "expertfs-private.h"
#include "control_file.h"
#include "mountpoint.h"
#include "names.h"
#include "options.h"
#include "run_mount.h"
#include "size.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum finding { GOOD, SLOWER, WRONG };

struct doctor {
    struct tools_arguments paths;
    int wrong; /* number of WRONG findings */
    bool json;
    json_t *findings; /* with --json */
};

__attribute__((format(printf, 4, 5))) static void report(struct doctor *d, enum finding finding, const char *topic,
                                                         const char *format, ...)
{
    static const char *const words[] = {[GOOD] = "good", [SLOWER] = "slower", [WRONG] = "WRONG"};
    char text[5000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    efs_join_hint(text, sizeof(text)); /* a finding is one line */
    if (d->json)
        json_array_append_new(d->findings, json_pack("{s:s, s:s, s:o}", "level", words[finding], "topic", topic, "text",
                                                     ctl_json_text(text)));
    else
        ctl_print_line(stdout, "%-7s %-12s %s", words[finding], topic, text);
    d->wrong += finding == WRONG;
}

/* ---- the machine ---- */

static void doctor_processor(struct doctor *d)
{
    const char *path = efs_cpu_path();
    const char *wanted = getenv("EXPERTFS_CPU");
    bool scalar = strcmp(path, "scalar") == 0, slower = scalar || strcmp(path, "avx2") == 0;
    if (wanted && *wanted && strcmp(wanted, path) != 0 && strcmp(wanted, "auto") != 0)
        report(d, SLOWER, "processor", "EXPERTFS_CPU=%.64s: not known, or this processor lacks it; ignored", wanted);
    report(d, slower ? SLOWER : GOOD, "processor", "%s code decodes%s", path,
           scalar   ? ": no AVX2, AVX-512 (VBMI2) or NEON here, or EXPERTFS_CPU says so"
           : slower ? "; AVX-512 with VBMI2 is about twice as fast"
                    : "");
}

static void doctor_kernel(struct doctor *d)
{
    struct utsname name;
    unsigned major = 0, minor = 0;
    if (uname(&name) == 0)
        sscanf(name.release, "%u.%u", &major, &minor);
    bool root = ctl_may_mount(), passes = major * 1000 + minor >= 6009, maps = major * 1000 + minor >= 6006;
    errint_t leases = efs_leases_probe();
    report(d, passes && root && leases == 0 ? GOOD : SLOWER, "passthrough",
           !passes      ? "Linux %u.%u cannot; from 6.9 on the kernel serves open experts itself"
           : !root      ? "Linux %u.%u without CAP_SYS_ADMIN: mount as root, or experts are read like other files"
           : leases < 0 ? "Linux %u.%u refuses file leases (fcntl F_SETLEASE: %s): experts are read like other files; "
                          "see sysctl fs.leases-enable, or the seccomp filter"
                        : "Linux %u.%u with CAP_SYS_ADMIN: open experts are served by the kernel",
           major, minor, strerror(-leases));
    report(d, maps ? GOOD : SLOWER, "mappings",
           maps ? "Linux %u.%u: files that fit into memory are served from the page cache, larger ones past it"
                : "Linux %u.%u cannot map files that are read past the page cache (6.6 can): all are served from it",
           major, minor);
}

static void doctor_fuse(struct doctor *d)
{
    struct efs_error err;
    bool opens = ctl_check_device(&err) == 0;
    report(d, opens ? GOOD : WRONG, "fuse", "%s", opens ? "/dev/fuse can be opened" : err.text);
}

/* Tries all three system calls: a seccomp filter may allow io_uring_setup(2) and refuse the other two. */
static int try_io_uring(void)
{
    struct io_uring ring;
    int fd = STDIN_FILENO, rc = io_uring_queue_init(4, &ring, 0);
    if (rc < 0)
        return rc;
    rc = io_uring_register_files(&ring, &fd, 1);
    if (rc >= 0) {
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        rc = io_uring_submit_and_wait(&ring, 1);
    }
    io_uring_queue_exit(&ring);
    return rc;
}

static void doctor_io(struct doctor *d)
{
    struct rlimit limit;
    int rc = try_io_uring();
    report(d, rc < 0 ? SLOWER : GOOD, "io_uring",
           rc < 0
               ? "%s: reads go one after the other by pread; see sysctl kernel.io_uring_disabled, or the seccomp filter"
               : "the store is read by io_uring",
           strerror(-rc));
    if (rc < 0)
        return;
    bool less = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < (256u << 20) && geteuid() != 0;
    report(d, less ? SLOWER : GOOD, "buffers",
           less ? "only %llu KiB may be locked: the chunk pool is not registered; raise ulimit -l"
                : "the chunk pool can be registered with io_uring",
           (unsigned long long)limit.rlim_cur / 1024);
}

static void doctor_memory(struct doctor *d)
{
    char text[256] = "", size[32];
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (f && fgets(text, sizeof(text), f))
        text[strcspn(text, "\n")] = 0;
    if (f)
        fclose(f);
    bool never = strstr(text, "[never]");
    report(d, never ? SLOWER : GOOD, "huge pages", "%s%s", text[0] ? text : "not known",
           never ? ": `echo madvise >/sys/kernel/mm/transparent_hugepage/enabled`" : "");
    report(d, GOOD, "budget", "budget=auto would be %s now (half of what cgroup and machine leave)",
           tools_size_print(efs_auto_budget(), size, sizeof(size)));
}

/* ---- stores and mounts ---- */

static void doctor_store(struct doctor *d, const char *path)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    char shown[8200];
    errint_t rc = efs_store_open(path, &store, &err);
    if (rc < 0) {
        report(d, WRONG, "store", "%s", err.text);
        return;
    }
    efs_store_info(store, &info);
    snprintf(shown, sizeof(shown), "%s", path);
    efs_hide_secret(shown);
    if (efs_is_address(path))
        report(d, GOOD, "store", "%s: index sound; its ranges are read from a server", shown);
    else
        report(d, info.direct ? GOOD : SLOWER, "store",
               info.direct ? "%s: index sound, O_DIRECT works; `expertctl verify` checks the chunks"
                           : "%s: index sound; the filesystem refuses O_DIRECT: reads go through the page cache",
               path);
    efs_store_close(store);
}

static void doctor_mount_errors(struct doctor *d, const char *path, const char *store, const char *stat)
{
    unsigned long long damaged = tools_line_number(stat, "chunks_damaged"),
                       failed = tools_line_number(stat, "disk_errors");
    if (damaged)
        report(d, WRONG, "errors", "%s: damaged chunks were read %llu time%s: `expertctl verify %s` names them", path,
               damaged, damaged > 1 ? "s" : "", EFS_WORD(store));
    if (failed)
        report(d, WRONG, "errors", "%s: %llu reads of the store failed: see the log, and dmesg(1) for its disk", path,
               failed);
    if (!damaged && !failed)
        report(d, GOOD, "errors", "%s: none since it was mounted", path);
}

static void doctor_mount_budget(struct doctor *d, const char *path, const char *config)
{
    char budget[16], effective[16];
    uint64_t budget_bytes = tools_line_number(config, "budget_bytes"),
             effective_bytes = tools_line_number(config, "effective_budget_bytes");
    bool less = effective_bytes < budget_bytes;
    report(d, less ? SLOWER : GOOD, "budget", "%s: %s of %s are available%s", path,
           tools_size_print(effective_bytes, effective, sizeof(effective)),
           tools_size_print(budget_bytes, budget, sizeof(budget)),
           less ? ", for which the pools are planned: memory cgroup or machine leave no more" : "");
}

static void doctor_mount(struct doctor *d, const char *path)
{
    char serving[64], reason[1200], better[1200], store[4200], *config = NULL, *stat = NULL;
    struct efs_error err = {""};
    errint_t rc = tools_control_read(path, "config", &config, &err);
    if (rc == 0)
        rc = tools_control_read(path, "stat", &stat, &err);
    if (rc == 0 && tools_line_value(config, "serving_path")) {
        tools_line_text(config, "serving_path", serving, sizeof(serving));
        tools_line_text(config, "serving_reason", reason, sizeof(reason));
        tools_line_text(config, "passthrough_reason", better, sizeof(better));
        bool best = strcmp(serving, "passthrough") == 0,
             known = best || strcmp(better, "-") == 0 || strstr(reason, better);
        report(d, best ? GOOD : SLOWER, "mount", "%s: %s serves: %s%s%s", path, serving, reason,
               known ? "" : "; no passthrough: ", known ? "" : better);
        doctor_mount_budget(d, path, config);
        tools_line_path(config, "store", store, sizeof(store));
        doctor_mount_errors(d, path, store, stat);
        char *lost = ctl_mount_store_lost(config);
        if (lost)
            report(d, WRONG, "store", "%s: %s", path, lost);
        free(lost);
    } else {
        report(d, WRONG, "mount", "%s: no expertfs mounted there%s%s", path,
               rc == -ENOENT ? "; a checkpoint is packed first, by mkexpertfs" : ": ",
               rc == -ENOENT ? ""
               : rc          ? err.text
                             : "no serving_path");
    }
    free(config);
    free(stat);
}

/* An argument that is neither a file nor a mount: the name of a store, or another folder. */
static void doctor_name(struct doctor *d, const char *given)
{
    char path[4400];
    struct stat st;
    struct efs_error err;
    errint_t rc = ctl_name_find(given, path, sizeof(path), &err);
    if (rc == -E2BIG) {
        report(d, WRONG, "path", "%s", err.text);
        return;
    }
    if (rc == 0)
        given = path;
    if (stat(given, &st) < 0)
        report(d, WRONG, "path", "%s: %s", given, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        doctor_mount(d, given);
    else
        doctor_store(d, given);
}

static void doctor_argument(struct doctor *d, const char *given)
{
    char *root = NULL;
    struct stat st;
    struct efs_error err;
    if (efs_is_address(given)) {
        doctor_store(d, given);
        return;
    }
    errint_t rc = ctl_mount_check_above(given, &err); /* else stat() may hang */
    bool file = rc == 0 && stat(given, &st) == 0 && !S_ISDIR(st.st_mode);
    if (rc == 0 && !file)
        rc = ctl_mount_of(given, &root, &err);
    if (file)
        doctor_store(d, given);
    else if (rc == 0)
        doctor_mount(d, root);
    else if (rc == -ENOTCONN || rc == -ETIMEDOUT || rc == -E2BIG)
        report(d, WRONG, "mount", "%s", err.text);
    else
        doctor_name(d, given);
    free(root);
}

/* ---- the command ---- */

static const struct tools_option options[] = {
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = offsetof(struct doctor, json)}, {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[STORE|MNT|NAME]...",
    .help = "Report what slows expertfs down on this machine; of a STORE, whether it is sound and how it can be read; "
            "of a MNT, which way serves it. The exit status is 1 if something cannot work.\v"
            "Examples:\n  expertctl doctor\n  expertctl doctor model.efs /mnt",
    .at = offsetof(struct doctor, paths)};

static int doctor_run(int argc, char **argv)
{
    struct doctor d = {.findings = json_array()};
    tools_parse(&command, argc, argv, &d);
    doctor_processor(&d);
    doctor_fuse(&d);
    doctor_kernel(&d);
    doctor_io(&d);
    doctor_memory(&d);
    for (uint32_t i = 0; i < d.paths.count; i++)
        doctor_argument(&d, d.paths.word[i]);
    int status = d.json ? ctl_print_json(json_incref(d.findings)) : CTL_OK;
    json_decref(d.findings);
    return d.wrong ? CTL_FAILED : status;
}

const struct ctl_command ctl_doctor = {"doctor", "report what slows expertfs down on this machine", doctor_run};
