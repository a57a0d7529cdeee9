/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.c - weights for the benchmark.
 *
 * Drawing hundreds of millions of random numbers would take longer than the measurement, so a row is a stretch of a
 * table of them from a random place, times the row's scale. Rows of a given checkpoint are its matrices' elements in
 * their order. FP8 is scaled so that a row's largest value is the format's largest, as quantised checkpoints have it.
 */
#include "weights.h"

#include "foreign.h"
#include "measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW 4096u
#define TABLE (1u << 20)
#define UNIQUE_ROWS 8192u /* after that the rows repeat: the coder has no memory that long */

/* v rounded to nearest even in a format of 1 sign, exponent_bits and mantissa_bits, with the usual bias; values past
 * the largest finite one become it. */
static uint32_t round_to(float v, unsigned exponent_bits, unsigned mantissa_bits, uint32_t largest)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    uint32_t sign = (uint32_t)signbit(v) << (exponent_bits + mantissa_bits);
    float magnitude = fabsf(v);

    if (magnitude == 0)
        return sign;
    frexpf(magnitude, &exponent);    /* magnitude in [2^(exponent-1), 2^exponent) */
    int field = exponent - 1 + bias; /* below 1: subnormal */
    int scale = (field < 1 ? 1 : field) - bias - (int)mantissa_bits;
    uint32_t mantissa = (uint32_t)nearbyintf(ldexpf(magnitude, -scale));
    uint32_t bits = field < 1 ? mantissa : ((uint32_t)(field - 1) << mantissa_bits) + mantissa; /* carries by itself */
    return sign | (bits > largest ? largest : bits);
}

static void put_row(enum efs_format format, const float *values, float scale, uint8_t *raw)
{
    float largest = 0;

    for (unsigned i = 0; i < ROW; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    for (unsigned i = 0; i < ROW; i++) {
        float v = values[i] * scale;
        uint32_t bits;
        memcpy(&bits, &v, sizeof(bits));
        uint32_t bf16 = tools_bf16(v);
        uint32_t element = bits;
        switch (format) {
        case EFS_FORMAT_BYTES:
            element = bf16 >> 7 & 0xff;
            break;
        case EFS_FORMAT_BF16:
            element = bf16;
            break;
        case EFS_FORMAT_F16:
            element = round_to(v, 5, 10, 0x7bff);
            break;
        case EFS_FORMAT_E4M3:
            element = round_to(values[i] * 448 / largest, 4, 3, 0x7e);
            break;
        case EFS_FORMAT_E5M2:
            element = round_to(values[i] * 57344 / largest, 5, 2, 0x7b);
            break;
        case EFS_FORMAT_F32:
        case EFS_FORMAT_COUNT:
            break;
        }
        memcpy(raw + i * efs_format_bytes(format), &element, efs_format_bytes(format));
    }
}

static double student4(uint64_t *seed)
{
    double square = 0;
    for (int i = 0; i < 4; i++) {
        double x = tools_normal(seed);
        square += x * x;
    }
    return tools_normal(seed) / sqrt(square / 4) * sqrt(0.5); /* of variance 1 */
}

/* Elements of the matrices of a checkpoint, at most ROW * UNIQUE_ROWS of them. */
static errint_t read_foreign(struct weights *weights, struct tools_foreign *foreign, struct efs_error *err)
{
    size_t room = 0, most = (size_t)ROW * UNIQUE_ROWS;
    for (size_t t = 0; t < tools_foreign_count(foreign) && room < most; t++) {
        struct tools_foreign_tensor tensor = tools_foreign_tensor(foreign, t);
        if (tensor.dims >= 2)
            room += tensor.elements < most - room ? (size_t)tensor.elements : most - room;
    }
    if (room < ROW)
        return efs_fail(err, -EINVAL, "fewer than %u elements in matrices of floats", ROW);
    weights->table = malloc(room * sizeof(*weights->table));
    if (!weights->table)
        return efs_fail(err, -ENOMEM, "out of memory");
    for (size_t t = 0; t < tools_foreign_count(foreign) && weights->count < room; t++) {
        struct tools_foreign_tensor tensor = tools_foreign_tensor(foreign, t);
        size_t left = room - weights->count, take = tensor.elements < left ? (size_t)tensor.elements : left;
        if (tensor.dims < 2)
            continue;
        errint_t rc = tools_foreign_read(foreign, t, 0, take, weights->table + weights->count, err);
        if (rc < 0)
            return rc;
        weights->count += take;
    }
    return 0;
}

errint_t weights_open(const char *kind, struct weights *weights, struct efs_error *err)
{
    static const char *const kinds[WEIGHTS_FOREIGN] = {"scaled", "normal", "heavy"};
    uint64_t seed = 1;
    *weights = (struct weights){0};
    while (weights->kind < WEIGHTS_FOREIGN && strcmp(kinds[weights->kind], kind) != 0)
        weights->kind++;
    if (weights->kind == WEIGHTS_FOREIGN) {
        struct tools_foreign *foreign;
        errint_t rc = tools_foreign_open(kind, &foreign, err);
        if (rc < 0)
            return rc;
        rc = read_foreign(weights, foreign, err);
        tools_foreign_close(foreign);
        return rc;
    }
    weights->table = malloc(TABLE * sizeof(*weights->table));
    if (!weights->table)
        return efs_fail(err, -ENOMEM, "out of memory");
    weights->count = TABLE;
    for (size_t i = 0; i < TABLE; i++)
        weights->table[i] = (float)(weights->kind == WEIGHTS_HEAVY ? student4(&seed) : tools_normal(&seed));
    return 0;
}

void weights_close(struct weights *weights)
{
    free(weights->table);
    weights->table = NULL;
}

int weights_make(const struct weights *weights, enum efs_format format, uint8_t *raw, size_t n, uint64_t seed)
{
    size_t row_bytes = ROW * efs_format_bytes(format), bytes = n * efs_format_bytes(format), done = 0;
    bool foreign = weights->kind == WEIGHTS_FOREIGN;
    size_t rows = foreign ? weights->count / ROW : UNIQUE_ROWS;
    uint8_t *row = malloc(row_bytes);

    if (row == NULL)
        return -ENOMEM;
    for (size_t r = 0; r < rows && done < bytes; r++) {
        size_t at = foreign ? r * ROW : (size_t)(tools_uniform(&seed) * (double)(weights->count - ROW));
        size_t take = bytes - done < row_bytes ? bytes - done : row_bytes;
        double spread = weights->kind == WEIGHTS_NORMAL ? 0 : 0.5 * tools_normal(&seed);
        put_row(format, weights->table + at, foreign ? 1 : (float)(0.02 * exp(spread)), row);
        memcpy(raw + done, row, take);
        done += take;
    }
    while (done < bytes) {
        size_t take = bytes - done < done ? bytes - done : done;
        memcpy(raw + done, raw, take);
        done += take;
    }
    free(row);
    return 0;
}

double weights_entropy_bits(const uint64_t counts[256])
{
    double total = 0, bits = 0;

    for (unsigned s = 0; s < 256; s++)
        total += (double)counts[s];
    for (unsigned s = 0; s < 256; s++)
        if (counts[s] > 0)
            bits -= (double)counts[s] / total * log2((double)counts[s] / total);
    return bits;
}
