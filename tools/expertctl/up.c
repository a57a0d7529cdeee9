/* SPDX-License-Identifier: Apache-2.0 */
/* up.c - expertctl up MODEL [MNT] [-- PROGRAM...]: packs a model if it has no store, mounts it, or runs a program. */
#include "expertctl.h"

#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "control_file.h"
#include "hub_name.h"
#include "interrupt.h"
#include "local_copy.h"
#include "model.h"
#include "mountpoint.h"
#include "options.h"
#include "mountpoint_place.h"
#include "run.h"
#include "run_mount.h"
#include "run_values.h"
#include "size.h"
#include "stores.h"
#include "tune.h"
#include "up_print.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_MS 5000

struct arguments {
    struct tools_arguments given;    /* MODEL [MNT] */
    char **program;                  /* its words, ended by NULL; NULL: none */
    const char *folder;              /* of --store; NULL: the default */
    const char *device;              /* of ggml; NULL: as EXPERTFS_DEVICE says */
    char *options;                   /* of -o, joined; NULL: none */
    bool remote, reclaim, yes, json; /* remote: also after a question */
};

static bool options_add(struct arguments *a, const char *more)
{
    char *joined;
    if (asprintf(&joined, "%s%s%s", a->options ? a->options : "", a->options ? "," : "", more) < 0)
        return false;
    free(a->options);
    a->options = joined;
    return true;
}

static void parse_mount_options(const struct argp_state *state, const struct tools_option *option, char *value,
                                void *into)
{
    if (!options_add(into, value))
        argp_error(state, "--%s: no memory", option->name);
}

static void check_arguments(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (a->given.count > 2)
        argp_error(state, "%s: more arguments than it takes: -- precedes the PROGRAM", a->given.word[2]);
    if (a->program && !*a->program)
        argp_error(state, "PROGRAM is needed");
    if (a->program && a->given.count == 2)
        argp_error(state, "%s: with a PROGRAM the mount point is a temporary folder", a->given.word[1]);
    if (a->program && a->json)
        argp_error(state, "--json: the output is that of the PROGRAM");
    if (a->device && !a->program)
        argp_error(state, "--device goes with a PROGRAM");
    if (a->device && !*a->device)
        argp_error(state, "--device: a name is missing");
    if (a->yes && !a->reclaim)
        argp_error(state, "--yes goes with --reclaim");
    if (a->remote && a->reclaim)
        argp_error(state, "--reclaim: with --remote nothing is packed");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"device", 0, "NAME", "Experts in the memory of this device of ggml, as EXPERTFS_DEVICE: CUDA0", TOOLS_TEXT,
     .at = AT(device)},
    {"options", 'o', "OPTIONS", "Options of the mount, as expertfs takes them: budget=8G", TOOLS_CALL,
     .parse = parse_mount_options},
    {"remote", 0, NULL, "Serve ORG/NAME from the Hugging Face Hub itself, or from HF_ENDPOINT, without a download",
     TOOLS_FLAG, .at = AT(remote)},
    {"store", 0, "DIR", "Folder of stores and mount points (default: $XDG_DATA_HOME/expertfs)", TOOLS_TEXT,
     .at = AT(folder)},
    {"reclaim", 0, NULL, "Pack in place of the checkpoint, which is removed: for a disk that cannot hold both",
     TOOLS_FLAG, .at = AT(reclaim)},
    {"yes", 'y', NULL, "With --reclaim: do not ask", TOOLS_FLAG, .at = AT(yes)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "MODEL [MNT]\nMODEL -- PROGRAM [ARGUMENT...]",
    .help =
        "Mount a model, or run PROGRAM on it. MODEL is a directory of safetensors or GGUF files, a GGUF file, a store "
        "or its name, a mount, an address, or ORG/NAME of the Hugging Face Hub, which is looked up in the local cache; "
        "with --remote it is read from there. A model "
        "without a store is packed first. Without MNT the mount point is a folder beside the stores.\n\n"
        "With PROGRAM, {} in its arguments is the folder of the files, {gguf} the GGUF file in it. A model that fits "
        "into memory is run from its own files. Else llama.cpp takes experts from the store, all else from the GGUF "
        "file; with {}, with -o, or if the model's files are not there, from a mount in a temporary folder. A line "
        "says which. Of a mount given as MODEL {gguf} is the plain file if it is known to have the same bytes. "
        "EXPERTFS_BUDGET sets the memory for experts in the program, also where the model fits; --device "
        "takes them to a device of ggml, see expertfs-ggml(7).\v"
        "Examples:\n"
        "  expertctl up Qwen/Qwen3-30B-A3B\n"
        "  expertctl up --remote ORG/NAME-GGUF:Q4_K_M mnt\n"
        "  expertctl up -o budget=16G model/ /mnt\n"
        "  expertctl up model.gguf -- llama-server -m {gguf}\n\n"
        "Exit status: 0 mounted, 1 failed; with PROGRAM that of the program, 128 and the signal that ended it, 125 if "
        "it was not started, 126 and 127 if it could not be executed, or found.",
    .at = AT(given),
    .finish = check_arguments};

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Serialises calls for the same store: one packs and mounts it, later ones find its mount. */
struct up_lock {
    char folder[4096], path[4400]; /* path: NAME.efs.lock in the folder */
    size_t made;                   /* bytes of the folder's path before the part that was made */
    int fd;                        /* -1: not locked */
    sigset_t mask;                 /* before lock_take() or mount_make() blocked signals */
};

