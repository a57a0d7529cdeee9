/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense.h - private to dense*.c: matrices that each token multiplies. The first rows of each are kept in memory, the
 * rest is read for each product.
 *
 *     dense_file.c      files
 *     dense.c           the matrices, which of their rows are kept, the memory for that
 *     dense_stream.c    reads of the other rows, ahead of the products
 *     dense_product.c   MUL_MAT
 *
 * Tokens use the matrices in the same order again and again. Each cache that evicts the least recently used rows would
 * evict all rows before their next use, so the same rows stay in memory. Every matrix keeps the same share, so that
 * reads go on while kept rows are multiplied.
 *
 * One lock, efsg_dense_lock, guards these files; a product holds it from start to end.
 */
#ifndef EFS_GGML_DENSE_H
#define EFS_GGML_DENSE_H

#include "plugin.h"

#include <pthread.h>
#include <sys/stat.h>

#define DENSE_PAGE 4096u
#define DENSE_ROW_BYTES_MAX (512u << 10)
#define DENSE_ROWS 16u /* rows are kept and read in multiples: some of ggml's kernels for batches need 4, 8 or 16 */

struct efsg_dense_file {
    struct efsg_dense_file *next;
    struct efsg_source *source; /* of the buffer, which holds the reference */
    struct efsg_file file;
    int fd;
    struct stat opened_stat;
    struct efsg_dense *weights; /* by next */
};

struct efsg_dense {
    enum efsg_extra extra;
    struct efsg_dense *next, *after; /* after: used after this one the last time; NULL: not known */
    struct efsg_dense_file *file;
    uint64_t offset; /* in the file */
    size_t row_bytes;
    uint32_t rows, cols;
    enum ggml_type type;
    struct efsg_kernels host;
    bool used;      /* products use it: it counts as dense */
    uint32_t keep;  /* rows to keep in memory, the first ones */
    uint32_t kept;  /* rows in memory: 0 or keep */
    uint8_t *pages; /* pages of the file with these rows; NULL: none */
    size_t pages_bytes;
    char name[GGML_MAX_NAME];
};

/* A read, of rows [begin, end) of a matrix. */
struct efsg_dense_part {
    struct efsg_dense *weight;
    uint32_t begin, end;
    uint8_t *pages;      /* the pages of the file that contain them */
    const uint8_t *rows; /* in pages */
    size_t bytes, least; /* of the pages; of them, those up to the end of the rows */
    uint32_t blocks;     /* of the product, not done; guarded by its lock */
    enum { EFSG_PART_FREE, EFSG_PART_READING, EFSG_PART_READ } state;
    errint_t error;
};

extern pthread_mutex_t efsg_dense_lock;

/* ---- dense_file.c ---- */

/* Opens file.path, which is closed by close(2). -ESTALE: another size than the mapped file's; -errno. */
errint_t efsg_dense_file_open(struct efsg_dense_file *file);
/* Compares the size and time of the file with those at open. -EIO: it changed; -errno. */
errint_t efsg_dense_file_check(const struct efsg_dense_file *file);
/* Reads whole pages of a file. -EIO: it ends before offset + least; -errno. Blocks. */
errint_t efsg_dense_read(const struct efsg_dense_file *file, uint8_t *pages, size_t bytes, size_t least,
                         uint64_t offset);
/* ---- dense.c ---- */

/* Records that products use a matrix. Any thread; takes the lock. */
void efsg_dense_use(struct efsg_dense *weight);
/* Prepares a product: decides which rows are kept if that is due, and reads those of the matrix that are not yet in
 * memory. Caller holds the lock. Blocks. -ENOMEM; -EIO: the file changed; -errno. */
errint_t efsg_dense_keep(struct efsg_dense *weight);

/* ---- dense_stream.c; the caller holds the lock, or is a thread of the product that does and holds the product's ----
 */

/* Bytes of memory for reads, for a limit of all memory. */
size_t efsg_dense_stream_bytes(uint64_t limit_bytes);
/* Allocates memory for reads, the first time; limit_bytes as above. -ENOMEM. */
errint_t efsg_dense_stream_open(uint64_t limit_bytes);
/* Waits for all reads in flight and drops what was read: which rows are kept changes, or a file is closed. */
void efsg_dense_stream_drop(void);
/* Makes the first row that is not kept the next part, and begins to read it unless that is so already. -EIO: io_uring
 * fails. */
errint_t efsg_dense_stream_seek(struct efsg_dense *weight);
/* Whether the next part is being read, or was. False: all memory for reads has parts that are not done. */
bool efsg_dense_stream_ready(void);
/* The next part, which has arrived. The stream is ready. Blocks. An error of the read is in *error. */
struct efsg_dense_part *efsg_dense_stream_next(errint_t *error);
/* Its rows were used: its memory is used for another read. */
void efsg_dense_stream_done(struct efsg_dense_part *part);

#endif
