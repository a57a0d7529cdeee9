/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_copy.c - copies experts from the cache to slots. All threads decode the pieces of an expert, or copy them,
 * into memory that the device reads itself, if it offers such (one thread does while the processor computes a part of
 * the call); a part of this memory is filled while the other one is copied. Without such memory pieces that need no
 * decoding are copied from the cache directly.
 */
#include "offload.h"

#include "expertfs-clock-private.h"
#include "expertfs-private.h"

#include <errno.h>
#include <omp.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES (1u << 20)
#define STAGE_BYTES (16u << 20)
#define PIECES 64

struct piece {
    const struct efs_tensor *matrix;
    struct ggml_tensor *to;
    uint32_t row, rows;
    size_t row_bytes, offset; /* offset: in `to` */
    uint8_t *at;              /* in the staging memory */
    const void *data;         /* at, or in the cache */
};

struct batch {
    struct offload_call *call;
    struct piece piece[PIECES];
    unsigned count;
    size_t bytes; /* of the staging memory's part */
};

/* Waits until the device has copied what the part held before. */
static void stage_wait(struct efsg_offload *o)
{
    if (!o->recorded[o->stage])
        return;
    if (o->event[o->stage])
        o->device->iface.event_synchronize(o->device, o->event[o->stage]);
    else
        o->backend->iface.synchronize(o->backend);
    o->recorded[o->stage] = false;
}

/* Sets piece->data to the rows as the file has them. */
static errint_t piece_prepare(struct piece *piece, bool staged, struct efs_error *err)
{
    uint32_t done = 0;
    errint_t rc = 0;
    piece->data = piece->at;
    while (done < piece->rows && rc == 0) {
        uint32_t count = piece->rows - done;
        uint8_t *at = piece->at + done * piece->row_bytes;
        const void *rows = at;
        rc = efs_tensor_rows(piece->matrix, piece->row + done, &count, at, &rows, err);
        if (rc == 0 && rows != at && !staged && count == piece->rows)
            piece->data = rows;
        else if (rc == 0 && rows != at)
            memcpy(at, rows, count * piece->row_bytes);
        done += count;
    }
    return rc;
}

/* Copies the pieces to the device. With staging memory the copies are in progress when it returns. */
static errint_t batch_flush(struct batch *b)
{
    struct efsg_offload *o = b->call->o;
    const bool staged = o->staging_buffer != NULL;
    const bool alone = b->call->device == b->call->p.chosen_count; /* else the processor computes its part meanwhile */
    errint_t error = 0;
#pragma omp parallel for schedule(dynamic) reduction(min : error) if (alone)
    for (unsigned i = 0; i < b->count; i++) {
        struct efs_error err = {""};
        const errint_t rc = piece_prepare(&b->piece[i], staged, &err);
        error = rc < error ? rc : error;
        if (rc < 0) {
#pragma omp critical
            b->call->p.err = err;
        }
    }
    for (unsigned i = 0; i < b->count && error == 0; i++) {
        struct piece *piece = &b->piece[i];
        const size_t bytes = piece->rows * piece->row_bytes;
        if (staged)
            o->backend->iface.set_tensor_async(o->backend, piece->to, piece->data, piece->offset, bytes);
        else
            piece->to->buffer->iface.set_tensor(piece->to->buffer, piece->to, piece->data, piece->offset, bytes);
        o->counts.copied_bytes += bytes;
    }
    if (staged && b->count) {
        if (o->event[o->stage])
            o->backend->iface.event_record(o->backend, o->event[o->stage]);
        o->recorded[o->stage] = true;
        o->stage = (o->stage + 1) % OFFLOAD_STAGES;
    }
    b->count = 0;
    b->bytes = 0;
    return error;
}

/* Adds the pieces of a matrix. */
static errint_t matrix_copy(struct batch *b, const struct efs_tensor *from, const struct offload_matrix *matrix,
                            uint32_t slot)
{
    struct efsg_offload *o = b->call->o;
    const size_t row_bytes = matrix->row_bytes;
    const uint32_t most = row_bytes < PIECE_BYTES ? (uint32_t)(PIECE_BYTES / row_bytes) : 1;
    if (row_bytes > STAGE_BYTES)
        return -E2BIG;
    for (uint32_t row = 0, rows; row < matrix->rows; row += rows) {
        rows = matrix->rows - row < most ? matrix->rows - row : most;
        if (b->count == PIECES || b->bytes + rows * row_bytes > STAGE_BYTES) {
            errint_t rc = batch_flush(b);
            if (rc < 0)
                return rc;
        }
        if (b->count == 0)
            stage_wait(o);
        b->piece[b->count++] = (struct piece){.matrix = from,
                                              .to = matrix->slots,
                                              .row = row,
                                              .rows = rows,
                                              .row_bytes = row_bytes,
                                              .offset = ((size_t)slot * matrix->rows + row) * row_bytes,
                                              .at = o->staging + o->stage * STAGE_BYTES + b->bytes};
        b->bytes += (rows * row_bytes + 63) / 64 * 64;
    }
    return 0;
}

