/* SPDX-License-Identifier: Apache-2.0 */
/* rm.c - expertctl rm NAME|STORE: deletes stores that are not mounted. */
#include "expertctl.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"

#include "expertfs-profile-private.h"
#include "interrupt.h"
#include "mountpoint.h"
#include "names.h"
#include "options.h"
#include "size.h"
#include "store_sources.h"
#include "stores.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct arguments {
    struct tools_arguments given; /* NAME|STORE... */
    const char *folder;           /* of --store; NULL: the default */
    bool stale, unfinished, yes, json;
};

static void check_arguments(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (a->stale && a->given.count)
        argp_error(state, "%s: --stale takes no store", a->given.word[0]);
    for (uint32_t i = 0; a->unfinished && i < a->given.count; i++)
        if (!efs_is_rados(a->given.word[i]))
            argp_error(state, "%s: --unfinished goes with rados:POOL/NAME", a->given.word[i]);
    if (!a->stale && !a->given.count)
        argp_error(state, "NAME is needed");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"stale", 0, NULL, "Delete the stores of checkpoints that have changed since they were packed", TOOLS_FLAG,
     .at = AT(stale)},
    {"unfinished", 0, NULL, "Delete what a copy to rados:POOL/NAME that was killed has left", TOOLS_FLAG,
     .at = AT(unfinished)},
    {"store", 0, "DIR", "Folder of stores (default: $XDG_DATA_HOME/expertfs)", TOOLS_TEXT, .at = AT(folder)},
    {"yes", 'y', NULL, "Do not ask", TOOLS_FLAG, .at = AT(yes)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[NAME|STORE|rados:POOL/NAME]...",
    .help =
        "Delete stores: NAME as `expertctl ls` prints it, or a path. A store that is mounted is not deleted. After "
        "--reclaim a store is the only copy of its checkpoint. --stale leaves stores whose checkpoint is not there any "
        "more: they may be the only copy.\v"
        "Examples:\n  expertctl rm Qwen--Qwen3-30B-A3B\n  expertctl rm --yes "
        "~/.local/share/expertfs/model@1a2b3c4d.efs",
    .at = AT(given),
    .finish = check_arguments};

/* Says which store has the bytes of a model on the Hub, if it was packed from another model. */
static errint_t store_shared(const char *given, const char *folder, struct efs_error *err)
{
    struct ctl_paths stores;
    char name[256];
    ctl_stores_list(folder, &stores);
    for (size_t i = 0; i < stores.count; i++)
        if (ctl_sources_is_of(stores.path[i], given)) {
            ctl_store_stem(stores.path[i], name, sizeof(name));
            efs_fail(err, -ENOENT, "%s: its store is that of %s, too\nhint: `expertctl rm %s` deletes it", given, name,
                     EFS_WORD(name));
        }
    ctl_paths_free(&stores);
    return -ENOENT;
}

/* The store that `given` names: a path, or the name of one store in the folder. */
static errint_t store_find(const char *given, const char *folder, char *path, size_t room, struct efs_error *err)
{
    struct stat st;
    if (efs_is_address(given))
        return efs_fail(err, -EINVAL, "a store on a server is not deleted from here: only files and rados:POOL/NAME");
    if (stat(given, &st) < 0 || !S_ISREG(st.st_mode)) {
        errint_t rc = ctl_store_by_name(folder, given, false, path, room, err);
        return rc == -ENOENT ? store_shared(given, folder, err) : rc;
    }
    bool fits = (size_t)snprintf(path, room, "%s", given) < room;
    return fits ? 0 : efs_fail(err, -ENAMETOOLONG, "%s: %s", given, strerror(ENAMETOOLONG));
}

/* Whether path is a store, also a damaged one, and no mount of this machine serves it. hash: its content's, 0: damaged.
 */
