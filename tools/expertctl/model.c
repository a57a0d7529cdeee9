/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "hub.h"
#include "mountpoint.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_DIGITS 8 /* of the checksum in the name of a store */

/* ---- the folder of stores ---------------------------------------------------------------------------------------- */

errint_t ctl_make_folders(const char *path, struct efs_error *err)
{
    char *copy = strdup(path), *at = copy;
    errint_t rc = copy ? 0 : -ENOMEM;
    while (rc == 0 && at) {
        at = strchr(at + 1, '/');
        if (at)
            *at = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            rc = -errno;
        if (at)
            *at = '/';
    }
    free(copy);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

errint_t ctl_stores_folder(const char *given, bool make, char *path, size_t room, struct efs_error *err)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool absolute = data && *data == '/'; /* the XDG specification: ignore relative paths */
    int bytes = given                  ? snprintf(path, room, "%s", given)
                : absolute             ? snprintf(path, room, "%s/expertfs", data)
                : home && *home == '/' ? snprintf(path, room, "%s/.local/share/expertfs", home)
                                       : 0;
    if (!bytes)
        return efs_fail(err, -ENOENT, "no folder for stores: neither XDG_DATA_HOME nor HOME is set\nhint: --store DIR");
    if ((size_t)bytes >= room)
        return efs_fail(err, -ENAMETOOLONG, "the folder of stores: %s", strerror(ENAMETOOLONG));
    errint_t rc = make ? ctl_make_folders(path, err) : 0;
    char *real = rc == 0 ? realpath(path, NULL) : NULL;
    if (real && strlen(real) < room)
        strcpy(path, real);
    free(real);
    return rc;
}

/* Bytes of name without ".efs" and "-" with KEY_DIGITS hexadecimal digits; *key: whether it has these. */
static size_t stem_bytes(const char *name, bool *key)
{
    size_t bytes = strlen(name), at;
    bool store = bytes > 4 && strcmp(name + bytes - 4, ".efs") == 0;
    bytes -= store ? 4 : 0;
    *key = bytes > KEY_DIGITS + 1 && name[bytes - KEY_DIGITS - 1] == '-';
    for (at = bytes - KEY_DIGITS; *key && at < bytes; at++)
        *key = isxdigit((unsigned char)name[at]) && !isupper((unsigned char)name[at]);
    return *key ? bytes - KEY_DIGITS - 1 : bytes;
}

const char *ctl_store_name(const char *path, char *name, size_t room)
{
    const char *slash = strrchr(path, '/'), *last = slash && slash[1] ? slash + 1 : path;
    bool key;
    snprintf(name, room, "%.*s", (int)stem_bytes(last, &key), last);
    return name;
}

static int is_store_name(const struct dirent *entry)
{
    size_t bytes = strlen(entry->d_name);
    return bytes > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + bytes - 4, ".efs") == 0;
}

int ctl_stores_list(const char *folder, struct dirent ***stores)
{
    int count = scandir(folder, stores, is_store_name, alphasort);
    return count < 0 ? -errno : count;
}

/* The store in folder with this name, the newest of several; false: none. */
static bool store_by_name(const char *folder, const char *name, char *path, size_t room)
{
    char is[256], at[4400];
    struct dirent **stores;
    struct stat st;
    struct timespec newest = {0};
    int count = ctl_stores_list(folder, &stores);
    bool any = false;
    for (int i = 0; i < count; i++) {
        const char *last = stores[i]->d_name;
        bool exact = strlen(name) == strlen(last) - 4 && strncmp(last, name, strlen(name)) == 0;
        snprintf(at, sizeof(at), "%s/%s", folder, last);
        if ((exact || strcmp(ctl_store_name(last, is, sizeof(is)), name) == 0) && stat(at, &st) == 0 &&
            (exact || !any || ctl_is_later(&st.st_mtim, &newest))) {
            any = (size_t)snprintf(path, room, "%s", at) < room;
            newest = exact ? (struct timespec){.tv_sec = INT64_MAX} : st.st_mtim;
        }
        free(stores[i]);
    }
    if (count >= 0)
        free(stores);
    return any;
}

/* ---- a checkpoint ------------------------------------------------------------------------------------------------ */

/* Reads the headers of the checkpoint at model->path and sets its store: NAME-KEY.efs in folder, or the checkpoint
 * itself. */
