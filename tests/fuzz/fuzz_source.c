/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_source.c - any bytes as a safetensors and as a GGUF file: refused with a message, or described consistently; and
 * opened in place, as a store whose files have these bytes.
 *
 * Each input is read three times: as either file, and as the JSON header of a safetensors file with 64 bytes of data
 * after it (so that the fuzzer does not have to find a valid length in the first 8 bytes). tests/fuzz/mutate.c runs
 * this over the corpus, which also contains every input that failed in the past.
 */
#include "dtype.h"
#include "fuzz.h"
#include "plain.h"
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DATA_BYTES 64u

/* Tensors are inside the file, in order and disjoint. The size of a known tensor matches its type and shape. */
static void check_list(const struct efs_source_list *list, uint64_t file_bytes)
{
    uint64_t end = 0, bytes;

    for (size_t i = 0; i < list->count; i++) {
        const struct efs_source_tensor *tensor = &list->entries[i].tensor;
        CHECK(tensor->offset >= end && tensor->offset <= file_bytes);
        CHECK(tensor->bytes <= file_bytes - tensor->offset);
        end = tensor->offset + tensor->bytes;
        CHECK(tensor->name);
        if (!list->entries[i].known)
            continue;
        CHECK(tensor->dims <= EFS_MAX_DIMS);
        CHECK(efs_dtype_tensor_bytes(tensor->dtype, tensor->dims, tensor->shape, &bytes) == 0);
        CHECK(bytes == tensor->bytes);
    }
}

/* Experts are in order and unique; the expert numbers of every tensor are in range. */
static void check_experts(const struct efs_catalog *catalog)
{
    for (size_t i = 1; i < catalog->expert_count; i++) {
        const struct efs_source_expert *a = &catalog->experts[i - 1], *b = &catalog->experts[i];
        int stack = strcmp(a->stack, b->stack);
        CHECK(stack < 0 || (stack == 0 && (a->layer < b->layer || (a->layer == b->layer && a->expert < b->expert))));
    }
    for (size_t i = 0; i < catalog->tensor_count; i++) {
        const struct efs_source_tensor *tensor = &catalog->tensors[i];
        uint64_t count = tensor->tensor_class == EFS_CLASS_DENSE   ? 0
                         : tensor->tensor_class == EFS_CLASS_FUSED ? tensor->shape[0]
                                                                   : 1;
        CHECK(count <= catalog->expert_count && tensor->expert_first <= catalog->expert_count - count);
        if (tensor->tensor_class == EFS_CLASS_FUSED)
            CHECK(tensor->dims >= 2 && count > 0 && tensor->bytes % count == 0);
        for (uint64_t e = 0; tensor->tensor_class == EFS_CLASS_FUSED && e < count; e++)
            CHECK(catalog->experts[tensor->expert_first + e].expert == e);
    }
}

/* Move the tensors to a catalogue of one file and find its experts. */
static void name_experts(struct efs_source_list *list)
{
    struct efs_catalog catalog = {0};
    struct efs_error err = {""};

    catalog.root = strdup(".");
    catalog.tensors = calloc(list->count + 1, sizeof(*catalog.tensors));
    catalog.files = calloc(1, sizeof(*catalog.files));
    CHECK(catalog.root && catalog.tensors && catalog.files);
    catalog.file_count = 1;
    catalog.files[0] = (struct efs_source_file){.path = strdup("x.safetensors"), .has_tensors = true};
    for (size_t i = 0; i < list->count; i++)
        if (list->entries[i].known) {
            catalog.tensors[catalog.tensor_count++] = list->entries[i].tensor;
            list->entries[i].tensor.name = list->entries[i].tensor.type = NULL;
        }
    CHECK(efs_source_name_experts(&catalog, NULL, &err) == 0);
    check_experts(&catalog);
    efs_catalog_free(&catalog);
}

static char folder[] = "/tmp/fuzz-XXXXXX";

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_folder(folder);
    return 0;
}

/* Returns whether the file was accepted. */
static bool parse(int fd, uint64_t bytes, bool gguf)
{
    struct efs_source_input in = {.fd = fd, .path = gguf ? "x.gguf" : "x.safetensors", .bytes = bytes};
    struct efs_source_list list = {0};
    struct efs_error err = {""};

    errint_t ret = gguf ? efs_source_gguf(&in, &list, &err) : efs_source_safetensors(&in, &list, &err);
    CHECK(ret == 0 || ret == -EUCLEAN);
    if (ret < 0) {
        CHECK(strncmp(err.text, in.path, strlen(in.path)) == 0);
        CHECK(strstr(err.text, "offset") || strstr(err.text, "the file ends too early: "));
    } else {
        check_list(&list, bytes);
        name_experts(&list);
    }
    efs_source_list_free(&list);
    return ret == 0;
}

/* Opens the bytes of fd in place, as a file of this name in `folder`. The index is checked as that of a store. */
static void open_in_place(int fd, uint64_t bytes, const char *name)
{
    struct efs_error err = {""};
    struct efs_store *store;
    uint8_t want[4096], got[4096];
    char path[64], from[40];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
    CHECK(symlink(from, path) == 0);
    if (efs_plain_open(path, &store, &err) < 0) {
        CHECK(err.text[0]);
    } else {
        size_t n = bytes < sizeof(want) ? (size_t)bytes : sizeof(want);
        CHECK(pread(fd, want, n, 0) == (ssize_t)n);
        CHECK(efs_plain_read(store->plain, sizeof(struct efs_disk_superblock), got, n) == 0);
        CHECK(memcmp(want, got, n) == 0);
        efs_store_close(store);
    }
    CHECK(unlink(path) == 0);
}

static void put(int fd, const void *data, size_t size, uint64_t offset)
{
    CHECK(size == 0 || pwrite(fd, data, size, (off_t)offset) == (ssize_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t tail[DATA_BYTES];
    uint8_t length[8];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    CHECK(fd >= 0);
    put(fd, data, size, 0);
    if (parse(fd, size, true))
        open_in_place(fd, size, "x.gguf");
    if (parse(fd, size, false))
        open_in_place(fd, size, "x.safetensors");
    for (unsigned i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> (8 * i));
    put(fd, length, sizeof(length), 0);
    put(fd, data, size, sizeof(length));
    put(fd, tail, sizeof(tail), sizeof(length) + size);
    if (parse(fd, sizeof(length) + size + sizeof(tail), false))
        open_in_place(fd, sizeof(length) + size + sizeof(tail), "x.safetensors");
    close(fd);
    return 0;
}
