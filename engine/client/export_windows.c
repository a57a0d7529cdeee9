/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_windows.c - see export.h: windows, memory of the mount that stays mapped, by number. Their content changes; a
 * client that received an expert in a window holds a lease on it until the drop.
 */
#include "export.h"

#include "sys.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WINDOWS_MAX 8192u /* limit of mapped windows; the mount may have freed some of them */

struct efs_export_window *efs_window_find(struct efs_export *h, uint32_t number)
{
    struct efs_export_window *w = LIST_FIRST(&h->windows[number % EFS_EXPORT_BUCKETS]);
    while (w && w->number != number)
        w = LIST_NEXT(w, same_hash);
    return w;
}

static void window_free(struct efs_export *h, struct efs_export_window *w)
{
    LIST_REMOVE(w, same_hash);
    TAILQ_REMOVE(&h->windows_by_use, w, by_use);
    efs_sys_munmap(w->data, w->bytes);
    h->window_count--;
    free(w);
}

void efs_window_report_unmapped(struct efs_export *h, uint32_t number)
{
    for (uint32_t i = 0; i < h->queued; i++)
        if (h->queue[i].kind == EFS_EXPORT_UNMAPPED && h->queue[i].number == number)
            return;
    if (h->unmapped == EFS_EXPORT_ITEMS) /* reported when an expert in it is received again */
        return;
    efs_export_queue(h, EFS_EXPORT_UNMAPPED, number);
    h->unmapped++;
}

/* Unmaps the least recently used window if there are too many; the next packet reports it. */
static void window_unmap_oldest(struct efs_export *h)
{
    struct efs_export_window *w = TAILQ_FIRST(&h->windows_by_use);
    while (w && w->users)
        w = TAILQ_NEXT(w, by_use);
    if (h->window_count < WINDOWS_MAX || !w || h->unmapped == EFS_EXPORT_ITEMS)
        return;
    efs_window_report_unmapped(h, w->number);
    window_free(h, w);
}

/* NULL: no memory, or the file is shorter than the window. */
static struct efs_export_window *window_map(struct efs_export *h, uint32_t number, uint64_t bytes, int fd)
{
    struct efs_export_window *w = efs_sys_calloc(1, sizeof(*w));
    struct stat st;
    if (!w)
        return NULL;
    *w = (struct efs_export_window){.number = number, .bytes = (size_t)bytes};
    if (bytes <= SIZE_MAX / 2 && efs_sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= bytes)
        w->data = efs_sys_mmap(NULL, w->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (!w->data) {
        free(w);
        return NULL;
    }
    window_unmap_oldest(h);
    LIST_INSERT_HEAD(&h->windows[number % EFS_EXPORT_BUCKETS], w, same_hash);
    TAILQ_INSERT_TAIL(&h->windows_by_use, w, by_use);
    h->window_count++;
    return w;
}

struct efs_export_window *efs_window_take(struct efs_export *h, const struct efs_export_answer *packet, int fd)
{
    struct efs_export_window *w = efs_window_find(h, packet->window);
    if (!w && fd >= 0)
        w = window_map(h, packet->window, packet->window_bytes, fd);
    if (w && packet->once)
        w->once = true;
    if (!w)
        efs_window_report_unmapped(h, packet->window);
    return w;
}

void efs_window_get(struct efs_export *h, struct efs_export_window *w)
{
    TAILQ_REMOVE(&h->windows_by_use, w, by_use);
    TAILQ_INSERT_TAIL(&h->windows_by_use, w, by_use);
    w->users++;
}

void efs_window_put(struct efs_export *h, struct efs_export_window *w)
{
    if (--w->users == 0 && w->once)
        window_free(h, w);
}

void efs_window_unmap_all(struct efs_export *h)
{
    while (!TAILQ_EMPTY(&h->windows_by_use))
        window_free(h, TAILQ_FIRST(&h->windows_by_use));
}