static errint_t checkpoint_store(const char *folder, struct ctl_model *model, struct efs_error *err)
{
    errint_t rc = ctl_checkpoint_read(model->path, &model->checkpoint, err);
    if (rc < 0)
        return rc;
    const struct ctl_checkpoint *c = &model->checkpoint;
    if (c->source_bytes && (double)(c->source_bytes - c->store_bytes) < EFS_PACK_WORTH * (double)c->source_bytes) {
        model->kind = CTL_MODEL_STORE;
        model->in_place = true;
        strcpy(model->store, model->path);
        return 0;
    }
    if ((size_t)snprintf(model->store, sizeof(model->store), "%s/%s-%0*x.efs", folder, model->name, KEY_DIGITS,
                         (unsigned)(model->checkpoint.key >> 32)) >= sizeof(model->store))
        return efs_fail(err, -ENAMETOOLONG, "%s: %s", model->path, strerror(ENAMETOOLONG));
    return 0;
}

/* The last part of path; of a file without its suffix, and of a part of a split GGUF file without its number. */
static void checkpoint_name(const char *path, bool folder, char *name, size_t room)
{
    const char *last = strrchr(path, '/');
    snprintf(name, room, "%s", last && last[1] ? last + 1 : "model");
    char *end = folder ? NULL : strrchr(name, '.');
    if (end && end > name)
        *end = '\0';
    char *part = folder ? NULL : strstr(name, "-of-");
    if (part && part - name > 6 && part[-6] == '-' && strspn(part - 5, "0123456789") == 5)
        part[-6] = '\0';
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static errint_t model_by_path(const char *given, const char *folder, struct ctl_model *model, struct efs_error *err)
{
    struct stat st;
    char *absolute;
    errint_t rc = efs_absolute_path(given, &absolute, err);
    if (rc < 0)
        return rc;
    snprintf(model->path, sizeof(model->path), "%s", absolute);
    bool fits = strlen(absolute) < sizeof(model->path);
    free(absolute);
    if (!fits || stat(model->path, &st) < 0)
        return efs_fail(err, fits ? -errno : -ENAMETOOLONG, "%s: %s", given, strerror(fits ? errno : ENAMETOOLONG));
    char *root;
    struct efs_error ignored;
    if (ctl_mount_of(model->path, &root, &ignored) == 0) {
        model->kind = CTL_MODEL_MOUNT;
        snprintf(model->path, sizeof(model->path), "%s", root);
        free(root);
        ctl_store_name(model->path, model->name, sizeof(model->name));
        return 0;
    }
    model->kind = ctl_is_checkpoint(model->path) ? CTL_MODEL_CHECKPOINT : CTL_MODEL_STORE;
    if (model->kind == CTL_MODEL_CHECKPOINT) {
        if (!*model->name)
            checkpoint_name(model->path, S_ISDIR(st.st_mode), model->name, sizeof(model->name));
        return checkpoint_store(folder, model, err);
    }
    ctl_store_name(model->path, model->name, sizeof(model->name));
    strcpy(model->store, model->path);
    return 0;
}

errint_t ctl_model_find(const char *given, const char *folder, struct ctl_model *model, struct efs_error *err)
{
    char path[4096];
    *model = (struct ctl_model){.kind = CTL_MODEL_STORE};
    if (access(given, F_OK) == 0 || errno != ENOENT)
        return model_by_path(given, folder, model, err);
    bool hub = ctl_hub_name(given, model->name, sizeof(model->name));
    if (!hub && !strchr(given, '/'))
        snprintf(model->name, sizeof(model->name), "%s", given);
    if (hub && ctl_hub_find(given, path, sizeof(path)) == 0) {
        model->hub = true;
        return model_by_path(path, folder, model, err);
    }
    if (*model->name && store_by_name(folder, model->name, model->path, sizeof(model->path))) {
        strcpy(model->store, model->path);
        return 0;
    }
    if (hub)
        return efs_fail(
            err, -ENOENT,
            "%s: neither a path, nor in the cache of the Hugging Face Hub\nhint: `hf download %.*s` gets it "
            "from the Hub; %s names another cache",
            given, (int)ctl_hub_repository_bytes(given), given, "HF_HUB_CACHE");
    return efs_fail(err, -ENOENT,
                    "%s: %s\nhint: a model is a directory, a GGUF file, a store, or org/name of the "
                    "Hugging Face Hub; `expertctl ls` lists the stores",
                    given, strerror(ENOENT));
}
