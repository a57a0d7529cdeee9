/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "floats.h"
#include "foreign.h"
#include "model.h"
#include "random.h"

#define VALUES 65536u     /* of BF16 */
#define PIECE 65536u      /* elements read at a time */
#define PIECES_MAX 64u    /* of a tensor, evenly spread */
#define OF_A_KIND_MAX 64u /* tensors, evenly spread */
#define INFINITE_BITS 0x7f80u

/* Walker's alias method: every cell is drawn equally often, and holds one value below the threshold, one above. */
struct cell {
    uint32_t threshold;
    uint16_t below, above;
};

struct mk_distribution {
    enum mk_kind kind;
    unsigned bits;     /* there are 2^bits cells, bits >= 1 */
    uint64_t elements; /* of the tensor: its weight among its kind */
    struct cell cells[];
};

enum mk_kind mk_kind_of(const char *name, uint32_t dims)
{
    if (strcasestr(name, "bias"))
        return MK_KIND_BIAS;
    if (dims < 2)
        return strcasestr(name, "norm") || strcasestr(name, "ln_") ? MK_KIND_NORM : MK_KIND_BIAS;
    if (strcasestr(name, "emb") || strcasestr(name, "wte") || strcasestr(name, "shared.weight"))
        return MK_KIND_EMBEDDING;
    return strcasestr(name, "attn") || strcasestr(name, "attention") ? MK_KIND_ATTENTION : MK_KIND_MATRIX;
}

/* ---- counts to cells ------------------------------------------------------------------------------------------- */

static unsigned cell_bits(const uint32_t counts[VALUES])
{
    uint32_t distinct = 0;
    for (uint32_t v = 0; v < VALUES; v++)
        distinct += counts[v] != 0;
    unsigned bits = 1;
    while (1u << bits < distinct)
        bits++;
    return bits;
}

/* Give each cell its value and what another one lends it. left[i]: what value i has still to place, a full cell is
 * total. Vose's order of work, so that no cell is left that nobody fills. */
static void fill_cells(struct cell *cells, uint32_t count, const uint16_t *values, uint64_t *left, uint64_t total,
                       uint32_t *small, uint32_t *large)
{
    uint32_t smalls = 0, larges = 0;
    for (uint32_t i = 0; i < count; i++) {
        cells[i] = (struct cell){UINT32_MAX, values[i], values[i]};
        if (left[i] < total)
            small[smalls++] = i;
        else
            large[larges++] = i;
    }
    while (smalls && larges) {
        uint32_t poor = small[--smalls], rich = large[larges - 1];
        cells[poor].threshold = (uint32_t)((left[poor] << 32) / total);
        cells[poor].above = values[rich];
        left[rich] -= total - left[poor];
        if (left[rich] < total) {
            larges--;
            small[smalls++] = rich;
        }
    }
}

static struct mk_distribution *distribution_new(const uint32_t counts[VALUES], uint64_t total)
{
    unsigned bits = cell_bits(counts);
    uint32_t count = 1u << bits, used = 0;
    struct mk_distribution *made = malloc(sizeof(*made) + count * sizeof(made->cells[0]));
    uint64_t *left = calloc(count, sizeof(*left));
    uint16_t *values = calloc(count, sizeof(*values));
    uint32_t *small = calloc(count, sizeof(*small)), *large = calloc(count, sizeof(*large));
    bool whole = made && left && values && small && large;
    if (whole) {
        made->bits = bits;
        for (uint32_t v = 0; v < VALUES; v++) {
            if (!counts[v])
                continue;
            values[used] = (uint16_t)v;
            left[used++] = (uint64_t)counts[v] << bits;
        }
        fill_cells(made->cells, count, values, left, total, small, large);
    } else {
        free(made);
    }
    free(left);
    free(values);
    free(small);
    free(large);
    return whole ? made : NULL;
}

void mk_samples_row(const struct mk_distribution *distribution, uint64_t key, uint64_t first_pair, size_t pairs,
                    bool spread_out, float *out)
{
    uint64_t counter = key + first_pair * MK_WEYL;
    unsigned bits = distribution->bits;
    for (size_t i = 0; i < pairs; i++) {
        counter += MK_WEYL;
        uint64_t draw = mk_mix(counter), more = spread_out ? mk_mix(~counter) : 0;
        for (unsigned half = 0; half < 2; half++, draw >>= 32, more >>= 32) {
            const struct cell *cell = &distribution->cells[(uint32_t)draw >> (32 - bits)];
            uint32_t value = (uint32_t)draw << bits < cell->threshold ? cell->below : cell->above;
            uint32_t image = value << 16;
            if (spread_out && value & 0x7fffu) /* nothing is between the two zeros */
                image += (uint32_t)(more & 0xffffu) - 0x8000u;
            out[2 * i + half] = mk_bits_float(image);
        }
    }
}

/* ---- a checkpoint's tensors ------------------------------------------------------------------------------------ */

/* What reading needs besides: counts of a tensor and a piece of it. */
struct scratch {
    uint32_t counts[VALUES];
    float floats[PIECE];
};

static uint64_t count_piece(const float *floats, size_t count, uint32_t counts[VALUES])
{
    uint64_t counted = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = mk_float_bits(floats[i]);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            continue;
        uint16_t value = mk_bf16(floats[i]);
        if ((value & INFINITE_BITS) == INFINITE_BITS) /* rounded up past the largest */
            continue;
        counts[value]++;
        counted++;
    }
    return counted;
}