/* Waits for the lock, and blocks SIGINT, which a terminal sends to mkexpertfs, too: that cleans up and ends first. The
 * folder is made if it is missing. */
static errint_t lock_take(struct up_lock *lock, const char *folder, const struct ctl_model *model,
                          struct efs_error *err)
{
    struct stat opened, named;
    if (!*folder)
        return efs_fail(err, -ENOENT, "no folder for stores: neither XDG_DATA_HOME nor HOME is set\nhint: --store DIR");
    snprintf(lock->folder, sizeof(lock->folder), "%s", folder);
    errint_t rc = ctl_make_folders(folder, &lock->made, err);
    snprintf(lock->path, sizeof(lock->path), "%s%s.lock", folder, strrchr(model->store, '/'));
    while (rc == 0) {
        int fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) {
            rc = efs_fail(err, -errno, "%s: %s", lock->path, strerror(errno));
            ctl_unmake_folders(folder, lock->made);
            return rc;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            fprintf(stderr, "expertctl: waiting for another `expertctl up` of this model\n");
            while (flock(fd, LOCK_EX) < 0 && errno == EINTR) {
            }
        }
        lock->fd = fd;
        if (fstat(fd, &opened) == 0 && stat(lock->path, &named) == 0 && opened.st_ino == named.st_ino)
            break;
        close(fd); /* its owner has removed it meanwhile */
        lock->fd = -1;
    }
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    if (rc == 0)
        sigprocmask(SIG_BLOCK, &interrupt, &lock->mask);
    return rc;
}

static void lock_drop(struct up_lock *lock)
{
    if (lock->fd < 0)
        return;
    unlink(lock->path);
    close(lock->fd);
    lock->fd = -1;
    ctl_unmake_folders(lock->folder, lock->made); /* if nothing is in them */
}

