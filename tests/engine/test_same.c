/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a file has the bytes of a store: a copy, one that differs in a byte, one with the bytes elsewhere; in place
 * only the file itself. A remembered result holds for a file of the same inode, size and times. */
#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH UINT64_C(0x1234abcd5678ef09)

static struct fixture model;
static struct efs_store *store;
static uint64_t bytes; /* of model.safetensors */
static uint32_t file;

static int setup(void **state)
{
    struct efs_error err = {""};
    *state = &model;
    fixture_store(&model, 2, 4, 96, 64);
    setenv("EXPERTFS_STATE", model.directory, 1);
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    for (file = 0; file < store->file_count; file++)
        if (store->files[file].path_bytes == strlen("model.safetensors") &&
            memcmp(store->strings + store->files[file].path_offset, "model.safetensors", strlen("model.safetensors")) ==
                0)
            break;
    assert_int_not_equal(file, store->file_count);
    bytes = store->files[file].bytes;
    return 0;
}

static int teardown(void **state)
{
    efs_store_close(store);
    store = NULL;
    return fixture_teardown(state);
}

/* Writes a copy of the checkpoint's file after `shift` bytes, with a bit flipped at `damaged` of its bytes. */
static int copy_of(uint64_t shift, uint64_t damaged)
{
    char path[400];
    size_t size;
    unsigned char *data = fixture_weights(&model, &size);
    assert_int_equal(size, bytes);
    if (damaged < bytes)
        data[damaged] ^= 1;
    snprintf(path, sizeof(path), "%s/copy", model.directory);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, size, (off_t)shift), (ssize_t)size);
    free(data);
    return fd;
}

static errint_t compare(int fd, uint64_t shift)
{
    errint_t rc = efs_same_bytes(store, file, 0, bytes, fd, shift);
    close(fd);
    return rc;
}

TEST_WITH(packed, setup, teardown)
{
    assert_int_equal(compare(copy_of(0, UINT64_MAX), 0), 0);
    assert_int_equal(compare(copy_of(12345, UINT64_MAX), 12345), 0);
    assert_int_equal(compare(copy_of(0, UINT64_MAX), 64), -ESTALE); /* also past its end */
    const uint64_t places[] = {0, 9, bytes / 3, bytes - 1};
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(compare(copy_of(4096, places[i]), 4096), -ESTALE);
}

TEST_WITH(ranges, setup, teardown)
{
    int fd = copy_of(0, UINT64_MAX);
    assert_int_equal(efs_same_bytes(store, file, 0, bytes + 1, fd, 0), -EINVAL);
    assert_int_equal(efs_same_bytes(store, file, UINT64_MAX, 2, fd, 0), -EINVAL);
    assert_int_equal(efs_same_bytes(store, file, 0, bytes, fd, UINT64_MAX - 3), -EINVAL);
    assert_int_equal(efs_same_bytes(store, store->file_count, 0, 1, fd, 0), -EINVAL);
    assert_int_equal(efs_same_bytes(store, file, 0, 0, fd, 0), 0);
    for (uint32_t t = 0; t < store->tensor_count; t++) { /* a tensor is whole shards; a part of one is not */
        const struct efs_disk_tensor *tensor = &store->tensors[t];
        if (tensor->file != file || tensor->bytes < 16)
            continue;
        assert_int_equal(efs_same_bytes(store, file, tensor->file_offset, tensor->bytes, fd, tensor->file_offset), 0);
        assert_int_equal(efs_same_bytes(store, file, tensor->file_offset + 2, 4, fd, tensor->file_offset + 2),
                         -ENODATA);
    }
    close(fd);
}

