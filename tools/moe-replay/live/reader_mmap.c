/* SPDX-License-Identifier: Apache-2.0 */
/* reader_mmap.c - models most runtimes: raw files are mapped, and page faults read them through the page cache. */
#include "reader.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 512u /* unit of ru_inblock */

struct file {
    uint8_t *data;
    uint64_t bytes;
};

struct mmap_reader {
    struct replay_reader reader;
    const struct replay_raw *raw;
    struct file *files;
    uint32_t layer, count, given;
    const uint32_t *experts, *tokens; /* the caller's */
    struct efs_tensor *tensors;       /* [raw->most_tensors] */
    uint64_t hits[REPLAY_STATES];
    unsigned char *pages; /* room for mincore() of the largest tensor */
    uint64_t page_bytes;
};

static const uint8_t *tensor_data(const struct mmap_reader *r, uint32_t t)
{
    return r->files[r->raw->places[t].file].data + r->raw->places[t].at;
}

/* Whether all pages of an expert are in the page cache. */
static bool mmap_resident(const struct mmap_reader *r, uint32_t unit)
{
    for (uint32_t t = r->raw->first[unit]; t < r->raw->first[unit + 1]; t++) {
        uintptr_t begin = (uintptr_t)tensor_data(r, t), end = begin + r->raw->tensors[t].bytes;
        begin -= begin % r->page_bytes;
        if (mincore((void *)begin, end - begin, r->pages) != 0)
            return false;
        for (uint64_t i = 0; i < (end - begin + r->page_bytes - 1) / r->page_bytes; i++)
            if (!(r->pages[i] & 1))
                return false;
    }
    return true;
}

static errint_t mmap_request(struct replay_reader *reader, uint32_t layer, const uint32_t *experts,
                             const uint32_t *tokens, uint32_t count, struct efs_error *err)
{
    struct mmap_reader *r = (struct mmap_reader *)reader;
    (void)err;
    r->experts = experts;
    r->tokens = tokens;
    r->layer = layer;
    r->count = count;
    r->given = 0;
    uint64_t began = efs_now_ns();
    for (uint32_t i = 0; i < count; i++)
        r->hits[mmap_resident(r, layer * r->raw->model.experts + experts[i]) ? 0 : REPLAY_STATES - 1]++;
    reader->off_clock_ns += efs_now_ns() - began;
    return 0;
}

static errint_t mmap_next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct mmap_reader *r = (struct mmap_reader *)reader;
    (void)err;
    *view = (struct replay_view){r->experts[r->given], r->tokens[r->given], r->tensors, 0};
    uint32_t unit = r->layer * r->raw->model.experts + r->experts[r->given++];
    for (uint32_t t = r->raw->first[unit]; t < r->raw->first[unit + 1]; t++) {
        r->tensors[view->count] = r->raw->tensors[t];
        r->tensors[view->count++].data = tensor_data(r, t);
    }
    return 0;
}

/* read_bytes is ru_inblock of the process: only its page faults read from disk. */
static errint_t mmap_count(struct replay_reader *reader, struct replay_counters *counters, struct efs_error *err)
{
    struct mmap_reader *r = (struct mmap_reader *)reader;
    struct rusage usage;
    (void)err;
    *counters = (struct replay_counters){0};
    memcpy(counters->hits, r->hits, sizeof(counters->hits));
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        counters->read_bytes = (uint64_t)usage.ru_inblock * BLOCK_BYTES;
    return 0;
}

static void mmap_close(struct replay_reader *reader)
{
    struct mmap_reader *r = (struct mmap_reader *)reader;
    for (uint32_t i = 0; r->files && i < r->raw->file_count; i++)
        if (r->files[i].data)
            munmap(r->files[i].data, r->files[i].bytes);
    free(r->files);
    free(r->tensors);
    free(r->pages);
    free(r);
}

static errint_t map_file(const char *path, struct file *file)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) != 0)
        rc = -errno;
    if (rc == 0) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            rc = -errno;
        else
            *file = (struct file){map, (uint64_t)st.st_size};
    }
    close(fd);
    return rc;
}

errint_t replay_reader_mmap(const struct replay_raw *raw, struct replay_reader **reader, struct efs_error *err)
{
    struct mmap_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct mmap_reader){.reader = {mmap_request, mmap_next, NULL, NULL, mmap_count, mmap_close, 0},
                              .raw = raw,
                              .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    r->files = calloc(raw->file_count, sizeof(*r->files));
    r->tensors = calloc(raw->most_tensors, sizeof(*r->tensors));
    r->pages = malloc(raw->model.expert_bytes / r->page_bytes + 2);
    errint_t rc = r->files && r->tensors && r->pages ? 0 : efs_fail(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; rc == 0 && i < raw->file_count; i++) {
        rc = raw->paths[i] ? map_file(raw->paths[i], &r->files[i]) : 0;
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", raw->paths[i], strerror(-rc));
    }
    if (rc < 0)
        mmap_close(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
