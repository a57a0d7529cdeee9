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
struct odd_expert {
    unsigned tensors;
    bool unlike; /* shapes and dtypes are drawn for each expert */
    bool runs;   /* gate, up and down have ODD_HIDDEN as hidden size, so that the expert can be computed */
};

struct odd_draw {
    uint64_t *state;
    struct odd_store *odd;
};

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"U8", 1}, {"I64", 8}, {"F8_E3M4", 1}};

static struct odd_tensor *draw_tensor(struct odd_draw *draw)
{
    struct odd_store *odd = draw->odd;
    assert_true(odd->tensor_count < TENSORS_MOST);
    struct odd_tensor *t = &odd->tensors[odd->tensor_count++];
    memset(t, 0, sizeof(*t));
    return t;
}

/* The number of elements is 0, 1, odd, a multiple of a page, or larger than a shard. */
static void draw_shape(struct odd_draw *draw, struct odd_tensor *t, bool small)
{
    static const uint64_t lengths[] = {0, 1, 3, 64, 1000, 2048, 4096, 4097, 8192, 20000, 70000};
    const unsigned count = sizeof(lengths) / sizeof(lengths[0]);
    unsigned type = odd_below(draw->state, sizeof(dtypes) / sizeof(dtypes[0]));
    if (!odd_once_in(draw->state, 3))
        type = 0;
    t->dtype = dtypes[type].name;
    t->dims = 1 + (int)odd_below(draw->state, 2);
    t->shape[0] = lengths[small ? odd_below(draw->state, 6) : odd_below(draw->state, count)];
    t->shape[1] = t->dims > 1 ? 1 + odd_below(draw->state, 2) : 0;
    t->bytes = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1) * dtypes[type].bytes;
}

/* gate and up are [inner][hidden], down is [hidden][inner]. */
static void draw_matrix(struct odd_draw *draw, struct odd_tensor *t, bool down, const struct odd_tensor *gate)
{
    uint64_t inner = gate ? gate->shape[0] : 1 + odd_below(draw->state, 300);
    t->dtype = "BF16";
    t->dims = 2;
    t->shape[0] = down ? ODD_HIDDEN : inner;
    t->shape[1] = down ? inner : ODD_HIDDEN;
    t->bytes = 2 * inner * ODD_HIDDEN;
}

/* Copy the shape of the same tensor of another expert. */
static void copy_shape(struct odd_tensor *t, const struct odd_tensor *from)
{
    t->dtype = from->dtype;
    t->dims = from->dims;
    memcpy(t->shape, from->shape, sizeof(t->shape));
    t->bytes = from->bytes;
}

