/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_text.h - the generated text of the experts' view: safetensors headers and the index.
 */
#ifndef EFS_VIEW_TEXT_H
#define EFS_VIEW_TEXT_H

#include "view.h"

/* By the names of the objects' tensors. */
int efs_view_compare_names(const struct efs_store *store, uint32_t object_a, uint32_t object_b);
/* The header of an expert's file into out (NULL: only say how long it is). */
size_t efs_view_header_text(const struct efs_view *view, uint32_t expert, char *out, size_t bytes);
/* dense.safetensors: its header and its parts; fused tensors stand there whole. 0 or -ENOMEM. */
errint_t efs_view_build_dense(struct efs_view *view);
/* model.safetensors.index.json. A tensor that several files of the checkpoint name is listed once. 0 or -ENOMEM. */
errint_t efs_view_build_index(struct efs_view *view);

#endif