static errint_t check_space(const struct ctl_model *model, struct efs_error *err)
{
    struct statvfs disk;
    char folder[4096], needed[16], left[16];
    uint64_t bytes = model->checkpoint.store_bytes;
    if (statvfs(ctl_store_folder(model->store, folder, sizeof(folder)), &disk) < 0)
        return efs_fail(err, -errno, "%s: %s", folder, strerror(errno));
    uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (bytes <= free_bytes || disk.f_blocks == 0) /* 0: the file system does not report what is free */
        return 0;
    struct efs_reclaim_need need;
    struct efs_error ignored;
    bool fits =
        efs_reclaim_check_start(model->path, model->store, &(struct efs_pack_options){0}, &need, &ignored) == 0 &&
        need.need_bytes <= need.free_bytes;
    return efs_fail(err, -ENOSPC, "%s: not enough free space for the store: about %s are needed, %s are free\nhint: %s",
                    folder, tools_size_print(bytes, needed, sizeof(needed)),
                    tools_size_print(free_bytes, left, sizeof(left)),
                    fits ? "--reclaim packs it in place of the checkpoint, which is removed; --store DIR names a "
                           "folder on another disk"
                         : "--store DIR names a folder on another disk");
}

/* Runs mkexpertfs. *status: the exit status of `up` if it failed, after its message. */
static errint_t pack_run(const struct arguments *a, const struct ctl_model *model, const sigset_t *mask, int *status)
{
    const char *words[8] = {"mkexpertfs"};
    char source[16], packed[16];
    size_t count = 1;
    if (a->reclaim)
        words[count++] = "--reclaim";
    if (a->yes)
        words[count++] = "--yes";
    words[count++] = "--";
    words[count++] = model->path;
    words[count++] = model->store;
    ctl_print_line(stderr, "expertctl: packing %s, %s, into %s, about %s", model->path,
                   tools_size_print(model->checkpoint.source_bytes, source, sizeof(source)), model->store,
                   tools_size_print(model->checkpoint.store_bytes, packed, sizeof(packed)));
    int ended = ctl_program_run(words, mask, CTL_PROGRAM_QUIET);
    bool exited = ended >= 0 && WIFEXITED(ended);
    *status = !exited ? CTL_FAILED : WEXITSTATUS(ended) > 2 ? WEXITSTATUS(ended) : CTL_FAILED;
    return exited && WEXITSTATUS(ended) == 0 ? 0 : -ECHILD;
}

/* Whether a checkpoint has no store yet. */
static bool model_packs(const struct ctl_model *model)
{
    return model->kind == CTL_MODEL_CHECKPOINT && access(model->store, F_OK) < 0;
}

/* Packs a checkpoint, and records its files next to the store: mkexpertfs does for this user alone. -ECHILD: mkexpertfs
 * failed and has printed why. */
static errint_t model_pack(const struct arguments *a, const struct ctl_model *model, const sigset_t *mask, int *status,
                           struct efs_error *err)
{
    errint_t rc = pack_run(a, model, mask, status);
    if (rc == 0 && ctl_sources_record(model->store, &model->sources, err) < 0)
        fprintf(stderr, "expertctl: warning: %s\n", err->text);
    return rc;
}

/* ---- mounting ---------------------------------------------------------------------------------------------------- */

/* Whether a file has changed since that second. */
static bool sources_changed(const struct tools_sources *sources, uint64_t second)
{
    bool changed = false;
    for (size_t i = 0; i < sources->count; i++)
        changed |= (uint64_t)sources->files[i].changed.tv_sec > second;
    return changed;
}

/* The config of a mount at root that serves this model; the caller frees it. NULL: it serves another one. A checkpoint
 * that is served in place must not have changed since; a directory is identified by its path. */
static char *mount_serves(const char *root, const struct ctl_model *model, const struct stat *store)
{
    char *config = ctl_mount_probe(root, "config", PROBE_MS), is[4200];
    bool same =
        config && (S_ISDIR(store->st_mode) ? strcmp(tools_line_path(config, "store", is, sizeof(is)), model->store) == 0
                                           : tools_line_number(config, "store_device") == store->st_dev &&
                                                 tools_line_number(config, "store_inode") == store->st_ino);
    if (same && !(model->in_place && sources_changed(&model->sources, tools_line_number(config, "started"))))
        return config;
    free(config);
    return NULL;
}

