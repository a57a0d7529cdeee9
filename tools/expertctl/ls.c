/* SPDX-License-Identifier: Apache-2.0 */
/* ls.c - expertctl ls: the stores in the folder of stores, and the mounts of expertfs in /proc/self/mountinfo. */
#include "expertctl.h"
#include "expertfs-private.h"

#include "mountpoint.h"
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
#include <time.h>

struct arguments {
    const char *folder; /* of --store; NULL: the default */
    bool json;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"store", 0, "DIR", "Folder of stores (default: $XDG_DATA_HOME/expertfs)", TOOLS_TEXT, .at = AT(folder)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .help = "List the stores that `up` has packed: size, ratio to the checkpoint, when they were last used, of which "
            "checkpoint they are and whether it has changed since, where they are mounted; and the "
            "mounts of all users: store, mount point, user, and whether the daemon has ended or does not answer; "
            "`expertctl status` shows what one does.\vExamples:\n  expertctl ls\n  expertctl ls --json --store "
            "/srv/stores"};

#define ANSWER_MS 1000

/* Prints a path on one line, and pads to a width in UTF-8 characters. */
static void print_path(const char *path, int width)
{
    char *copy = strdup(path);
    if (!copy)
        return;
    efs_make_printable(copy, false);
    for (const char *at = copy; *at; at++)
        width -= (*at & 0xc0) != 0x80;
    printf("%s%*s", copy, width > 0 ? width : 0, "");
    free(copy);
}

/* ---- stores ------------------------------------------------------------------------------------------------------ */

/* The mount points of a store. */
static json_t *mounted_json(const char *path, const struct ctl_mounts *mounts)
{
    json_t *array = json_array();
    for (size_t i = 0; i < mounts->count; i++)
        if (strcmp(mounts->mount[i].source, path) == 0)
            json_array_append_new(array, ctl_json_text(mounts->mount[i].path));
    return array;
}

/* sound: false if the store cannot be opened; source_bytes is 0 then. */
static json_t *store_json(const char *path, const struct ctl_mounts *mounts)
{
    static const char *const states[] = {[CTL_SOURCE_UNKNOWN] = NULL,
                                         [CTL_SOURCE_SAME] = "same",
                                         [CTL_SOURCE_CHANGED] = "changed",
                                         [CTL_SOURCE_MISSING] = "missing"};
    struct efs_store *store;
    struct efs_store_info info = {0};
    struct efs_error err;
    struct stat st;
    char name[256], source[4400];
    if (stat(path, &st) < 0)
        return NULL;
    bool sound = efs_store_open(path, &store, &err) == 0;
    if (sound) {
        efs_store_info(store, &info);
        efs_store_close(store);
    }
    const char *state = states[ctl_sources_state(path, source, sizeof(source))];
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:b, s:o, s:s?, s:o}", "name",
                     ctl_json_text(ctl_store_name(path, name, sizeof(name))), "path", ctl_json_text(path),
                     "store_bytes", (json_int_t)st.st_size, "source_bytes", (json_int_t)info.source_bytes, "used_at",
                     (json_int_t)st.st_atime, "sound", sound, "source", state ? ctl_json_text(source) : json_null(),
                     "source_state", state, "mountpoints", mounted_json(path, mounts));
}

/* Replaces names that several stores have by names with the checksum. */
static void names_distinguish(json_t *stores)
{
    char stem[256];
    size_t i, j;
    json_t *store, *other, *names = json_array();
    json_array_foreach(stores, i, store) json_array_append(names, json_object_get(store, "name"));
    json_array_foreach(stores, i, store)
    {
        size_t same = 0;
        json_array_foreach(names, j, other) same += json_equal(other, json_array_get(names, i)) != 0;
        if (same > 1)
            json_object_set_new(
                store, "name",
                ctl_json_text(ctl_store_stem(json_string_value(json_object_get(store, "path")), stem, sizeof(stem))));
    }
    json_decref(names);
}

/* The stores in a folder, an empty array if there is none. */
static json_t *stores_json(const char *folder, const struct ctl_mounts *mounts)
{
    struct ctl_paths stores;
    json_t *array = json_array();
    ctl_stores_list(folder, &stores);
    for (size_t i = 0; i < stores.count; i++) {
        json_t *store = store_json(stores.path[i], mounts);
        if (store)
            json_array_append_new(array, store);
    }
    ctl_paths_free(&stores);
    names_distinguish(array);
    return array;
}

