/* SPDX-License-Identifier: Apache-2.0 */
/* test_pack_changes.c - packs sources that are refused, change or fail meanwhile: an error, and no file is left. */
#include "pack_fixture.h"
#include "pack.h"
#include "sys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(refused_before_any_work)
{
    static const struct {
        const char *source, *store; /* relative to the fixture's directory */
        errint_t rc;
    } places[] = {{"src", "src/x.efs", -EINVAL},
                  {"src", "src/sub/x.efs", -EINVAL},
                  {"src", "src/sub/../../src/x.efs", -EINVAL},
                  {"src", "missing/x.efs", -ENOENT},
                  {"src", "", -EISDIR},
                  {"missing", "model.efs", -ENOENT}};
    static const uint32_t bad[] = {1, 8191, 8193, EFS_SHARD_ELEMENTS_MAX + 8192, UINT32_MAX};
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {.force = true};
    fixture_begin(&f);
    fixture_moe(&f, 1, 1, 16, 64);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char source[400], store[400];
        snprintf(source, sizeof(source), "%s/%s", f.directory, places[i].source);
        snprintf(store, sizeof(store), "%s/%s", f.directory, places[i].store);
        assert_int_equal(efs_pack(source, store, &options, &report, &err), places[i].rc);
    }
    assert_int_equal(efs_pack(f.source, f.directory, &options, &report, &err), -EISDIR);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        options.shard_elements = bad[i];
        assert_int_equal(pack(&f, &options, &err), -EINVAL);
    }
    assert_int_equal(fixture_entry_count(f.directory), 3);
    assert_int_equal(fixture_entry_count(f.source), 5);
    fixture_end(&f);
}

struct meddle {
    const char *phase;         /* in which it acts */
    char path[400];            /* truncated by a byte; with append, extended by one */
    bool cancel, append, done; /* append: replace() changes the contents */
};

static bool meddle(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase)
{
    struct meddle *m = arg;
    assert_true(done_bytes <= total_bytes);
    if (strcmp(phase, m->phase) != 0)
        return false;
    m->done = true;
    if (m->cancel)
        return true;
    struct stat st;
    assert_int_equal(stat(m->path, &st), 0);
    assert_int_equal(truncate(m->path, st.st_size + (m->append ? 1 : -1)), 0);
    return false;
}