/* A mount of the store, at `at` unless NULL: copies its path and returns its config. NULL: none. */
static char *mount_find(const struct ctl_model *model, const char *at, char *path, size_t room)
{
    struct ctl_mounts mounts;
    struct efs_error ignored;
    struct stat store;
    char *config = NULL;
    const bool remote = efs_is_address(model->store);
    if ((!remote && stat(model->store, &store) < 0) || ctl_mounts_find(&mounts, &ignored) < 0)
        return NULL;
    for (size_t i = 0; i < mounts.count && !config; i++) {
        const struct ctl_mount *mount = &mounts.mount[i];
        if (!mount->usable || (at && strcmp(mount->path, at) != 0) ||
            (remote ? !ctl_mount_is_of_address(mount, model->store) : !at && strcmp(mount->source, model->store) != 0))
            continue;
        config = remote ? ctl_mount_probe(mount->path, "config", PROBE_MS) : mount_serves(mount->path, model, &store);
        if (config)
            snprintf(path, room, "%s", mount->path);
    }
    ctl_mounts_free(&mounts);
    return config;
}

/* Mounts the store on path. stays: a signal of the terminal does not end it. -ECHILD: the daemon has printed why it
 * failed. */
static errint_t mount_run(const struct arguments *a, const struct ctl_model *model, const sigset_t *mask,
                          const char *path, bool stays)
{
    const char *words[10] = {"expertfs"};
    char local[4096] = "";
    size_t count = 1;
    if (a->options) {
        words[count++] = "-o";
        words[count++] = a->options;
    }
    if (a->remote)
        ctl_local_copy(a->options, local, sizeof(local));
    if (*local) {
        words[count++] = "-o";
        words[count++] = local;
    }
    words[count++] = "--";
    words[count++] = model->store;
    words[count++] = path;
    if (ctl_program_run(words, mask, stays ? CTL_PROGRAM_SESSION : CTL_PROGRAM_PLAIN) != 0)
        return -ECHILD;
    const struct timespec now[] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    if (!model->in_place && !efs_is_address(model->store))
        utimensat(AT_FDCWD, model->store, now, 0); /* `ls` prints it; fails for another owner */
    return 0;
}

/* One call of `up`. */
struct up {
    const struct arguments *arguments;
    const struct ctl_model *model;
    const char *own; /* the folder of mount points; "": none */
    struct up_lock lock;
    struct ctl_place place;
    struct ctl_run_mount trial;
    char path[4096]; /* of the mount */
    char *config;    /* of the mount; NULL: not mounted */
};

/* MNT; NULL: not given. */
static const char *up_mnt(const struct arguments *a)
{
    return a->given.count == 2 ? a->given.word[1] : NULL;
}

/* Applies -o to the mount that was there before, and reads its config again. */
static errint_t mounted_apply(struct up *up, struct efs_error *err)
{
    const struct arguments *a = up->arguments;
    if (!a->options)
        return 0;
    free(up->config);
    up->config = NULL;
    errint_t rc = ctl_options_apply(up->path, a->options, err);
    if (rc == 0 && !(up->config = ctl_mount_probe(up->path, "config", PROBE_MS)))
        rc = efs_fail(err, -ENOTCONN, "%s: the mount does not answer", up->path);
    return rc;
}

/* Looks for a mount of the store, at MNT or anywhere, and applies -o to it. A mount elsewhere is noted: each daemon has
 * its own memory. */
