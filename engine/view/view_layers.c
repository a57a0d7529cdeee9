/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_layers.c - the text "layers" of efs_describe(): a row for each tensor of a run of experts. A run is experts of a
 * layer with consecutive numbers whose tensors have the same types and shapes, and names that differ by the expert's
 * number alone: mostly all experts of the layer. So the text of a model with 200,000 tensors has some 500 rows.
 */
#include "view.h"

#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_NUMBER UINT32_MAX

struct run {
    const struct efs_view *view;
    uint32_t first, last; /* experts of the store */
    uint32_t *number;     /* of each part: offset of the expert's number in its name, or NO_NUMBER */
};

static const struct efs_disk_tensor *part_tensor(const struct efs_view *view, uint32_t expert, uint32_t part)
{
    uint32_t count;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &count);
    return &view->store->tensors[view->store->objects[parts[part].object].tensor];
}

static uint64_t part_bytes(const struct efs_view *view, uint32_t expert, uint32_t part)
{
    uint32_t count;
    const struct efs_expert_part *parts = efs_view_expert_parts(view, expert, &count);
    return view->store->objects[parts[part].object].bytes;
}

static uint32_t part_count(const struct efs_view *view, uint32_t expert)
{
    uint32_t count;
    efs_view_expert_parts(view, expert, &count);
    return count;
}

/* Whether name b is name a with the number of expert `from` at offset `at` replaced by that of expert `to`. */
static bool is_renumbered(const struct efs_view *view, const struct efs_disk_tensor *a, uint32_t from, uint32_t at,
                          const struct efs_disk_tensor *b, uint32_t to)
{
    char old[16], new[16];
    const char *an = view->store->strings + a->name_offset, *bn = view->store->strings + b->name_offset;
    if (at == NO_NUMBER)
        return a->name_bytes == b->name_bytes && memcmp(an, bn, a->name_bytes) == 0;
    const size_t olds = (size_t)snprintf(old, sizeof(old), "%" PRIu32, view->store->groups[from].expert),
                 news = (size_t)snprintf(new, sizeof(new), "%" PRIu32, view->store->groups[to].expert);
    return at + olds <= a->name_bytes && b->name_bytes == a->name_bytes - olds + news &&
           memcmp(an + at, old, olds) == 0 && memcmp(an, bn, at) == 0 && memcmp(bn + at, new, news) == 0 &&
           memcmp(an + at + olds, bn + at + news, a->name_bytes - at - olds) == 0;
}

static bool is_same_kind(const struct efs_view *view, uint32_t a, uint32_t b, uint32_t part)
{
    const struct efs_disk_tensor *ta = part_tensor(view, a, part), *tb = part_tensor(view, b, part);
    return ta->dtype == tb->dtype && ta->dims == tb->dims && ta->expert_dim == tb->expert_dim &&
           part_bytes(view, a, part) == part_bytes(view, b, part) &&
           memcmp(ta->shape, tb->shape, ta->dims * sizeof(ta->shape[0])) == 0 &&
           !efs_store_tensor_type(view->store, ta, &(size_t){0}) ==
               !efs_store_tensor_type(view->store, tb, &(size_t){0});
}

/* Whether expert `next` continues the run. The second expert of a run sets where numbers are in names. */
static bool run_takes(struct run *run, uint32_t next)
{
    const struct efs_view *view = run->view;
    const struct efs_disk_group *a = &view->store->groups[run->last], *b = &view->store->groups[next];
    const uint32_t parts = part_count(view, next);
    if (b->layer != a->layer || b->expert != a->expert + 1 || b->stack_bytes != a->stack_bytes ||
        memcmp(view->store->strings + a->stack_offset, view->store->strings + b->stack_offset, a->stack_bytes) != 0 ||
        parts != part_count(view, run->first))
        return false;
    for (uint32_t p = 0; p < parts; p++) {
        const struct efs_disk_tensor *ta = part_tensor(view, run->first, p), *tb = part_tensor(view, next, p);
        uint32_t at = run->number[p];
        if (run->first == run->last) /* NO_NUMBER first, then each offset */
            while (!is_renumbered(view, ta, run->first, at, tb, next) && at != ta->name_bytes)
                at++;
        if (!is_same_kind(view, run->first, next, p) || !is_renumbered(view, ta, run->first, at, tb, next))
            return false;
        run->number[p] = at;
    }
    return true;
}

static void print_shape(const struct efs_view *view, uint32_t expert, uint32_t part, FILE *out)
{
    size_t bytes;
    const struct efs_disk_tensor *t = part_tensor(view, expert, part);
    const char *name = efs_dtype_name((enum efs_dtype)t->dtype);
    if (efs_store_tensor_type(view->store, t, &bytes) || strcmp(name, "ggml:unknown") == 0) {
        fprintf(out, "- [%" PRIu64 "]", part_bytes(view, expert, part));
        return;
    }
    fprintf(out, "%s [", name);
    for (uint32_t d = t->expert_dim ? 1 : 0; d < t->dims; d++)
        fprintf(out, "%s%" PRIu64, d > (t->expert_dim ? 1u : 0) ? "," : "", t->shape[d]);
    fputc(']', out);
}

static void print_run(const struct run *run, FILE *out)
{
    const struct efs_store *store = run->view->store;
    const struct efs_disk_group *first = &store->groups[run->first], *last = &store->groups[run->last];
    for (uint32_t p = 0; p < part_count(run->view, run->first); p++) {
        const struct efs_disk_tensor *t = part_tensor(run->view, run->first, p);
        fprintf(out, "%.*s %" PRIu32 " %" PRIu32 " %" PRIu32 " ", first->stack_bytes ? (int)first->stack_bytes : 1,
                first->stack_bytes ? store->strings + first->stack_offset : "-", first->layer, first->expert,
                last->expert);
        print_shape(run->view, run->first, p, out);
        if (run->number[p] == NO_NUMBER)
            fputs(" - ", out);
        else
            fprintf(out, " %" PRIu32 " ", run->number[p]);
        efs_print_escaped_bytes(out, store->strings + t->name_offset, t->name_bytes);
        fputc('\n', out);
    }
}

errint_t efs_view_layers(const struct efs_view *view, char **text, size_t *bytes)
{
    uint32_t most = 0;
    const uint32_t count = view->store->expert_count;
    for (uint32_t e = 0; e < count; e++)
        most = part_count(view, e) > most ? part_count(view, e) : most;
    struct run run = {.view = view, .number = efs_sys_calloc(most + 1u, sizeof(*run.number))};
    FILE *out = run.number ? open_memstream(text, bytes) : NULL;
    if (!out) {
        free(run.number);
        return -ENOMEM;
    }
    fputs("stack layer first last dtype shape number name\n", out);
    for (uint32_t e = 0; e < count; e = run.last + 1) {
        run.first = run.last = e;
        memset(run.number, 0xff, (most + 1u) * sizeof(*run.number));
        while (run.last + 1 < count && run_takes(&run, run.last + 1))
            run.last++;
        if (run.first == run.last) /* a failed try may have set some */
            memset(run.number, 0xff, (most + 1u) * sizeof(*run.number));
        print_run(&run, out);
    }
    free(run.number);
    return efs_text_stream_end(out, text);
}
