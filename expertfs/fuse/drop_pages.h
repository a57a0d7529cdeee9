/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_pages.h - drops cached pages of a file near those without data that refused reads have left (hollow_pages.h),
 * except pages that are mapped.
 */
#ifndef EFSD_DROP_PAGES_H
#define EFSD_DROP_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct efsd;

struct efsd_drop_pages {
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stop;
    char path[1024]; /* of the file to open next, in the mount; "": none */
    uint32_t node;   /* of this file */
};

void efsd_drop_pages_init(struct efsd_drop_pages *drop);
/* Has a thread drop these pages of a file soon; without effect while it waits to drop those of another one. Does not
 * block. The first call starts the thread. */
void efsd_drop_pages(struct efsd *daemon, uint32_t node);
/* Joins the thread, after the connection to the kernel has ended: until then it may wait for a reply. */
void efsd_drop_pages_stop(struct efsd *daemon);

#endif