static errint_t up_find(struct up *up, struct efs_error *err)
{
    char elsewhere[4096];
    const struct arguments *a = up->arguments;
    const char *mnt = up_mnt(a);
    char *real = mnt ? realpath(mnt, NULL) : NULL;
    if (!mnt || real)
        up->config = mount_find(up->model, real, up->path, sizeof(up->path));
    free(real);
    char *config = mnt && !up->config ? mount_find(up->model, NULL, elsewhere, sizeof(elsewhere)) : NULL;
    if (config)
        fprintf(
            stderr,
            "expertctl: note: %s is mounted on %s, too: two mounts share the memory, each with a budget of its own\n",
            efs_is_address(up->model->store) ? up->model->path : up->model->store, elsewhere);
    free(config);
    return up->config ? mounted_apply(up, err) : 0;
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

/* Whether a signal that ends this program is blocked. One that is ignored, as by nohup(1), is pending, too. */
static bool end_is_pending(void)
{
    struct sigaction action;
    sigset_t pending;
    bool is = false;
    sigpending(&pending);
    for (size_t i = 0; i < ENDS; i++)
        is |= sigismember(&pending, ends[i]) == 1 && sigaction(ends[i], NULL, &action) == 0 &&
              action.sa_handler != SIG_IGN;
    return is;
}

/* Unmounts what mount_run() has mounted. false: it is in use, or is not mounted. */
static bool mount_undo(const char *path)
{
    struct ctl_mounts mounts;
    struct efs_error ignored;
    if (ctl_mounts_find(&mounts, &ignored) < 0)
        return false;
    const struct ctl_mount *mount = ctl_mount_at(&mounts, path);
    bool undone = mount && ctl_mount_end(mount, false, &ignored) == 0;
    ctl_mounts_free(&mounts);
    return undone;
}

/* Mounts the model in a temporary folder, and unmounts it: what would prevent that is found before the old mount is
 * unmounted. The trial is no mount that another `up` finds, saves nothing, and warns of nothing: the mount that stays
 * does, without the memory that the old one uses. */
static errint_t mount_try(struct up *up, struct efs_error *err)
{
    static const char trial[] = "fsname=trial,nostate,warm=off,log_level=error";
    const char *given = up->arguments->options;
    char *joined;
    if (asprintf(&joined, "%s%s%s", given ? given : "", given ? "," : "", trial) < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = ctl_run_mount_begin(&up->trial, up->model->store, joined, err);
    ctl_run_mount_end(&up->trial);
    free(joined);
    return rc == -ENODEV /* the daemon has printed why */
               ? efs_fail(err, rc, "%s: the mount of the model before it changed stays", up->place.path)
               : rc;
}

static errint_t mount_replace(struct up *up, struct efs_error *err)
{
    errint_t rc = mount_try(up, err);
    if (rc == 0 && end_is_pending())
        rc = -EINTR;
    return rc == 0 ? ctl_place_replace(up->model, up_mnt(up->arguments), up->own, &up->place, err) : rc;
}

/* Mounts the model on its place. The signals that end this program stay blocked until the mount is printed: one that
 * comes before unmounts it, with -EINTR, so that no mount is left of which nothing was said. A mount whose older
 * version was unmounted stays: else the model would have none. */
static errint_t mount_make(struct up *up, struct efs_error *err)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < ENDS; i++)
        sigaddset(&blocked, ends[i]);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    errint_t rc = *up->place.replaces ? mount_replace(up, err) : 0;
    const bool stays = *up->place.replaces;
    if (rc == 0)
        rc = mount_run(up->arguments, up->model, &up->lock.mask, up->place.path, stays);
    if (rc < 0)
        return rc;
    strcpy(up->path, up->place.path);
    up->config = ctl_mount_probe(up->path, "config", PROBE_MS);
    if (!stays && end_is_pending()) {
        ctl_place_drop(&up->place, true); /* ctl_mount_end() locks the folder above, too */
        if (mount_undo(up->path))
            return -EINTR;
    }
    return up->config ? 0 : efs_fail(err, -ENOTCONN, "%s: the mount does not answer", up->path);
}

/* Discards a signal that came too late to end this program without a mount. */
static void ends_discard(void)
{
    struct sigaction before, ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(ends[i], &ignore, &before) == 0)
            sigaction(ends[i], &before, NULL);
}

