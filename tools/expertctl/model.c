/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include "expertctl.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "gguf_models.h"
#include "hub.h"
#include "hub_name.h"
#include "hub_remote.h"
#include "mountpoint.h"
#include "names.h"
#include "stores.h"

#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a checkpoint ------------------------------------------------------------------------------------------------ */

/* Where stores are. */
struct places {
    const char *folder, *own; /* "": none */
};

/* Finds the store that was packed from the same bytes, and sets it. */
static bool packed_store(const struct places *in, struct ctl_model *model)
{
    bool found = ctl_sources_store(in->folder, &model->sources, model->store, sizeof(model->store)) ||
                 (strcmp(in->own, in->folder) != 0 &&
                  ctl_sources_store(in->own, &model->sources, model->store, sizeof(model->store)));
    if (found)
        ctl_store_name(model->store, model->name, sizeof(model->name));
    return found;
}

/* Sets the store: the one that was packed from the same bytes, or NAME@KEY.efs in own, which is made. */
static errint_t checkpoint_store(const struct places *in, struct ctl_model *model, struct efs_error *err)
{
    if (packed_store(in, model))
        return 0;
    uint32_t key = (uint32_t)(tools_sources_key(&model->sources) >> 32);
    do
        if ((size_t)snprintf(model->store, sizeof(model->store), "%s/%s@%0*x.efs", in->own, model->name,
                             CTL_STORE_KEY_DIGITS, key++) >= sizeof(model->store))
            return efs_fail(err, -ENAMETOOLONG, "%s: %s", model->path, strerror(ENAMETOOLONG));
    while (access(model->store, F_OK) == 0 && /* of other bytes, or another process has packed it meanwhile */
           !packed_store(in, model));
    return 0;
}

/* Reads the headers of the checkpoint at model->path and sets its store, or serves it in place. */
static errint_t checkpoint_read(const struct places *in, struct ctl_model *model, struct efs_error *err)
{
    errint_t rc = ctl_checkpoint_read(model->path, &model->checkpoint, &model->sources, err);
    if (rc < 0)
        return rc;
    const struct ctl_checkpoint *c = &model->checkpoint;
    model->in_place =
        c->source_bytes && (double)(c->source_bytes - c->store_bytes) < EFS_PACK_WORTH * (double)c->source_bytes;
    if (*c->models && (!model->in_place || c->spread))
        return efs_fail(
            err, -E2BIG,
            "%s: a folder of several models: %s\nhint: name one of them; mkexpertfs packs the folder as one",
            model->path, c->models);
    if (!model->in_place)
        return checkpoint_store(in, model, err);
    model->kind = CTL_MODEL_STORE;
    strcpy(model->store, model->path);
    return 0;
}

/* The name of a file without its suffix, and of a part of a split GGUF file without its number. */
static void shorten_name(char *name)
{
    char *end = strrchr(name, '.');
    if (end && end > name)
        *end = '\0';
    const char *part = ctl_gguf_part(name);
    if (part)
        name[part - 1 - name] = '\0';
}

