/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing in place of the source: the store equals that of ordinary packing, with any steps and interruptions; undo
 * restores the files; a source that must not be packed is refused before any change.
 */
#include "test.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fixture model;
static char out[320], folder[340], path[400], copy[300];
static struct efs_pack_report report;

/* The source, with a second file of the same weights; the store from ordinary packing; a copy of the source. */
static int setup(void **state)
{
    *state = &model;
    char command[900];
    fixture_begin(&model);
    fixture_spread(&model);
    snprintf(command, sizeof(command), "cd '%s' && cp \"$(ls *.safetensors | head -1)\" again.bin", model.source);
    assert_int_equal(system(command), 0);
    fixture_pack(&model, NULL);
    snprintf(copy, sizeof(copy), "%s/copy", model.directory);
    tree_copy(model.source, copy);
    snprintf(out, sizeof(out), "%s/out.efs", model.directory);
    snprintf(folder, sizeof(folder), "%s.reclaim", out);
    return 0;
}

/* Number of the call that cancels, from now on; 0: none. */
static unsigned left;

static bool cancel(void *arg, uint64_t done, uint64_t total, const char *phase)
{
    (void)arg;
    assert_true(done <= total);
    if (strcmp(phase, "comparing") == 0)
        return false;
    return left > 0 && --left == 0;
}

static struct efs_pack_options options = {.threads = 2, .shard_elements = 8192, .progress = cancel};
static struct efs_error err;

/* Each of these runs in the smallest steps, and is cancelled by call number `after`. */
static errint_t begin(unsigned after)
{
    left = after;
    err.text[0] = '\0';
    options.reclaim_step_bytes = 1;
    return efs_reclaim(model.source, out, &options, &report, &err);
}

static errint_t resume(const char *src, unsigned after)
{
    left = after;
    err.text[0] = '\0';
    return efs_reclaim_resume(src, out, &options, &report, &err);
}

static errint_t undo(unsigned after)
{
    left = after;
    err.text[0] = '\0';
    return efs_reclaim_undo(NULL, out, &options, &err);
}

static int run(const char *format, const char *a, const char *b)
{
    char command[2000];
    snprintf(command, sizeof(command), format, a, b);
    return system(command);
}

/* Fails unless names, contents, times and modes are those of the copy. */
static void assert_source_is_whole(void)
{
    assert_true(tree_same(copy, model.source));
}

static void assert_done(void)
{
    assert_int_equal(run("cmp '%s' '%s'", out, model.store), 0);
    assert_int_equal(access(folder, F_OK), -1);
    assert_int_equal(access(model.source, F_OK), -1);
}

static void expect(errint_t got, errint_t want)
{
    if (got != want)
        fail_msg("%d, not %d: %s", got, want, err.text);
    if (want < 0)
        assert_true(err.text[0]);
}

TEST_WITH(one_step, setup, fixture_teardown)
{
    options.reclaim_step_bytes = left = 0;
    expect(efs_reclaim(model.source, out, &options, &report, &err), 0);
    assert_int_equal(report.experts, 2);
    assert_done();
}

TEST_WITH(many_steps, setup, fixture_teardown)
{
    expect(begin(0), 0);
    assert_int_equal(report.experts, 2);
    assert_done();
}

/* Interrupted after each step, and resumed as by another process, with another number of threads. */
TEST_WITH(interrupted, setup, fixture_teardown)
{
    unsigned cancels = 0;
    errint_t rc = begin(2);
    for (; rc == -ECANCELED; cancels++) {
        assert_true(cancels < 50);
        assert_true(efs_reclaim_is_of(out, model.source)); /* the source cannot be packed now */
        assert_false(efs_reclaim_is_of(out, copy));
        assert_true(efs_reclaim_unfinished(out));
        assert_int_equal(access(out, F_OK), -1);
        options.threads = 1 + cancels % 3;
        rc = resume(NULL, 2);
    }
    options.threads = 2;
    expect(rc, 0);
    assert_true(cancels >= 4);
    assert_false(efs_reclaim_unfinished(out));
    assert_int_equal(report.experts, 2);
    assert_done();
}

TEST_WITH(cancelled_before_anything, setup, fixture_teardown)
{
    expect(begin(1), -ECANCELED);
    assert_false(efs_reclaim_unfinished(out));
    assert_source_is_whole();
}

static uint64_t disk_bytes(const char *directory)
{
    char command[900], text[40] = "";
    snprintf(command, sizeof(command), "sync -f '%s'; du -s -B1 '%s'", directory, directory);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(text, sizeof(text), pipe));
    pclose(pipe);
    return strtoull(text, NULL, 10);
}

/* Steps free disk space, and their files are no longer valid checkpoints: their start is freed first. */
TEST_WITH(steps_are_freed, setup, fixture_teardown)
{
    size_t bytes;
    uint64_t before = disk_bytes(model.source);
    expect(begin(4), -ECANCELED);
    assert_true(disk_bytes(model.source) + 60000 < before);
    snprintf(path, sizeof(path), "%s/model-1.safetensors", model.source);
    unsigned char *data = fixture_read(path, &bytes);
    for (unsigned i = 0; i < 4096; i++)
        assert_int_equal(data[i], 0);
    free(data);
}