/* Packs the model if it has no store, and mounts it unless a program is run. -ECHILD: a program has printed why it
 * failed, *status is the exit status. */
static errint_t up_steps(struct up *up, int *status, struct efs_error *err)
{
    const struct arguments *a = up->arguments;
    const bool mounts = !a->program, packs = model_packs(up->model);
    const char *mnt = up_mnt(a);
    char folder[4096];
    struct efs_error ignored;
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(up->model->store, '/') - up->model->store),
             up->model->store); /* "": there is none for stores */
    errint_t rc = mnt ? ctl_mount_check_above(mnt, err) : 0;
    if (rc == -ETIMEDOUT)
        return rc;
    rc = mounts && !packs ? up_find(up, err) : 0;
    if (rc < 0 || up->config)
        return rc;
    rc = mounts ? ctl_check_mount(err) : 0;
    if (rc == 0 && (packs || (mounts && !mnt)))
        rc = lock_take(&up->lock, packs ? folder : up->own, up->model, err);
    else if (rc == 0 && mounts)
        lock_take(&up->lock, up->own, up->model, &ignored); /* MNT needs no folder of mount points */
    if (rc == 0 && mounts && up->lock.fd >= 0)
        rc = up_find(up, err); /* made while this process waited */
    if (rc < 0 || up->config)
        return rc;
    if (packs && model_packs(up->model) && !a->reclaim)
        rc = check_space(up->model, err);
    if (rc == 0 && mounts)
        rc = ctl_place_make(up->model, mnt, up->own, a->options && strstr(a->options, "nonempty"), packs, &up->place,
                            err);
    if (rc == 0 && packs && model_packs(up->model))
        rc = model_pack(a, up->model, &up->lock.mask, status, err);
    if (rc == 0 && mounts)
        rc = mount_make(up, err);
    ctl_place_drop(&up->place, rc == 0);
    return rc;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Prints the mount that was given as MODEL. */
