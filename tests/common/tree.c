/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - see tree.h. */
#include "tree.h"
#include "fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PATH_BYTES 1400

static struct stat status_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        fail_msg("%s: %s", path, strerror(errno));
    return st;
}

/* The next entry of a directory that is not "." or ".."; NULL: the end, closes it. */
static const char *next_name(DIR *directory)
{
    for (const struct dirent *e; (e = readdir(directory));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            return e->d_name;
    closedir(directory);
    return NULL;
}

static const char *below(char path[PATH_BYTES], const char *directory, const char *name)
{
    assert_true(snprintf(path, PATH_BYTES, "%s/%s", directory, name) < PATH_BYTES);
    return path;
}

void tree_copy(const char *from, const char *to)
{
    const struct stat st = status_of(from);
    char a[PATH_BYTES], b[PATH_BYTES];
    if (S_ISDIR(st.st_mode)) {
        DIR *directory = opendir(from);
        assert_non_null(directory);
        assert_int_equal(mkdir(to, 0700), 0);
        for (const char *name; (name = next_name(directory));)
            tree_copy(below(a, from, name), below(b, to, name));
    } else {
        size_t bytes;
        unsigned char *data = fixture_read(from, &bytes);
        int fd = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_int_equal(write(fd, data, bytes), bytes);
        assert_int_equal(close(fd), 0);
        free(data);
    }
    const struct timespec times[] = {st.st_atim, st.st_mtim};
    assert_int_equal(chmod(to, st.st_mode & 07777), 0);
    assert_int_equal(utimensat(AT_FDCWD, to, times, 0), 0);
}

static bool same_file(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *one = fixture_read(a, &a_bytes), *other = fixture_read(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(one, other, a_bytes) == 0;
    free(one);
    free(other);
    return same;
}

static bool same(const char *a, const char *b, bool bytes_alone)
{
    struct stat other;
    const struct stat st = status_of(a);
    char in_a[PATH_BYTES], in_b[PATH_BYTES];
    bool good = stat(b, &other) == 0 && S_ISDIR(st.st_mode) == S_ISDIR(other.st_mode) &&
                (bytes_alone || st.st_mode == other.st_mode);
    if (good && !S_ISDIR(st.st_mode))
        good = same_file(a, b) && (bytes_alone || memcmp(&st.st_mtim, &other.st_mtim, sizeof(st.st_mtim)) == 0);
    if (!good)
        print_error("%s and %s differ\n", a, b);
    if (!good || !S_ISDIR(st.st_mode))
        return good;
    DIR *directory = opendir(a);
    assert_non_null(directory);
    for (const char *name; (name = next_name(directory));)
        good &= same(below(in_a, a, name), below(in_b, b, name), bytes_alone);
    return good && fixture_entry_count(a) == fixture_entry_count(b);
}

bool tree_same(const char *a, const char *b)
{
    return same(a, b, false);
}

bool tree_same_bytes(const char *a, const char *b)
{
    return same(a, b, true);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void tree_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
