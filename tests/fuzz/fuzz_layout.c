/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_layout.c - any bytes as the data about an expert that a mount sends to a client: the header of an expert's file,
 * the layout of a coded expert and the places of its chunks in windows, or the list of all experts. The parser refuses
 * it, or every tensor and chunk is inside the file or window, and every name is terminated in the list's memory.
 *
 * Input: 'f' and a file; 'c', 4 bytes for each of PLACES places, and a layout; or 'l' and a list.
 */
#include "file_layout.h"
#include "fuzz.h"

#include <errno.h>
#include <string.h>

#define PLACES 4u
#define WINDOW_BYTES 8192u

static uint8_t window_data[WINDOW_BYTES];

static struct efs_export_window windows[] = {{.data = window_data, .bytes = WINDOW_BYTES},
                                             {.data = window_data, .bytes = WINDOW_BYTES / 2},
                                             {.data = window_data, .bytes = WINDOW_BYTES / 4}};

static struct efs_export_window *window_of(uint8_t number)
{
    return number % 4u < 3 ? &windows[number % 4u] : NULL;
}

static void check_tensors(const struct efs_tensor *tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(tensors[i].name && strlen(tensors[i].name) <= 65535 && tensors[i].dims <= 8);
        CHECK(efs_dtype_name(tensors[i].dtype));
    }
}

static void file(const uint8_t *data, size_t bytes)
{
    struct efs_file_layout *layout = NULL;
    errint_t rc = efs_layout_read(data, bytes, &layout);
    CHECK(rc == 0 || rc == -EUCLEAN);
    if (rc < 0)
        return;
    CHECK(efs_layout_matches(layout, data) && layout->header_bytes <= bytes);
    struct efs_tensor *tensors = efs_layout_tensors(layout, data);
    CHECK(tensors);
    check_tensors(tensors, layout->tensor_count);
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        const uint8_t *at = tensors[i].data;
        CHECK(tensors[i].bytes == 0 ||
              (at >= data && tensors[i].bytes <= bytes && at + tensors[i].bytes <= data + bytes));
    }
    free(tensors);
    efs_layout_free(layout);
}

static void coded(const uint8_t *data, size_t bytes)
{
    struct efs_file_layout *layout = NULL;
    if (bytes < 4 * PLACES)
        return;
    errint_t rc = efs_coded_layout_read(data + 4 * PLACES, bytes - 4 * PLACES, &layout);
    CHECK(rc == 0 || rc == -EUCLEAN);
    if (rc < 0)
        return;
    if (layout->extent_count > 1000) { /* the caller of efs_coded_tensors() passes extent_count places */
        efs_layout_free(layout);
        return;
    }
    struct efs_export_place *places = calloc(layout->extent_count + 1u, sizeof(*places));
    struct efs_export_window **used = calloc(2 * layout->extent_count + 1u, sizeof(*used));
    struct efs_mapped_file mapped = {.data = NULL};
    CHECK(places && used);
    for (uint32_t i = 0; i < layout->extent_count; i++) {
        const uint8_t *p = data + 4 * (i % PLACES);
        used[2 * i] = window_of(p[0]);
        used[2 * i + 1] = window_of(p[1]);
        places[i] = (struct efs_export_place){.e_offset = p[2] == 255 ? UINT64_MAX : p[2] * 32u,
                                              .sm_offset = p[3] == 255 ? UINT64_MAX - 7 : p[3] * 32u};
    }
    rc = efs_coded_tensors(layout, (const uint8_t *)places, used, &mapped);
    CHECK(rc == 0 || rc == -EUCLEAN);
    if (rc == 0) {
        const struct efs_tensor *tensors = mapped.tensors;
        const struct efs_coded_shard *shards = mapped.shards;
        CHECK(mapped.tensor_count == layout->tensor_count);
        check_tensors(tensors, layout->tensor_count);
        uint32_t count = 0;
        for (uint32_t i = 0; i < layout->tensor_count; i++) {
            CHECK(tensors[i].shard_count == 0 || tensors[i].shards == shards + count);
            count += tensors[i].shard_count;
        }
        CHECK(count == layout->shard_count);
        for (uint32_t s = 0; s < count; s++) {
            CHECK(!shards[s].e ||
                  (shards[s].e >= window_data && shards[s].e + shards[s].e_bytes <= window_data + WINDOW_BYTES));
            CHECK(!shards[s].sm ||
                  (shards[s].sm >= window_data && shards[s].sm + shards[s].sm_bytes <= window_data + WINDOW_BYTES));
        }
    }
    efs_mapped_free(&mapped);
    free(places);
    free(used);
    efs_layout_free(layout);
}

/* text is terminated. */
static void list(char *text)
{
    struct efs_listed_expert *experts = NULL;
    uint32_t count = 0;
    errint_t rc = efs_layers_parse(text, &experts, &count);
    CHECK(rc == 0 || rc == -EUCLEAN);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(strlen(experts[i].stack) < 1 << 16);
        check_tensors(experts[i].tensors, experts[i].tensor_count);
    }
    free(experts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16)
        return 0;
    uint8_t *copy = malloc(size); /* without the first byte and in a heap block of its size, for sanitizers */
    CHECK(copy);
    memcpy(copy, data + 1, size - 1);
    copy[size - 1] = 0;
    if (data[0] == 'f')
        file(copy, size - 1);
    else if (data[0] == 'l')
        list((char *)copy);
    else
        coded(copy, size - 1);
    free(copy);
    return 0;
}
