/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_windows.c - see export.h: windows, memory of the mount that stays mapped, by number. Their content changes; a
 * client that received an expert in a window holds a lease on it until the drop.
 */
#include "export_internal.h"

#include "sys.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define WINDOWS_MAX 8192u /* limit of mapped windows; the mount may have freed some of them */

struct efs_export_window *efs_window_find(struct efs_export *h, uint32_t number)
{
    struct efs_export_window *w = h->windows[number % EFS_EXPORT_BUCKETS];
    while (w && w->number != number)
        w = w->next;
    return w;
}

static void window_unlink(struct efs_export *h, struct efs_export_window *w)
{
    *(w->newer ? &w->newer->older : &h->newest) = w->older;
    *(w->older ? &w->older->newer : &h->oldest) = w->newer;
}

static void window_link_newest(struct efs_export *h, struct efs_export_window *w)
{
    w->newer = NULL;
    w->older = h->newest;
    *(h->newest ? &h->newest->newer : &h->oldest) = w;
    h->newest = w;
}

static void window_free(struct efs_export *h, struct efs_export_window *w)
{
    struct efs_export_window **at = &h->windows[w->number % EFS_EXPORT_BUCKETS];
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    window_unlink(h, w);
    efs_sys_munmap(w->data, w->bytes);
    h->window_count--;
    free(w);
}

/* Unmaps the least recently used window if there are too many; the next packet reports it. */
static void window_unmap_oldest(struct efs_export *h)
{
    struct efs_export_window *w = h->oldest;
    while (w && w->users)
        w = w->newer;
    if (h->window_count < WINDOWS_MAX || !w || h->unmapped.count == EFS_EXPORT_ITEMS)
        return;
    h->unmapped.at[h->unmapped.count++] = w->number;
    window_free(h, w);
}

struct efs_export_window *efs_window_map(struct efs_export *h, const struct efs_export_answer *answer, int fd)
{
    struct efs_export_window *w = efs_sys_calloc(1, sizeof(*w));
    struct stat st;
    if (!w)
        return NULL;
    *w = (struct efs_export_window){.number = answer->window, .bytes = (size_t)answer->window_bytes};
    if (answer->window_bytes <= SIZE_MAX / 2 && efs_sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        (uint64_t)st.st_size >= answer->file_bytes && (uint64_t)st.st_size >= answer->window_bytes)
        w->data = efs_sys_mmap(NULL, w->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (!w->data) {
        free(w);
        return NULL;
    }
    window_unmap_oldest(h);
    w->next = h->windows[w->number % EFS_EXPORT_BUCKETS];
    h->windows[w->number % EFS_EXPORT_BUCKETS] = w;
    window_link_newest(h, w);
    h->window_count++;
    return w;
}

void efs_window_report_unmapped(struct efs_export *h, uint32_t number)
{
    for (uint32_t i = 0; i < h->unmapped.count; i++)
        if (h->unmapped.at[i] == number)
            return;
    if (h->unmapped.count < EFS_EXPORT_ITEMS) /* else reported when an expert in it is received again */
        h->unmapped.at[h->unmapped.count++] = number;
}

void efs_window_get(struct efs_export *h, struct efs_export_window *w)
{
    window_unlink(h, w);
    window_link_newest(h, w);
    w->users++;
}

void efs_window_unmap_all(struct efs_export *h)
{
    while (h->oldest)
        window_free(h, h->oldest);
}