static int up_given_mount(const struct arguments *a, const struct ctl_model *model)
{
    struct efs_error err = {""};
    char *config = NULL;
    errint_t rc = a->options ? ctl_options_apply(model->path, a->options, &err) : 0;
    if (rc == 0)
        rc = tools_control_read(model->path, "config", &config, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    int status = ctl_up_print(model, model->path, config, a->json);
    free(config);
    return status;
}

/* Packs and mounts, or only packs if there is a program. Returns the exit status; CTL_OK: done. */
static int up_store(const struct arguments *a, const struct ctl_model *model, const char *own)
{
    struct efs_error err = {""};
    struct up *up = calloc(1, sizeof(*up)); /* 30 KB */
    int status = CTL_FAILED;
    if (!up)
        return ctl_fail(-ENOMEM, &err);
    *up = (struct up){.arguments = a, .model = model, .own = own, .lock = {.fd = -1}, .place = {.above = -1}};
    if (model->in_place)
        ctl_print_line(stderr, "expertctl: note: %s: packing would save %.1f %%: served in place", model->path,
                       100 * (1 - (double)model->checkpoint.store_bytes / (double)model->checkpoint.source_bytes));
    if (model->in_place && model->checkpoint.warning[0]) {
        efs_fail(&err, -EINVAL, "%s: %s", model->path, model->checkpoint.warning); /* keeps the hint's newline */
        fprintf(stderr, "expertctl: warning: %s\n", err.text);
        err.text[0] = '\0';
    }
    sigprocmask(SIG_BLOCK, NULL, &up->lock.mask);
    errint_t rc = up_steps(up, &status, &err);
    lock_drop(&up->lock);
    if (rc == 0 && !a->program) {
        status = ctl_up_print(model, up->path, up->config, a->json);
        ends_discard();
    }
    sigprocmask(SIG_SETMASK, &up->lock.mask, NULL);
    if (rc == 0 && a->program)
        status = CTL_OK;
    else if (rc < 0 && rc != -ECHILD)
        ctl_fail(rc, &err);
    free(up->config);
    free(up);
    return status;
}

/* Lets expertfs check the options of -o, before anything is packed. Returns the exit status; it has printed why. */
static int check_options(const struct arguments *a)
{
    const char *const words[] = {"expertfs", "-o", a->options, "--version", NULL};
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    int ended = a->options ? ctl_program_run(words, &mask, CTL_PROGRAM_QUIET) : 0;
    return ended == 0 ? CTL_OK : WIFEXITED(ended) && WEXITSTATUS(ended) == CTL_USAGE ? CTL_USAGE : CTL_FAILED;
}

/* --reclaim is refused where it would remove nothing. */
static errint_t check_reclaim(const struct arguments *a, const struct ctl_model *model, struct efs_error *err)
{
    if (!a->reclaim || (model->kind == CTL_MODEL_CHECKPOINT && access(model->store, F_OK) < 0))
        return 0;
    if (model->kind == CTL_MODEL_CHECKPOINT)
        return efs_fail(err, -EEXIST,
                        "%s: packed already, as %s: --reclaim would remove nothing\nhint: mount it without --reclaim, "
                        "compare it, and delete the checkpoint",
                        model->path, model->store);
    return efs_fail(err, -EINVAL, "%s: --reclaim takes a checkpoint that is not packed; this is %s", model->path,
                    model->kind == CTL_MODEL_MOUNT ? "a mount"
                    : model->in_place              ? "served in place"
                                                   : "a store");
}

/* Why a program does not run on the files from which a store was packed. */
static void note_source(const struct ctl_model *model, enum ctl_source_state state, const char *path)
{
    char folder[4096];
    ctl_store_folder(model->store, folder, sizeof(folder));
    if (state == CTL_SOURCE_UNKNOWN)
        ctl_print_line(stderr, "expertctl: note: %s: from which files it was packed is not known", model->store);
    else
        ctl_print_line(stderr, "expertctl: note: %s: the files that were packed %s: %s", model->store,
                       state == CTL_SOURCE_CHANGED ? "have changed" : "are not there", path);
    if (state != CTL_SOURCE_CHANGED)
        ctl_print_line(stderr, "hint: `expertctl up --store %s CHECKPOINT` compares files with it, and records them",
                       EFS_WORD(folder));
}

/* Whether the files from which a store was packed have its bytes; if not, a note says why, unless -o is given, by which
 * they are not used. path: of them. */
static bool source_is_plain(const struct arguments *a, const struct ctl_model *model, char *path, size_t room)
{
    enum ctl_source_state state = ctl_sources_state(model->store, path, room);
    if (a->options)
        return state == CTL_SOURCE_SAME;
    errint_t rc = state == CTL_SOURCE_SAME ? ctl_sources_check_bytes(model->store, path) : -ENOENT;
    if (rc == -EOPNOTSUPP)
        ctl_print_line(stderr, "expertctl: note: %s: not used: its file system may change a file and not its times",
                       path);
    else if (rc < 0)
        note_source(model, state == CTL_SOURCE_SAME ? CTL_SOURCE_CHANGED : state, path);
    return rc == 0;
}

/* The model as a program runs on it. path: of the checkpoint that a store was packed from. */
static struct ctl_run run_of(const struct arguments *a, const struct ctl_model *model, char *path, size_t room)
{
    struct ctl_run run = {.source = model->kind == CTL_MODEL_MOUNT ? model->path : model->store,
                          .options = a->options,
                          .words = a->program};
    if (model->kind == CTL_MODEL_CHECKPOINT || model->in_place) {
        run.plain = a->reclaim ? NULL : model->path;
        run.bytes = model->checkpoint.source_bytes;
    } else if (model->kind == CTL_MODEL_STORE && !efs_is_address(model->store)) {
        struct efs_store *store;
        struct efs_store_info info;
        if (!source_is_plain(a, model, path, room) || efs_store_open(model->store, &store, NULL) < 0)
            return run;
        efs_store_info(store, &info);
        efs_store_close(store);
        run.plain = path;
        run.bytes = info.source_bytes;
    }
    return run;
}

/* What `up` finds out before it packs, mounts or runs. */
struct found {
    struct ctl_model model;
    char folder[4096], own[4096]; /* of stores; of mount points */
    char checkpoint[4096];        /* see run_of() */
};

/* Whether the user wants a model that is not in the cache read from the Hub. */
static bool wants_remote(const char *given)
{
    char name[256];
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || !ctl_hub_name(given, name, sizeof(name)))
        return false;
    fprintf(stderr,
            "%s is not in the cache of the Hugging Face Hub. Serve it from %s, without a download? Type yes: ", given,
            efs_hub_endpoint());
    return tools_answer_is_yes();
}

