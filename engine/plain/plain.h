/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.h - a checkpoint that is opened as a store without being packed.
 *
 * plain/ makes the index of a GGUF file, a split one, a safetensors file or a directory of them from their headers, in
 * memory, and reads their bytes. io/, remote/ and serve/ call it. It never writes, and never parses a
 * header itself: source/ reads them, pack/ makes the tables.
 *
 * All objects have the format BYTES and no codec. A file's bytes lie at its address in the store in their order, so
 * that a tensor has the offset in a page that it has in its file: chunks start at any offset, and reads of whole pages
 * may use O_DIRECT. Between two files is at least one page that belongs to neither, so that no read covers both.
 *
 *     plain_index.c   index tables of the catalogue
 *     plain_files.c   opens, checks and reads the files
 *     plain_open.c    efs_plain_open()
 */
#ifndef EFS_PLAIN_H
#define EFS_PLAIN_H

#include "store.h"

struct efs_catalog;

struct efs_plain_file {
    const char *path; /* relative to the root; terminated; in efs_plain.paths */
    int fd;           /* without O_DIRECT */
    int direct_fd;    /* -1: the file is small, or its file system rejects O_DIRECT */
    uint64_t address; /* of its first byte in the store, a multiple of EFS_ALIGN */
    uint64_t bytes;
    struct stat opened_stat; /* fstat(2) at open */
    _Atomic bool changed;    /* efs_plain_check() has failed: all later reads of it fail */
};

/* Notified once of each file that changed, by the thread that found it. line: "PATH: reason\nhint: ...". */
typedef void efs_plain_changed_fn(void *arg, const char *line);

struct efs_plain {
    char *root;
    int root_fd; /* O_PATH */
    char *paths;
    efs_plain_changed_fn *changed; /* may be NULL; set before the first read */
    void *changed_arg;
    bool direct; /* all files that are not small can be read with O_DIRECT */
    bool remote; /* efs_sys_is_remote() of one of them */
    /* While it is opened: the superblock, and the tables that begin at index_address. */
    struct efs_disk_superblock sb;
    uint8_t *index;
    uint64_t index_address;
    uint32_t file_count;
    struct efs_plain_file files[]; /* in the order of the catalogue and of their addresses */
};

/* Gives the files of a catalogue addresses, and opens none. Their sizes have a sum below INT64_MAX / 2. NULL: no
 * memory. */
struct efs_plain *efs_plain_new(const struct efs_catalog *catalog);
/* Opens the files of a catalogue that are listed and gives them addresses. The caller closes plain. -ESTALE: a
 * file has changed since the listing; -EMFILE, -errno. */
errint_t efs_plain_files_open(const struct efs_catalog *catalog, struct efs_plain **plain, struct efs_error *err);
/* Makes sb and index of the catalogue, which is parsed. The caller frees index. */
errint_t efs_plain_index(struct efs_plain *plain, const struct efs_catalog *catalog, struct efs_error *err);
/*
 * Checks that a file is the one that was opened: its size and modification time, and after any change of its inode also
 * that its path still leads to it. Any thread; makes one to four system calls, none of which reads data. 0, or -EIO,
 * from then on: it was written to, truncated, replaced or removed; plain->changed is notified.
 */
errint_t efs_plain_check(struct efs_plain *plain, uint32_t file);
/* The efs_store_read_fn of a plain store (arg: the struct efs_plain): bytes of its files, zeros after their ends, and
 * while the store is opened superblock and index. Whole pages are read with O_DIRECT if possible. Any thread; blocks.
 * -EIO: a file changed. */
errint_t efs_plain_read(void *arg, uint64_t offset, void *data, size_t bytes);
void efs_plain_close(struct efs_plain *plain); /* NULL is allowed */
/* Sets plain->changed, before the first read. NULL is allowed: not a plain store. */
void efs_plain_notify(struct efs_plain *plain, efs_plain_changed_fn *changed, void *arg);

/* Whether path is opened in place: a directory with files named as weights that is no mount of expertfs, or a file with
 * the content or name of weights. */
bool efs_plain_is_checkpoint(const char *path);
/* Opens a checkpoint as a store. Blocks on I/O. -ENODATA: it has no weights or is not complete; -EUCLEAN, -E2BIG,
 * -ESTALE, -ENOMEM, -errno. */
errint_t efs_plain_open(const char *path, struct efs_store **store, struct efs_error *err);

#endif
