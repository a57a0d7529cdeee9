/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readbench.c - how fast can files be read? One way of reading, one number: for tools/demo and tools/bench.
 *
 * With --pieces, each FILE is a list: one "FIRST BYTES PATH" a line is a piece of a file to read; lines that follow
 * each other without an empty line between them are one item (an expert whose tensors lie apart), taken by one thread.
 *
 * Ways: pread (1 MiB buffered or FUSE direct reads, one after the other), direct (O_DIRECT through io_uring, depth 8),
 * mmap (map, copy every page's bytes), all of them with any number of threads that take the next file. With --team the
 * threads read each file together (team.h), in these and other ways. Prints bytes, seconds and GB/s of each round's
 * median, or JSON.
 */
#include "clock.h"
#include "options.h"
#include "surroundings.h"
#include "team.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH 8

enum way { WAY_PREAD, WAY_DIRECT, WAY_MMAP };

struct piece {
    char *path;
    uint64_t first, bytes; /* bytes 0: the whole file */
};

struct item { /* what one thread reads in one go */
    struct piece *pieces;
    int count;
};

struct bench {
    enum way way;
    size_t block;
    unsigned threads, rounds;
    bool json, keep; /* keep: do not drop the page cache first */
    bool pieces;     /* the arguments are lists of pieces */
    const char *mode;
    bool teams; /* threads read each file together */
    struct team team;
    char **files;
    int file_count;
    struct item *items;
    int item_count;
    _Atomic int next;
    _Atomic uint64_t bytes;
    _Atomic int failed;
};

const char *argp_program_version = "readbench " EFS_VERSION_STRING;
static const struct argp_option options[] = {
    {"mode", 'm', "pread|direct|mmap", 0, "how to read (pread); with --team pread|read|readv|mmap|sendfile", 0},
    {"team", 'T', "shared|own", 0, "threads read each file together: the next block of one descriptor, or parts", 0},
    {"shift", 's', "BYTES", 0, "with --team: buffers begin so far behind a page's begin (0)", 0},
    {"block", 'b', "KIB", 0, "bytes of one read, in KiB (1024)", 0},
    {"threads", 't', "N", 0, "files read at once (1)", 0},
    {"rounds", 'r', "N", 0, "read all N times, tell the median (1)", 0},
    {"keep-cache", 'k', NULL, 0, "leave the files in the page cache before each round", 0},
    {"pieces", 'p', NULL, 0, "FILEs are lists of pieces to read", 0},
    {"json", 'j', NULL, 0, "print JSON", 0},
    {0},
};

/* What a mode is depends on --team, which may come later. */
static void set_mode(struct bench *b, const struct argp_state *state)
{
    static const char *const names[] = {[WAY_PREAD] = "pread", [WAY_DIRECT] = "direct", [WAY_MMAP] = "mmap"};
    const char *const *known = b->teams ? team_ways : names;
    unsigned count = b->teams ? TEAM_WAYS : WAY_MMAP + 1, i = 0;
    while (b->mode && i < count && strcmp(b->mode, known[i]) != 0)
        i++;
    if (i == count)
        argp_error(state, "unknown mode '%s'", b->mode);
    b->way = b->teams ? WAY_PREAD : (enum way)i;
    b->team.way = (enum team_way)i;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct bench *b = state->input;
    switch (key) {
    case 'm':
        b->mode = arg;
        return 0;
    case 'T':
        b->teams = true;
        b->team.own = strcmp(arg, "own") == 0;
        if (!b->team.own && strcmp(arg, "shared") != 0)
            argp_error(state, "--team is shared or own");
        return 0;
    case 's':
        b->team.shift = tools_option_number(state, "shift", arg, 0, 1u << 20);
        return 0;
    case 'b':
        b->block = strtoul(arg, NULL, 10) * 1024;
        return 0;
    case 't':
        b->threads = (unsigned)strtoul(arg, NULL, 10);
        return 0;
    case 'r':
        b->rounds = (unsigned)strtoul(arg, NULL, 10);
        return 0;
    case 'k':
        b->keep = true;
        return 0;
    case 'p':
        b->pieces = true;
        return 0;
    case 'j':
        b->json = true;
        return 0;
    case ARGP_KEY_ARGS:
        b->files = state->argv + state->next;
        b->file_count = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        set_mode(b, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Each reads bytes [at, size) of fd. */
static int read_pread(int fd, uint64_t at, uint64_t size, uint8_t *buffer, size_t block)
{
    while (at < size) {
        ssize_t n = pread(fd, buffer, size - at < block ? (size_t)(size - at) : block, (off_t)at);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += (uint64_t)n;
    }
    return 0;
}

static int read_mmap(int fd, uint64_t at, uint64_t size, uint8_t *buffer, size_t block)
{
    uint8_t *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    for (; at < size; at += block)
        memcpy(buffer, p + at, size - at < block ? (size_t)(size - at) : block);
    munmap(p, size);
    return 0;
}

/* Depth 8, a buffer each; whole 4 KiB blocks around the piece. */
static int read_direct(int fd, uint64_t at, uint64_t size, uint8_t *buffers, size_t block)
{
    struct io_uring ring;
    struct io_uring_cqe *cqe;
    int rc = io_uring_queue_init(DEPTH, &ring, 0);
    unsigned flying = 0;
    if (rc < 0)
        return rc;
    at = at / 4096 * 4096;
    for (unsigned slot = 0; rc == 0 && (slot < DEPTH || flying); slot++) {
        uint64_t which = slot;
        if (slot >= DEPTH) {
            rc = io_uring_wait_cqe(&ring, &cqe);
            if (rc < 0)
                break;
            which = io_uring_cqe_get_data64(cqe);
            rc = cqe->res < 0 ? cqe->res : 0;
            io_uring_cqe_seen(&ring, cqe);
            flying--;
        }
        if (at < size) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            uint64_t bytes = (size - at + 4095) / 4096 * 4096;
            bytes = bytes < block ? bytes : block;
            io_uring_prep_read(sqe, fd, buffers + which * block, (unsigned)bytes, at);
            io_uring_sqe_set_data64(sqe, which);
            io_uring_submit(&ring);
            at += bytes;
            flying++;
        }
    }
    io_uring_queue_exit(&ring);
    return rc;
}

static int read_piece(const struct bench *b, const struct piece *p, uint8_t *buffers, uint64_t *bytes)
{
    struct stat st;
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | (b->way == WAY_DIRECT ? O_DIRECT : 0)), rc = 0;
    if (fd < 0 || fstat(fd, &st) < 0) {
        rc = -errno;
    } else {
        uint64_t end = p->bytes ? p->first + p->bytes : (uint64_t)st.st_size;
        *bytes += end - p->first;
        if (end > (uint64_t)st.st_size)
            rc = -EINVAL;
        else if (end > p->first)
            rc = b->way == WAY_PREAD  ? read_pread(fd, p->first, end, buffers, b->block)
                 : b->way == WAY_MMAP ? read_mmap(fd, p->first, end, buffers, b->block)
                                      : read_direct(fd, p->first, end, buffers, b->block);
    }
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        fprintf(stderr, "readbench: %s: %s\n", p->path, strerror(-rc));
    return rc;
}

static void *reader_run(void *arg)
{
    struct bench *b = arg;
    void *buffers;
    if (posix_memalign(&buffers, 4096, b->block * DEPTH)) {
        b->failed = 1;
        return NULL;
    }
    memset(buffers, 1, b->block * (b->way == WAY_DIRECT ? DEPTH : 1)); /* only O_DIRECT uses more than one */
    for (int i; (i = b->next++) < b->item_count;) {
        uint64_t bytes = 0;
        for (int p = 0; p < b->items[i].count; p++)
            if (read_piece(b, &b->items[i].pieces[p], buffers, &bytes) < 0)
                b->failed = 1;
        b->bytes += bytes;
    }
    free(buffers);
    return NULL;
}

static void drop_cache(const struct bench *b)
{
    for (int i = 0; !b->keep && i < b->item_count; i++)
        for (int p = 0; p < b->items[i].count; p++) {
            int fd = open(b->items[i].pieces[p].path, O_RDONLY | O_CLOEXEC);
            if (fd >= 0) {
                posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                close(fd);
            }
        }
}

/* ---- what to read ---- */

static void add_piece(struct bench *b, bool new_item, const char *path, uint64_t first, uint64_t bytes)
{
    if (new_item || b->item_count == 0) {
        b->items = realloc(b->items, (size_t)(b->item_count + 1) * sizeof(*b->items));
        if (!b->items)
            exit(1);
        b->items[b->item_count++] = (struct item){0};
    }
    struct item *item = &b->items[b->item_count - 1];
    item->pieces = realloc(item->pieces, (size_t)(item->count + 1) * sizeof(*item->pieces));
    if (!item->pieces)
        exit(1);
    item->pieces[item->count++] = (struct piece){strdup(path), first, bytes};
}

static void add_list(struct bench *b, const char *list)
{
    char line[8192], path[4096];
    unsigned long long first, bytes;
    bool fresh = true;
    FILE *f = fopen(list, "r");
    if (!f) {
        fprintf(stderr, "readbench: %s: %s\n", list, strerror(errno));
        exit(1);
    }
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%llu %llu %4095[^\n]", &first, &bytes, path) == 3) {
            add_piece(b, fresh, path, first, bytes);
            fresh = false;
        } else {
            fresh = true;
        }
    }
    fclose(f);
}