static void draw_layer(struct odd_draw *draw, const char *prefix, unsigned layer, const struct odd_expert *expert)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    unsigned count = odd_once_in(draw->state, 4) ? 1 : 1 + odd_below(draw->state, 5), number = 0;
    const struct odd_tensor *first = NULL;
    for (unsigned e = 0; e < count; e++) {
        number += odd_once_in(draw->state, 6) ? 1 + odd_below(draw->state, 300) : 0;
        struct odd_tensor *begin = NULL;
        for (unsigned i = 0; i < expert->tensors; i++) {
            struct odd_tensor *t = draw_tensor(draw);
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

static void draw_fused_layer(struct odd_draw *draw, const char *prefix, unsigned layer)
{
    static const char *const parts[] = {"gate_up_proj", "down_proj"};
    unsigned experts = 1 + odd_below(draw->state, 6);
    for (unsigned i = 0; i < 2; i++) {
        struct odd_tensor *t = draw_tensor(draw);
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

static void draw_dense(struct odd_draw *draw)
{
    for (unsigned i = odd_below(draw->state, 4); i > 0; i--) {
        struct odd_tensor *t = draw_tensor(draw);
        draw_shape(draw, t, false);
        snprintf(t->name, sizeof(t->name), "model.dense.%u.weight", i);
    }
}

static void draw_stack(struct odd_draw *draw, const char *prefix, const struct odd_expert *expert)
{
    unsigned layers = 1 + odd_below(draw->state, 3), layer = 0;
    bool fused = odd_once_in(draw->state, 4);
    for (unsigned l = 0; l < layers; l++) {
        layer += odd_once_in(draw->state, 4) ? 1 + odd_below(draw->state, 90) : 0;
        if (fused || odd_once_in(draw->state, 8))
            draw_fused_layer(draw, prefix, layer);
        else
            draw_layer(draw, prefix, layer, expert);
        layer++;
    }
}

/* Draws files with the names of the view or the control directory, and files with similar names. */
static void draw_names(struct odd_draw *draw)
{
    struct odd_store *odd = draw->odd;
    static const char *const hiding[] = {"experts/notes.txt", "experts", ".expertfs/version", ".expertfs",
                                         "experts/L00/E000.safetensors"};
    static const char *const others[] = {"dense.safetensors.txt", "config.json", "sub/experts/a", "expertsX", "a.bin",
                                         "model.index.json"};
    if (odd_once_in(draw->state, 4)) {
        fixture_file(&odd->fixture, hiding[odd_below(draw->state, 5)], "\2\0\0\0\0\0\0\0{}", 10);
        odd->hidden = true;
    }
    for (unsigned i = odd_below(draw->state, 4); i > 0; i--)
        fixture_file(&odd->fixture, others[odd_below(draw->state, 6)], "{}", odd_below(draw->state, 3));
}

/* Distributes the tensors over files at random, and sets the address of each tensor's bytes in the file. */
static void write_files(struct odd_draw *draw)
{
    struct odd_store *odd = draw->odd;
    unsigned at = 0, files = 1 + odd_below(draw->state, ODD_FILES);
    for (unsigned f = 0; f < files; f++) {
        unsigned left = odd->tensor_count - at, count = f + 1 == files ? left : odd_below(draw->state, left + 1);
        struct fixture_tensor *list = calloc(count + 1, sizeof(*list));
        char path[1400];
        assert_non_null(list);
        for (unsigned i = 0; i < count; i++) {
            const struct odd_tensor *t = &odd->tensors[at + i];
            list[i] = (struct fixture_tensor){.name = t->name, .dtype = t->dtype, .dims = t->dims, .bytes = t->bytes};
            memcpy(list[i].shape, t->shape, sizeof(t->shape));
        }
        snprintf(path, sizeof(path), "weights-%u.safetensors", f);
        fixture_safetensors(&odd->fixture, path, list, count, (unsigned)fixture_random(draw->state));
        free(list);
        snprintf(path, sizeof(path), "%s/weights-%u.safetensors", odd->fixture.source, f);
        odd->source[f].data = fixture_read(path, &odd->source[f].bytes);
        uint64_t header;
        memcpy(&header, odd->source[f].data, sizeof(header));
        const unsigned char *raw = odd->source[f].data + 8 + header;
        for (unsigned i = 0; i < count; raw += odd->tensors[at + i++].bytes)
            odd->tensors[at + i].raw = raw;
        at += count;
    }
}

void odd_store_begin(struct odd_store *odd, uint64_t *state)
{
    static const char *const prefixes[] = {"model.", "", "encoder.", "a.b."};
    struct odd_draw draw = {state, odd};
    memset(odd, 0, sizeof(*odd));
    fixture_begin(&odd->fixture);
    odd->tensors = calloc(TENSORS_MOST, sizeof(*odd->tensors));
    assert_non_null(odd->tensors);
    unsigned stacks = odd_once_in(state, 8) ? 0 : 1 + odd_once_in(state, 4);
    for (unsigned s = 0; s < stacks; s++) {
        const struct odd_expert expert = {.tensors = odd_once_in(state, 6)   ? 60 + odd_below(state, 12)
                                                     : odd_once_in(state, 4) ? 1
                                                                             : 1 + odd_below(state, 6),
                                          .unlike = odd_once_in(state, 3)},
                                runs = {.tensors = 3, .runs = true};
        draw_stack(&draw, prefixes[s * 2 + odd_below(state, 2)], odd_once_in(state, 4) ? &runs : &expert);
    }
    draw_dense(&draw);
    draw_names(&draw);
    write_files(&draw);
    const struct efs_pack_options options = {
        .threads = 1 + odd_below(state, 2), .shard_elements = odd_once_in(state, 3) ? 32768 : 8192, .force = true};
    fixture_pack(&odd->fixture, &options);
}

void odd_store_end(struct odd_store *odd)
{
    for (unsigned f = 0; f < ODD_FILES; f++)
        free(odd->source[f].data);
    free(odd->tensors);
    fixture_end(&odd->fixture);
}

const struct odd_tensor *odd_store_tensor(const struct odd_store *odd, const char *name)
{
    for (unsigned i = 0; i < odd->tensor_count; i++)
        if (strcmp(odd->tensors[i].name, name) == 0)
            return &odd->tensors[i];
    return NULL;
}
