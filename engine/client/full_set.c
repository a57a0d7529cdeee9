/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full_set.c - see mount.h. Which experts the mount keeps full: others are closed when nobody uses them, since what is
 * open takes memory from what the mount wants to keep.
 *
 * .expertfs/experts tells; it is read again now and then, so that reading takes a hundredth of the time at most. Names
 * are known by a hash: two that share one are kept, or not, together.
 */
#include "mount.h"

#include "clock.h"
#include "sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS 100000000u
#define LOOK_TIMES 100u
#define READ_BYTES (64u << 10)
#define TEXT_MOST (64u << 20)
#define COLUMN_NAME 0u
#define COLUMN_RAW 5u
#define COLUMN_KEPT 9u

static char *read_all(int root, const char *path)
{
    size_t used = 0, room = READ_BYTES;
    char *text = efs_sys_malloc(room);
    int fd = text ? efs_sys_openat(root, path, O_RDONLY | O_NONBLOCK, 0) : -1;
    ssize_t n = fd < 0 ? -1 : 0;
    while (n >= 0 && (n = efs_sys_pread(fd, text + used, room - used - 1, (uint64_t)used)) > 0) {
        used += (size_t)n;
        if (room - used > READ_BYTES / 2)
            continue;
        char *more = room < TEXT_MOST ? efs_sys_malloc(2 * room) : NULL;
        if (!more) {
            n = -1;
            break;
        }
        memcpy(more, text, used);
        free(text);
        text = more;
        room *= 2;
    }
    if (fd >= 0)
        efs_sys_close(fd);
    if (n < 0) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    return text;
}

/* "L03/E017 ... F ...": is it kept full? Its name, ended, and its bytes. */
static bool is_full(char *line, const char **name, uint64_t *bytes)
{
    char *rest = line, *word;
    bool full = false;
    for (unsigned column = 0; (word = strtok_r(rest, " ", &rest)) && column <= COLUMN_KEPT; column++) {
        if (column == COLUMN_NAME)
            *name = word;
        else if (column == COLUMN_RAW)
            *bytes = strtoull(word, NULL, 10);
        full = column == COLUMN_KEPT && strcmp(word, "F") == 0;
    }
    return full;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The hashes of those that are kept full, sorted; all_bytes: theirs together. */
static uint32_t *look(int root, uint32_t *count, uint64_t *all_bytes)
{
    char *text = read_all(root, ".expertfs/experts"), path[EFS_MAPPING_PATH];
    uint32_t lines = 1, *hashes;
    for (const char *p = text; p && (p = strchr(p, '\n')); p++)
        lines++;
    *count = 0;
    *all_bytes = 0;
    hashes = text ? efs_sys_calloc(lines, sizeof(*hashes)) : NULL;
    char *rest = hashes ? text : NULL, *line;
    while (rest && (line = strsep(&rest, "\n"))) {
        const char *name = "";
        uint64_t bytes = 0;
        if (!is_full(line, &name, &bytes) || strlen(name) + sizeof("experts/.safetensors") > sizeof(path))
            continue;
        snprintf(path, sizeof(path), "experts/%s.safetensors", name);
        hashes[(*count)++] = efs_path_hash(path);
        *all_bytes += bytes;
    }
    if (hashes)
        qsort(hashes, *count, sizeof(*hashes), by_value);
    free(text);
    return hashes;
}

bool efs_full_set(const struct efs_mount *m, uint32_t hash)
{
    return !m->keep_auto || (m->full && bsearch(&hash, m->full, m->full_count, sizeof(hash), by_value));
}

bool efs_full_set_look(struct efs_mount *m)
{
    uint64_t begin = efs_now_ns(), bytes;
    uint32_t count, *full, *before = m->full;
    if (!m->keep_auto || begin < m->look_ns || !m->rested)
        return false;
    m->rested = false;
    pthread_mutex_unlock(&m->lock);
    full = look(m->root, &count, &bytes);
    pthread_mutex_lock(&m->lock);
    uint64_t end = efs_now_ns(), pause = (end - begin) * LOOK_TIMES;
    m->look_ns = end + (pause > LOOK_NS ? pause : LOOK_NS);
    m->full = full;
    m->full_count = count;
    m->keep_bytes = bytes - bytes / EFS_KEEP_PARTS;
    free(before);
    efs_files_let_others_go(m);
    efs_files_trim(m, m->keep_bytes);
    return true;
}
