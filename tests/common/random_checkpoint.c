/* SPDX-License-Identifier: Apache-2.0 */
/* random_checkpoint.c - see random_checkpoint.h. */
#include "random_checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS_MOST 1500u

/* Properties that the experts of a stack share. */
struct random_expert {
    unsigned tensors;
    bool unlike; /* shapes and dtypes are drawn for each expert */
    bool runs;   /* gate, up and down have RANDOM_HIDDEN as hidden size, so that the expert can be computed */
};

struct random_draw {
    uint64_t *state;
    struct random_checkpoint *checkpoint;
};

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"U8", 1}, {"I64", 8}, {"F8_E3M4", 1}};

static struct random_tensor *draw_tensor(struct random_draw *draw)
{
    struct random_checkpoint *checkpoint = draw->checkpoint;
    assert_true(checkpoint->tensor_count < TENSORS_MOST);
    struct random_tensor *t = &checkpoint->tensors[checkpoint->tensor_count++];
    memset(t, 0, sizeof(*t));
    return t;
}

/* The number of elements is 0, 1, odd, a multiple of a page, or larger than a shard. */
static void draw_shape(struct random_draw *draw, struct random_tensor *t, bool small)
{
    static const uint64_t lengths[] = {0, 1, 3, 64, 1000, 2048, 4096, 4097, 8192, 20000, 70000};
    const unsigned count = sizeof(lengths) / sizeof(lengths[0]);
    unsigned type = draw_below(draw->state, sizeof(dtypes) / sizeof(dtypes[0]));
    if (!draw_once_in(draw->state, 3))
        type = 0;
    t->dtype = dtypes[type].name;
    t->dims = 1 + (int)draw_below(draw->state, 2);
    t->shape[0] = lengths[small ? draw_below(draw->state, 6) : draw_below(draw->state, count)];
    t->shape[1] = t->dims > 1 ? 1 + draw_below(draw->state, 2) : 0;
    t->bytes = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1) * dtypes[type].bytes;
}

/* gate and up are [inner][hidden], down is [hidden][inner]. */
static void draw_matrix(struct random_draw *draw, struct random_tensor *t, bool down, const struct random_tensor *gate)
{
    uint64_t inner = gate ? gate->shape[0] : 1 + draw_below(draw->state, 300);
    t->dtype = "BF16";
    t->dims = 2;
    t->shape[0] = down ? RANDOM_HIDDEN : inner;
    t->shape[1] = down ? inner : RANDOM_HIDDEN;
    t->bytes = 2 * inner * RANDOM_HIDDEN;
}

/* Copy the shape of the same tensor of another expert. */
static void copy_shape(struct random_tensor *t, const struct random_tensor *from)
{
    t->dtype = from->dtype;
    t->dims = from->dims;
    memcpy(t->shape, from->shape, sizeof(t->shape));
    t->bytes = from->bytes;
}

static void draw_layer(struct random_draw *draw, const char *prefix, unsigned layer, const struct random_expert *expert)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    unsigned count = draw_once_in(draw->state, 4) ? 1 : 1 + draw_below(draw->state, 5), number = 0;
    const struct random_tensor *first = NULL;
    for (unsigned e = 0; e < count; e++) {
        number += draw_once_in(draw->state, 6) ? 1 + draw_below(draw->state, 300) : 0;
        struct random_tensor *begin = NULL;
        for (unsigned i = 0; i < expert->tensors; i++) {
            struct random_tensor *t = draw_tensor(draw);
            begin = begin ? begin : t;
            snprintf(t->name, sizeof(t->name), "%slayers.%u.mlp.experts.%u.%s%.*s.weight", prefix, layer, number,
                     parts[i % 3], (int)(i / 3), "________________________________");
            if (expert->runs)
                draw_matrix(draw, t, i == 2, i ? begin : NULL);
            else if (first && !expert->unlike)
                copy_shape(t, first + i);
            else
                draw_shape(draw, t, expert->tensors > 8);
        }
        first = first ? first : begin;
        number++;
    }
}

static void draw_fused_layer(struct random_draw *draw, const char *prefix, unsigned layer)
{
    static const char *const parts[] = {"gate_up_proj", "down_proj"};
    unsigned experts = 1 + draw_below(draw->state, 6);
    for (unsigned i = 0; i < 2; i++) {
        struct random_tensor *t = draw_tensor(draw);
        draw_shape(draw, t, false);
        snprintf(t->name, sizeof(t->name), "%slayers.%u.mlp.experts.%s", prefix, layer, parts[i]);
        t->bytes *= experts;
        t->shape[t->dims] = t->shape[t->dims - 1];
        for (int d = t->dims; d > 0; d--)
            t->shape[d] = t->shape[d - 1];
        t->shape[0] = experts;
        t->dims++;
    }
}

static void draw_dense(struct random_draw *draw)
{
    for (unsigned i = draw_below(draw->state, 4); i > 0; i--) {
        struct random_tensor *t = draw_tensor(draw);
        draw_shape(draw, t, false);
        snprintf(t->name, sizeof(t->name), "model.dense.%u.weight", i);
    }
}