/* Replaces the file by another one with the same time and size. */
static bool replace(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase)
{
    struct meddle *m = arg;
    (void)done_bytes, (void)total_bytes;
    if (m->done || strcmp(phase, m->phase) != 0)
        return false;
    m->done = true;
    char path[420];
    size_t bytes;
    struct stat st;
    unsigned char *data = fixture_read(m->path, &bytes);
    for (size_t i = 0; m->append && i < bytes; i++)
        data[i] ^= 1;
    assert_int_equal(stat(m->path, &st), 0);
    snprintf(path, sizeof(path), "%s.new", m->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_int_equal(write(fd, data, bytes), bytes);
    assert_int_equal(futimens(fd, (const struct timespec[]){st.st_atim, st.st_mtim}), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(rename(path, m->path), 0);
    free(data);
    return false;
}

/* An inode number may change without a write (FUSE filesystems); only size, time and contents count. */
TEST(another_inode_number)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (unsigned n = 0; n < 2; n++)
        for (int other = 0; other < 2; other++) {
            struct fixture f;
            struct efs_error err;
            struct meddle m = {.phase = "syncing", .append = other};
            struct efs_pack_options options = {.progress = replace, .progress_arg = &m};
            fixture_begin(&f);
            fixture_moe(&f, 1, 4, 64, 256);
            snprintf(m.path, sizeof(m.path), "%s/%s", f.source, names[n]);
            assert_int_equal(pack(&f, &options, &err), other ? -ESTALE : 0);
            assert_true(m.done);
            if (other)
                assert_non_null(strstr(err.text, names[n]));
            fixture_end(&f);
        }
}

struct packed {
    char link[420], other[420]; /* at the phase "syncing" the link is made to lead to the other folder */
    uint64_t content_hash;
    unsigned files;
    ino_t inodes[8];
};

static void packed(void *arg, const struct efs_pack_report *of, uint32_t file, const struct stat *st)
{
    struct packed *p = arg;
    p->content_hash = of->content_hash;
    p->files++;
    p->inodes[file] = st->st_ino;
}

static bool lead_elsewhere(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase)
{
    const struct packed *p = arg;
    (void)done_bytes, (void)total_bytes;
    if (strcmp(phase, "syncing") == 0) {
        assert_int_equal(unlink(p->link), 0);
        assert_int_equal(symlink(p->other, p->link), 0);
    }
    return false;
}

/* Whether times say that a file changed, on the file system of the path. */
static bool lasts(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool known = efs_sys_has_change_time(fd);
    close(fd);
    return known;
}

/* The files that were packed are reported, not those to which their paths lead at the end. */
TEST(reports_packed_files)
{
    struct fixture f, other;
    struct efs_error err;
    struct packed p = {.files = 0};
    struct stat st;
    char path[420];
    fixture_begin(&f);
    fixture_moe(&f, 1, 4, 64, 256);
    fixture_begin(&other);
    fixture_moe(&other, 1, 4, 64, 256);
    snprintf(p.link, sizeof(p.link), "%s/link", f.directory);
    snprintf(p.other, sizeof(p.other), "%s", other.source);
    assert_int_equal(symlink(f.source, p.link), 0);
    const struct efs_pack_options options = {
        .progress = lead_elsewhere, .progress_arg = &p, .packed = packed, .packed_arg = &p};
    assert_int_equal(efs_pack(p.link, f.store, &options, &report, &err), 0);
    struct efs_store *store = open_store(f.store);
    if (!lasts(f.source)) {
        assert_int_equal(p.files, 0);
        efs_store_close(store);
        fixture_end(&other);
        fixture_end(&f);
        return;
    }
    assert_int_equal(p.files, store->file_count);
    assert_int_equal(p.content_hash, store->sb.content_hash);
    for (uint32_t i = 0; i < store->file_count; i++) {
        snprintf(path, sizeof(path), "%s/%.*s", f.source, (int)store->files[i].path_bytes,
                 store->strings + store->files[i].path_offset);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(p.inodes[i], st.st_ino);
    }
    efs_store_close(store);
    fixture_end(&other);
    fixture_end(&f);
}

/* A file that was replaced by another inode while it was packed is not reported, even if its bytes are the same. */
TEST(reports_no_replaced_file)
{
    struct fixture f;
    struct efs_error err;
    struct packed p = {.files = 0};
    struct meddle m = {.phase = "syncing"};
    const struct efs_pack_options options = {
        .progress = replace, .progress_arg = &m, .packed = packed, .packed_arg = &p};
    fixture_begin(&f);
    fixture_moe(&f, 1, 4, 64, 256);
    snprintf(m.path, sizeof(m.path), "%s/model.safetensors", f.source);
    assert_int_equal(efs_pack(f.source, f.store, &options, &report, &err), 0);
    assert_int_equal(p.files, lasts(f.source) ? report.files - 1 : 0);
    fixture_end(&f);
}

TEST(failures_leave_no_files)
{
    static const char *const phases[] = {"syncing", "naming"};
    struct fixture f;
    struct efs_error err;
    fixture_begin(&f);
    fixture_moe(&f, 1, 4, 64, 256);
    unsigned fds = fixture_open_fds();
    for (int i = 0; i < 2; i++) {
        struct meddle m = {.phase = phases[i], .cancel = true};
        struct efs_pack_options options = {.progress = meddle, .progress_arg = &m};
        assert_int_equal(pack(&f, &options, &err), -ECANCELED);
        assert_true(m.done);
    }
    for (int append = 0; append < 2; append++) { /* the source changes during packing */
        struct meddle m = {.phase = "syncing", .append = append};
        struct efs_pack_options options = {.progress = meddle, .progress_arg = &m};
        snprintf(m.path, sizeof(m.path), "%s/config.json", f.source);
        assert_int_equal(pack(&f, &options, &err), -ESTALE);
        assert_non_null(strstr(err.text, "config.json"));
        assert_true(m.done);
    }
    assert_int_equal(fixture_entry_count(f.directory), 3);
    assert_int_equal(fixture_open_fds(), fds);
    fixture_end(&f);
}

/* The source is truncated between two reads. */
TEST(source_cut_between_reads)
{
    struct fixture f;
    struct efs_error err = {""};
    struct efs_catalog catalog;
    struct efs_pack_source *source;
    const uint8_t *data;
    char path[400];
    fixture_begin(&f);
    fixture_moe(&f, 1, 4, 64, 256);
    assert_int_equal(efs_catalog_read(f.source, NULL, &catalog, &err), 0);
    assert_int_equal(efs_pack_source_open(&catalog, &source, &err), 0);
    uint32_t file = 0;
    while (!catalog.files[file].has_tensors)
        file++;
    uint64_t bytes = catalog.files[file].bytes;
    uint8_t *buffer = aligned_alloc(EFS_ALIGN, efs_pack_source_room((size_t)bytes));
    assert_non_null(buffer);
    assert_int_equal(efs_pack_source_read(source, file, 1, (size_t)bytes - 1, 0, buffer, &data, &err), 0);
    assert_int_equal(efs_pack_source_unchanged(source, &err), 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", f.source);
    assert_int_equal(truncate(path, (off_t)bytes - 5000), 0);
    assert_int_equal(efs_pack_source_read(source, file, 1, (size_t)bytes - 1, 0, buffer, &data, &err), -ESTALE);
    assert_non_null(strstr(err.text, "model.safetensors"));
    assert_int_equal(efs_pack_source_unchanged(source, &err), -ESTALE);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(efs_pack_source_unchanged(source, &err), -ESTALE);
    free(buffer);
    efs_pack_source_close(source);
    /* The catalogue has a file that is missing when the packer opens it. */
    assert_int_equal(efs_pack_source_open(&catalog, &source, &err), -ESTALE);
    efs_catalog_free(&catalog);
    fixture_end(&f);
}

TEST_MAIN(NULL, NULL)
