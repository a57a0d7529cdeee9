/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random weights that any thread can make at any place: a counter-based generator and quantile tables.
 *
 * Nothing here depends on the processor, the number of threads or the C library's mathematics: only IEEE additions,
 * multiplications, divisions and square roots are used, so that a seed gives the same bytes everywhere.
 */
#ifndef MKMODEL_RANDOM_H
#define MKMODEL_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Distributions of a tensor's elements before its row scales; each has variance 1. */
enum mk_shape { MK_NORMAL, MK_STUDENT4, MK_STUDENT5, MK_STUDENT6, MK_SHAPES };

/* Weyl constant: the generator's counter steps by it (Steele, Lea, Flood: splittable generators, 2014). */
#define MK_WEYL UINT64_C(0x9e3779b97f4a7c15)

#define MK_CELLS 32768u /* quantiles of the half-distribution |x|; the cells have equal probability */

/* How weights are spread. */
enum mk_weights {
    MK_SCALED,  /* rows with scales of log-normal spread, one tensor in eight heavy-tailed */
    MK_PLAIN,   /* normal, one scale a tensor */
    MK_HEAVY,   /* as scaled, all tensors heavy-tailed: Student's t of 4 to 6 degrees of freedom */
    MK_SAMPLED, /* as the tensors of a given checkpoint */
};

struct mk_samples;

/* Quantiles of |x|: half[s][i] = the i/MK_CELLS quantile; the last one stands for a tail of 1/64 cell. */
struct mk_tables {
    float half[MK_SHAPES][MK_CELLS + 1];
    /* the caller's: what is drawn from them */
    enum mk_weights weights;
    const struct mk_samples *samples; /* for MK_SAMPLED */
};

/* Fill the quantiles (tens of milliseconds). */
void mk_tables_init(struct mk_tables *tables);

/* e to the x, for |x| < 700, to about 1e-15 relative. */
double mk_exp(double x);

/* A 64-bit mixing function: nearby inputs give unrelated outputs. */
static inline uint64_t mk_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The key of a name under a seed. */
uint64_t mk_key(uint64_t seed, const char *name);

/* One value with the distribution of table half, from 32 random bits: sign, cell, place in the cell. */
static inline float mk_pick(const float *half, uint32_t bits)
{
    uint32_t cell = (bits >> 16) & (MK_CELLS - 1);
    float x = half[cell] + (half[cell + 1] - half[cell]) * (float)(bits & 0xffffu) * (1.0f / 65536.0f);
    uint32_t image; /* the sign is put in by bits: a branch on it would be guessed wrong half of the time */
    memcpy(&image, &x, 4);
    image |= bits & 0x80000000u;
    memcpy(&x, &image, 4);
    return x;
}

/*
 * Elements [2 * first_pair, 2 * (first_pair + pairs)) of the endless row that key names, times scale, into out
 * (2 * pairs floats).
 */
void mk_random_row(const float *half, uint64_t key, uint64_t first_pair, size_t pairs, float scale, float *out);

#endif
