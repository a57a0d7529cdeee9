/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_power.h - part of sys_fault.c: the process ends at the nth call that changes files, and what was not synced by
 * then is lost, as when the power fails. Files that were written have their old bytes and size again, names that were
 * given are taken back. Holes that were punched stay, which is the worst that can be; removed names stay removed.
 */
#ifndef EFS_SYS_POWER_H
#define EFS_SYS_POWER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POWER_UNDO_MOST 20000

/* What takes back one call that was not synced yet, newest last. */
struct power_undo {
    dev_t dev;
    ino_t ino;  /* of the file, or of the directory that a name was made in */
    int fd;     /* a copy: files may be closed by then */
    char *name; /* a name that was made; else bytes or a size */
    uint64_t offset, bytes, size;
    unsigned char *old;
    bool done;
};

static struct {
    unsigned nth, seen;
    bool armed, lose;
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
        close(u->fd);
        free(u->name);
        free(u->old);
    }
    pthread_mutex_unlock(&power.lock);
}

static void power_fail(void)
{
    for (unsigned i = power.count; i-- > 0;) {
        const struct power_undo *u = &power.undo[i];
        if (u->done)
            continue;
        if (u->name) {
            unlinkat(u->fd, u->name, 0);
            continue;
        }
        if (u->bytes && pwrite(u->fd, u->old, u->bytes, (off_t)u->offset) != (ssize_t)u->bytes)
            abort();
        if (ftruncate(u->fd, (off_t)u->size) < 0)
            abort();
    }
    _exit(POWER_EXIT);
}

/* Before each call that changes something. */
static void power_step(void)
{
    if (!power.armed)
        return;
    pthread_mutex_lock(&power.lock);
    bool now = ++power.seen == power.nth;
    if (now)
        power_fail();
    pthread_mutex_unlock(&power.lock);
}

#endif