/* The line below a store: its checkpoint, and where it is mounted. */
static void print_source(const json_t *store)
{
    const char *source = json_string_value(json_object_get(store, "source")),
               *state = json_string_value(json_object_get(store, "source_state"));
    const json_t *mounted = json_object_get(store, "mountpoints");
    if (source) {
        printf("    of ");
        print_path(source, 0);
        if (strcmp(state, "changed") == 0)
            printf(", which has changed: stale");
        else if (strcmp(state, "missing") == 0)
            printf(", %s", ctl_sources_missing(source));
    }
    for (size_t i = 0; i < json_array_size(mounted); i++) {
        printf("%s", i ? ", " : source ? "; on " : "    on ");
        print_path(json_string_value(json_array_get(mounted, i)), 0);
    }
    if (source || json_array_size(mounted))
        putchar('\n');
}

static void print_store(const json_t *store)
{
    char size[16], ratio[16] = "?", used[32] = "?";
    json_int_t bytes = json_integer_value(json_object_get(store, "store_bytes")),
               source = json_integer_value(json_object_get(store, "source_bytes"));
    time_t at = (time_t)json_integer_value(json_object_get(store, "used_at"));
    struct tm parts;
    if (source > 0)
        snprintf(ratio, sizeof(ratio), "%.3f", (double)bytes / (double)source);
    if (localtime_r(&at, &parts))
        strftime(used, sizeof(used), "%Y-%m-%d %H:%M", &parts);
    print_path(json_string_value(json_object_get(store, "name")), 24);
    printf(" %8s %6s  %-16s  ", tools_size_print((uint64_t)bytes, size, sizeof(size)), ratio, used);
    print_path(json_string_value(json_object_get(store, "path")), 0);
    putchar('\n');
    print_source(store);
}

/* ---- mounts ------------------------------------------------------------------------------------------------------ */

/* NULL: this user may not ask. */
static const char *mount_state(const struct ctl_mount *mount)
{
    errint_t rc = mount->usable ? ctl_mount_state(mount->path, ANSWER_MS, NULL) : -EACCES;
    return rc == 0 ? "serving" : rc == -ENOTCONN ? "ended" : rc == -ETIMEDOUT ? "silent" : NULL;
}

static json_t *mounts_json(const struct ctl_mounts *mounts)
{
    json_t *array = json_array();
    char number[32];
    for (size_t i = 0; i < mounts->count; i++)
        json_array_append_new(array, json_pack("{s:o, s:o, s:s, s:b, s:s?}", "mountpoint",
                                               ctl_json_text(mounts->mount[i].path), "store",
                                               ctl_json_text(mounts->mount[i].source), "user",
                                               ctl_user_name(mounts->mount[i].user, number), "usable",
                                               mounts->mount[i].usable, "state", mount_state(&mounts->mount[i])));
    return array;
}

static void print_mounts(const struct ctl_mounts *mounts)
{
    char number[32];
    for (size_t i = 0; i < mounts->count; i++) {
        const char *state = mount_state(&mounts->mount[i]);
        print_path(mounts->mount[i].source, 0);
        printf(" on ");
        print_path(mounts->mount[i].path, 0);
        printf(" by %s%s\n", ctl_user_name(mounts->mount[i].user, number),
               !state || strcmp(state, "serving") == 0 ? ""
               : strcmp(state, "ended") == 0           ? ": its daemon has ended"
                                                       : ": its daemon does not answer");
    }
}

static int ls_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct ctl_mounts mounts;
    struct efs_error err = {""};
    char folder[4096];
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_mounts_find(&mounts, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    bool known = ctl_stores_folder(a.folder, folder, sizeof(folder), &err) == 0;
    json_t *stores = known ? stores_json(folder, &mounts) : json_array();
    size_t count = json_array_size(stores);
    int status = CTL_OK;
    if (a.json) {
        status = ctl_print_json(json_pack("{s:O, s:o}", "stores", stores, "mounts", mounts_json(&mounts)));
    } else {
        if (count)
            printf("%-24s %8s %6s  %-16s  %s\n", "NAME", "SIZE", "RATIO", "LAST USED", "STORE");
        for (size_t i = 0; i < count; i++)
            print_store(json_array_get(stores, i));
        if (count && mounts.count)
            putchar('\n');
        print_mounts(&mounts);
        if (!count && !mounts.count)
            fprintf(stderr, "expertctl: no stores%s%s, and no mount of expertfs\n", known ? " in " : "",
                    known ? folder : "");
    }
    json_decref(stores);
    ctl_mounts_free(&mounts);
    return status;
}

const struct ctl_command ctl_ls = {"ls", "list stores and mounts", ls_run};