static errint_t find_model(struct arguments *a, struct found *f, struct efs_error *err)
{
    const char *given = a->given.word[0];
    char local[4096];
    errint_t rc = a->remote ? 0 : ctl_model_find(given, f->folder, a->folder ? f->folder : f->own, &f->model, err);
    a->remote |= rc == -ENOENT && wants_remote(given);
    if (!a->remote)
        return rc;
    rc = ctl_model_remote(given, &f->model, err);
    if (rc < 0)
        return rc;
    ctl_print_line(stderr, "expertctl: %s is served from %s, without a download", given, f->model.path);
    if (a->program) /* mount_run() does it for a mount that stays */
        ctl_local_copy(a->options, local, sizeof(local));
    return a->program && *local && !options_add(a, local) ? efs_fail(err, -ENOMEM, "no memory") : 0;
}

static int up_found(struct arguments *a, struct found *f)
{
    struct efs_error err = {""}, ignored;
    ctl_stores_folder(a->folder, f->folder, sizeof(f->folder), &ignored);
    ctl_stores_own(f->folder, a->folder != NULL, f->own, sizeof(f->own));
    errint_t rc = find_model(a, f, &err);
    if (rc == 0)
        rc = check_reclaim(a, &f->model, &err);
    bool mounted = rc == 0 && f->model.kind == CTL_MODEL_MOUNT;
    struct ctl_run run = {.fits = false};
    if (rc == 0 && a->program)
        run = run_of(a, &f->model, f->checkpoint, sizeof(f->checkpoint));
    run.fits = rc == 0 && a->program && ctl_run_is_plain(&run);
    bool ready = mounted || run.fits; /* needs no store */
    int status = rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
    if (status == CTL_OK && a->program && (status = ctl_run_check(&run)) != 0)
        return status;
    if (status == CTL_OK && !ready)
        status = up_store(a, &f->model, f->own);
    if (a->program)
        return status == CTL_OK ? ctl_run_program(&run) : status == CTL_FAILED ? RUN_FAILED : status;
    return mounted ? up_given_mount(a, &f->model) : status;
}

static int up_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct efs_error err = {""};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            a.program = argv + i + 1;
            argv[i] = NULL;
            argc = i;
        }
    tools_parse(&command, argc, argv, &a);
    if (a.device)
        setenv("EXPERTFS_DEVICE", a.device, 1);
    int refused = check_options(&a);
    errint_t rc = refused == CTL_OK && a.program ? ctl_run_values_check(&err) : 0;
    if (rc < 0)
        refused = ctl_fail(rc, &err);
    if (refused != CTL_OK) {
        free(a.options);
        return a.program ? RUN_FAILED : refused;
    }
    struct found *f = calloc(1, sizeof(*f)); /* 23 KB */
    int status = f ? up_found(&a, f) : ctl_fail(-ENOMEM, &err);
    if (f)
        ctl_model_free(&f->model);
    free(f);
    free(a.options);
    return status;
}

const struct ctl_command ctl_up = {"up", "mount a model, or run a program on it; pack it first if needed", up_run};
