/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_join.h - lists of reads, and joins adjacent reads into one. Used by queue.c only, without a lock.
 */
#ifndef EFS_QUEUE_JOIN_H
#define EFS_QUEUE_JOIN_H

#include "queue.h"

struct efs_io_list {
    struct efs_io *head, **tail;
};

static inline void efs_io_list_init(struct efs_io_list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

static inline void efs_io_push(struct efs_io_list *list, struct efs_io *io)
{
    io->next = NULL;
    *list->tail = io;
    list->tail = &io->next;
}

static inline void efs_io_push_front(struct efs_io_list *list, struct efs_io *io)
{
    io->next = list->head;
    if (!list->head)
        list->tail = &io->next;
    list->head = io;
}

static inline struct efs_io *efs_io_pop(struct efs_io_list *list)
{
    struct efs_io *io = list->head;
    if (io) {
        list->head = io->next;
        if (!list->head)
            list->tail = &list->head;
        io->joined = NULL;
    }
    return io;
}

/* Takes the first read of the list and joins to it (io->joined) queued reads that continue it in the store, up to
 * best_bytes. Extents can end anywhere in a page, so the last page of a read can be the first page of the next. */
struct efs_io *efs_io_pop_joined(struct efs_io_list *list, size_t best_bytes);
/* Sets bytes and buffers for a joined read. A page shared by two requests is read into the first. */
void efs_io_joined_buffers(const struct efs_io *first, struct efs_backing_read *read);
/* Distributes `bytes` bytes of a joined read: sets done of each request, and copies shared pages to the second
 * request. */
void efs_io_joined_done(struct efs_io *first, size_t bytes);

#endif
