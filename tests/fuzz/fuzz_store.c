/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_store.c - a good store with some bytes changed, with or without recomputed checksums: refused, or served without
 * harm. With the old checksums, a store that is served whole must have the good store's bytes.
 *
 * Input: the codec; recompute the checksums (0 modulo 4: no); then 13 bytes for each change: table or other target,
 * record (2), byte of the record, log2 of the number of bytes (modulo 4), value (8). The stores are packed when the
 * first input arrives.
 */
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "fuzz.h"
#include "small_source.h"
#include "store_rehash.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CODECS 3u
#define CHANGE_BYTES 13u
#define FILE_ROOM (1u << 20)

static struct {
    uint8_t *image;
    size_t bytes;
} stores[CODECS];
static char store_folder[] = "/tmp/expertfs-fuzz-XXXXXX", changed[64];
static uint8_t *changed_store, *buffer;
static uint64_t good; /* checksum of the files of a good store; the same for all codecs */

/* ---- reading ---- */

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t came;
    bool done;
    errint_t error;
    size_t bytes;
};

static void on_read(void *arg, errint_t error, size_t bytes)
{
    struct waiting *w = arg;
    pthread_mutex_lock(&w->lock);
    w->done = true, w->error = error, w->bytes = bytes;
    pthread_cond_signal(&w->came);
    pthread_mutex_unlock(&w->lock);
}

static ssize_t read_file(struct efs *fs, uint32_t file, uint64_t offset, size_t room)
{
    struct waiting w = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};
    efs_read(fs, file, NULL, offset, buffer, room, on_read, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.came, &w.lock);
    pthread_mutex_unlock(&w.lock);
    CHECK(w.error <= 0 && w.bytes <= room);
    return w.error < 0 ? w.error : (ssize_t)w.bytes;
}

/* The checksum of all files; 0 if the open or any read fails. */
static uint64_t show(const char *path)
{
    const struct efs_options options = {
        .budget_bytes = 64 << 20, .workers = 1, .no_state = true, .store_direct = EFS_STORE_DIRECT_OFF};
    struct efs *fs;
    struct efs_error err = {""};
    errint_t rc = efs_open(path, &options, &fs, &err);
    if (rc < 0) {
        CHECK(err.text[0]);
        return 0;
    }
    uint64_t all = 1;
    for (uint32_t f = 0; f < efs_file_count(fs); f++) {
        struct efs_file_info info;
        CHECK(efs_file_info(fs, f, &info) == 0);
        CHECK(memchr(info.path, '\0', sizeof(info.path)) && info.path[0] != '/' && !strstr(info.path, "../"));
        ssize_t n = read_file(fs, f, 0, FILE_ROOM);
        uint64_t parts[] = {all, efs_hash(info.path, strlen(info.path)), info.bytes,
                            n > 0 ? efs_hash(buffer, (size_t)n) : 0};
        all = n < 0 || all == 0 ? 0 : efs_hash(parts, sizeof(parts));
        read_file(fs, f, info.bytes / 2, 100);
        CHECK(n < 0 || info.bytes > FILE_ROOM || (uint64_t)n == info.bytes);
    }
    efs_close(fs);
    return all;
}

/* The verification of any store must return an error with a message, or 0. */
static void verify(const char *path)
{
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    if (efs_store_open(path, &store, &err) < 0)
        return;
    errint_t rc = efs_store_verify(store, true, 1, NULL, NULL, NULL, &damaged, &err);
    CHECK(rc == 0 || err.text[0]);
    efs_store_close(store);
}

/* ---- good stores ---- */

static void make_stores(void)
{
    static const enum efs_codec_choice choices[CODECS] = {EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4};
    char source[64];
    fuzz_folder(store_folder);
    make_source(store_folder, source, sizeof(source));
    snprintf(changed, sizeof(changed), "%s/changed.efs", store_folder);
    buffer = malloc(FILE_ROOM);
    CHECK(buffer);
    for (unsigned c = 0; c < CODECS; c++) {
        const struct efs_pack_options options = {
            .codec = choices[c], .threads = 1, .shard_elements = 8192, .force = true};
        struct efs_pack_report report;
        struct efs_error err = {""};
        struct stat st;
        CHECK(efs_pack(source, changed, &options, &report, &err) == 0);
        int fd = open(changed, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && fstat(fd, &st) == 0);
        stores[c].bytes = (size_t)st.st_size;
        stores[c].image = malloc(stores[c].bytes);
        CHECK(stores[c].image && read(fd, stores[c].image, stores[c].bytes) == st.st_size);
        close(fd);
        uint64_t shows = show(changed);
        CHECK(shows != 0 && (c == 0 || shows == good));
        good = shows;
        changed_store = realloc(changed_store, stores[0].bytes > stores[c].bytes ? stores[0].bytes : stores[c].bytes);
        CHECK(changed_store);
    }
}

/* ---- changes ---- */

static void change(const uint8_t *how, const struct efs_disk_superblock *sb, size_t bytes)
{
    uint64_t first = 0, room = sizeof(*sb), record = (uint64_t)how[1] | (uint64_t)how[2] << 8;
    if (how[0] < EFS_TABLE_COUNT) { /* a record of a table */
        const struct efs_disk_table *t = &sb->tables[how[0]];
        uint64_t size = t->record_bytes ? t->record_bytes : 1;
        if (t->count == 0)
            return;
        first = t->offset + record % t->count * size;
        room = size;
    } else if (how[0] < 2 * EFS_TABLE_COUNT) { /* an entry of the superblock's list of tables */
        first =
            offsetof(struct efs_disk_superblock, tables) + (how[0] - EFS_TABLE_COUNT) * sizeof(struct efs_disk_table);
        room = sizeof(struct efs_disk_table);
    } else if (how[0] % 2) { /* a byte of a chunk */
        const struct efs_disk_table *t = &sb->tables[EFS_TABLE_SHARDS];
        struct efs_disk_shard s;
        memcpy(&s, changed_store + t->offset + record % t->count * sizeof(s), sizeof(s));
        first = how[0] % 4 == 1 || !s.e_bytes ? s.sm_offset : s.e_offset;
        room = how[0] % 4 == 1 || !s.e_bytes ? s.sm_bytes : s.e_bytes;
    }
    uint64_t width = 1ull << how[4] % 4;
    if (room < width || first > bytes || room > bytes - first)
        return;
    memcpy(changed_store + first + how[3] % (room - width + 1), how + 5, width);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (!buffer)
        make_stores();
    unsigned c = data[0] % CODECS;
    struct efs_disk_superblock sb;
    memcpy(changed_store, stores[c].image, stores[c].bytes);
    memcpy(&sb, changed_store, sizeof(sb));
    for (size_t at = 2; at + CHANGE_BYTES <= size; at += CHANGE_BYTES)
        change(data + at, &sb, stores[c].bytes);
    if (data[1] % 4) {
        store_rehash_chunks(changed_store, stores[c].bytes);
        store_rehash(changed_store, stores[c].bytes);
    }
    write_file(changed, changed_store, stores[c].bytes);
    uint64_t shows = show(changed);
    CHECK(data[1] % 4 || shows == 0 || shows == good);
    verify(changed);
    return 0;
}
