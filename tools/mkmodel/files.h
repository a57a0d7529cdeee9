/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - files made of literal bytes and tensors, written by several threads.
 */
#ifndef MKMODEL_FILES_H
#define MKMODEL_FILES_H

#include "plan.h"
#include "random.h"

struct mk_segment {
    uint64_t offset, bytes;
    char *literal;                  /* owned, or NULL: */
    const struct mk_tensor *tensor; /* the plan's */
};

struct mk_file {
    char name[64];
    uint64_t bytes;
    struct mk_segment *segments; /* in order, without gaps */
    uint32_t count, room;
};

/* All files of a checkpoint. */
struct mk_files {
    struct mk_file *files;
    uint32_t count, room;
};

void mk_files_free(struct mk_files *files);
/* A new empty file; NULL: no memory. Valid until the next one is added. */
struct mk_file *mk_files_add(struct mk_files *files, const char *name);
/* Append bytes of text, which the file owns from now on (also on failure). 0 or -ENOMEM; text may be NULL: -ENOMEM. */
int mk_file_literal(struct mk_file *file, char *text, uint64_t bytes);
/* Append a tensor. */
int mk_file_tensor(struct mk_file *file, const struct mk_tensor *tensor);
/* A file of that text, which is taken over; NULL: -ENOMEM. */
int mk_files_text(struct mk_files *files, const char *name, char *text);
uint64_t mk_files_bytes(const struct mk_files *files);

struct mk_writer {
    const struct mk_tables *tables;
    unsigned threads;
    uint64_t done, total; /* bytes so far, in all */
    /* after a piece, one call at a time; true: stop */
    bool (*progress)(void *arg, uint64_t done, uint64_t total, const char *phase);
    void *arg;
};

/* Write all files into the directory and sync them. 0, -ECANCELED, or -errno with the reason. */
int mk_files_write(const struct mk_files *files, int directory, struct mk_writer *writer, struct mk_error *error);

#endif
