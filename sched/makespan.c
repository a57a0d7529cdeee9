/*
 * makespan.c - Algorithm 3 of ZipMoE, and its extension by measured costs.
 */
#include "makespan.h"

static double at_least_one(unsigned n)
{
    return n ? n : 1;
}

/* What a hit pattern asks for, in the paper's counts. */
struct work {
    double sm_chunks, e_chunks, decodes; /* n_SM, n_E, n_D */
    double requests;
};

static struct work count_work(const struct efs_cost *cost, unsigned chosen, const unsigned hits[EFS_POOLS])
{
    unsigned found = hits[EFS_POOL_F] + hits[EFS_POOL_C] + hits[EFS_POOL_S] + hits[EFS_POOL_E];
    double missing = found < chosen ? chosen - found : 0, s = hits[EFS_POOL_S], e = hits[EFS_POOL_E];
    double tensors = at_least_one(cost->tensors), chunks = tensors * at_least_one(cost->shards);

    return (struct work){.sm_chunks = tensors * (missing + e),
                         .e_chunks = chunks * (missing + s),
                         .decodes = chunks * (missing + s + e + hits[EFS_POOL_C]),
                         .requests = missing + s + e};
}

static double io_ns(const struct efs_cost *cost, const struct work *work)
{
    double ns = work->sm_chunks * cost->sm_read_ns + work->e_chunks * cost->e_read_ns;

    return cost->extended ? ns + work->requests * cost->request_ns : ns;
}

double efs_makespan_io_ns(const struct efs_cost *cost, unsigned chosen, const unsigned hits[EFS_POOLS])
{
    struct work work = count_work(cost, chosen, hits);

    return io_ns(cost, &work);
}

double efs_makespan_ns(const struct efs_cost *cost, unsigned chosen, const unsigned hits[EFS_POOLS])
{
    struct work work = count_work(cost, chosen, hits);
    double io = io_ns(cost, &work), cpu = work.decodes * cost->decode_ns;

    if (cost->extended) {
        cpu += hits[EFS_POOL_F] * cost->copy_ns;
        if (work.requests > 0)
            io += cost->decode_ns;
    } else {
        cpu += work.e_chunks * cost->e_read_ns;
    }
    cpu /= at_least_one(cost->threads);
    return io > cpu ? io : cpu;
}
