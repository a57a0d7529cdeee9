/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warmup.c - expertctl warmup MNT [PATH...]: reads files of a mount into its cache. Blocks are read in random order,
 * because the cache does not keep what sequential readers have read.
 */
#include "expertctl.h"

#include "expertfs-private.h"
#include "control_file.h"
#include "interrupt.h"
#include "measure.h"
#include "mountpoint.h"
#include "options.h"
#include "progress.h"
#include "sample.h"
#include "size.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES (1u << 20)
#define THREADS 8
#define CHECK_BLOCKS 16 /* blocks between two checks of the budget */
#define REPORT_US 200000

struct arguments {
    struct tools_arguments paths; /* MNT, then paths in it */
    bool quiet, json;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"quiet", 'q', NULL, "No progress and no closing line", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "MNT [PATH...]",
    .help = "Read files of a mount, so that later readers find them in its cache. PATH is a file or a folder of the "
            "mount, absolute or below MNT; default: all files of the checkpoint. It stops when the budget is full.\v"
            "Examples:\n  expertctl warmup /mnt\n  expertctl warmup /mnt experts/L00 model.gguf",
    .at = AT(paths)};

struct block {
    uint32_t file, index; /* bytes from index * BLOCK_BYTES on */
};

struct warmup {
    const char *root;
    char **files; /* paths */
    uint32_t file_count;
    struct block *blocks;
    size_t block_count;
    uint64_t total_bytes, evictions_before;
    _Atomic size_t next;
    _Atomic uint64_t done_bytes;
    _Atomic unsigned running;
    _Atomic bool stop, full; /* full: the budget is */
    pthread_mutex_t lock;    /* guards error and err */
    errint_t error;
    struct efs_error err;
};

/* ---- what is read ------------------------------------------------------------------------------------------------ */

