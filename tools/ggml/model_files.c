/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_files.c - the files of models: those that are mapped, those on a mount, and the GGUF files that the program has
 * open, which it is loading: llama.cpp asks where a tensor can be placed before it maps the file, and closes its files
 * when the model is loaded.
 */
#include "plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MAGIC "GGUF"
#define FILES_MAX 1024u /* of a split model; further ones are ignored */

/* Whether stat(2) reports another device for the files of a file system than /proc/PID/maps: subvolumes, layers. */
static bool has_own_devices(const char *path)
{
    struct statfs fs;
    return statfs(path, &fs) == 0 && (fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == OVERLAYFS_SUPER_MAGIC);
}

errint_t efsg_file_at(const void *address, struct efsg_file *file)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t room = 0;
    errint_t rc = -ENOENT;
    if (!maps)
        return -errno;
    while (rc == -ENOENT && getline(&line, &room, maps) > 0) {
        unsigned long begin, end, offset, inode;
        unsigned major, minor;
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %x:%x %lu %n", &begin, &end, &offset, &major, &minor, &inode, &at) < 6 ||
            (uintptr_t)address < begin || (uintptr_t)address >= end)
            continue;
        line[strcspn(line, "\n")] = '\0';
        /* The path may lead to another file by now; on another mount it often has the same inode number. */
        if (at == 0 || line[at] != '/' || strlen(line + at) >= sizeof(file->path) || stat(line + at, &file->st) < 0 ||
            file->st.st_ino != inode || (file->st.st_dev != makedev(major, minor) && !has_own_devices(line + at)))
            break;
        strcpy(file->path, line + at);
        file->base = (const uint8_t *)begin; // NOLINT: an address as text
        file->mapped = end - begin;
        file->offset = offset;
        file->bytes = (uint64_t)file->st.st_size;
        rc = 0;
    }
    free(line);
    fclose(maps);
    return rc;
}

int efsg_file_open(const struct efsg_file *file, int flags, struct stat *st)
{
    const int fd = open(file->path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0)
        return -errno;
    if (fstat(fd, st) == 0 && st->st_dev == file->st.st_dev && st->st_ino == file->st.st_ino)
        return fd;
    close(fd);
    return -ESTALE;
}

bool efsg_mount_of(char *path)
{
    struct stat st, above;
    char control[4096 + 16];
    if (stat(path, &st) < 0)
        return false;
    for (char *slash; (slash = strrchr(path, '/')) && slash > path;) {
        *slash = '\0';
        if (stat(path, &above) < 0 || above.st_dev != st.st_dev)
            return false;
        snprintf(control, sizeof(control), "%s/.expertfs", path);
        if (access(control, F_OK) == 0)
            return true;
    }
    return false;
}

bool efsg_is_gguf(int fd)
{
    char magic[sizeof(MAGIC) - 1];
    int before = errno;
    bool is = pread(fd, magic, sizeof(magic), 0) == (ssize_t)sizeof(magic) && memcmp(magic, MAGIC, sizeof(magic)) == 0;
    errno = before;
    return is;
}

bool efsg_is_mounted(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0 && efsg_mount_of(path);
}

void efsg_open_models(struct efsg_open_models *models)
{
    ino_t seen[FILES_MAX];
    size_t count = 0, i;
    DIR *folder = opendir("/proc/self/fd");
    *models = (struct efsg_open_models){0};
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        const int fd = atoi(entry->d_name);
        struct stat st;
        if (entry->d_name[0] == '.' || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !efsg_is_gguf(fd))
            continue;
        for (i = 0; i < count && seen[i] != st.st_ino; i++)
            ;
        if (i < count || count == FILES_MAX)
            continue;
        seen[count++] = st.st_ino;
        models->bytes += (uint64_t)st.st_size;
        models->mounted = models->mounted || efsg_is_mounted(fd);
    }
    if (folder)
        closedir(folder);
}
