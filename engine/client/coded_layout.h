/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coded_layout.h - the layout of a coded expert (expertfs-protocol.h): parsed once from the bytes that the mount sends,
 * and combined each time with the current places of its extents.
 */
#ifndef EFS_CODED_LAYOUT_H
#define EFS_CODED_LAYOUT_H

#include "file_layout.h"

/* Parses a layout that a mount has sent; all of it is checked. -EUCLEAN, -ENOMEM. */
errint_t efs_coded_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **layout);

/* Memory of a window. The function returns data NULL if no window has that number. */
struct efs_coded_window {
    const uint8_t *data;
    size_t bytes;
};
typedef struct efs_coded_window efs_coded_window_fn(void *arg, uint32_t number);
/* The tensors of an expert whose extents are at these places, one per extent of the layout. The caller frees both
 * arrays; names point into the layout. -EUCLEAN: a chunk is not inside its window; -ENOMEM. */
errint_t efs_coded_tensors(const struct efs_file_layout *layout, const struct efs_export_place *places,
                           efs_coded_window_fn *window, void *arg, struct efs_tensor **tensors,
                           struct efs_coded_shard **shards);

#endif
