/* SPDX-License-Identifier: Apache-2.0 */
/* info_checkpoint.h - counts and sizes of a checkpoint that is not packed, from its headers: no weights are read. */
#ifndef EXPERTCTL_INFO_CHECKPOINT_H
#define EXPERTCTL_INFO_CHECKPOINT_H

#include "expertfs.h"

struct ctl_checkpoint {
    char family[64];
    uint64_t source_bytes, files, experts, layers; /* layers: only those with experts */
    uint64_t expert_raw_bytes;
    uint64_t expert_coded_bytes; /* estimate, by measured ratios of trained weights */
    uint64_t store_bytes;        /* the same of the whole store */
    char models[800];            /* of a folder of several models, without weights at its top: their names; else "" */
    bool spread;                 /* they are in different folders */
    char warning[1024]; /* of serving it in place, with a hint: no experts were found, or no tensors read; "": none */
};

/* Whether path is a directory, a GGUF file or a file named *.safetensors or *.gguf. */
bool ctl_is_checkpoint(const char *path);
/* Whether a file is a GGUF model with tensors, and, by its metadata, not a companion of one, such as an image
 * encoder or an importance matrix. */
bool ctl_gguf_is_model(const char *path);
/* Reads the headers; blocks. -errno: mkexpertfs cannot pack it, and err has the message that mkexpertfs prints, or,
 * after an unfinished --reclaim, the one with the commands that continue it. sources: NULL, or receives the files,
 * which the caller frees. */
struct tools_sources;
errint_t ctl_checkpoint_read(const char *path, struct ctl_checkpoint *checkpoint, struct tools_sources *sources,
                             struct efs_error *err);

#endif
