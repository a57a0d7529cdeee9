/*
 * weights.c - synthetic weights for the benchmark.
 *
 * Drawing hundreds of millions of normal numbers would take longer than the measurement, so a row is a stretch of a
 * table of normal numbers from a random place, times the row's scale. FP8 is scaled so that a row's largest value
 * is the format's largest, as quantised checkpoints have it.
 */
#include "weights.h"

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

static void put_row(enum efs_format format, const float *normals, float scale, uint8_t *raw)
{
    float largest = 0;

    for (unsigned i = 0; i < ROW; i++)
        largest = fmaxf(largest, fabsf(normals[i]));
    for (unsigned i = 0; i < ROW; i++) {
        float v = normals[i] * scale;
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
            element = round_to(normals[i] * 448 / largest, 4, 3, 0x7e);
            break;
        case EFS_FORMAT_E5M2:
            element = round_to(normals[i] * 57344 / largest, 5, 2, 0x7b);
            break;
        case EFS_FORMAT_F32:
        case EFS_FORMAT_COUNT:
            break;
        }
        memcpy(raw + i * efs_format_bytes(format), &element, efs_format_bytes(format));
    }
}

int weights_make(enum efs_format format, uint8_t *raw, size_t n, uint64_t seed)
{
    size_t row_bytes = ROW * efs_format_bytes(format), bytes = n * efs_format_bytes(format), done = 0;
    float *table = malloc(TABLE * sizeof(*table));
    uint8_t *row = malloc(row_bytes);

    if (table == NULL || row == NULL) {
        free(table);
        free(row);
        return -ENOMEM;
    }
    for (size_t i = 0; i < TABLE; i++)
        table[i] = (float)tools_normal(&seed);
    for (unsigned r = 0; r < UNIQUE_ROWS && done < bytes; r++) {
        size_t at = (size_t)(tools_uniform(&seed) * (TABLE - ROW));
        size_t take = bytes - done < row_bytes ? bytes - done : row_bytes;
        put_row(format, table + at, (float)(0.02 * exp(0.5 * tools_normal(&seed))), row);
        memcpy(raw + done, row, take);
        done += take;
    }
    while (done < bytes) {
        size_t take = bytes - done < done ? bytes - done : done;
        memcpy(raw + done, raw, take);
        done += take;
    }
    free(table);
    free(row);
    return 0;
}

double weights_entropy_bits(const uint64_t counts[256])
{
    double total = 0, bits = 0;

    for (unsigned s = 0; s < 256; s++)
        total += (double)counts[s];
    for (unsigned s = 0; s < 256; s++) {
        if (counts[s] > 0)
            bits -= (double)counts[s] / total * log2((double)counts[s] / total);
    }
    return bits;
}
