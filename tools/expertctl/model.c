/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - see model.h. */
#include "model.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "hub.h"
#include "mountpoint.h"
#include "stores.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    if ((size_t)snprintf(model->store, sizeof(model->store), "%s/%s-%0*x.efs", folder, model->name,
                         CTL_STORE_KEY_DIGITS, (unsigned)(model->checkpoint.key >> 32)) >= sizeof(model->store))
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
    return check_is_store(given, model->path, err);
}

errint_t ctl_model_find(const char *given, const char *folder, struct ctl_model *model, struct efs_error *err)
{
    char path[4096];
    *model = (struct ctl_model){.kind = CTL_MODEL_STORE};
    errint_t rc = ctl_mount_check_above(given, err);
    if (rc < 0)
        return rc;
    if (access(given, F_OK) == 0 || errno != ENOENT)
        return model_by_path(given, folder, model, err);
    given = ctl_hub_text(given);
    bool hub = ctl_hub_name(given, model->name, sizeof(model->name));
    if (!hub && !strchr(given, '/'))
        snprintf(model->name, sizeof(model->name), "%s", given);
    if (hub && ctl_hub_find(given, path, sizeof(path)) == 0) {
        model->hub = true;
        return model_by_path(path, folder, model, err);
    }
    bool whole = !hub || strlen(given) == ctl_hub_repository_bytes(given); /* else a store may be of another revision */
    if (whole && *model->name && ctl_store_by_name(folder, model->name, model->path, sizeof(model->path))) {
        strcpy(model->store, model->path);
        return 0;
    }
    const char *at = strchr(given, '@');
    if (at && strncmp(at, "@main", 5) == 0 && (!at[5] || at[5] == '/'))
        at = NULL; /* the default */
    if (hub)
        return efs_fail(
            err, -ENOENT,
            "%s: neither a path, nor in the cache of the Hugging Face Hub\nhint: `hf download %.*s%s%.*s` gets it "
            "from the Hub; %s names another cache",
            given, (int)ctl_hub_repository_bytes(given), given, at ? " --revision " : "",
            at ? (int)strcspn(at + 1, "/") : 0, at ? at + 1 : "", "HF_HUB_CACHE");
    return efs_fail(err, -ENOENT,
                    "%s: %s\nhint: a model is a directory, a GGUF file, a store, or org/name of the "
                    "Hugging Face Hub; `expertctl ls` lists the stores",
                    given, strerror(ENOENT));
}