TEST_WITH(in_place, setup, teardown)
{
    char path[400], link_path[400];
    struct efs_error err = {""};
    efs_store_close(store);
    store = NULL;
    assert_int_equal(efs_store_open(model.source, &store, &err), 0);
    for (file = 0; file < store->file_count && store->files[file].bytes != bytes; file++)
        ;
    assert_int_not_equal(file, store->file_count);
    snprintf(path, sizeof(path), "%s/model.safetensors", model.source);
    snprintf(link_path, sizeof(link_path), "%s/link", model.directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(efs_same_bytes(store, file, 64, 128, fd, 64), 0);
    assert_int_equal(efs_same_bytes(store, file, 64, 128, fd, 128), -ENODATA);
    close(fd);
    assert_int_equal(link(path, link_path), 0);
    assert_int_equal(compare(open(link_path, O_RDONLY | O_CLOEXEC), 0), 0);
    assert_int_equal(compare(copy_of(0, UINT64_MAX), 0), -ENODATA);
}

TEST_WITH(known, setup, teardown)
{
    const struct efs_same_range all = {.file = 3, .bytes = 1000},
                                part = {.file = 3, .offset = 10, .fd_offset = 10, .bytes = 90};
    const struct efs_same_range shifted = {.file = 3, .offset = 10, .fd_offset = 20, .bytes = 90};
    const struct efs_same_range other = {.file = 4, .bytes = 1000}, longer = {.file = 3, .bytes = 1001};
    struct stat st = {.st_dev = 7, .st_ino = 9, .st_size = 1000, .st_mtim = {100, 5}, .st_ctim = {200, 6}}, changed;
    const struct timespec seen = {300, 0};
    assert_int_equal(efs_same_known(HASH, &st, &part), 0);
    efs_same_remember(HASH, &st, &seen, &all, true);
    assert_int_equal(efs_same_known(HASH, &st, &all), 1);
    assert_int_equal(efs_same_known(HASH, &st, &part), 1);
    assert_int_equal(efs_same_known(HASH + 1, &st, &part), 0);
    assert_int_equal(efs_same_known(HASH, &st, &shifted), 0);
    assert_int_equal(efs_same_known(HASH, &st, &other), 0);
    assert_int_equal(efs_same_known(HASH, &st, &longer), 0);
    for (unsigned i = 0; i < 6; i++) {
        changed = st;
        changed.st_dev += i == 0;
        changed.st_ino += i == 1;
        changed.st_size += i == 2;
        changed.st_mtim.tv_nsec += i == 3;
        changed.st_ctim.tv_nsec += i == 4;
        changed.st_ctim.tv_sec += i == 5;
        assert_int_equal(efs_same_known(HASH, &changed, &part), 0);
    }
    changed.st_ino = 10;
    efs_same_remember(HASH, &changed, &seen, &part, false);
    assert_int_equal(efs_same_known(HASH, &changed, &part), -ESTALE);
    assert_int_equal(efs_same_known(HASH, &changed, &all), -ESTALE);
    changed.st_ctim = (struct timespec){299, 0}; /* a change soon after it may leave the same times */
    efs_same_remember(HASH, &changed, &seen, &part, true);
    assert_int_equal(efs_same_known(HASH, &changed, &part), 0);
}

TEST_WITH(known_damaged, setup, teardown)
{
    const struct efs_same_range all = {.file = 3, .bytes = 1000};
    const struct stat st = {.st_dev = 7, .st_ino = 9, .st_size = 1000, .st_mtim = {100, 5}, .st_ctim = {200, 6}};
    char path[400];
    snprintf(path, sizeof(path), "%s/same-%016llx.txt", model.directory, (unsigned long long)HASH);
    static const char *const damaged[] = {
        "same 7 9 1000 100000000005 200000000006 3 0 0 1000", /* cut before its end */
        "sane 7 9 1000 100000000005 200000000006 3 0 0 1000\n",
        "same 7 9 1000 100000000005 200000000006 3 0 0 99\n",
        "same 7 9 1000 100000000005 200000000006 3 1 1 1000\n",
        "same 7 9 1000 100000000005 200000000006 3 18446744073709551615 18446744073709551615 1001\n",
        "same 7 9 1000 100000000005\n",
        "\n\n",
    };
    for (unsigned i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        FILE *f = fopen(path, "w");
        fputs(damaged[i], f);
        fclose(f);
        assert_int_equal(efs_same_known(HASH, &st, &all), 0);
    }
    FILE *f = fopen(path, "w");
    fputs("same 7 9 1000 100000000005 200000000006 3 0 0 1000\n", f);
    fclose(f);
    assert_int_equal(efs_same_known(HASH, &st, &all), 1);
}

TEST_MAIN(NULL, NULL)