/* The matrix of that name; NULL: none, or of another shape. */
static const struct efs_tensor *tensor_of(const struct offload_matrix *matrix, const struct efs_tensor *tensors,
                                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, matrix->name) == 0)
            return tensors[i].dims == 2 && tensors[i].shape[0] == matrix->rows && tensors[i].shape[1] == matrix->cols &&
                           tensors[i].bytes == (uint64_t)matrix->rows * matrix->row_bytes
                       ? &tensors[i]
                       : NULL;
    return NULL;
}

static errint_t expert_copy(struct batch *b, struct efs_client_request *request, uint32_t item, uint32_t expert)
{
    struct offload_call *call = b->call;
    const struct offload_layer *layer = &call->o->layers[call->index];
    const struct efs_tensor *tensors;
    uint32_t count;
    errint_t rc = efs_client_tensors(request, item, &tensors, &count);
    const int32_t slot = efs_device_slots_find(call->o->slots, call->index, expert);
    for (uint32_t m = 0; m < layer->matrices && rc == 0; m++) {
        const struct efs_tensor *from = tensor_of(&layer->matrix[m], tensors, count);
        if (!from)
            return efs_fail(&call->p.err, -EINVAL, "expert %u of %s has another shape", expert, layer->matrix[m].name);
        rc = matrix_copy(b, from, &layer->matrix[m], (uint32_t)slot);
    }
    return rc == 0 ? batch_flush(b) : rc; /* then the expert can be dropped */
}

/* Requests experts and copies each when it has arrived. */
static errint_t experts_copy(struct offload_call *call, const struct chosen *const *chosen, struct efs_need *needs,
                             uint32_t count)
{
    struct efs_client_request *request = NULL;
    struct batch b = {.call = call};
    const uint32_t layer = call->o->layers[call->index].layer;
    errint_t status = 0, rc = efsg_source_begin(call->o->source, layer, needs, count, false, &request, &call->p.err);
    for (uint32_t done = 0; done < count && rc == 0; done++) {
        uint32_t item = 0;
        const int got = efs_client_wait_any(request, -1, &item, &status);
        rc = got < 0 ? got : got == 0 ? -EINVAL : status;
        if (rc == 0)
            rc = expert_copy(&b, request, item, chosen[item]->expert);
        else if (!call->p.err.text[0])
            efs_fail(&call->p.err, rc, "expert %u of layer %u cannot be had: %s", chosen[item]->expert, layer,
                     strerror(-rc));
        if (rc == 0)
            efs_client_drop(request, item);
        call->o->counts.copied += rc == 0;
    }
    efs_client_release(request);
    return rc;
}

errint_t offload_copy(struct offload_call *call, const struct chosen *const *chosen, uint32_t count)
{
    struct efsg_offload *o = call->o;
    const uint64_t start = efs_clock_ns(CLOCK_MONOTONIC);
    struct efs_need needs[EFS_ROUTING_EXPERTS];
    errint_t rc = 0;
    for (uint32_t at = 0, part; at < count && rc == 0; at += part) {
        part = count - at < EFS_ROUTING_EXPERTS ? count - at : EFS_ROUTING_EXPERTS;
        for (uint32_t i = 0; i < part; i++)
            needs[i] = (struct efs_need){.expert = chosen[at + i]->expert,
                                         .tokens = call->p.needs[chosen[at + i]->item].tokens};
        rc = experts_copy(call, chosen + at, needs, part);
    }
    for (uint32_t i = 0; i < count && rc < 0; i++)
        efs_device_slots_drop(o->slots, call->index, chosen[i]->expert);
    const uint64_t ns = efs_clock_ns(CLOCK_MONOTONIC) - start;
    o->counts.wait_ns += ns;
    call->copy_ns += ns;
    call->copied += count;
    return rc;
}
