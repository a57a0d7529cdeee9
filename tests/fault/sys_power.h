/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_power.h - part of sys_fault.c: simulates a power failure. The process exits at the nth call that changes files,
 * and its unsynced changes are undone: all, or, with a seed, any subset of them, including parts of writes, because a
 * disk may have done some unsynced writes in any order. Written files get back their old bytes and size, new names are
 * removed, and replaced names get back their file. Punched holes stay, which is the worst case; removed names stay
 * removed.
 */
#ifndef EFS_SYS_POWER_H
#define EFS_SYS_POWER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POWER_UNDO_MOST 20000

/* How to undo one unsynced call; the newest is last. */
struct power_undo {
    dev_t dev;
    ino_t ino;   /* of the file, or of the directory of the new name */
    int fd;      /* a duplicate, because the file may be closed by then */
    char *name;  /* a new name; NULL: a write or a change of the size */
    char *saved; /* second name of the file that was replaced, until the rename is synced; or NULL */
    uint64_t offset, length, bytes, size; /* length: of the written range; bytes: of `old`; size: of the file before */
    unsigned char *old;
    bool done, cut; /* cut: a change of the size */
};

static struct {
    unsigned nth, seen;
    bool armed, lose;
    int number;    /* signal to send; 0: exit */
    uint64_t seed; /* 0: all changes are undone */
    struct power_undo undo[POWER_UNDO_MOST];
    unsigned count;
    pthread_mutex_t lock;
} power = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void power_remember(int fd, const char *name, uint64_t offset, uint64_t bytes)
{
    struct stat st;
    if (!power.armed || !power.lose || fstat(fd, &st) < 0)
        return;
    pthread_mutex_lock(&power.lock);
    if (power.count == POWER_UNDO_MOST)
        abort();
    struct power_undo *u = &power.undo[power.count++];
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    *u = (struct power_undo){.dev = st.st_dev, .ino = st.st_ino, .offset = offset, .size = (uint64_t)st.st_size};
    u->fd = name ? dup(fd) : open(self, O_RDWR | O_CLOEXEC);
    u->name = name ? strdup(name) : NULL;
    u->length = bytes;
    u->cut = !name && bytes == UINT64_MAX;
    if (!name && offset < u->size) {
        u->bytes = u->size - offset < bytes ? u->size - offset : bytes;
        u->old = malloc(u->bytes);
        if (!u->old || pread(u->fd, u->old, u->bytes, (off_t)offset) != (ssize_t)u->bytes)
            abort();
    }
    pthread_mutex_unlock(&power.lock);
}

static void power_synced(int fd)
{
    struct stat st;
    if (!power.armed || !power.lose || fstat(fd, &st) < 0)
        return;
    pthread_mutex_lock(&power.lock);
    for (unsigned i = 0; i < power.count; i++) {
        struct power_undo *u = &power.undo[i];
        if (u->done || u->dev != st.st_dev || u->ino != st.st_ino)
            continue;
        u->done = true;
        if (u->saved)
            unlinkat(u->fd, u->saved, 0);
        free(u->saved);
        u->saved = NULL;
        close(u->fd);
        free(u->name);
        free(u->old);
    }
    pthread_mutex_unlock(&power.lock);
}

/* Called before a name is replaced: gives its file a second name. Returns that name, for power_remember_rename(). */
static char *power_save(int dir, const char *name)
{
    char saved[300];
    if (!power.armed || !power.lose)
        return NULL;
    snprintf(saved, sizeof(saved), ".power-%u-%s", power.count, name);
    return linkat(dir, name, dir, saved, 0) == 0 ? strdup(saved) : NULL;
}

static void power_remember_rename(int dir, const char *name, char *saved)
{
    if (power.armed && power.lose) {
        power_remember(dir, name, 0, 0);
        power.undo[power.count - 1].saved = saved;
    }
}

static uint64_t power_random(void)
{
    power.seed ^= power.seed << 13;
    power.seed ^= power.seed >> 7;
    power.seed ^= power.seed << 17;
    return power.seed;
}

/* The bytes of a write that reached the disk although it was not synced. */
struct power_kept {
    unsigned char *data;
    uint64_t bytes, size;
};

/* Undoes the change; kept: first saves the part that is to be written again. */
static void power_undo(const struct power_undo *u, struct power_kept *kept)
{
    struct stat st;
    if (kept) {
        if (fstat(u->fd, &st) < 0)
            abort();
        kept->size = (uint64_t)st.st_size;
        kept->bytes = u->cut || u->offset >= kept->size ? 0 : kept->size - u->offset;
        kept->bytes = kept->bytes < u->length ? kept->bytes : u->length;
        if (power_random() % 4 == 0)
            kept->bytes = power_random() % (kept->bytes / 512 + 1) * 512;
        kept->data = malloc(kept->bytes + 1);
        if (!kept->data || pread(u->fd, kept->data, kept->bytes, (off_t)u->offset) != (ssize_t)kept->bytes)
            abort();
    }
    if (u->bytes && pwrite(u->fd, u->old, u->bytes, (off_t)u->offset) != (ssize_t)u->bytes)
        abort();
    if (ftruncate(u->fd, (off_t)u->size) < 0)
        abort();
}

static void power_fail(void)
{
    static struct power_kept kept[POWER_UNDO_MOST];
    static bool some[POWER_UNDO_MOST];
    for (unsigned i = power.count; i-- > 0;) {
        const struct power_undo *u = &power.undo[i];
        if (u->done)
            continue;
        some[i] = power.seed && power_random() % 2;
        if (!u->name)
            power_undo(u, some[i] ? &kept[i] : NULL);
        else if (!some[i] && u->saved)
            renameat(u->fd, u->saved, u->fd, u->name);
        else if (!some[i])
            unlinkat(u->fd, u->name, 0);
    }
    for (unsigned i = 0; i < power.count; i++) {
        const struct power_undo *u = &power.undo[i];
        if (u->saved)
            unlinkat(u->fd, u->saved, 0);
        if (u->done || u->name || !some[i])
            continue;
        if (kept[i].bytes && pwrite(u->fd, kept[i].data, kept[i].bytes, (off_t)u->offset) != (ssize_t)kept[i].bytes)
            abort();
        if (u->cut && ftruncate(u->fd, (off_t)kept[i].size) < 0)
            abort();
    }
    _exit(POWER_EXIT);
}

/* Called before each call that changes a file. */
static void power_step(void)
{
    if (!power.armed)
        return;
    pthread_mutex_lock(&power.lock);
    bool now = ++power.seen == power.nth;
    if (now && power.number)
        kill(getpid(), power.number);
    else if (now)
        power_fail();
    pthread_mutex_unlock(&power.lock);
}

#endif
