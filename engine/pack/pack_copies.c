/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_copies.c - finds files with the same bytes, such as a checkpoint and its copy in a blob store. They are stored
 * once: a copy has the extents of its original.
 *
 * Files of equal size are sampled, and files with equal samples are compared byte by byte. A 64-bit checksum would
 * protect against accidental collisions but not against deliberate ones, and would read as many bytes.
 */
#include "hash.h"
#include "pack.h"
#include "source.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES 4096u
#define PIECES 8u /* pieces of a sample, evenly spaced from the first bytes to the last */
#define COMPARE_BYTES (4u << 20)

struct candidate {
    const struct efs_source_file *file;
    uint64_t hash; /* of the sample */
    bool experts;  /* the file has expert tensors */
    unsigned depth;
};

struct search {
    struct efs_catalog *catalog;
    struct efs_pack_source *source;
    const struct efs_pack_options *options;
    struct candidate *candidates;
    size_t count;
    uint8_t *buffers[2]; /* each for COMPARE_BYTES */
    uint64_t done_bytes, total_bytes;
};

static int compare_sizes(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->file->bytes != b->file->bytes)
        return a->file->bytes < b->file->bytes ? -1 : 1;
    return a->hash < b->hash ? -1 : a->hash > b->hash;
}

/* Sorts equal samples together. The first of them becomes the original: files with experts first, then files with
 * tensors, then files of the model, then the smallest directory depth. */
static int compare_samples(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    int order = compare_sizes(a, b);
    if (order == 0 && a->experts != b->experts)
        order = a->experts ? -1 : 1;
    if (order == 0 && a->file->has_tensors != b->file->has_tensors)
        order = a->file->has_tensors ? -1 : 1;
    if (order == 0 && a->file->other_model != b->file->other_model)
        order = a->file->other_model ? 1 : -1;
    if (order == 0 && a->depth != b->depth)
        order = a->depth < b->depth ? -1 : 1;
    return order ? order : (a->file > b->file) - (a->file < b->file);
}

/* Keeps the candidates that have a neighbour of equal size and hash. */
static void keep_equal(struct search *s, int (*compare)(const void *, const void *))
{
    size_t kept = 0;
    if (s->count)
        qsort(s->candidates, s->count, sizeof(*s->candidates), compare);
    bool with_last = false;
    for (size_t i = 0; i < s->count; i++) {
        bool with_next = i + 1 < s->count && compare_sizes(&s->candidates[i], &s->candidates[i + 1]) == 0;
        if (with_last || with_next)
            s->candidates[kept++] = s->candidates[i];
        with_last = with_next;
    }
    s->count = kept;
}

static errint_t find_candidates(struct search *s)
{
    const struct efs_catalog *c = s->catalog;
    s->candidates = efs_sys_calloc(c->file_count + 1, sizeof(*s->candidates));
    bool *experts = efs_sys_calloc(c->file_count + 1, sizeof(*experts));
    for (size_t t = 0; experts && t < c->tensor_count; t++)
        experts[c->tensors[t].file] |= c->tensors[t].tensor_class != EFS_CLASS_DENSE;
    for (size_t f = 0; experts && s->candidates && f < c->file_count; f++) {
        if (c->files[f].bytes < PIECE_BYTES)
            continue; /* smaller than a page */
        struct candidate *new = &s->candidates[s->count++];
        *new = (struct candidate){.file = &c->files[f], .experts = experts[f]};
        for (const char *at = c->files[f].path; (at = strchr(at, '/')); at++)
            new->depth++;
    }
    free(experts);
    return experts && s->candidates ? 0 : -ENOMEM;
}

static uint32_t number_of(const struct search *s, const struct candidate *candidate)
{
    return (uint32_t)(candidate->file - s->catalog->files);
}

static errint_t sample(struct search *s, struct candidate *candidate, struct efs_error *err)
{
    uint64_t hashes[PIECES];
    uint32_t file = number_of(s, candidate);
    errint_t rc = 0;
    for (uint64_t i = 0; rc == 0 && i < PIECES; i++) {
        const uint8_t *data = NULL;
        uint64_t offset = (candidate->file->bytes - PIECE_BYTES) / (PIECES - 1) * i;
        rc = efs_pack_source_read(s->source, file, offset, PIECE_BYTES, 0, s->buffers[0], &data, err);
        hashes[i] = rc == 0 ? efs_hash(data, PIECE_BYTES) : 0;
    }
    efs_pack_source_close_idle(s->source, file);
    candidate->hash = efs_hash(hashes, sizeof(hashes));
    return rc;
}

