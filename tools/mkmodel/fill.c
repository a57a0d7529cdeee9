/* SPDX-License-Identifier: Apache-2.0 */
#include "fill.h"

#include <errno.h>
#include <stdlib.h>

#include "floats.h"

#define CHUNK 1024u /* elements made at a time, in the first cache */
#define BAND 128u   /* rows, and columns, of an FP8 block */

/* The spread of the rows' scales: sigma of their logarithm. */
#define ROW_SIGMA 0.4

void mk_scratch_free(struct mk_scratch *scratch)
{
    free(scratch->floats);
    free(scratch->largest);
    free(scratch->bytes);
}

static int scratch_grow(void **memory, size_t *room, size_t bytes)
{
    if (bytes <= *room)
        return 0;
    free(*memory);
    *memory = malloc(bytes);
    *room = *memory ? bytes : 0;
    return *memory ? 0 : -ENOMEM;
}

/* One tensor in eight has heavy tails, of heavy weights all have. */
static enum mk_shape shape_of(enum mk_weights weights, uint64_t key)
{
    uint64_t draw = mk_mix(key ^ UINT64_C(0x7461696c73)) % (weights == MK_HEAVY ? 3 : 24);
    return draw < 3 ? (enum mk_shape)(MK_STUDENT4 + draw) : MK_NORMAL;
}

/* Where row r of a part comes from: itself, or its place before the rotation halves of each head were interleaved. */
static uint64_t source_row(const struct mk_tensor *tensor, uint64_t row)
{
    uint64_t head = tensor->rope_rows;
    if (!head)
        return row;
    uint64_t in = row % head;
    return row - in + (in % 2) * (head / 2) + in / 2;
}

/* What a part's values are drawn from if that is a given checkpoint's; else NULL. */
static const struct mk_distribution *drawn_from(const struct mk_tables *tables, const struct mk_tensor *tensor,
                                                uint64_t part)
{
    return tables->weights == MK_SAMPLED ? mk_samples_choose(tables->samples, tensor->kind, tensor->keys[part]) : NULL;
}

/* Elements [first, first + count) of a row of a part, as floats; count <= CHUNK. drawn is what drawn_from() says of
 * the part. out takes CHUNK + 2. Returns where in out they begin. */
static const float *row_floats(const struct mk_tables *tables, const struct mk_tensor *tensor,
                               const struct mk_distribution *drawn, uint64_t part, uint64_t row, uint64_t first,
                               size_t count, float *out)
{
    uint64_t key = tensor->keys[part], row_key = mk_mix(key ^ mk_mix(source_row(tensor, row) + 1));
    enum mk_shape shape = MK_NORMAL;
    float scale = tensor->scale;
    size_t odd = first % 2;
    if (drawn) {
        mk_samples_row(drawn, row_key, first / 2, (count + odd + 1) / 2, tensor->precision != MK_BF16, out);
        return out + odd;
    }
    if ((tensor->fill == MK_FILL_WEIGHT || tensor->fill == MK_FILL_SCALE) && tables->weights != MK_PLAIN) {
        shape = shape_of(tables->weights, key);
        double z = mk_pick(tables->half[MK_NORMAL], (uint32_t)(mk_mix(~row_key) >> 32));
        scale *= (float)mk_exp(ROW_SIGMA * z - ROW_SIGMA * ROW_SIGMA / 2);
    }
    mk_random_row(tables->half[shape], row_key, first / 2, (count + odd + 1) / 2, scale, out);
    if (tensor->fill == MK_FILL_NORM)
        for (size_t i = 0; i < count + odd; i++)
            out[i] += 1.0f;
    return out + odd;
}

static float round_to_dtype(enum mk_dtype precision, float x)
{
    switch (precision) {
    case MK_BF16:
        return mk_from_bf16(mk_bf16(x));
    case MK_F16:
        return mk_from_f16(mk_f16(x));
    default:
        return x;
    }
}