static errint_t store_check(const char *path, const struct ctl_mounts *mounts, uint64_t *hash, struct efs_error *err)
{
    struct stat st, mounted;
    struct efs_store *store = NULL;
    struct efs_error why;
    size_t bytes = strlen(path);
    errint_t rc = efs_store_open(path, &store, &why);
    bool named = bytes > 4 && strcmp(path + bytes - 4, ".efs") == 0;
    struct efs_store_info info = {.in_place = true};
    if (rc == 0) {
        efs_store_info(store, &info);
        efs_store_close(store);
    }
    *hash = info.content_hash;
    if (rc == 0 ? info.in_place : !named)
        return efs_fail(err, -EINVAL, "%s: not a store", path);
    if (stat(path, &st) < 0)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    for (size_t i = 0; i < mounts->count; i++)
        if (stat(mounts->mount[i].source, &mounted) == 0 && mounted.st_ino == st.st_ino && mounted.st_dev == st.st_dev)
            return efs_fail(err, -EBUSY, "%s: is mounted on %s\nhint: `expertctl down %s` unmounts it", path,
                            mounts->mount[i].path, EFS_WORD(mounts->mount[i].path));
    return 0;
}

static bool has_content(const char *path, uint64_t hash)
{
    struct efs_store *store;
    struct efs_store_info info;
    if (efs_store_open(path, &store, NULL) < 0)
        return false;
    efs_store_info(store, &info);
    efs_store_close(store);
    return info.content_hash == hash;
}

/* Deletes what was learned about a store that is deleted, unless a mount, or a store in its folder, has the same
 * content. */
static void state_remove(const char *path, uint64_t hash, const struct ctl_mounts *mounts)
{
    struct ctl_paths stores;
    bool used = hash == 0;
    for (size_t i = 0; i < mounts->count && !used; i++)
        used = has_content(mounts->mount[i].source, hash);
    char folder[4400];
    ctl_stores_list(ctl_store_folder(path, folder, sizeof(folder)), &stores);
    for (size_t i = 0; i < stores.count && !used; i++)
        used = has_content(stores.path[i], hash);
    ctl_paths_free(&stores);
    if (!used)
        efs_state_remove(hash);
}

static errint_t ask_user(const char *path, const char *size, struct efs_error *err)
{
    if (!isatty(STDIN_FILENO))
        return efs_fail(err, -EINVAL, "%s: --yes is needed where nobody can be asked", path);
    char *shown = strdup(path);
    if (!shown)
        return efs_fail(err, -ENOMEM, "no memory");
    efs_make_printable(shown, false);
    fprintf(stderr, "Delete %s, %s? Type yes: ", shown, size);
    free(shown);
    return tools_answer_is_yes() ? 0 : efs_fail(err, -ECANCELED, "%s: not deleted", path);
}

/* Warns before a store is deleted whose checkpoint is missing. */
static void warn_only_copy(const char *path, bool asks)
{
    char source[4400];
    if (ctl_sources_state(path, source, sizeof(source)) != CTL_SOURCE_MISSING)
        return;
    ctl_print_line(stderr, "expertctl: warning: %s: may be the only copy of %s, %s", path, source,
                   ctl_sources_missing(source));
    if (asks)
        ctl_print_line(stderr, "hint: `expertctl unpack %s DIR` writes the files of the checkpoint", EFS_WORD(path));
}

/* Asks, and deletes a store with its record and what was learned about it. */
static errint_t store_remove(const struct arguments *a, const char *path, const struct ctl_mounts *mounts,
                             json_t *removed, struct efs_error *err)
{
    char size[16], *record;
    uint64_t hash;
    struct stat st = {.st_size = 0};
    errint_t rc = store_check(path, mounts, &hash, err);
    if (rc == 0 && stat(path, &st) == 0)
        tools_size_print((uint64_t)st.st_size, size, sizeof(size));
    if (rc == 0)
        warn_only_copy(path, !a->yes);
    if (rc == 0 && !a->yes)
        rc = ask_user(path, size, err);
    if (rc == 0 && unlink(path) < 0)
        rc = efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    if (rc < 0)
        return rc;
    if (asprintf(&record, "%s" TOOLS_SOURCES_END, path) >= 0) {
        unlink(record);
        free(record);
    }
    state_remove(path, hash, mounts);
    json_array_append_new(removed,
                          json_pack("{s:o, s:I}", "store", ctl_json_text(path), "store_bytes", (json_int_t)st.st_size));
    if (!a->json)
        ctl_print_line(stdout, "%s: deleted, %s", path, size);
    return 0;
}