TEST_WITH(undone, setup, fixture_teardown)
{
    for (unsigned steps = 2; steps < 7; steps++) {
        expect(begin(steps), -ECANCELED);
        while (undo(2) == -ECANCELED)
            assert_true(efs_reclaim_unfinished(out));
        assert_false(efs_reclaim_unfinished(out));
        assert_source_is_whole();
    }
}

/* Forward, some steps back, forward again. */
TEST_WITH(back_and_forth, setup, fixture_teardown)
{
    expect(begin(6), -ECANCELED);
    expect(undo(3), -ECANCELED);
    expect(resume(NULL, 3), -ECANCELED);
    expect(resume(NULL, 0), 0);
    assert_done();
}

/* An object of more than one run: its entropy is summed over several steps. */
TEST_WITH(large_object, setup, fixture_teardown)
{
    static const struct fixture_tensor tensor[] = {{"model.embed_tokens.weight", "BF16", 2, {45000, 1024}, 92160000}};
    fixture_safetensors(&model, "model-3.safetensors", tensor, 1, 3);
    fixture_pack(&model, NULL);
    errint_t rc = begin(1000);
    while (rc == -ECANCELED)
        rc = resume(NULL, 12);
    expect(rc, 0);
    assert_done();
}

/* A single file; the files next to it stay. */
TEST_WITH(one_file, setup, fixture_teardown)
{
    const struct efs_pack_options plain = {.threads = 2, .shard_elements = 8192, .force = true};
    snprintf(path, sizeof(path), "%s/model-1.safetensors", model.source);
    expect(efs_pack(path, model.store, &plain, &report, &err), 0);
    options.reclaim_step_bytes = 1;
    left = 0;
    expect(efs_reclaim(path, out, &options, &report, &err), 0);
    assert_int_equal(run("cmp '%s' '%s'", out, model.store), 0);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof(path), "%s/model-2.safetensors", model.source);
    assert_int_equal(access(path, F_OK), 0);
}

static void refuse(errint_t want, const char *words)
{
    struct efs_reclaim_need need;
    expect(efs_reclaim_check_start(model.source, out, &options, &need, &err), want);
    expect(begin(0), want);
    if (!strstr(err.text, words))
        fail_msg("no '%s' in: %s", words, err.text);
    assert_false(efs_reclaim_unfinished(out));
}