static void draw_stack(struct random_draw *draw, const char *prefix, const struct random_expert *expert)
{
    unsigned layers = 1 + draw_below(draw->state, 3), layer = 0;
    bool fused = draw_once_in(draw->state, 4);
    for (unsigned l = 0; l < layers; l++) {
        layer += draw_once_in(draw->state, 4) ? 1 + draw_below(draw->state, 90) : 0;
        if (fused || draw_once_in(draw->state, 8))
            draw_fused_layer(draw, prefix, layer);
        else
            draw_layer(draw, prefix, layer, expert);
        layer++;
    }
}

/* Draws files with the names of the view or the control directory, and files with similar names. */
static void draw_names(struct random_draw *draw)
{
    struct random_checkpoint *checkpoint = draw->checkpoint;
    static const char *const hiding[] = {"experts/notes.txt", "experts", ".expertfs/version", ".expertfs",
                                         "experts/L00/E000.safetensors"};
    static const char *const others[] = {"dense.safetensors.txt", "config.json", "sub/experts/a", "expertsX", "a.bin",
                                         "model.index.json"};
    if (draw_once_in(draw->state, 4)) {
        fixture_file(&checkpoint->fixture, hiding[draw_below(draw->state, 5)], "\2\0\0\0\0\0\0\0{}", 10);
        checkpoint->hidden = true;
    }
    for (unsigned i = draw_below(draw->state, 4); i > 0; i--)
        fixture_file(&checkpoint->fixture, others[draw_below(draw->state, 6)], "{}", draw_below(draw->state, 3));
}

/* Distributes the tensors over files at random, and sets the address of each tensor's bytes in the file. */
static void write_files(struct random_draw *draw)
{
    struct random_checkpoint *checkpoint = draw->checkpoint;
    unsigned at = 0, files = 1 + draw_below(draw->state, RANDOM_FILES);
    for (unsigned f = 0; f < files; f++) {
        unsigned left = checkpoint->tensor_count - at,
                 count = f + 1 == files ? left : draw_below(draw->state, left + 1);
        struct fixture_tensor *list = calloc(count + 1, sizeof(*list));
        char path[1400];
        assert_non_null(list);
        for (unsigned i = 0; i < count; i++) {
            const struct random_tensor *t = &checkpoint->tensors[at + i];
            list[i] = (struct fixture_tensor){.name = t->name, .dtype = t->dtype, .dims = t->dims, .bytes = t->bytes};
            memcpy(list[i].shape, t->shape, sizeof(t->shape));
        }
        snprintf(path, sizeof(path), "weights-%u.safetensors", f);
        fixture_safetensors(&checkpoint->fixture, path, list, count, (unsigned)fixture_random(draw->state));
        free(list);
        snprintf(path, sizeof(path), "%s/weights-%u.safetensors", checkpoint->fixture.source, f);
        checkpoint->source[f].data = fixture_read(path, &checkpoint->source[f].bytes);
        uint64_t header;
        memcpy(&header, checkpoint->source[f].data, sizeof(header));
        const unsigned char *raw = checkpoint->source[f].data + 8 + header;
        for (unsigned i = 0; i < count; raw += checkpoint->tensors[at + i++].bytes)
            checkpoint->tensors[at + i].raw = raw;
        at += count;
    }
}

void random_checkpoint_begin(struct random_checkpoint *checkpoint, uint64_t *state)
{
    static const char *const prefixes[] = {"model.", "", "encoder.", "a.b."};
    struct random_draw draw = {state, checkpoint};
    memset(checkpoint, 0, sizeof(*checkpoint));
    fixture_begin(&checkpoint->fixture);
    checkpoint->tensors = calloc(TENSORS_MOST, sizeof(*checkpoint->tensors));
    assert_non_null(checkpoint->tensors);
    unsigned stacks = draw_once_in(state, 8) ? 0 : 1 + draw_once_in(state, 4);
    for (unsigned s = 0; s < stacks; s++) {
        const struct random_expert expert = {.tensors = draw_once_in(state, 6)   ? 60 + draw_below(state, 12)
                                                        : draw_once_in(state, 4) ? 1
                                                                                 : 1 + draw_below(state, 6),
                                             .unlike = draw_once_in(state, 3)},
                                   runs = {.tensors = 3, .runs = true};
        draw_stack(&draw, prefixes[s * 2 + draw_below(state, 2)], draw_once_in(state, 4) ? &runs : &expert);
    }
    draw_dense(&draw);
    draw_names(&draw);
    write_files(&draw);
    const struct efs_pack_options options = {
        .threads = 1 + draw_below(state, 2), .shard_elements = draw_once_in(state, 3) ? 32768 : 8192, .force = true};
    fixture_pack(&checkpoint->fixture, &options);
}

void random_checkpoint_end(struct random_checkpoint *checkpoint)
{
    for (unsigned f = 0; f < RANDOM_FILES; f++)
        free(checkpoint->source[f].data);
    free(checkpoint->tensors);
    fixture_end(&checkpoint->fixture);
}

const struct random_tensor *random_checkpoint_tensor(const struct random_checkpoint *checkpoint, const char *name)
{
    for (unsigned i = 0; i < checkpoint->tensor_count; i++)
        if (strcmp(checkpoint->tensors[i].name, name) == 0)
            return &checkpoint->tensors[i];
    return NULL;
}
