/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readahead.c - the mount's read-ahead. A FUSE mount starts with the system's 128 KiB, and INIT can only lower it;
 * read_ahead_kb below /sys/class/bdi raises it. It applies to mappings and cached reads; for uncached reads the engine
 * does read-ahead.
 *
 * The size: the kernel reads around each fault in a mapping, half of it before the fault.
 *
 * If the page cache holds the whole checkpoint, bytes that were not needed yet are needed later, and sequential readers
 * are faster with larger requests: cold files were mapped at 1.9 GB/s and sent at 2.2 with 512 KiB, at 1.0 and 0.8 with
 * 256; 1 MiB was no faster and less even. If it does not, bytes that are not needed evict those that are: with
 * llama.cpp in a quarter of the memory that its file takes, 256 KiB read 1.22 times the bytes of 128 KiB, 2.3 times the
 * bytes that were not needed. 64 KiB saved another 6 % of the bytes, with 1.7 times the requests.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon.h"
#include "session.h"

#define KIB_FITS 512u
#define KIB_LARGER 128u

static errint_t readahead_read_kib(const char *path, uint64_t *kib)
{
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    errint_t rc = n < 0 ? -errno : 0;
    close(fd);
    if (!rc) {
        text[n] = '\0';
        *kib = strtoull(text, NULL, 10);
    }
    return rc;
}

static errint_t readahead_write_kib(const char *path, uint64_t kib)
{
    char text[32];
    int bytes = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)kib);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    errint_t rc = write(fd, text, (size_t)bytes) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

static uint64_t readahead_wanted_kib(const struct efsd *daemon)
{
    return daemon->info.source_bytes <= efsd_memory_bytes() ? KIB_FITS : KIB_LARGER;
}

void efsd_raise_readahead(struct efsd *daemon)
{
    char path[64];
    uint64_t kib = 0, want_kib = readahead_wanted_kib(daemon);
    errint_t rc = daemon->device ? 0 : -ENODEV;
    if (!rc) {
        snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(daemon->device),
                 minor(daemon->device));
        rc = readahead_read_kib(path, &kib);
    }
    if (!rc && kib != want_kib) {
        rc = readahead_write_kib(path, want_kib);
        if (!rc)
            rc = readahead_read_kib(path, &kib);
    }
    daemon->readahead_bytes = kib * 1024;
    if (rc) {
        snprintf(daemon->readahead_note, sizeof(daemon->readahead_note), "cannot set it: %s%s", strerror(-rc),
                 rc == -EACCES ? " (root may)" : "");
    }
}
