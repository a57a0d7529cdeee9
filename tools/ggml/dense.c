/* SPDX-License-Identifier: Apache-2.0 */
/* dense.c - matrices that each token multiplies: which ones, and which of their rows are kept in memory. */
#include "dense.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MIN (1u << 20) /* smaller matrices stay mapped */
#define SAMPLE_BYTES 4096u
#define UNRESERVED_SHARE 16u /* 1/16 of the available memory stays free for the page cache and later allocations */
#define EXPERTS_SHARE 8u     /* experts get at least 1/8 of it */
#define CHANGE_SHARE 32u     /* smaller changes of the available memory change nothing */
#define CHECK_NS 200000000   /* interval of checks of the available memory */

pthread_mutex_t efsg_dense_lock = PTHREAD_MUTEX_INITIALIZER;
static struct efsg_dense_file *files;
static uint64_t dense_bytes, kept_bytes; /* of all used matrices; of them, in memory */
static uint64_t keep_limit_bytes;        /* of kept rows, by the last plan */
static bool planned;                     /* all used matrices have their `keep` */
static int64_t checked_ns;

/* ---- matrices ---- */

bool efsg_dense_expected(void)
{
    uint64_t bytes;
    return efsg_dense_setting(&bytes) && efsg_source_expected();
}

struct efsg_dense_file *efsg_dense_open(struct efsg_source *source, const struct efsg_file *file)
{
    struct efsg_dense_file *f = efsg_dense_expected() ? calloc(1, sizeof(*f)) : NULL;
    if (!f)
        return NULL;
    f->source = source;
    f->file = *file;
    const errint_t rc = efsg_dense_file_open(f);
    if (rc < 0) {
        efsg_log(GGML_LOG_LEVEL_WARN, "%s: dense weights stay mapped: %s", file->path, strerror(-rc));
        free(f);
        return NULL;
    }
    pthread_mutex_lock(&efsg_dense_lock);
    f->next = files;
    files = f;
    pthread_mutex_unlock(&efsg_dense_lock);
    return f;
}

/* Bytes of the pages with the first rows of a matrix. */
static size_t page_bytes(const struct efsg_dense *w, uint32_t rows)
{
    return ((size_t)(w->offset % DENSE_PAGE) + rows * w->row_bytes + DENSE_PAGE - 1) / DENSE_PAGE * DENSE_PAGE;
}

/* Frees the kept rows of a matrix. */
static void forget_rows(struct efsg_dense *w)
{
    if (w->pages)
        (void)munmap(w->pages, w->pages_bytes);
    kept_bytes -= w->pages_bytes;
    w->pages = NULL;
    w->pages_bytes = 0;
    w->kept = 0;
}

void efsg_dense_close(struct efsg_dense_file *file)
{
    if (!file)
        return;
    pthread_mutex_lock(&efsg_dense_lock);
    efsg_dense_stream_drop();
    for (struct efsg_dense_file **f = &files; *f; f = &(*f)->next)
        if (*f == file) {
            *f = file->next;
            break;
        }
    for (struct efsg_dense_file *f = files; f; f = f->next)
        for (struct efsg_dense *w = f->weights; w; w = w->next)
            w->after = w->after && w->after->file == file ? NULL : w->after;
    for (struct efsg_dense *w = file->weights, *next; w; w = next) {
        next = w->next;
        forget_rows(w);
        dense_bytes -= w->used ? w->rows * w->row_bytes : 0;
        free(w);
    }
    planned = false;
    pthread_mutex_unlock(&efsg_dense_lock);
    close(file->fd);
    free(file);
}

bool efsg_dense_is_large(const struct ggml_tensor *w)
{
    struct efsg_kernels host;
    return w->ne[0] > 0 && w->ne[0] <= INT32_MAX && w->ne[1] > 0 && w->ne[1] <= INT32_MAX && w->ne[2] == 1 &&
           w->ne[3] == 1 && !w->view_src && w->nb[1] == efsg_host.row_size(w->type, w->ne[0]) &&
           w->nb[1] <= DENSE_ROW_BYTES_MAX && (uint64_t)w->ne[1] * w->nb[1] >= BYTES_MIN &&
           (w->type != GGML_TYPE_F32 || w->ne[1] > EFS_ROUTING_EXPERTS) /* routers are also read for hints */
           && efsg_host_kernels(w->type, &host);
}

/* Whether the file has the bytes that are mapped, by a sample in the middle of the matrix. */
static bool is_as_mapped(const struct efsg_dense *w, const struct ggml_tensor *tensor)
{
    const uint64_t middle = (uint64_t)w->rows * w->row_bytes / 2, at = w->offset + middle;
    const size_t skip = (size_t)(at % DENSE_PAGE);
    uint8_t *room = aligned_alloc(DENSE_PAGE, 2 * DENSE_PAGE);
    const bool same = room && efsg_dense_read(w->file, room, 2 * DENSE_PAGE, skip + SAMPLE_BYTES, at - skip) == 0 &&
                      memcmp(room + skip, (const uint8_t *)tensor->data + middle, SAMPLE_BYTES) == 0;
    free(room);
    return same;
}