/* Asks, and deletes a store in a pool. Whether it is mounted, on any machine, is not known: its readers get errors. */
static errint_t pool_remove(const struct arguments *a, const char *address, json_t *removed, struct efs_error *err)
{
    char size[16] = "size unknown";
    uint64_t bytes = 0;
    errint_t rc = a->yes ? 0 : efs_rados_bytes(address, a->unfinished, &bytes, err);
    if (rc == 0 && !a->yes) {
        tools_size_print(bytes, size, sizeof(size));
        rc = ask_user(address, size, err);
    }
    if (rc == 0)
        rc = efs_rados_remove(address, a->unfinished, &bytes, err);
    if (rc < 0)
        return rc;
    tools_size_print(bytes, size, sizeof(size));
    json_array_append_new(removed,
                          json_pack("{s:o, s:I}", "store", ctl_json_text(address), "store_bytes", (json_int_t)bytes));
    if (!a->json)
        ctl_print_line(stdout, "%s: deleted, %s", address, size);
    return 0;
}

/* Deletes the stores in the folder whose checkpoint has changed: its files are there, and have other bytes. A mounted
 * one stays. */
static errint_t stale_remove(const struct arguments *a, const char *folder, const struct ctl_mounts *mounts,
                             json_t *removed, struct efs_error *err)
{
    struct ctl_paths stores;
    char source[4400];
    errint_t rc = 0;
    bool found = false;
    ctl_stores_list(folder, &stores);
    for (size_t i = 0; i < stores.count && !tools_interrupted(); i++) {
        const char *path = stores.path[i];
        if (ctl_sources_state(path, source, sizeof(source)) != CTL_SOURCE_CHANGED || ctl_sources_compare(path, source))
            continue;
        found = true;
        if (!a->json)
            ctl_print_line(stderr, "expertctl: %s has changed since it was packed", source);
        rc = store_remove(a, path, mounts, removed, err);
        if (rc < 0)
            ctl_fail(rc, err);
    }
    ctl_paths_free(&stores);
    if (!found && !a->json && !tools_interrupted())
        ctl_print_line(stdout, "no store is stale");
    return rc;
}

static int rm_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct ctl_mounts mounts;
    struct efs_error err = {""};
    char folder[4096] = "", path[4400];
    int status = CTL_OK;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_mounts_find(&mounts, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    ctl_stores_folder(a.folder, folder, sizeof(folder), &err);
    tools_interrupt_catch();
    json_t *removed = json_array();
    for (uint32_t i = 0; i < a.given.count && !tools_interrupted(); i++) {
        const char *given = a.given.word[i];
        rc = efs_is_rados(given) ? 0 : store_find(given, folder, path, sizeof(path), &err);
        if (rc == 0)
            rc = efs_is_rados(given) ? pool_remove(&a, given, removed, &err)
                                     : store_remove(&a, path, &mounts, removed, &err);
        status = rc < 0 ? ctl_fail(rc, &err) : status;
    }
    if (a.stale && stale_remove(&a, folder, &mounts, removed, &err) < 0)
        status = CTL_FAILED;
    ctl_mounts_free(&mounts);
    if (a.json && ctl_print_json(json_pack("{s:O}", "removed", removed)) != CTL_OK)
        status = CTL_FAILED;
    json_decref(removed);
    return status;
}

const struct ctl_command ctl_rm = {"rm", "delete stores", rm_run};
