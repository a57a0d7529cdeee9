/* SPDX-License-Identifier: Apache-2.0 */
/* coded_layout.c - see file_layout.h and file_layout.h: coded experts. */
#include "file_layout.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 4096u

/* A received layout. received_parse() checks that the sizes of its parts add up. */
struct received {
    struct efs_export_layout head;
    const uint8_t *header, *tensors, *shards;
};

static bool received_parse(const uint8_t *data, size_t bytes, struct received *received)
{
    if (bytes < sizeof(received->head))
        return false;
    memcpy(&received->head, data, sizeof(received->head));
    const struct efs_export_layout *h = &received->head;
    if (h->tensors > TENSORS_MAX || h->shard_elements == 0 || h->header_bytes < 8 || h->file_bytes > SIZE_MAX ||
        h->file_bytes < h->header_bytes)
        return false;
    uint64_t padded = ((uint64_t)h->header_bytes + 7) / 8 * 8; /* none of these can overflow */
    uint64_t tensors = (uint64_t)h->tensors * sizeof(struct efs_export_layout_tensor);
    uint64_t shards = (uint64_t)h->shards * sizeof(struct efs_export_layout_shard);
    received->header = data + sizeof(received->head);
    if (bytes - sizeof(received->head) != padded + tensors + shards)
        return false;
    received->tensors = received->header + padded;
    received->shards = received->tensors + tensors;
    return true;
}

/* Parses the header that the expert's file would have. Nothing after it is read: a coded expert has no file. */
static errint_t received_parse_header(const struct received *received, struct efs_file_layout **layout)
{
    uint64_t length;
    memcpy(&length, received->header, sizeof(length));
    if (length != received->head.header_bytes - 8)
        return -EUCLEAN;
    return efs_layout_read(received->header, (size_t)received->head.file_bytes, layout);
}

static bool shard_is_valid(const struct efs_export_layout_shard *s, const struct efs_export_layout *head)
{
    return s->extent < head->extents && s->elements > 0 && s->elements <= head->shard_elements &&
           s->codec < EFS_CODECS && (s->e_bytes || s->sm_bytes);
}

static errint_t received_parse_shards(const struct received *received, struct efs_file_layout *layout)
{
    const struct efs_export_layout *head = &received->head;
    uint64_t shards = 0;
    if (layout->tensor_count != head->tensors)
        return -EUCLEAN;
    for (uint32_t i = 0; i < head->tensors; i++) { /* entries and received tensors are in the order of the file */
        struct efs_export_layout_tensor t;
        memcpy(&t, received->tensors + i * sizeof(t), sizeof(t));
        if (t.file_offset != layout->list.entries[i].tensor.offset)
            return -EUCLEAN;
        layout->tensors[i].shard_count = t.shards;
        layout->tensors[i].shard_elements = head->shard_elements;
        shards += t.shards;
    }
    if (shards != head->shards)
        return -EUCLEAN;
    layout->shards = efs_sys_calloc(head->shards + 1u, sizeof(*layout->shards));
    if (!layout->shards)
        return -ENOMEM;
    memcpy(layout->shards, received->shards, head->shards * sizeof(*layout->shards));
    for (uint32_t i = 0; i < head->shards; i++) {
        if (!shard_is_valid(&layout->shards[i], head))
            return -EUCLEAN;
        layout->chunk_bytes += (uint64_t)layout->shards[i].e_bytes + layout->shards[i].sm_bytes;
    }
    layout->shard_count = head->shards;
    layout->extent_count = head->extents;
    return 0;
}

errint_t efs_coded_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **out)
{
    struct received received;
    struct efs_file_layout *layout = NULL;
    errint_t rc = received_parse(data, bytes, &received) ? received_parse_header(&received, &layout) : -EUCLEAN;
    if (rc == 0)
        rc = received_parse_shards(&received, layout);
    if (rc < 0) {
        efs_layout_free(layout);
        return rc;
    }
    free(layout->header); /* a received layout does not change */
    layout->header = NULL;
    *out = layout;
    return 0;
}

/* A chunk at offset `at` of a component that is at `offset` in the window. NULL: it is not inside the window. */
static const uint8_t *chunk_at(const struct efs_export_window *w, uint64_t offset, uint32_t at, uint32_t bytes)
{
    if (!w || offset > w->bytes || at > w->bytes - offset || bytes > w->bytes - offset - at)
        return NULL;
    return w->data + offset + at;
}

static bool shard_place(const struct efs_export_layout_shard *s, const uint8_t *places,
                        struct efs_export_window *const *windows, struct efs_coded_shard *out)
{
    struct efs_export_place place;
    memcpy(&place, places + s->extent * sizeof(place), sizeof(place));
    *out = (struct efs_coded_shard){
        .e_bytes = s->e_bytes, .sm_bytes = s->sm_bytes, .elements = (size_t)s->elements, .codec = s->codec};
    if (s->e_bytes)
        out->e = chunk_at(windows[2 * (size_t)s->extent], place.e_offset, s->e_at, s->e_bytes);
    if (s->sm_bytes)
        out->sm = chunk_at(windows[2 * (size_t)s->extent + 1], place.sm_offset, s->sm_at, s->sm_bytes);
    return (!s->e_bytes || out->e) && (!s->sm_bytes || out->sm);
}

errint_t efs_coded_tensors(const struct efs_file_layout *layout, const uint8_t *places,
                           struct efs_export_window *const *windows, struct efs_mapped_file *file)
{
    struct efs_coded_shard *shards = file->shards = efs_sys_calloc(layout->shard_count + 1u, sizeof(*shards));
    file->tensors = efs_layout_tensors(layout, NULL);
    if (!file->tensors || !shards)
        return -ENOMEM;
    for (uint32_t i = 0; i < layout->shard_count; i++)
        if (!shard_place(&layout->shards[i], places, windows, &shards[i]))
            return -EUCLEAN;
    for (uint32_t i = 0; i < layout->tensor_count; shards += file->tensors[i++].shard_count)
        file->tensors[i].shards = shards;
    file->tensor_count = layout->tensor_count;
    file->bytes = (size_t)layout->chunk_bytes;
    return 0;
}