/* The last part of the path that was given, of a link its own name; of "." and the like, of the absolute path. */
static void given_name(const char *given, const char *absolute, char *name, size_t room)
{
    size_t bytes = strlen(given);
    while (bytes > 1 && given[bytes - 1] == '/')
        bytes--;
    size_t begin = bytes;
    while (begin > 0 && given[begin - 1] != '/')
        begin--;
    const char *slash = strrchr(absolute, '/');
    snprintf(name, room, "%.*s", (int)(bytes - begin), given + begin);
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        snprintf(name, room, "%s", slash && slash[1] ? slash + 1 : "model");
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Whether a file that is no checkpoint begins as a store does: its other faults are reported when it is opened. */
static errint_t check_is_store(const char *given, const char *path, struct efs_error *err)
{
    char magic[8] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return efs_fail(err, -errno, "%s: %s", given, strerror(errno));
    bool store = pread(fd, magic, sizeof(magic), 0) == sizeof(magic) && memcmp(magic, "expertfs", sizeof(magic)) == 0;
    close(fd);
    if (store)
        return 0;
    return efs_fail(
        err, -EINVAL,
        "%s: neither a store, nor a GGUF or safetensors file\nhint: a model is a directory with safetensors "
        "or GGUF files, a GGUF file, a store, or org/name of the Hugging Face Hub; a PyTorch .bin or .pt "
        "file is converted to safetensors first",
        given);
}

static errint_t absolute_path(const char *given, struct ctl_model *model, struct stat *st, struct efs_error *err)
{
    char *absolute;
    errint_t rc = efs_source_path(given, &absolute, err);
    if (rc < 0)
        return rc;
    snprintf(model->path, sizeof(model->path), "%s", absolute);
    bool fits = strlen(absolute) < sizeof(model->path);
    free(absolute);
    if (fits && stat(model->path, st) == 0)
        return 0;
    return efs_fail(err, fits ? -errno : -ENAMETOOLONG, "%s: %s", given, strerror(fits ? errno : ENAMETOOLONG));
}

static errint_t model_by_path(const char *given, const struct places *in, struct ctl_model *model,
                              struct efs_error *err)
{
    struct stat st;
    char *root;
    struct efs_error ignored;
    errint_t rc = absolute_path(given, model, &st, err);
    if (rc < 0)
        return rc;
    if (ctl_mount_of(model->path, &root, &ignored) == 0) {
        model->kind = CTL_MODEL_MOUNT;
        snprintf(model->path, sizeof(model->path), "%s", root);
        free(root);
        ctl_store_name(model->path, model->name, sizeof(model->name));
        return 0;
    }
    char hub[256];
    bool snapshot = S_ISDIR(st.st_mode) && ctl_hub_of_path(model->path, sizeof(model->path), hub, sizeof(hub));
    if (snapshot)
        snprintf(model->name, sizeof(model->name), "%s", hub);
    else
        given_name(given, model->path, model->name, sizeof(model->name));
    model->hub |= snapshot;
    model->kind = ctl_is_checkpoint(model->path) ? CTL_MODEL_CHECKPOINT : CTL_MODEL_STORE;
    if (model->kind == CTL_MODEL_CHECKPOINT) {
        if (!S_ISDIR(st.st_mode))
            shorten_name(model->name);
        return checkpoint_read(in, model, err);
    }
    ctl_store_name(given, model->name, sizeof(model->name));
    strcpy(model->store, model->path);
    return check_is_store(given, model->path, err);
}

/* A store by its name, or the mount with that name. */
static errint_t model_by_name(const char *given, const struct places *in, struct ctl_model *model,
                              struct efs_error *err)
{
    struct ctl_mounts mounts;
    const struct ctl_mount *mount;
    struct efs_error ignored;
    errint_t rc = ctl_store_by_name(in->folder, given, true, model->path, sizeof(model->path), err);
    if (rc == -ENOENT && strcmp(in->own, in->folder) != 0)
        rc = ctl_store_by_name(in->own, given, true, model->path, sizeof(model->path), err);
    if (rc == 0)
        strcpy(model->store, model->path);
    if (rc == -ENOENT && ctl_mounts_find(&mounts, &ignored) == 0) {
        if (ctl_mount_choose(&mounts, given, &mount, &ignored) == 0 && mount->usable) {
            rc = ctl_mount_check(mount->path, err);
            model->kind = CTL_MODEL_MOUNT;
            snprintf(model->path, sizeof(model->path), "%s", mount->path);
        }
        ctl_mounts_free(&mounts);
    }
    ctl_store_name(model->path, model->name, sizeof(model->name));
    return rc;
}

/* A store, or a checkpoint in place, at an address. The daemon finds out what is there. */
static errint_t model_at_address(const char *given, struct ctl_model *model, struct efs_error *err)
{
    if ((size_t)snprintf(model->store, sizeof(model->store), "%s", given) >= sizeof(model->store))
        return efs_fail(err, -ENAMETOOLONG, "an address of more than %zu bytes", sizeof(model->store));
    strcpy(model->path, model->store);
    efs_hide_secret(model->path);
    const char *name = strrchr(model->path, '/');
    if (!name || !name[1] || name[1] == '.' || strlen(name) > NAME_MAX)
        return efs_fail(err, -EINVAL, "%s: no address of a file\nhint: expertfs-remote(7)", model->path);
    ctl_store_name(name + 1, model->name, sizeof(model->name));
    efs_make_printable(model->name, false);
    return 0;
}

errint_t ctl_model_remote(const char *given, struct ctl_model *model, struct efs_error *err)
{
    char address[sizeof(model->store)];
    *model = (struct ctl_model){.kind = CTL_MODEL_STORE};
    errint_t rc = ctl_hub_address(given, address, sizeof(address), err);
    if (rc == 0)
        rc = model_at_address(address, model, err);
    if (rc == 0)
        ctl_hub_name(given, model->name, sizeof(model->name));
    return rc;
}

errint_t ctl_model_find(const char *given, const char *folder, const char *own, struct ctl_model *model,
                        struct efs_error *err)
{
    const struct places in = {folder, own};
    char path[4096];
    struct ctl_hub hub;
    struct efs_error why;
    *model = (struct ctl_model){.kind = CTL_MODEL_STORE};
    if (efs_is_address(given) && !ctl_hub_has_host(given))
        return model_at_address(given, model, err);
    errint_t rc = ctl_mount_check_above(given, err);
    if (rc < 0)
        return rc;
    if (access(given, F_OK) == 0 || errno != ENOENT)
        return model_by_path(given, &in, model, err);
    bool on_hub = ctl_hub_parse(given, &hub);
    rc = on_hub ? ctl_hub_find(given, path, sizeof(path), err) : -ENOENT;
    if (rc == 0) {
        model->hub = true;
        return model_by_path(path, &in, model, err);
    }
    if (rc == -ENOENT && !*hub.rest && !*hub.quant) { /* else a store may be of another revision */
        rc = model_by_name(given, &in, model, &why);
        if (rc < 0 && rc != -ENOENT)
            *err = why;
    }
    if (rc == -ENOENT && !on_hub)
        efs_fail(err, rc,
                 "%s: %s\nhint: a model is a directory, a GGUF file, a store, or org/name of the Hugging Face Hub; "
                 "`expertctl ls` lists the stores",
                 given, strerror(ENOENT));
    return rc;
}

void ctl_model_free(struct ctl_model *model)
{
    tools_sources_free(&model->sources);
}
