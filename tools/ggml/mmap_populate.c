/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mmap_populate.c - keeps llama.cpp from reading the experts of a mapped model file. llama.cpp maps the file with
 * MAP_POPULATE and MADV_WILLNEED, so the kernel would read the whole file, mostly experts, which are read again from
 * the store. With this library in LD_PRELOAD, mmap() of a model file drops MAP_POPULATE; after the experts are known,
 * the rest of the file is read ahead.
 */
#include "plugin.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WILLNEED_BYTES ((uintptr_t)128 << 10)

#define EFSG_API __attribute__((visibility("default")))

/* The symbols have the names of libc; the C names differ because libc's headers may redefine them, mmap as mmap64. */
EFSG_API void *efsg_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __asm__("mmap");
EFSG_API void *efsg_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __asm__("mmap64");
EFSG_API int efsg_munmap(void *at, size_t bytes) __asm__("munmap");
EFSG_API int efsg_posix_madvise(void *at, size_t bytes, int advice) __asm__("posix_madvise");

struct range {
    uintptr_t begin, end;
};

/* A mapping made without MAP_POPULATE. Freed when the program unmaps it or when the rest of it has been read ahead. */
struct mapping {
    struct mapping *next;
    pthread_t loader;           /* the thread that called mmap(): one thread loads a model */
    struct range all, *experts; /* [count] */
    size_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct mapping *mappings;
static _Atomic uint32_t mapping_count; /* written under lock; read without it to skip the list when it is empty */
static _Atomic bool begun;

void efsg_populate_defer(void)
{
    atomic_store(&begun, true);
}

/* Caller holds lock. */
static struct mapping *mapping_at(uintptr_t address)
{
    struct mapping *m = mappings;
    while (m && (address < m->all.begin || address >= m->all.end))
        m = m->next;
    return m;
}

static void mapping_free(struct mapping *m)
{
    free(m->experts);
    free(m);
}

/* Removes the range from all mappings. A hole in the middle of a mapping is not recorded: the mapping is later read
 * ahead as a whole, which is harmless because MADV_WILLNEED skips unmapped pages. */
static void mappings_forget(uintptr_t begin, uintptr_t end)
{
    if (atomic_load(&mapping_count) == 0)
        return;
    pthread_mutex_lock(&lock);
    for (struct mapping **at = &mappings, *m; (m = *at);) {
        if (begin <= m->all.begin && end > m->all.begin)
            m->all.begin = end;
        if (begin < m->all.end && end >= m->all.end)
            m->all.end = begin;
        if (m->all.begin < m->all.end) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        atomic_fetch_sub(&mapping_count, 1);
        mapping_free(m);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- replacements of libc's functions ---- */

/* Whether fd is a GGUF file whose experts may come from a source. */
static bool is_model(int fd)
{
    struct stat st;
    if (!efsg_is_gguf(fd))
        return false;
    return (efsg_source_name() || efsg_is_mounted(fd)) && fstat(fd, &st) == 0 &&
           !efsg_source_fits_memory((uint64_t)st.st_size);
}

void *efsg_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    struct mapping *m = NULL;
    if ((flags & MAP_POPULATE) && (flags & MAP_TYPE) == MAP_SHARED && protection == PROT_READ && fd >= 0 &&
        offset == 0 && atomic_load(&begun) && is_model(fd))
        m = calloc(1, sizeof(*m));
    if (flags & MAP_FIXED)
        mappings_forget((uintptr_t)at, (uintptr_t)at + bytes);
    // NOLINTNEXTLINE: syscall() returns an integer
    void *memory = (void *)syscall(SYS_mmap, at, bytes, protection, m ? flags & ~MAP_POPULATE : flags, fd, offset);
    if (memory == MAP_FAILED || !m) {
        free(m);
        return memory;
    }
    m->all = (struct range){(uintptr_t)memory, (uintptr_t)memory + bytes};
    m->loader = pthread_self();
    pthread_mutex_lock(&lock);
    m->next = mappings;
    mappings = m;
    atomic_fetch_add(&mapping_count, 1);
    pthread_mutex_unlock(&lock);
    return memory;
}

void *efsg_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return efsg_mmap(at, bytes, protection, flags, fd, offset);
}

int efsg_munmap(void *at, size_t bytes)
{
    mappings_forget((uintptr_t)at, (uintptr_t)at + bytes); /* before munmap(): then another thread can map the range */
    return (int)syscall(SYS_munmap, at, bytes);
}

int efsg_posix_madvise(void *at, size_t bytes, int advice)
{
    int before = errno, error = 0;
    if (advice == POSIX_MADV_DONTNEED) /* POSIX allows a no-op; madvise() would discard written pages */
        return 0;
    if (advice == POSIX_MADV_WILLNEED && atomic_load(&mapping_count) > 0) {
        pthread_mutex_lock(&lock);
        bool ours = mapping_at((uintptr_t)at) != NULL;
        pthread_mutex_unlock(&lock);
        if (ours)
            return 0;
    }
    if (madvise(at, bytes, advice) < 0)
        error = errno;
    errno = before;
    return error;
}

/* ---- read-ahead of the rest ---- */

void efsg_populate_exclude(const void *begin, size_t bytes)
{
    pthread_mutex_lock(&lock);
    struct mapping *m = mapping_at((uintptr_t)begin);
    struct range *more = m ? realloc(m->experts, (m->count + 1) * sizeof(*more)) : NULL;
    if (more) { /* on failure the expert is read ahead like the rest */
        m->experts = more;
        more[m->count++] = (struct range){(uintptr_t)begin, (uintptr_t)begin + bytes};
    }
    pthread_mutex_unlock(&lock);
}

static int range_order(const void *pa, const void *pb)
{
    const struct range *a = pa, *b = pb;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Only advice, so it is harmless if the program has unmapped the range meanwhile. In pieces: a call reads at most the
 * larger of the read-ahead of the disk and its largest request. */
static void read_ahead(uintptr_t begin, uintptr_t end)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uintptr_t at = begin / page * page, bytes; at < end; at += bytes) {
        bytes = end - at < WILLNEED_BYTES ? end - at : WILLNEED_BYTES;
        (void)madvise((void *)at, bytes, MADV_WILLNEED); // NOLINT: an address rounded to pages
    }
}

static void mapping_read_rest(struct mapping *m)
{
    uintptr_t at = m->all.begin;
    qsort(m->experts, m->count, sizeof(*m->experts), range_order);
    for (size_t i = 0; i < m->count; i++) {
        read_ahead(at, m->experts[i].begin);
        at = m->experts[i].end > at ? m->experts[i].end : at;
    }
    read_ahead(at, m->all.end);
}

void efsg_populate_remaining(const void *used)
{
    struct mapping *done = NULL;
    if (atomic_load(&mapping_count) == 0)
        return;
    pthread_mutex_lock(&lock);
    for (struct mapping **at = &mappings, *m; (m = *at);) {
        if (used ? mapping_at((uintptr_t)used) != m : !pthread_equal(m->loader, pthread_self())) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        atomic_fetch_sub(&mapping_count, 1);
        m->next = done;
        done = m;
    }
    pthread_mutex_unlock(&lock);
    for (struct mapping *next; done; done = next) {
        next = done->next;
        mapping_read_rest(done);
        mapping_free(done);
    }
}
