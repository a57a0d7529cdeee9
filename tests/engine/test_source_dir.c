/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a checkpoint: subdirectories, links, and what is refused. */
#include "test.h"
#include "source_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void write_model(const char *dir, const char *name)
{
    struct sf_bytes file = {0};

    sf_safetensors(&file, HEADER, strlen(HEADER), 2);
    sf_write(dir, name, file.data, file.count);
    free(file.data);
}

static void link_to(const char *target, const char *dir, const char *name)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

static void make_dir(const char *dir, const char *name)
{
    char *path = NULL;

    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    assert_int_equal(mkdir(path, 0755), 0);
    free(path);
}

static void expect_paths(const struct efs_catalog *catalog, const char *const *paths, size_t count)
{
    assert_int_equal(catalog->file_count, count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(catalog->files[i].path, paths[i]);
}

static void expect_failure(const char *src, errint_t code, const char *text)
{
    struct efs_catalog catalog;
    struct efs_error err = {""};
    errint_t ret = efs_catalog_read(src, NULL, &catalog, &err);

    if (ret == 0)
        efs_catalog_free(&catalog);
    if (ret != code || !strstr(err.text, text))
        fail_msg("got %d \"%s\", wanted %d \"%s\"", ret, err.text, code, text);
}

TEST(finds_all_files_in_order)
{
    static const char *const paths[] = {"a\nb\x01.txt",
                                        "config.json",
                                        "empty",
                                        "model-1.safetensors",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "sub-x",
                                        "sub/.hidden",
                                        "sub/deep/er/x.safetensors",
                                        "x.SAFETENSORS",
                                        "\xC3\xA9.gguf.bak",
                                        "\xFFnot UTF-8"};
    char *dir = sf_mkdir();
    struct efs_catalog catalog;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strstr(paths[i], ".safetensors") && !strstr(paths[i], ".json"))
            write_model(dir, paths[i]);
        else
            sf_write(dir, paths[i], "hello", strcmp(paths[i], "empty") ? 5 : 0);
    make_dir(dir, "void");
    sf_accept(dir, &catalog);
    assert_string_equal(catalog.root, dir);
    expect_paths(&catalog, paths, sizeof(paths) / sizeof(paths[0]));
    assert_int_equal(catalog.tensor_count, 3);
    assert_true(catalog.files[3].has_tensors && catalog.files[4].has_tensors && catalog.files[8].has_tensors);
    assert_false(catalog.files[1].has_tensors || catalog.files[5].has_tensors || catalog.files[9].has_tensors);
    assert_int_equal(catalog.files[0].bytes, 5);
    assert_int_equal(catalog.files[2].bytes, 0);
    assert_int_equal(catalog.tensors[0].file, 3);
    assert_int_equal(catalog.tensors[2].file, 8);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
}

/* The layout of hub caches. */
TEST(follows_links)
{
    static const char *const paths[] = {"config.json", "model.safetensors", "onnx/a.txt", "tokenizer/a.txt"};
    char *dir = sf_mkdir(), *snapshot = NULL;
    struct efs_catalog catalog;

    write_model(dir, "blobs/0a1b");
    sf_write(dir, "blobs/2c3d", "{}", 2);
    sf_write(dir, "shared/a.txt", "abc", 3);
    make_dir(dir, "snapshot");
    assert_true(asprintf(&snapshot, "%s/snapshot", dir) > 0);
    link_to("../blobs/0a1b", snapshot, "model.safetensors");
    link_to("../blobs/2c3d", snapshot, "config.json");
    link_to("../shared", snapshot, "tokenizer"); /* one directory with two names: no cycle */
    link_to("tokenizer", snapshot, "onnx");
    sf_accept(snapshot, &catalog);
    expect_paths(&catalog, paths, 4);
    assert_int_equal(catalog.tensor_count, 1);
    assert_int_equal(catalog.files[0].bytes, 2);
    efs_catalog_free(&catalog);
    free(snapshot);
    sf_rmdir(dir);
}

TEST(reads_a_single_file)
{
    char *dir = sf_mkdir(), *path = NULL, *cwd = getcwd(NULL, 0);
    struct efs_catalog catalog;

    write_model(dir, "blob");
    sf_write(dir, "beside", "x", 1);
    link_to("blob", dir, "model.safetensors");
    assert_true(asprintf(&path, "%s/model.safetensors", dir) > 0);
    sf_accept(path, &catalog);
    assert_int_equal(catalog.file_count, 1);
    assert_string_equal(catalog.files[0].path, "model.safetensors");
    assert_string_equal(catalog.root, dir);
    assert_int_equal(catalog.tensor_count, 1);
    efs_catalog_free(&catalog);
    assert_non_null(cwd);
    assert_int_equal(chdir(dir), 0);
    sf_accept("model.safetensors", &catalog);
    assert_string_equal(catalog.root, ".");
    assert_int_equal(catalog.tensor_count, 1);
    efs_catalog_free(&catalog);
    sf_accept("blob", &catalog); /* not a name of a file with tensors */
    assert_int_equal(catalog.tensor_count, 0);
    assert_int_equal(catalog.file_count, 1);
    efs_catalog_free(&catalog);
    assert_int_equal(chdir(cwd), 0);
    free(cwd);
    free(path);
    sf_rmdir(dir);
}