static void convert(const struct mk_tensor *tensor, const float *in, size_t count, uint8_t *out)
{
    if (tensor->dtype == MK_F32) {
        for (size_t i = 0; i < count; i++) {
            float x = round_to_dtype(tensor->precision, in[i]);
            memcpy(out + 4 * i, &x, 4);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t x = tensor->dtype == MK_BF16 ? mk_bf16(in[i]) : mk_f16(in[i]);
        memcpy(out + 2 * i, &x, 2);
    }
}

/* Elements [first, first + count) of the tensor. */
static void fill_elements(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t first,
                          uint64_t count, uint8_t *out)
{
    float floats[CHUNK + 2];
    uint32_t element = mk_dtype_bytes(tensor->dtype);
    uint64_t part = UINT64_MAX;
    const struct mk_distribution *drawn = NULL;
    while (count) {
        uint64_t row = first / tensor->columns, column = first % tensor->columns;
        uint64_t n = tensor->columns - column;
        n = n > CHUNK ? CHUNK : n;
        n = n > count ? count : n;
        if (row / tensor->rows != part) {
            part = row / tensor->rows;
            drawn = drawn_from(tables, tensor, part);
        }
        const float *values = row_floats(tables, tensor, drawn, part, row % tensor->rows, column, n, floats);
        convert(tensor, values, n, out);
        out += n * element;
        first += n;
        count -= n;
    }
}

/* The end of block b of a row. */
static uint64_t block_end(uint64_t block, uint64_t columns)
{
    uint64_t end = (block + 1) * BAND;
    return end < columns ? end : columns;
}

/* The largest magnitude of a block's columns in a row, or the one given; as bit patterns, which order alike. */
static float largest_of(const float *line, uint64_t block, uint64_t columns, float given)
{
    uint32_t largest = mk_float_bits(given);
    for (uint64_t column = block * BAND; column < block_end(block, columns); column++) {
        uint32_t size = mk_float_bits(line[column]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return mk_bits_float(largest);
}

/* Make band b (BAND rows) of an FP8 tensor as floats, and the largest magnitude of each of its blocks. */
static int fill_band(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t band,
                     struct mk_scratch *scratch)
{
    uint64_t first = band * BAND, rows = tensor->rows - first, blocks = (tensor->columns + BAND - 1) / BAND;
    rows = rows > BAND ? BAND : rows;
    if (scratch_grow((void **)&scratch->floats, &scratch->floats_room, BAND * tensor->columns * sizeof(float)) ||
        scratch_grow((void **)&scratch->largest, &scratch->largest_room, blocks * sizeof(float)))
        return -ENOMEM;
    for (uint64_t i = 0; i < blocks; i++)
        scratch->largest[i] = 0x1p-100f; /* no division by zero, ever */
    float chunk[CHUNK + 2];
    const struct mk_distribution *drawn = drawn_from(tables, tensor, 0);
    for (uint64_t row = 0; row < rows; row++) {
        float *line = scratch->floats + row * tensor->columns;
        for (uint64_t column = 0; column < tensor->columns; column += CHUNK) {
            uint64_t n = tensor->columns - column;
            n = n > CHUNK ? CHUNK : n;
            const float *values = row_floats(tables, tensor, drawn, 0, first + row, column, n, chunk);
            memcpy(line + column, values, n * sizeof(float));
        }
        for (uint64_t block = 0; block < blocks; block++)
            scratch->largest[block] = largest_of(line, block, tensor->columns, scratch->largest[block]);
    }
    return 0;
}

/* Elements of an FP8 tensor: each 128 x 128 block is scaled so that its largest value becomes 448. */
static int fill_fp8(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t first, uint64_t count,
                    uint8_t *out, struct mk_scratch *scratch)
{
    uint64_t made = UINT64_MAX;
    while (count) {
        uint64_t row = first / tensor->columns, column = first % tensor->columns;
        uint64_t n = block_end(column / BAND, tensor->columns) - column;
        n = n > count ? count : n;
        if (row / BAND != made) {
            made = row / BAND;
            if (fill_band(tables, tensor, made, scratch))
                return -ENOMEM;
        }
        const float *line = scratch->floats + (row % BAND) * tensor->columns + column;
        float factor = 448.0f / scratch->largest[column / BAND];
        for (uint64_t i = 0; i < n; i++)
            out[i] = mk_e4m3(line[i] * factor);
        out += n;
        first += n;
        count -= n;
    }
    return 0;
}

static int fill_scales(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t first, uint64_t count,
                       uint8_t *out, struct mk_scratch *scratch)
{
    uint64_t blocks = tensor->shape[1], made = UINT64_MAX;
    for (uint64_t i = first; i < first + count; i++) {
        if (i / blocks != made) {
            made = i / blocks;
            if (fill_band(tables, tensor, made, scratch))
                return -ENOMEM;
        }
        float scale = scratch->largest[i % blocks] / 448.0f;
        memcpy(out + 4 * (i - first), &scale, 4);
    }
    return 0;
}

static int fill_whole(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t first, uint64_t count,
                      uint8_t *out, struct mk_scratch *scratch)
{
    if (tensor->fill == MK_FILL_SCALE)
        return fill_scales(tables, tensor, first, count, out, scratch);
    if (tensor->dtype == MK_FP8)
        return fill_fp8(tables, tensor, first, count, out, scratch);
    fill_elements(tables, tensor, first, count, out);
    return 0;
}

int mk_fill(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t offset, size_t bytes, uint8_t *out,
            struct mk_scratch *scratch)
{
    uint32_t element = mk_dtype_bytes(tensor->dtype);
    uint64_t first = offset / element, end = (offset + bytes + element - 1) / element;
    if (first * element == offset && end * element == offset + bytes)
        return fill_whole(tables, tensor, first, end - first, out, scratch);
    /* the range cuts elements: make them whole, then take the range */
    if (scratch_grow((void **)&scratch->bytes, &scratch->bytes_room, (end - first) * element))
        return -ENOMEM;
    int error = fill_whole(tables, tensor, first, end - first, scratch->bytes, scratch);
    if (!error)
        memcpy(out, scratch->bytes + (offset - first * element), bytes);
    return error;
}
