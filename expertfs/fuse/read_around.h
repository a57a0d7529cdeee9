/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_around.h - page faults of a mapping that are random. The kernel reads 128 to 512 KiB around each fault unless
 * the program has called madvise(MADV_RANDOM). Here such a request is refused: its pages stay without data, and the
 * kernel then reads the page of the fault alone, which takes a few pages of the store.
 */
#ifndef EFSD_READ_AROUND_H
#define EFSD_READ_AROUND_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EFSD_READ_AROUND_STREAMS 16u /* sequential readers of an open that are recognised at once */

struct efsd;
struct efsd_open;

/* The recent requests of an open for the page cache. */
struct efsd_read_around {
    pthread_mutex_t lock;                       /* guards the rest; a leaf */
    uint64_t windows[EFSD_READ_AROUND_STREAMS]; /* ends of the last requests of several pages */
    uint64_t pages[EFSD_READ_AROUND_STREAMS];   /* ends of the last requests of one page */
    unsigned window_count, page_count;          /* all requests; the index of the next one is the remainder */
    unsigned jumps;                             /* grows with windows that follow none, shrinks with those that do */
    unsigned run;                        /* the same of pages: grows with those that follow, is halved by other pages */
    bool large_folios;                   /* the kernel may read several pages for one fault: see may_be_folio() */
    uint64_t refused_begin, refused_end; /* the last request that was refused */
    unsigned refused_pages;              /* of its pages, from the first one on: how many were read since, in order */
    unsigned patience;                   /* jumps before windows are refused */
};

void efsd_read_around_init(struct efsd_read_around *around);
enum efsd_read_around_reply {
    EFSD_READ_AROUND_SERVE,
    EFSD_READ_AROUND_SEQUENTIAL, /* serve it; pages without data, if there are any, are to be dropped */
    /* The kernel then reads the page of the fault alone. An error of a request for one page would reach the program, so
     * that is never refused. */
    EFSD_READ_AROUND_REFUSE,
};
/* Records a request for the page cache, and returns what to do with it. */
enum efsd_read_around_reply efsd_read_around_note(struct efsd *daemon, struct efsd_open *open, size_t bytes,
                                                  uint64_t offset);

#endif
