/* SPDX-License-Identifier: Apache-2.0 */
/* product_sort.c - the memory of products, and their choices sorted by expert. */
#include "product.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *efsg_memory(struct efsg_memory *memory, size_t bytes)
{
    if (bytes > memory->bytes) {
        free(memory->at);
        memory->at = bytes <= SIZE_MAX - 64 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
        memory->bytes = memory->at ? bytes : 0;
    }
    return memory->at;
}

void efsg_buffers_init(struct efsg_buffers *room, struct efsg_device *device)
{
    *room = (struct efsg_buffers){.device = device};
    atomic_fetch_add(&device->backends, 1);
}

bool efsg_buffers_alone(const struct efsg_buffers *room)
{
    return atomic_load(&room->device->backends) == 1;
}

void efsg_buffers_free(struct efsg_buffers *room)
{
    atomic_fetch_sub(&room->device->backends, 1);
    efsg_buffers_release(room);
    for (unsigned t = 0; t < room->threads; t++) {
        free(room->own[t].scratch.at);
        free(room->own[t].out.at);
        free(room->own[t].inputs.at);
        free(room->own[t].graph.at);
        if (room->own[t].cpu)
            room->own[t].cpu->iface.free(room->own[t].cpu);
    }
    free(room->own);
    free(room->lists.at);
    free(room->vectors.at);
    free(room->rows.at);
    free(room->away.at);
}

errint_t efsg_buffers_threads(struct efsg_buffers *room, unsigned threads)
{
    if (threads <= room->threads)
        return 0;
    struct efsg_thread_buffers *own = realloc(room->own, threads * sizeof(*own));
    if (!own)
        return -ENOMEM;
    memset(own + room->threads, 0, (threads - room->threads) * sizeof(*own));
    room->own = own;
    room->threads = threads;
    return 0;
}

int32_t efsg_id_at(const struct ggml_tensor *ids, size_t slot, size_t token)
{
    int32_t id;
    memcpy(&id, (const char *)ids->data + slot * ids->nb[0] + token * ids->nb[1], sizeof(id));
    return id;
}

/* Allocates all lists in one block. experts: of the layer; choices: slots * tokens. false: no memory. */
static bool alloc_lists(struct products *p, struct efsg_buffers *room, size_t experts, size_t choices)
{
    size_t most = experts < choices ? experts : choices, portions = most + choices / EFS_VECTORS_MAX;
    if (experts > UINT32_MAX / 2 || choices > UINT32_MAX / 2)
        return false;
    size_t bytes = portions * sizeof(*p->portions) + most * sizeof(*p->chosen) + choices * sizeof(*p->places) +
                   most * sizeof(*p->needs) + most * sizeof(*p->arrived) + experts * sizeof(*p->counts);
    uint8_t *at = efsg_memory(&room->lists, bytes);
    if (!at)
        return false;
    p->portions = (void *)at;
    p->chosen = (void *)(p->portions + portions);
    p->places = (void *)(p->chosen + most);
    p->needs = (void *)(p->places + choices);
    p->arrived = (void *)(p->needs + most);
    p->counts = p->arrived + most;
    return true;
}

/* Adds the portions of an expert, of nearly equal size: with few inputs left over, ggml would choose another kernel for
 * these. */
static void add_portions(struct products *p, struct chosen *c, const struct place *places, uint32_t count)
{
    c->portions = (count + EFS_VECTORS_MAX - 1) / EFS_VECTORS_MAX;
    for (uint32_t i = 0, begin = 0, end; i < c->portions; i++, begin = end) {
        end = (uint32_t)((uint64_t)count * (i + 1) / c->portions);
        p->portions[p->portion_count++] = (struct portion){.places = places + begin, .count = end - begin};
    }
}

errint_t efsg_sort_choices(struct products *p, struct efsg_buffers *room)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    const uint32_t experts = p->weights[0]->experts;
    const size_t slots = (size_t)ids->ne[0], tokens = (size_t)ids->ne[1];
    if (slots > UINT32_MAX || tokens > UINT32_MAX || !alloc_lists(p, room, experts, slots * tokens))
        return -ENOMEM;
    memset(p->counts, 0, experts * sizeof(*p->counts));
    for (size_t t = 0; t < tokens; t++)
        for (size_t s = 0; s < slots; s++) {
            int32_t id = efsg_id_at(ids, s, t);
            if (id < 0 || (uint32_t)id >= experts)
                return efs_fail(&p->err, -EINVAL, "token %zu chose expert %d of %u", t, (int)id, experts);
            p->counts[id]++;
        }
    uint32_t begin = 0;
    for (uint32_t i = 0; i < experts; i++) {
        /* Down in the opposite order: where memory lacks for all experts of a layer, gate and up leave the last ones.
         */
        const uint32_t e = p->weights[0]->first ? i : experts - 1 - i, count = p->counts[e];
        if (count > 0) {
            struct chosen *c = &p->chosen[p->chosen_count];
            *c = (struct chosen){.expert = e, .item = p->chosen_count, .portion = p->portion_count};
            p->needs[p->chosen_count++] = (struct efs_need){.expert = e, .tokens = count};
            add_portions(p, c, p->places + begin, count);
        }
        p->counts[e] = begin; /* from here on: index of the expert's next place */
        begin += count;
    }
    for (size_t t = 0; t < tokens; t++)
        for (size_t s = 0; s < slots; s++)
            p->places[p->counts[efsg_id_at(ids, s, t)]++] = (struct place){(uint32_t)s, (uint32_t)t};
    p->all = p->chosen_count;
    return 0;
}

bool efsg_one_vector(const struct products *p)
{
    const struct ggml_tensor *ids = p->nodes[0]->src[2];
    return p->nodes[0]->src[1]->ne[1] == 1 && ids->ne[1] == 1 && p->all == ids->ne[0];
}
