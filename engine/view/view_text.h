/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_text.h - the safetensors headers of experts' files.
 */
#ifndef EFS_VIEW_TEXT_H
#define EFS_VIEW_TEXT_H

#include "view.h"

/* By the names of the objects' tensors. */
int efs_view_compare_names(const struct efs_store *store, uint32_t object_a, uint32_t object_b);
/* The header of an expert's file into out (NULL: only say how long it is). */
size_t efs_view_header_text(const struct efs_view *view, uint32_t expert, char *out, size_t bytes);
#endif