/* Threads read each file together, one after the other. */
static double team_seconds(struct bench *b)
{
    b->team.block = b->block;
    b->team.threads = b->threads;
    drop_cache(b);
    b->bytes = 0;
    double begin = tools_now_s();
    for (int i = 0; i < b->file_count && !b->failed; i++) {
        uint64_t bytes = 0;
        int rc = team_read(&b->team, b->files[i], &bytes);
        b->bytes += bytes;
        if (rc < 0) {
            fprintf(stderr, "readbench: %s: %s\n", b->files[i], strerror(-rc));
            b->failed = 1;
        }
    }
    return tools_now_s() - begin;
}

static double round_seconds(struct bench *b)
{
    pthread_t threads[64];
    unsigned count = b->threads < 64 ? b->threads : 64;
    drop_cache(b);
    b->next = 0;
    b->bytes = 0;
    double begin = tools_now_s();
    for (unsigned i = 1; i < count; i++)
        pthread_create(&threads[i], NULL, reader_run, b);
    reader_run(b);
    for (unsigned i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
    return tools_now_s() - begin;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct bench b = {.block = 1 << 20, .threads = 1, .rounds = 1};
    const struct argp argp = {options, parse_option, "FILE...", "Read files in one way and tell how fast.",
                              NULL,    NULL,         NULL};
    tools_surroundings();
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &b);
    if (b.rounds < 1 || b.rounds > 1000 || b.threads < 1 || (b.teams && b.threads > TEAM_MOST) || b.block < 4096 ||
        b.block % 4096)
        return fprintf(stderr, "readbench: rounds, threads or block out of range\n"), 2;
    for (int i = 0; i < b.file_count; i++)
        if (b.pieces)
            add_list(&b, b.files[i]);
        else
            add_piece(&b, true, b.files[i], 0, 0);
    double *seconds = calloc(b.rounds, sizeof(*seconds));
    if (!seconds)
        return 1;
    for (unsigned i = 0; i < b.rounds && !b.failed; i++)
        seconds[i] = b.teams ? team_seconds(&b) : round_seconds(&b);
    qsort(seconds, b.rounds, sizeof(*seconds), compare_seconds);
    double median = seconds[b.rounds / 2], rate = (double)b.bytes / median / 1e9;
    free(seconds);
    if (b.failed)
        return 1;
    if (b.json)
        printf("{\"bytes\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.3f}\n", (unsigned long long)b.bytes, median, rate);
    else
        printf("%llu bytes in %.3f s: %.2f GB/s\n", (unsigned long long)b.bytes, median, rate);
    return 0;
}