bool efsg_dense_add(struct efsg_dense_file *file, struct ggml_tensor *tensor)
{
    struct efsg_dense *w = file && efsg_dense_is_large(tensor) ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return false;
    *w = (struct efsg_dense){.extra = EFSG_DENSE,
                             .file = file,
                             .offset = file->file.offset + (uint64_t)((uint8_t *)tensor->data - file->file.base),
                             .row_bytes = tensor->nb[1],
                             .rows = (uint32_t)tensor->ne[1],
                             .cols = (uint32_t)tensor->ne[0],
                             .type = tensor->type};
    (void)efsg_host_kernels(w->type, &w->host);
    memcpy(w->name, tensor->name, sizeof(w->name));
    if (!is_as_mapped(w, tensor)) {
        efsg_log(GGML_LOG_LEVEL_WARN, "%s stays mapped: %s has other bytes now", w->name, file->file.path);
        free(w);
        return false;
    }
    pthread_mutex_lock(&efsg_dense_lock);
    w->next = file->weights;
    file->weights = w;
    pthread_mutex_unlock(&efsg_dense_lock);
    tensor->extra = w;
    return true;
}

void efsg_dense_use(struct efsg_dense *w)
{
    pthread_mutex_lock(&efsg_dense_lock);
    if (!w->used) {
        w->used = true;
        dense_bytes += (uint64_t)w->rows * w->row_bytes;
        planned = false;
    }
    pthread_mutex_unlock(&efsg_dense_lock);
}

uint64_t efsg_dense_disk_bytes(void)
{
    pthread_mutex_lock(&efsg_dense_lock);
    const uint64_t memory = kept_bytes > keep_limit_bytes ? kept_bytes : keep_limit_bytes;
    /* kept rows that are in memory are not available any more; those that are not yet are still reserved */
    const uint64_t reserved = memory - kept_bytes, bytes = dense_bytes > reserved ? dense_bytes - reserved : 0;
    pthread_mutex_unlock(&efsg_dense_lock);
    return bytes;
}

/* ---- memory ---- */

/* The memory that kept rows may take with a limit that is found automatically. */
static uint64_t available(struct efsg_source *source)
{
    struct efs *fs = efsg_source_fs(source);
    struct efs_memory memory;
    struct efs_store_info info = {0};
    struct efs_stats stats = {0};
    efs_memory(&memory);
    if (fs) {
        efs_store_info(efs_get_store(fs), &info);
        efs_stats(fs, &stats);
    }
    const uint64_t all = memory.available_bytes + kept_bytes + stats.chunk_used_bytes;
    const uint64_t on_disk = info.expert_raw_bytes + dense_bytes + efsg_tables_bytes(source);
    uint64_t others = all / UNRESERVED_SHARE + (planned ? 0 : efsg_dense_stream_bytes(UINT64_MAX));
    others += info.source_bytes > on_disk ? info.source_bytes - on_disk : 0;
    others += info.experts ? all / EXPERTS_SHARE : 0;
    return all > others ? all - others : 0;
}

/* Whether the available memory is to be checked again. */
static bool is_due(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    const int64_t now = time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
    if (checked_ns && now - checked_ns < CHECK_NS)
        return false;
    checked_ns = now;
    return true;
}

/* Keeps fewer rows of a matrix, at least one. */
static void trim_rows(struct efsg_dense *w, uint32_t rows)
{
    const size_t bytes = page_bytes(w, rows);
    if (bytes < w->pages_bytes)
        (void)munmap(w->pages + bytes, w->pages_bytes - bytes);
    kept_bytes -= w->pages_bytes - bytes;
    w->pages_bytes = bytes;
    w->kept = rows;
}

/* Decides which rows are kept: the same share of each matrix. */
static void plan(uint64_t limit)
{
    const double share = limit >= dense_bytes ? 1 : (double)limit / (double)dense_bytes;
    efsg_dense_stream_drop();
    for (struct efsg_dense_file *f = files; f; f = f->next)
        for (struct efsg_dense *w = f->weights; w; w = w->next) {
            uint32_t keep = limit >= dense_bytes ? w->rows : (uint32_t)(share * w->rows) / DENSE_ROWS * DENSE_ROWS;
            if (w->kept > keep && keep > 0)
                trim_rows(w, keep);
            else if (w->kept != keep)
                forget_rows(w);
            w->keep = keep;
        }
    if (!planned || limit < keep_limit_bytes / 4 * 3)
        efsg_log(GGML_LOG_LEVEL_INFO,
                 "dense weights: %llu of %llu MiB stay in memory, the others are read for each token",
                 (unsigned long long)((limit < dense_bytes ? limit : dense_bytes) >> 20),
                 (unsigned long long)(dense_bytes >> 20));
    keep_limit_bytes = limit < dense_bytes ? limit : dense_bytes;
    planned = true;
}

/* Plans if matrices were added, or if less memory is available than kept rows need. */
static errint_t plan_if_due(const struct efsg_dense *w)
{
    uint64_t setting, limit;
    errint_t rc = efsg_dense_setting(&setting) ? efsg_dense_stream_open(setting) : -EINVAL;
    if (rc < 0 || (planned && (setting != UINT64_MAX || !is_due())))
        return rc;
    if (setting == UINT64_MAX)
        limit = available(w->file->source);
    else
        limit = setting - efsg_dense_stream_bytes(setting);
    if (!planned || limit < keep_limit_bytes - keep_limit_bytes / CHANGE_SHARE)
        plan(limit);
    return 0;
}

errint_t efsg_dense_keep(struct efsg_dense *w)
{
    errint_t rc = efsg_dense_file_check(w->file);
    if (rc == 0)
        rc = plan_if_due(w);
    if (rc < 0 || w->kept == w->keep)
        return rc;
    const size_t skip = (size_t)(w->offset % DENSE_PAGE), least = skip + w->keep * w->row_bytes;
    const size_t bytes = page_bytes(w, w->keep);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return -ENOMEM;
    w->pages = pages;
    w->pages_bytes = bytes;
    kept_bytes += bytes;
    rc = efsg_dense_read(w->file, w->pages, bytes, least, w->offset - skip);
    if (rc < 0)
        forget_rows(w);
    else
        w->kept = w->keep;
    return rc;
}