static errint_t compare_files(struct search *s, const struct candidate *a, const struct candidate *b, bool *same,
                              struct efs_error *err)
{
    const uint32_t files[2] = {number_of(s, a), number_of(s, b)};
    errint_t rc = 0;
    *same = true;
    for (uint64_t at = 0, bytes; rc == 0 && *same && at < a->file->bytes; at += bytes) {
        const uint8_t *data[2] = {NULL, NULL};
        bytes = a->file->bytes - at < COMPARE_BYTES ? a->file->bytes - at : COMPARE_BYTES;
        for (int i = 0; rc == 0 && i < 2; i++)
            rc = efs_pack_source_read(s->source, files[i], at, (size_t)bytes, 0, s->buffers[i], &data[i], err);
        *same = rc == 0 && memcmp(data[0], data[1], (size_t)bytes) == 0;
        if (rc == 0 && s->options->progress &&
            s->options->progress(s->options->progress_arg, s->done_bytes + at, s->total_bytes, "comparing"))
            rc = efs_fail(err, -ECANCELED, "interrupted");
    }
    s->done_bytes += a->file->bytes;
    efs_pack_source_close_idle(s->source, files[0]);
    efs_pack_source_close_idle(s->source, files[1]);
    return rc;
}

/* Finds a candidate's original among the previous candidates with an equal sample. */
static errint_t find_original(struct search *s, size_t first, size_t at, struct efs_error *err)
{
    const struct candidate *copy = &s->candidates[at];
    struct efs_source_file *file = &s->catalog->files[number_of(s, copy)];
    errint_t rc = 0;
    for (size_t i = first; rc == 0 && i < at && !file->copy; i++)
        if (!s->candidates[i].file->copy) {
            rc = compare_files(s, &s->candidates[i], copy, &file->copy, err);
            file->original = number_of(s, &s->candidates[i]);
        }
    return rc;
}

/* Removes the tensors of copies: their originals have them. */
static void drop_tensors(struct efs_catalog *c)
{
    size_t kept = 0;
    for (size_t t = 0; t < c->tensor_count; t++)
        if (c->files[c->tensors[t].file].copy)
            efs_source_tensor_free(&c->tensors[t]);
        else
            c->tensors[kept++] = c->tensors[t];
    c->tensor_count = kept;
}

static errint_t search_copies(struct search *s, struct efs_error *err)
{
    size_t first = 0;
    errint_t rc = 0;
    keep_equal(s, compare_sizes);
    for (size_t i = 0; rc == 0 && i < s->count; i++)
        rc = sample(s, &s->candidates[i], err);
    if (rc == 0)
        keep_equal(s, compare_samples);
    for (size_t i = 0; i < s->count; i++)
        s->total_bytes += s->candidates[i].file->bytes;
    for (size_t i = 1; rc == 0 && i < s->count; i++)
        if (compare_sizes(&s->candidates[first], &s->candidates[i]) != 0)
            first = i;
        else if (!s->candidates[i].experts) /* a file with its own experts is another part of the model */
            rc = find_original(s, first, i, err);
    drop_tensors(s->catalog);
    return rc;
}

errint_t efs_pack_find_copies(struct efs_catalog *catalog, struct efs_pack_source *source,
                              const struct efs_pack_options *options, struct efs_error *err)
{
    struct search s = {.catalog = catalog, .source = source, .options = options};
    errint_t rc = find_candidates(&s);
    for (int i = 0; i < 2; i++)
        s.buffers[i] = efs_sys_aligned_alloc(EFS_ALIGN, efs_pack_source_room(COMPARE_BYTES));
    if (rc < 0 || !s.buffers[0] || !s.buffers[1])
        rc = efs_fail(err, -ENOMEM, "%s: no memory", catalog->root);
    else
        rc = search_copies(&s, err);
    free(s.candidates);
    free(s.buffers[0]);
    free(s.buffers[1]);
    return rc;
}