static int samples_add(struct mk_samples *samples, struct mk_distribution *distribution)
{
    if (samples->count == samples->room) {
        size_t room = samples->room ? 2 * samples->room : 32;
        struct mk_distribution **more = reallocarray(samples->list, room, sizeof(struct mk_distribution *));
        if (!more) {
            free(distribution);
            return -ENOMEM;
        }
        samples->list = more;
        samples->room = room;
    }
    samples->list[samples->count++] = distribution;
    return 0;
}

static int take_tensor(struct tools_foreign *foreign, size_t index, enum mk_kind kind, struct scratch *scratch,
                       struct mk_samples *samples, struct efs_error *err)
{
    struct tools_foreign_tensor tensor = tools_foreign_tensor(foreign, index);
    uint64_t pieces = (tensor.elements + PIECE - 1) / PIECE, taken = pieces < PIECES_MAX ? pieces : PIECES_MAX;
    uint64_t total = 0;
    memset(scratch->counts, 0, sizeof(scratch->counts));
    for (uint64_t p = 0; p < taken; p++) {
        uint64_t first = p * pieces / taken * PIECE, left = tensor.elements - first;
        size_t count = left < PIECE ? (size_t)left : PIECE;
        int rc = tools_foreign_read(foreign, index, first, count, scratch->floats, err);
        if (rc)
            return rc;
        total += count_piece(scratch->floats, count, scratch->counts);
    }
    if (!total)
        return 0;
    struct mk_distribution *distribution = distribution_new(scratch->counts, total);
    if (!distribution)
        return -ENOMEM;
    distribution->kind = kind;
    distribution->elements = tensor.elements;
    return samples_add(samples, distribution);
}

/* Of n tensors of a kind, whether to take number i: OF_A_KIND_MAX of them, evenly spread. */
static bool is_taken(uint64_t i, uint64_t n)
{
    return n <= OF_A_KIND_MAX || (i + 1) * OF_A_KIND_MAX / n != i * OF_A_KIND_MAX / n;
}

static int take_tensors(struct tools_foreign *foreign, struct scratch *scratch, struct mk_samples *samples,
                        struct efs_error *err)
{
    uint64_t all[MK_KINDS] = {0}, seen[MK_KINDS] = {0};
    size_t count = tools_foreign_count(foreign);
    for (size_t t = 0; t < count; t++) {
        struct tools_foreign_tensor tensor = tools_foreign_tensor(foreign, t);
        all[mk_kind_of(tensor.name, tensor.dims)]++;
    }
    for (size_t t = 0; t < count; t++) {
        struct tools_foreign_tensor tensor = tools_foreign_tensor(foreign, t);
        enum mk_kind kind = mk_kind_of(tensor.name, tensor.dims);
        if (!is_taken(seen[kind]++, all[kind]))
            continue;
        int rc = take_tensor(foreign, t, kind, scratch, samples, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool is_matrix(enum mk_kind kind)
{
    return kind <= MK_KIND_EMBEDDING;
}

static bool has_matrix(const struct mk_samples *samples)
{
    for (size_t i = 0; i < samples->count; i++)
        if (is_matrix(samples->list[i]->kind))
            return true;
    return false;
}

int mk_samples_read(const char *path, struct mk_samples *samples, struct mk_error *error)
{
    struct tools_foreign *foreign = NULL;
    struct efs_error err = {""};
    struct scratch *scratch = malloc(sizeof(*scratch));
    int rc = scratch ? tools_foreign_open(path, &foreign, &err) : -ENOMEM;
    if (!rc)
        rc = take_tensors(foreign, scratch, samples, &err);
    if (!rc && !has_matrix(samples))
        rc = efs_fail(&err, -EUCLEAN, "%s: no tensor of two dimensions holds floats", path);
    tools_foreign_close(foreign);
    free(scratch);
    if (rc)
        snprintf(error->text, sizeof(error->text), "--weights: %.480s", err.text[0] ? err.text : strerror(-rc));
    return rc;
}

void mk_samples_free(struct mk_samples *samples)
{
    for (size_t i = 0; i < samples->count; i++)
        free(samples->list[i]);
    free(samples->list);
    memset(samples, 0, sizeof(*samples));
}

/* Elements of the tensors that match: of the kind, or with any_matrix of all matrices. */
static uint64_t distribution_weight(const struct mk_distribution *d, enum mk_kind kind, bool any_matrix)
{
    return d->kind == kind || (any_matrix && is_matrix(d->kind)) ? d->elements : 0;
}

const struct mk_distribution *mk_samples_choose(const struct mk_samples *samples, enum mk_kind kind, uint64_t key)
{
    for (int any_matrix = 0; any_matrix <= is_matrix(kind); any_matrix++) {
        uint64_t total = 0;
        for (size_t i = 0; i < samples->count; i++)
            total += distribution_weight(samples->list[i], kind, any_matrix);
        if (!total)
            continue;
        uint64_t place = mk_mix(key ^ UINT64_C(0x73616d706c65)) % total;
        for (size_t i = 0; i < samples->count; i++) {
            uint64_t weight = distribution_weight(samples->list[i], kind, any_matrix);
            if (place < weight)
                return samples->list[i];
            place -= weight;
        }
    }
    return NULL;
}
