/* SPDX-License-Identifier: Apache-2.0 */
/* reader_mmap.c - the peer that most runtimes are: raw files mapped, pages as the kernel brings them. */
#include "reader.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 512u /* of ru_inblock */

struct file {
    uint8_t *data;
    uint64_t bytes;
};

struct mmap_reader {
    struct replay_reader reader;
    const struct replay_model *model;
    struct file *files;
    uint32_t layer, count, given, request_max;
    uint32_t *experts, *tokens;
    uint64_t hits[REPLAY_STATES];
    unsigned char *pages; /* room for mincore() of the largest tensor */
    uint64_t page_bytes;
};

static const uint8_t *tensor_data(const struct mmap_reader *r, const struct replay_tensor *t)
{
    return r->files[t->raw_file].data + t->raw_at;
}

/* Is all of an expert in memory? */
static bool mmap_resident(const struct mmap_reader *r, const struct replay_expert *expert)
{
    for (uint32_t t = 0; t < expert->count; t++) {
        uintptr_t begin = (uintptr_t)tensor_data(r, &expert->tensors[t]), end = begin + expert->tensors[t].bytes;
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
    if (count > r->request_max)
        return efs_fail(err, -EINVAL, "a request of %u experts", count);
    memcpy(r->experts, experts, count * sizeof(*experts));
    memcpy(r->tokens, tokens, count * sizeof(*tokens));
    r->layer = layer;
    r->count = count;
    r->given = 0;
    uint64_t began = tools_now_ns();
    for (uint32_t i = 0; i < count; i++)
        r->hits[mmap_resident(r, replay_model_expert(r->model, layer, experts[i])) ? 0 : REPLAY_STATES - 1]++;
    reader->off_clock_ns += tools_now_ns() - began;
    return 0;
}

static errint_t mmap_next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct mmap_reader *r = (struct mmap_reader *)reader;
    (void)err;
    view->expert = replay_model_expert(r->model, r->layer, r->experts[r->given]);
    view->tokens = r->tokens[r->given++];
    for (uint32_t t = 0; t < view->expert->count; t++)
        view->data[t] = tensor_data(r, &view->expert->tensors[t]);
    return 0;
}

static void mmap_release(struct replay_reader *reader)
{
    (void)reader;
}

/* The faults' reads are this process's own: nothing else in it reads. */
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
    for (uint32_t i = 0; r->files && i < r->model->raw_count; i++)
        if (r->files[i].data)
            munmap(r->files[i].data, r->files[i].bytes);
    free(r->files);
    free(r->experts);
    free(r->tokens);
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

errint_t replay_reader_mmap(const struct replay_model *model, uint32_t request_max, struct replay_reader **reader,
                            struct efs_error *err)
{
    struct mmap_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct mmap_reader){.reader = {mmap_request, mmap_next, mmap_release, NULL, mmap_count, mmap_close, 0},
                              .model = model,
                              .request_max = request_max,
                              .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    r->files = calloc(model->raw_count, sizeof(*r->files));
    r->experts = calloc(request_max, sizeof(*r->experts));
    r->tokens = calloc(request_max, sizeof(*r->tokens));
    r->pages = malloc(model->most_bytes / r->page_bytes + 2);
    errint_t rc = r->files && r->experts && r->tokens && r->pages ? 0 : efs_fail(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; rc == 0 && i < model->raw_count; i++) {
        rc = map_file(model->raw_paths[i], &r->files[i]);
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", model->raw_paths[i], strerror(-rc));
    }
    if (rc < 0)
        mmap_close(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