static errint_t add_file(struct warmup *w, const char *path, uint64_t bytes)
{
    size_t blocks = (size_t)((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
    char **files = reallocarray(w->files, w->file_count + 1, sizeof(*files));
    w->files = files ? files : w->files;
    struct block *all = blocks ? reallocarray(w->blocks, w->block_count + blocks, sizeof(*all)) : w->blocks;
    w->blocks = all ? all : w->blocks;
    char *copy = strdup(path);
    if (!files || (blocks && !all) || !copy) {
        free(copy);
        return -ENOMEM;
    }
    w->files[w->file_count] = copy;
    for (size_t i = 0; i < blocks; i++)
        w->blocks[w->block_count++] = (struct block){w->file_count, (uint32_t)i};
    w->file_count++;
    w->total_bytes += bytes;
    return 0;
}

/* Whether a folder of the mount has no files of the checkpoint: the control files, and the experts, whose bytes are in
 * the files of the checkpoint, too, unless path names them. */
static bool is_skipped(const char *root, const FTSENT *entry)
{
    size_t bytes = strlen(root);
    const char *below = strncmp(entry->fts_path, root, bytes) == 0 ? entry->fts_path + bytes : "";
    return strcmp(below, "/.expertfs") == 0 || (entry->fts_level > 0 && strcmp(below, "/experts") == 0);
}

static errint_t add_path(struct warmup *w, const char *path, struct efs_error *err)
{
    char *paths[] = {(char *)(uintptr_t)path, NULL};
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    errint_t rc = tree ? 0 : -ENOMEM;
    FTSENT *entry;
    while (rc == 0 && (entry = fts_read(tree)))
        if (entry->fts_info == FTS_D && is_skipped(w->root, entry))
            fts_set(tree, entry, FTS_SKIP);
        else if (entry->fts_info == FTS_F)
            rc = add_file(w, entry->fts_path, (uint64_t)entry->fts_statp->st_size);
        else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
            rc = -entry->fts_errno;
    if (tree)
        fts_close(tree);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

/* The absolute path of a PATH, which must be in the mount. */
static errint_t path_in_mount(const char *root, const char *given, char **path, struct efs_error *err)
{
    char joined[8192];
    size_t bytes = strlen(root);
    snprintf(joined, sizeof(joined), "%s%s%s", *given == '/' ? "" : root, *given == '/' ? "" : "/", given);
    errint_t rc = efs_absolute_path(joined, path, err);
    if (rc == 0 && (strncmp(*path, root, bytes) != 0 || ((*path)[bytes] && (*path)[bytes] != '/'))) {
        free(*path);
        rc = efs_fail(err, -ENODEV, "%s: not in %s", given, root);
    }
    return rc;
}

static errint_t find_files(struct warmup *w, const struct arguments *a, struct efs_error *err)
{
    errint_t rc = a->paths.count == 1 ? add_path(w, w->root, err) : 0;
    for (uint32_t i = 1; i < a->paths.count && rc == 0; i++) {
        char *path;
        rc = path_in_mount(w->root, a->paths.word[i], &path, err);
        if (rc == 0) {
            rc = add_path(w, path, err);
            free(path);
        }
    }
    uint64_t state = 1;
    for (size_t i = w->block_count; i > 1; i--) { /* Fisher and Yates */
        size_t j = (size_t)(tools_uniform(&state) * (double)i);
        struct block moved = w->blocks[i - 1];
        w->blocks[i - 1] = w->blocks[j];
        w->blocks[j] = moved;
    }
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void report_error(struct warmup *w, const char *path, int error)
{
    pthread_mutex_lock(&w->lock);
    if (w->error == 0)
        w->error = efs_fail(&w->err, -error, "%s: %s\nhint: `expertctl log %s` has the reason", path, strerror(error),
                            w->root);
    pthread_mutex_unlock(&w->lock);
    w->stop = true;
}

static void read_block(struct warmup *w, struct block block, char *buffer)
{
    const char *path = w->files[block.file];
    off_t at = (off_t)block.index * BLOCK_BYTES, end = at + BLOCK_BYTES;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && at < end) {
        n = pread(fd, buffer, (size_t)(end - at), at);
        at += n > 0 ? n : 0;
        w->done_bytes += n > 0 ? (uint64_t)n : 0;
    }
    if (n < 0)
        report_error(w, path, errno);
    if (fd >= 0)
        close(fd);
}

/* Bytes read from the store, and the number of evictions for lack of memory, since the mount. */
static void mount_counts(const char *root, uint64_t *disk_bytes, uint64_t *evictions)
{
    struct efs_error ignored;
    char *stat;
    *disk_bytes = *evictions = 0;
    if (tools_control_read(root, "stat", &stat, &ignored) == 0) {
        *disk_bytes = tools_line_number(stat, "disk_bytes");
        uint64_t chunks = tools_line_number(stat, "evictions_c"), first = tools_line_number(stat, "evictions_first");
        *evictions = (first < chunks ? chunks - first : 0) + tools_line_number(stat, "evictions_f");
    }
    free(stat);
}

/* The number of experts, and of those that are in memory, full or coded. */
static void expert_counts(const char *root, size_t *all, size_t *held)
{
    struct efs_error ignored;
    struct ctl_table table = {.text = NULL};
    *all = *held = 0;
    if (ctl_table_read(root, "experts", &table, &ignored) == 0)
        for (*all = table.rows; table.rows; table.rows--)
            *held += strchr("FC", *ctl_table_cell(&table, table.rows, "state")) != NULL;
    ctl_table_free(&table);
}

/* What is read now takes the place of what was read before. */
static bool budget_is_full(const struct warmup *w)
{
    uint64_t disk_bytes, evictions;
    mount_counts(w->root, &disk_bytes, &evictions);
    return evictions > w->evictions_before;
}

static void *read_blocks(void *arg)
{
    struct warmup *w = arg;
    char *buffer = malloc(BLOCK_BYTES);
    for (size_t i; buffer && !w->stop && (i = atomic_fetch_add(&w->next, 1)) < w->block_count;) {
        if (i % CHECK_BLOCKS == CHECK_BLOCKS - 1 && budget_is_full(w)) {
            w->full = true;
            break;
        }
        if (w->full)
            break;
        read_block(w, w->blocks[i], buffer);
    }
    if (!buffer)
        report_error(w, w->root, ENOMEM);
    free(buffer);
    w->running--;
    return NULL;
}

/* Reads all blocks, with progress. -ECANCELED: interrupted. */
static errint_t warm(struct warmup *w, struct tools_progress *progress)
{
    pthread_t threads[THREADS];
    unsigned started = 0;
    bool cancelled = false;
    w->running = THREADS;
    while (started < THREADS && efs_thread_start(read_blocks, w, "efs-warm", &threads[started]) == 0)
        started++;
    w->running -= THREADS - started;
    while (w->running) {
        if (tools_progress_report(progress, w->done_bytes, w->total_bytes, "warming"))
            cancelled = w->stop = true;
        usleep(REPORT_US);
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (!started)
        report_error(w, w->root, EAGAIN);
    return w->error ? w->error : cancelled ? -ECANCELED : 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int print_result(const struct arguments *a, const struct warmup *w, uint64_t disk)
{
    char read[16], all[16], files[32], store[16];
    size_t experts, held;
    expert_counts(w->root, &experts, &held);
    if (a->json)
        return ctl_print_json(json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "mountpoint",
                                        ctl_json_text(w->root), "files", (json_int_t)w->file_count, "bytes",
                                        (json_int_t)w->total_bytes, "read_bytes", (json_int_t)w->done_bytes,
                                        "disk_bytes", (json_int_t)disk, "experts", (json_int_t)experts,
                                        "experts_in_memory", (json_int_t)held, "budget_full", (int)w->full));
    if (a->quiet)
        return CTL_OK;
    if (w->full)
        printf("%s: stopped, the budget is full", w->root);
    else
        printf("%s: %s of %s in %s", w->root, tools_size_print(w->done_bytes, read, sizeof(read)),
               tools_size_print(w->total_bytes, all, sizeof(all)),
               tools_count_print(w->file_count, "file", files, sizeof(files)));
    if (experts)
        printf(", the daemon holds %zu of %zu experts", held, experts);
    printf(", %s read from the store\n", tools_size_print(disk, store, sizeof(store)));
    return CTL_OK;
}

static int warmup_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct warmup w = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct tools_progress progress;
    uint64_t before, after, evictions;
    char *root;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_mount_of(a.paths.word[0], &root, &w.err);
    if (rc < 0)
        return ctl_fail(rc, &w.err);
    w.root = root;
    rc = find_files(&w, &a, &w.err);
    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    mount_counts(root, &before, &w.evictions_before);
    if (rc == 0)
        rc = warm(&w, &progress);
    tools_progress_clear(&progress);
    mount_counts(root, &after, &evictions);
    int status = rc < 0 ? ctl_fail(rc, &w.err) : print_result(&a, &w, after > before ? after - before : 0);
    for (uint32_t i = 0; i < w.file_count; i++)
        free(w.files[i]);
    free(w.files);
    free(w.blocks);
    free(root);
    return status;
}

const struct ctl_command ctl_warmup = {"warmup", "read a model into the cache of its mount", warmup_run};
