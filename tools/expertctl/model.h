/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - what the MODEL of `expertctl up` names. */
#ifndef EXPERTCTL_MODEL_H
#define EXPERTCTL_MODEL_H

#include "expertfs.h"
#include "info_checkpoint.h"
#include "store_sources.h"
#include "expertfs-packing-private.h"

enum ctl_model_kind { CTL_MODEL_STORE, CTL_MODEL_CHECKPOINT, CTL_MODEL_MOUNT };

struct ctl_model {
    enum ctl_model_kind kind;
    char path[4096];  /* absolute: the store, the checkpoint (a directory or a file), or the root of the mount; an
                         address without what may be secret */
    char store[4096]; /* the store that serves it: path, or for a checkpoint a name in the folder of stores */
    char name[256];   /* of its store; else the last part of the path that was given, without suffix; of a hub name or a
                         snapshot org--name */
    struct ctl_checkpoint checkpoint; /* of a checkpoint */
    struct tools_sources sources;     /* of a checkpoint: its files */
    bool in_place; /* the store is the checkpoint itself: packing it would save less than EFS_PACK_WORTH */
    bool hub;      /* found in the cache of the Hugging Face Hub, whose files are links */
};

/*
 * Finds a model by a path (store, checkpoint, any path in a mount), by the name of a store in `folder` or of a mount,
 * or by its name on the Hugging Face Hub (hub.h) in the local cache; nothing is downloaded. Reads names, sizes and
 * times of a checkpoint's files; weights only to compare them with a store of files of the same names and sizes, whose
 * record has other times. A new store gets its name in `own`, where stores are looked for, too. The caller frees it
 * with ctl_model_free(), also after an error. -ENOENT: nothing of that name; -E2BIG: several models; else -errno.
 */
errint_t ctl_model_find(const char *given, const char *folder, const char *own, struct ctl_model *model,
                        struct efs_error *err);
/* A model on the Hub itself by its name, as an address with its commit: hub_remote.h. */
errint_t ctl_model_remote(const char *given, struct ctl_model *model, struct efs_error *err);
void ctl_model_free(struct ctl_model *model);

#endif
