/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.c - ggml buffers in host memory, which all backends can read. In a buffer over a mapped file the tensors of
 * experts that the source has get an efsg_weight, and their pages are released: the backend does not read them.
 */
#include "plugin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64

struct buffer {
    uint8_t *base;
    bool own; /* base is allocated here, not a mapping */
    struct efsg_file file;
    struct efsg_source *source;
    struct efsg_routers *routers;
    struct efsg_tables *tables;
    struct efsg_weight *weights;
};

/* ---- releasing pages ---- */

/* Releases the whole pages of a weight from this mapping and from the page cache; the kernel keeps pages that another
 * process has mapped. */
static void forget_pages(const struct buffer *b, const struct ggml_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)t->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)t->data + t->nb[2] * (size_t)t->ne[2]) / page * page;
    if (begin >= end)
        return;
    (void)madvise((void *)begin, end - begin, MADV_DONTNEED); // NOLINT: an address rounded to pages
    int fd = open(b->file.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)posix_fadvise(fd, (off_t)(b->file.offset + (begin - (uintptr_t)b->file.base)), (off_t)(end - begin),
                        POSIX_FADV_DONTNEED);
    close(fd);
}

/* ---- calls of ggml ---- */

static void *buffer_base(ggml_backend_buffer_t buffer)
{
    return ((struct buffer *)buffer->context)->base;
}

static void buffer_free(ggml_backend_buffer_t buffer)
{
    struct buffer *b = buffer->context;
    for (struct efsg_weight *w = b->weights, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    efsg_routers_free(b->routers);
    efsg_tables_free(b->tables);
    efsg_source_put(b->source);
    if (b->own)
        free(b->base);
    free(b);
}

static enum ggml_status buffer_init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor)
{
    struct buffer *b = buffer->context;
    if (!b->source || tensor->view_src || tensor->op != GGML_OP_NONE)
        return GGML_STATUS_SUCCESS;
    struct efsg_weight *w = efsg_weight_new(b->source, &b->file, tensor);
    if (w) {
        w->next = b->weights;
        w->routers = b->routers;
        b->weights = w;
        tensor->extra = w;
        efsg_source_add_weight(b->source, w);
    }
    if (w || efsg_table_is_large(tensor)) {
        efsg_populate_exclude(tensor->data, tensor->nb[2] * (size_t)tensor->ne[2]);
        forget_pages(b, tensor);
    }
    return GGML_STATUS_SUCCESS;
}

static void buffer_memset(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value, size_t offset,
                          size_t size)
{
    (void)buffer;
    memset((char *)tensor->data + offset, value, size);
}

static void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size)
{
    (void)buffer;
    memcpy((char *)tensor->data + offset, data, size);
}

static void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data, size_t offset,
                       size_t size)
{
    (void)buffer;
    memcpy(data, (const char *)tensor->data + offset, size);
}

static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    memset(buffer_base(buffer), value, buffer->size);
}

static const struct ggml_backend_buffer_i calls = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .init_tensor = buffer_init_tensor,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .clear = buffer_clear,
};

static ggml_backend_buffer_t buffer_of(ggml_backend_buffer_type_t type, struct buffer *b, size_t bytes)
{
    return efsg_host.buffer_init(type, calls, b, bytes);
}

ggml_backend_buffer_t efsg_buffer_mapped(ggml_backend_dev_t device, void *memory, size_t bytes, size_t largest)
{
    (void)largest;
    struct efsg_device *own = efsg_device_of(device);
    struct buffer *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->base = memory;
    if (efsg_file_at(memory, &b->file) == 0) {
        if (efsg_source_is_named(&b->file) && efsg_source_fits_memory(b->file.bytes)) {
            efsg_log(GGML_LOG_LEVEL_INFO,
                     "experts are left to the processor: all of %s fits into memory; EXPERTFS_BUDGET=auto, or a size, "
                     "takes them from the store or mount",
                     b->file.path);
            return buffer_of(&own->type, b, bytes);
        }
        b->source = efsg_source_get(own, &b->file);
    }
    if (b->source) {
        /* A fault in a dense tensor would read around it, up to the read-ahead of the disk: mostly experts, which would
         * take the page cache of other dense tensors (8 MiB a fault, 1 GB a token at half of a Q4_K_M file). */
        (void)madvise((void *)(uintptr_t)b->file.base, b->file.mapped, MADV_RANDOM); // NOLINT: const of efsg_file
        b->routers = efsg_routers_new(own, b->file.base, b->file.mapped);
        b->tables = efsg_tables_new(own, b->source, &b->file);
    }
    if (!b->source)
        efsg_log(GGML_LOG_LEVEL_INFO, "experts are left to the processor: %s is on no mount of expertfs%s",
                 b->file.path[0] ? b->file.path : "the model",
                 efsg_source_name() ? "" : ", and EXPERTFS_STORE names no store");
    return buffer_of(&own->type, b, bytes);
}

/* ---- the type ---- */

static const char *type_name(ggml_backend_buffer_type_t of)
{
    (void)of;
    return "expertfs";
}

static ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t of, size_t bytes)
{
    struct buffer *b = calloc(1, sizeof(*b));
    if (!b || bytes > SIZE_MAX - ALIGNMENT ||
        !(b->base = aligned_alloc(ALIGNMENT, (bytes | 1) + ALIGNMENT - (bytes | 1) % ALIGNMENT))) {
        free(b);
        return NULL;
    }
    b->own = true;
    return buffer_of(of, b, bytes);
}

static size_t type_alignment(ggml_backend_buffer_type_t of)
{
    (void)of;
    return ALIGNMENT;
}

static bool type_is_host(ggml_backend_buffer_type_t of)
{
    (void)of;
    return true;
}

void efsg_buffer_type_set(ggml_backend_dev_t device)
{
    efsg_device_of(device)->type = (struct ggml_backend_buffer_type){.iface = {.get_name = type_name,
                                                                               .alloc_buffer = type_alloc,
                                                                               .get_alignment = type_alignment,
                                                                               .is_host = type_is_host},
                                                                     .device = device};
}

bool efsg_buffer_is_ours(const struct ggml_backend_buffer *buffer)
{
    return buffer && buffer->buft->iface.get_name == type_name;
}