TEST(refuses_dangling_links)
{
    char *dir = sf_mkdir();

    write_model(dir, "model.safetensors");
    link_to("missing", dir, "gone.json");
    expect_failure(dir, -ENOENT, "gone.json: the symbolic link leads nowhere");
    sf_rmdir(dir);
    dir = sf_mkdir();
    link_to("b", dir, "a");
    link_to("a", dir, "b");
    expect_failure(dir, -ELOOP, ": the symbolic link leads to itself");
    sf_rmdir(dir);
}

TEST(refuses_cycles_of_directories)
{
    char *dir = sf_mkdir();

    write_model(dir, "sub/model.safetensors");
    link_to("..", dir, "sub/up");
    expect_failure(dir, -ELOOP, "sub/up: the symbolic link leads back");
    sf_rmdir(dir);
    dir = sf_mkdir();
    sf_write(dir, "a/x", "", 0);
    sf_write(dir, "b/y", "", 0);
    link_to("../b", dir, "a/to_b");
    link_to("../a", dir, "b/to_a");
    expect_failure(dir, -ELOOP, ": the symbolic link leads back");
    sf_rmdir(dir);
}

TEST(refuses_special_files)
{
    char *dir = sf_mkdir(), *path = NULL;

    write_model(dir, "model.safetensors");
    /* The name is that of a file to parse: opening it must not wait for a writer. */
    assert_true(asprintf(&path, "%s/pipe.safetensors", dir) > 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_failure(dir, -EINVAL, "pipe.safetensors: neither a file nor a directory");
    expect_failure(path, -EINVAL, "neither a file nor a directory");
    free(path);
    sf_rmdir(dir);
    expect_failure("/dev/null", -EINVAL, "/dev/null: neither a file nor a directory");
}

TEST(refuses_missing_files)
{
    char *dir = sf_mkdir(), *path = NULL;

    expect_failure(dir, -ENOENT, "the directory holds no files");
    make_dir(dir, "empty");
    expect_failure(dir, -ENOENT, "the directory holds no files");
    assert_true(asprintf(&path, "%s/none", dir) > 0);
    expect_failure(path, -ENOENT, "none: No such file");
    expect_failure("", -ENOENT, "No such file");
    free(path);
    sf_rmdir(dir);
}

/* Root can read everything, so the test changes its user id. */
TEST(refuses_unreadable_files)
{
    char *dir = sf_mkdir(), *path = NULL, *text = NULL;
    bool root = geteuid() == 0;

    write_model(dir, "model.safetensors");
    assert_true(asprintf(&path, "%s/model.safetensors", dir) > 0);
    assert_true(asprintf(&text, "%s: cannot open: Permission denied", path) > 0);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(chmod(path, 0), 0);
    if (root && (seteuid(65534) < 0 || faccessat(AT_FDCWD, dir, R_OK, AT_EACCESS) < 0)) {
        assert_int_equal(seteuid(0), 0);
        free(text);
        free(path);
        sf_rmdir(dir);
        print_message("skipped: root here cannot be another user\n");
        skip();
    }
    expect_failure(dir, -EACCES, text);
    if (root)
        assert_int_equal(seteuid(0), 0);
    free(text);
    free(path);
    sf_rmdir(dir);
}

TEST(refuses_deep_trees_and_long_paths)
{
    char *dir = sf_mkdir();
    struct sf_bytes path = {0};

    for (int i = 0; i < 65; i++)
        sf_put(&path, "d/", 2);
    sf_put(&path, "x", 2);
    sf_write(dir, (const char *)path.data, "", 0);
    expect_failure(dir, -ELOOP, "more than 64 directories deep");
    sf_rmdir(dir);

    path.count = 0;
    for (int i = 0; i < 4; i++) { /* 4 * 255 + 4 bytes */
        for (int j = 0; j < 255; j++)
            sf_put(&path, "n", 1);
        sf_put(&path, "/", 1);
    }
    dir = sf_mkdir();
    path.data[path.count - 1] = '\0'; /* 1023 bytes: the maximum */
    sf_write(dir, (const char *)path.data, "", 0);
    struct efs_catalog catalog;
    sf_accept(dir, &catalog);
    assert_int_equal(strlen(catalog.files[0].path), 1023);
    efs_catalog_free(&catalog);
    sf_rmdir(dir);
    dir = sf_mkdir();
    path.data[path.count - 1] = '/';
    sf_put(&path, "x", 2);
    sf_write(dir, (const char *)path.data, "", 0);
    expect_failure(dir, -ENAMETOOLONG, "the path has more than 1023 bytes");
    sf_rmdir(dir);
    free(path.data);
}

/* A file of weights that is invalid or not supported does not fail the read: the catalogue has it without tensors and
 * with a note. */
static const struct {
    const char *name, *bytes, *reason;
    size_t count;
    enum efs_source_state state;
} odd_files[] = {
#define ODD(name, bytes, state, reason)                                                                                \
    {                                                                                                                  \
        name, bytes, reason, sizeof(bytes) - 1, state                                                                  \
    }
    ODD("._model.safetensors", "\0\5\x16\7\0\2\0\0Mac OS X", EFS_SOURCE_WHOLE, "is an AppleDouble file"),
    ODD("._model.gguf", "\0\5\x16\7\0\2\0\0Mac OS X", EFS_SOURCE_WHOLE, "is an AppleDouble file"),
    ODD("a.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", EFS_SOURCE_BROKEN,
        "is a Git LFS pointer"),
    ODD("a.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", EFS_SOURCE_BROKEN,
        "is a Git LFS pointer"),
    ODD("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", EFS_SOURCE_WHOLE,
        "is a Git LFS pointer"),
    ODD("b.gguf", "<!DOCTYPE html><html>", EFS_SOURCE_BROKEN, "is text, such as a web page"),
    ODD("b.safetensors", "\n\n<!doctype html>", EFS_SOURCE_BROKEN, "is text, such as a web page"),
    ODD("c.safetensors", "PK\3\4\0\0\0\0\0\0\0\1", EFS_SOURCE_NO_HEADER, "past the end"), /* of torch.save() */
    ODD("d.safetensors", "", EFS_SOURCE_BROKEN, "too short"),
    ODD("e.gguf", "Entry not found", EFS_SOURCE_BROKEN, "is text"),
    ODD("h.gguf", "<html>\n", EFS_SOURCE_BROKEN, "does not begin with \"GGUF\""),
    ODD("h.gguf", "", EFS_SOURCE_BROKEN, "past the end of the file (0 bytes)"),
    ODD("e.safetensors", "Internal Error - We're working hard to fix this", EFS_SOURCE_BROKEN,
        "is text"),                                                                                   /* tabby 1575 */
    ODD("g.safetensors", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", EFS_SOURCE_BROKEN, "begins with zeros"), /* VeritasPP 2 */
    ODD("f.safetensors", "\377\377\0\0\0\0\0\0{", EFS_SOURCE_BROKEN, "is past the end"),
#undef ODD
};

TEST(copies_other_files)
{
    for (size_t i = 0; i < sizeof(odd_files) / sizeof(odd_files[0]); i++) {
        char *dir = sf_mkdir();
        struct efs_catalog catalog;
        write_model(dir, "model.safetensors");
        sf_write(dir, odd_files[i].name, odd_files[i].bytes, odd_files[i].count);
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.file_count, 2);
        assert_int_equal(catalog.tensor_count, 1);
        for (size_t f = 0; f < 2; f++) {
            const struct efs_source_file *file = &catalog.files[f];
            bool odd = strcmp(file->path, odd_files[i].name) == 0;
            assert_true(file->has_tensors == !odd);
            assert_true((file->note != NULL) == odd);
            if (odd && (file->state != odd_files[i].state || !strstr(file->note, odd_files[i].reason) ||
                        strncmp(file->note, file->path, strlen(file->path)) != 0))
                fail_msg("state %d, \"%s\"", file->state, file->note);
        }
        efs_catalog_free(&catalog);
        sf_rmdir(dir);
    }
}

/* Ollama and LM Studio name GGUF files by checksum; other programs use any name. */
TEST(detects_gguf_by_magic)
{
    static const char *const names[] = {"sha256-e8a3", "model.bin", "model", "x.safetensors"};
    static const uint64_t shape[] = {4, 2, 3};
    struct sf_bytes file = {0};

    sf_gguf_header(&file, 3, 1, 0);
    sf_gguf_tensor(&file, "blk.0.ffn_up_exps.weight", 3, shape, 0, 0);
    sf_align(&file, 32);
    sf_zero(&file, (size_t)4 * 2 * 3 * 4);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *dir = sf_mkdir();
        struct efs_catalog catalog;
        sf_write(dir, names[i], file.data, file.count);
        sf_write(dir, "sha256-62fb", "{\"stop\":[]}", 11);
        sf_accept(dir, &catalog);
        assert_int_equal(catalog.expert_count, 3);
        assert_string_equal(catalog.files[catalog.tensors[0].file].path, names[i]);
        efs_catalog_free(&catalog);
        sf_rmdir(dir);
    }
    free(file.data);
}

TEST_MAIN(NULL, NULL)