TEST_WITH(refusals, setup, fixture_teardown)
{
    char other[700];
    snprintf(path, sizeof(path), "%s/config.json", model.source);
    snprintf(other, sizeof(other), "%s/linked", model.directory);
    assert_int_equal(link(path, other), 0);
    refuse(-EMLINK, "hard links");
    assert_int_equal(unlink(other), 0);

    snprintf(other, sizeof(other), "%s/other.json", model.source);
    assert_int_equal(symlink("config.json", other), 0);
    refuse(-ELOOP, "symbolic link");
    assert_int_equal(unlink(other), 0);

    int fd = open(out, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    refuse(-EEXIST, "exists");
    assert_int_equal(unlink(out), 0);
    assert_source_is_whole();
}

/* A file that is open is refused, if the filesystem supports the check (F_SETLEASE). Leases treat this process's
 * descriptors like those of other processes. */
TEST_WITH(file_in_use, setup, fixture_teardown)
{
    snprintf(path, sizeof(path), "%s/model-2.safetensors", model.source);
    int fd = open(path, O_RDWR), mine = open(path, O_RDONLY);
    assert_true(fd >= 0 && mine >= 0);
    bool tells = fcntl(fd, F_SETLEASE, F_WRLCK) < 0 && errno == EAGAIN;
    close(fd);
    if (!tells) {
        close(mine);
        skip();
    }
    refuse(-EBUSY, "open or mapped");
    close(mine);
    assert_source_is_whole();
    expect(begin(0), 0);
    assert_done();
}

/* A second run does not replace an unfinished one; a finished one cannot be resumed. */
TEST_WITH(earlier_run, setup, fixture_teardown)
{
    expect(begin(3), -ECANCELED);
    expect(begin(0), -EEXIST);
    assert_non_null(strstr(err.text, "--resume"));
    expect(resume(NULL, 0), 0);
    assert_done();
    expect(resume(NULL, 0), -ENOENT);
}

/* The source was modified between two runs: resume and undo refuse with -ESTALE, and nothing is lost. */
TEST_WITH(source_changed, setup, fixture_teardown)
{
    struct stat st;
    expect(begin(3), -ECANCELED);
    snprintf(path, sizeof(path), "%s/model-2.safetensors", model.source);
    assert_int_equal(stat(path, &st), 0);
    int fd = open(path, O_WRONLY);
    const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    assert_int_equal(futimens(fd, now), 0);
    expect(resume(NULL, 0), -ESTALE);
    assert_non_null(strstr(err.text, "touch -d"));
    expect(undo(0), -ESTALE);
    const struct timespec then[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    assert_int_equal(futimens(fd, then), 0);
    close(fd);
    assert_int_equal(run("cp '%s' '%s.new'", path, path), 0);
    assert_int_equal(run("touch -r '%s' '%s.new'", path, path), 0);
    assert_int_equal(run("mv '%s' '%s.old'", path, path), 0);
    assert_int_equal(run("mv '%s.new' '%s'", path, path), 0);
    expect(resume(NULL, 0), -ESTALE);
    assert_int_equal(run("mv '%s.old' '%s'", path, path), 0);
    expect(resume(NULL, 0), 0);
    assert_done();
}

/* A hard link that was made between two runs keeps its bytes. */
TEST_WITH(linked_meanwhile, setup, fixture_teardown)
{
    char other[600];
    expect(begin(3), -ECANCELED);
    snprintf(path, sizeof(path), "%s/model-2.safetensors", model.source);
    snprintf(other, sizeof(other), "%s.link", model.source);
    assert_int_equal(run("cp '%s' '%s.copy'", path, other), 0);
    assert_int_equal(link(path, other), 0);
    expect(resume(NULL, 0), -EMLINK);
    assert_int_equal(run("cmp -s '%s' '%s.copy'", other, other), 0);
    assert_int_equal(unlink(other), 0);
    expect(resume(NULL, 0), 0);
    assert_done();
}

/* The source was moved: resume accepts its new path. */
TEST_WITH(source_moved, setup, fixture_teardown)
{
    expect(begin(3), -ECANCELED);
    snprintf(path, sizeof(path), "%s/moved", model.directory);
    assert_int_equal(rename(model.source, path), 0);
    expect(resume(NULL, 0), -ENOENT);
    expect(resume(path, 0), 0);
    assert_done();
    assert_int_equal(access(path, F_OK), -1);
}

/* A journal that lacks a step, or is damaged anywhere, is refused, because the source no longer has the step's data. */
TEST_WITH(journal_damage, setup, fixture_teardown)
{
    size_t bytes, last = 0;
    unsigned records = 0;
    expect(begin(4), -ECANCELED);
    snprintf(path, sizeof(path), "%s/journal", folder);
    unsigned char *journal = fixture_read(path, &bytes);
    for (size_t at = 0; at < bytes; at += 512) {
        if (memcmp(journal + at, "efsrecl1", 8) != 0)
            continue;
        for (unsigned part = 0; part < 128; part += 33) { /* header and payload */
            fixture_damage(path, at + part);
            expect(resume(NULL, 0), -EUCLEAN);
            fixture_damage(path, at + part);
        }
        records++;
        last = at;
    }
    free(journal);
    assert_int_equal(records, 4);
    assert_int_equal(run("cp '%s' '%s.all'", path, path), 0);
    assert_int_equal(truncate(path, (off_t)last + 100), 0);
    expect(resume(NULL, 0), -EUCLEAN);
    assert_non_null(strstr(err.text, "hole"));
    assert_int_equal(truncate(path, (off_t)last), 0);
    expect(resume(NULL, 0), -EUCLEAN);
    assert_int_equal(run("mv '%s.all' '%s'", path, path), 0);
    expect(resume(NULL, 0), 0);
    assert_done();
}

/* Damage of the partial store is found before more is freed, when the last step is verified. */
TEST_WITH(store_damage, setup, fixture_teardown)
{
    struct stat st;
    expect(begin(4), -ECANCELED);
    snprintf(path, sizeof(path), "%s/store", folder);
    assert_int_equal(stat(path, &st), 0);
    fixture_damage(path, (uint64_t)st.st_size - 4096);
    expect(resume(NULL, 0), -EUCLEAN);
    expect(undo(0), -EUCLEAN);
    fixture_damage(path, (uint64_t)st.st_size - 4096);
    assert_int_equal(truncate(path, st.st_size - 4096), 0);
    expect(resume(NULL, 0), -EUCLEAN);
}

/* An unfinished store cannot be opened. */
TEST_WITH(partial_is_no_store, setup, fixture_teardown)
{
    struct efs_store *store;
    expect(begin(4), -ECANCELED);
    snprintf(path, sizeof(path), "%s/store", folder);
    assert_true(efs_store_open(path, &store, &err) < 0);
}

/* A file that was added to the source later is not removed. */
TEST_WITH(later_files_stay, setup, fixture_teardown)
{
    expect(begin(3), -ECANCELED);
    fixture_file(&model, "sub/notes.txt", "mine", 4);
    expect(resume(NULL, 0), 0);
    assert_int_equal(run("cmp '%s' '%s'", out, model.store), 0);
    snprintf(path, sizeof(path), "%s/sub/notes.txt", model.source);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(fixture_entry_count(model.source), 3);
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* many syncs; test_reclaim.py uses a disk */
        setenv("TMPDIR", "/dev/shm", 0);
    return TEST_RUN(NULL, NULL);
}
