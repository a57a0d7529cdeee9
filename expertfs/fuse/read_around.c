/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_around.c - see read_around.h.
 *
 * read(2) of a file in the page cache makes such requests, too, and then needs all pages of a refused one, in order, a
 * fault only the page in its middle. So when the first pages of a refused request are read, no other one of this open
 * is refused before PATIENCE_MAX random ones.
 *
 * A request is refused after PATIENCE windows that did not follow another one, if it would load an extent whose pages
 * can be read alone. Sequential readers of a mapping read windows that begin where an earlier one ended.
 * Pages of a refused window are read one by one afterwards: if many of them are read in order, the pages without data
 * are dropped, and no window is refused until twice as many were random.
 *
 * The kernel (mm/filemap.c, fs/fuse/file.c, Linux 5.15 to 6.18): filemap_fault() ignores errors of
 * read-ahead; it finds the page in the page cache without data, and reads its folio alone. The kernel's own count of
 * random faults (mmap_miss) stops read-around of files whose reads do not block; here each fault is repeated after its
 * read, which counts as a hit, so it never does. A short reply would be taken for the end of the file.
 */
#include "read_around.h"

#include <stdio.h>
#include <sys/utsname.h>

#include "daemon.h"
#include "expertfs-private.h"

#define PATIENCE 8u
#define PATIENCE_MAX 4096u
#define LARGE_FOLIOS_MAJOR 6u
#define LARGE_FOLIOS_MINOR 19u
#define RUN_PAGES 32u        /* pages read in order: a reader is sequential */
#define REFUSED_PAGES_MIN 5u /* reading fewer pages is not worth refusing */
#define READ_PAGES 3u        /* pages of a refused request, from its first one on, that show that read(2) made it */

void efsd_read_around_init(struct efsd_read_around *around)
{
    struct utsname kernel;
    unsigned major = 0, minor = 0;
    bool known = uname(&kernel) == 0 && sscanf(kernel.release, "%u.%u", &major, &minor) == 2;
    *around = (struct efsd_read_around){
        .patience = PATIENCE,
        .large_folios =
            !known || major > LARGE_FOLIOS_MAJOR || (major == LARGE_FOLIOS_MAJOR && minor >= LARGE_FOLIOS_MINOR),
    };
    pthread_mutex_init(&around->lock, NULL);
}

/* Whether the request begins where one of the recent ones ended; records its end in place of that one's, else of the
 * oldest. */
static bool follows(uint64_t ends[], unsigned *count, uint64_t offset, size_t bytes)
{
    for (unsigned i = 0; i < EFSD_READ_AROUND_STREAMS; i++)
        if (ends[i] == offset && offset > 0) {
            ends[i] = offset + bytes;
            return true;
        }
    ends[(*count)++ % EFSD_READ_AROUND_STREAMS] = offset + bytes;
    return false;
}

/* Finds out by a page that was read alone whether read(2) made the refused request. */
static void note_read(struct efsd_read_around *around, uint64_t offset)
{
    if (offset != around->refused_begin + around->refused_pages * EFSD_PAGE_BYTES ||
        ++around->refused_pages != READ_PAGES)
        return;
    around->patience = PATIENCE_MAX;
    around->jumps = 0;
}

/* Whether the page is one of a sequential reader. */
static bool note_page(struct efsd_read_around *around, size_t bytes, uint64_t offset)
{
    around->run = follows(around->pages, &around->page_count, offset, bytes) ? around->run + 1 : around->run / 2;
    if (around->run < RUN_PAGES)
        return false;
    around->run = around->jumps = 0;
    if (around->patience < PATIENCE_MAX)
        around->patience *= 2;
    return true;
}

/* Whether the reader is random. In a small file, windows of a random reader follow earlier ones by chance. */
static bool note_window(struct efsd_read_around *around, size_t bytes, uint64_t offset)
{
    const unsigned step = around->patience / 4;
    if (follows(around->windows, &around->window_count, offset, bytes))
        around->jumps -= around->jumps < step ? around->jumps : step;
    else if (around->jumps < 2 * around->patience)
        around->jumps++;
    return around->jumps > around->patience;
}

/* Whether the request can be one for a whole folio, whose error would reach the program. A folio has a power of two of
 * pages, and is aligned to its size; until Linux 6.18 those of FUSE have one page. A request that is repeated is one,
 * too. */
static bool may_be_folio(const struct efsd_read_around *around, size_t bytes, uint64_t offset)
{
    return (around->large_folios && (bytes & (bytes - 1)) == 0 && offset % bytes == 0) ||
           (offset >= around->refused_begin && offset + bytes <= around->refused_end);
}

/* Whether a part of the request is of an extent that is not in memory and can be read by pages: the request would load
 * the extent. */
static bool reads_pages(const struct efsd *daemon, uint32_t file, size_t bytes, uint64_t offset)
{
    return efs_file_reads_pages(daemon->fs, file, offset) ||
           efs_file_reads_pages(daemon->fs, file, offset + bytes / 2) ||
           efs_file_reads_pages(daemon->fs, file, offset + bytes - 1);
}

enum efsd_read_around_reply efsd_read_around_note(struct efsd *daemon, struct efsd_open *open, size_t bytes,
                                                  uint64_t offset)
{
    struct efsd_read_around *around = &open->around;
    const struct efsd_node *node = &daemon->tree.nodes[open->node];
    pthread_mutex_lock(&around->lock);
    bool page = bytes <= EFSD_PAGE_BYTES, random = !page && note_window(around, bytes, offset),
         sequential = page && note_page(around, bytes, offset);
    if (page && around->refused_end)
        note_read(around, offset);
    bool refuse = random && bytes >= REFUSED_PAGES_MIN * EFSD_PAGE_BYTES && !may_be_folio(around, bytes, offset) &&
                  offset + bytes < node->bytes; /* a folio at the end of the file may be cut there */
    pthread_mutex_unlock(&around->lock);
    if (!refuse || !reads_pages(daemon, node->id, bytes, offset))
        return sequential ? EFSD_READ_AROUND_SEQUENTIAL : EFSD_READ_AROUND_SERVE;
    pthread_mutex_lock(&around->lock);
    around->refused_begin = offset;
    around->refused_end = offset + bytes;
    around->refused_pages = 0;
    pthread_mutex_unlock(&around->lock);
    return EFSD_READ_AROUND_REFUSE;
}
