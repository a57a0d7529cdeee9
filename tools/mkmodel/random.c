/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

#include <math.h>

double mk_exp(double x)
{
    const double ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    int k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * ln2_high) - k * ln2_low, sum = 1.0;
    for (int i = 17; i > 0; i--)
        sum = 1.0 + sum * r / i;
    return ldexp(sum, k);
}

/* Densities on the whole line, not yet of unit variance. */
static double density(enum mk_shape shape, double x)
{
    double y;
    switch (shape) {
    case MK_NORMAL:
        return 0.3989422804014327 * mk_exp(-0.5 * x * x);
    case MK_STUDENT4:
        y = 1 + x * x / 4;
        return 0.375 / (y * y * sqrt(y));
    case MK_STUDENT5:
        y = 1 + x * x / 5;
        return 0.3796066898224944 / (y * y * y);
    default:
        y = 1 + x * x / 6;
        return 0.3827327723098716 / (y * y * y * sqrt(y));
    }
}

/* Step h from q such that the half-distribution holds mass between q and q + h. The density falls, so Newton's steps
 * from below approach the root from below. */
static double density_step(enum mk_shape shape, double q, double mass)
{
    double f0 = 2 * density(shape, q), h = mass / f0;
    for (int i = 0; i < 24; i++) {
        double f1 = 2 * density(shape, q + h / 4), f2 = 2 * density(shape, q + h / 2),
               f3 = 2 * density(shape, q + 3 * h / 4), f4 = 2 * density(shape, q + h);
        double missing = mass - h / 12 * (f0 + 4 * f1 + 2 * f2 + 4 * f3 + f4);
        h += missing / f4;
        if (missing < mass * 1e-12 && missing > -mass * 1e-12)
            break;
    }
    return h;
}

void mk_tables_init(struct mk_tables *tables)
{
    static const double variance[MK_SHAPES] = {1.0, 2.0, 5.0 / 3.0, 1.5};
    for (int s = 0; s < MK_SHAPES; s++) {
        double unit = 1 / sqrt(variance[s]), q = 0;
        for (unsigned i = 0; i < MK_CELLS; i++) {
            tables->half[s][i] = (float)(q * unit);
            q += density_step((enum mk_shape)s, q, (i + 1 < MK_CELLS ? 1.0 : 63.0 / 64.0) / MK_CELLS);
        }
        tables->half[s][MK_CELLS] = (float)(q * unit);
    }
}

uint64_t mk_key(uint64_t seed, const char *name)
{
    uint64_t key = mk_mix(seed + MK_WEYL);
    for (; *name; name++)
        key = mk_mix((key ^ (unsigned char)*name) + MK_WEYL);
    return key;
}

void mk_random_row(const float *half, uint64_t key, uint64_t first_pair, size_t pairs, float scale, float *out)
{
    uint64_t counter = key + first_pair * MK_WEYL;
    for (size_t i = 0; i < pairs; i++) {
        counter += MK_WEYL;
        uint64_t bits = mk_mix(counter);
        out[2 * i] = mk_pick(half, (uint32_t)bits) * scale;
        out[2 * i + 1] = mk_pick(half, (uint32_t)(bits >> 32)) * scale;
    }
}
