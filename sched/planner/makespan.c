/* SPDX-License-Identifier: Apache-2.0 */
/*
 * makespan.c - Algorithm 3 of ZipMoE, and its extension with measured costs.
 */
#include "makespan.h"

static double at_least_one(unsigned n)
{
    return n ? n : 1;
}

struct efs_share efs_makespan_share(const struct efs_cost *cost, enum efs_pool pool)
{
    double tensors = at_least_one(cost->tensors), chunks = tensors * at_least_one(cost->shards);
    bool reads_sm = pool == EFS_POOL_E || pool == EFS_POOL_M, reads_e = pool == EFS_POOL_S || pool == EFS_POOL_M;
    struct efs_share share = {0};

    if (reads_sm)
        share.io_ns += tensors * cost->sm_read_ns;
    if (reads_e)
        share.io_ns += chunks * cost->e_read_ns;
    if (pool != EFS_POOL_F)
        share.cpu_ns += chunks * cost->decode_ns;
    if (cost->extended)
        share.io_ns += reads_sm || reads_e ? cost->request_ns : 0;
    else
        share.cpu_ns += reads_e ? chunks * cost->e_read_ns : 0;
    share.cpu_ns /= at_least_one(cost->threads);
    return share;
}

double efs_makespan_of(const struct efs_cost *cost, struct efs_share sum, bool reads)
{
    double io = sum.io_ns + (cost->extended && reads ? cost->decode_ns : 0);

    return io > sum.cpu_ns ? io : sum.cpu_ns;
}
