/* SPDX-License-Identifier: Apache-2.0 */
/* table_mount.h - private to table*.c: rows of a table in a file of a mount. */
#ifndef EFS_GGML_TABLE_MOUNT_H
#define EFS_GGML_TABLE_MOUNT_H

#include "plugin.h"

#include "expertfs-private.h"

struct efsg_mount_rows;

/* Opens the mapped file with O_DIRECT. NULL: it cannot be opened, another file has its path by now, or no memory. Any
 * thread. */
struct efsg_mount_rows *efsg_mount_rows_open(const struct efsg_file *file);
void efsg_mount_rows_close(struct efsg_mount_rows *rows); /* NULL is allowed; no other thread may use it */
/* Memory for the pages of a row. */
static inline size_t efsg_mount_pages_bytes(size_t bytes)
{
    return (bytes + 4096 - 2) / 4096 * 4096 + 4096;
}
/* As efs_read_rows(), with the same scratch. Blocks; calls of several threads follow each other. -EIO, -errno. */
errint_t efsg_mount_rows_read(struct efsg_mount_rows *from, const struct efs_row *rows, uint32_t count, size_t bytes,
                              void *scratch);

#endif
