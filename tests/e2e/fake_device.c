/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_device.c - a device of ggml for tests, "FAKE0", with a type of memory, memory for copies, and copies that
 * are delayed: the bytes are read and written only when the backend or an event is waited for, or a graph is computed.
 * So a caller that uses memory of a copy in progress for something else gets other results. The CPU backend computes.
 *     FAKE_MEMORY=BYTES  allocations beyond it fail
 *     FAKE_FAIL=N        graph N, from 1, fails
 * It aborts if a graph has a tensor in other memory, and if memory is freed while a copy from or to it is in progress.
 */
#include <ggml-backend-impl.h>
#include <ggml-cpu.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPIES 4096

__attribute__((visibility("default"))) ggml_backend_reg_t fake_device_registry(void);

static struct ggml_backend_device device;
static struct ggml_backend_buffer_type own_type, host_type;
static size_t allocated;
static unsigned graphs;

struct fake {
    struct fake *next;
    ggml_backend_t cpu;
    struct copy {
        void *to;
        const void *from;
        size_t bytes;
    } copy[COPIES];
    unsigned copies;
};
static struct fake *fakes; /* all; the lock guards it, and their copies */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- memory ---- */

static void *buffer_base(ggml_backend_buffer_t b)
{
    return b->context;
}

static bool overlaps(const ggml_backend_buffer_t b, const void *at, size_t bytes)
{
    return (uintptr_t)at < (uintptr_t)b->context + b->size && (uintptr_t)at + bytes > (uintptr_t)b->context;
}

static void buffer_free(ggml_backend_buffer_t b)
{
    pthread_mutex_lock(&lock);
    for (const struct fake *f = fakes; f; f = f->next)
        for (unsigned i = 0; i < f->copies; i++)
            if (overlaps(b, f->copy[i].to, f->copy[i].bytes) || overlaps(b, f->copy[i].from, f->copy[i].bytes)) {
                fprintf(stderr, "fake_device: memory is freed while a copy is in progress\n");
                abort();
            }
    pthread_mutex_unlock(&lock);
    if (b->buft == &own_type)
        allocated -= b->size;
    free(b->context);
}

static void buffer_set(ggml_backend_buffer_t b, struct ggml_tensor *t, const void *data, size_t offset, size_t size)
{
    (void)b;
    memcpy((char *)t->data + offset, data, size);
}

static void buffer_get(ggml_backend_buffer_t b, const struct ggml_tensor *t, void *data, size_t offset, size_t size)
{
    (void)b;
    memcpy(data, (const char *)t->data + offset, size);
}

static void buffer_clear(ggml_backend_buffer_t b, uint8_t value)
{
    memset(b->context, value, b->size);
}

static ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t bytes)
{
    const struct ggml_backend_buffer_i calls = {.free_buffer = buffer_free,
                                                .get_base = buffer_base,
                                                .set_tensor = buffer_set,
                                                .get_tensor = buffer_get,
                                                .clear = buffer_clear};
    if (type == &own_type && bytes > number("FAKE_MEMORY", SIZE_MAX) - allocated)
        return NULL;
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    allocated += type == &own_type ? bytes : 0;
    return memory ? ggml_backend_buffer_init(type, calls, memory, bytes) : NULL;
}

static size_t type_alignment(ggml_backend_buffer_type_t type)
{
    (void)type;
    return 64;
}

static const char *type_name(ggml_backend_buffer_type_t type)
{
    return type == &own_type ? "FAKE0" : "FAKE0_Host";
}

static bool type_is_host(ggml_backend_buffer_type_t type)
{
    return type == &host_type;
}

/* ---- the backend ---- */

static void copy_all(struct fake *f)
{
    for (unsigned i = 0; i < f->copies; i++)
        memcpy(f->copy[i].to, f->copy[i].from, f->copy[i].bytes);
    f->copies = 0;
}

static void finish(struct fake *f)
{
    pthread_mutex_lock(&lock);
    copy_all(f);
    pthread_mutex_unlock(&lock);
}

static void add(struct fake *f, void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (f->copies == COPIES)
        copy_all(f);
    f->copy[f->copies++] = (struct copy){to, from, bytes};
    pthread_mutex_unlock(&lock);
}

static void backend_set(ggml_backend_t b, struct ggml_tensor *t, const void *data, size_t offset, size_t size)
{
    add(b->context, (char *)t->data + offset, data, size);
}

static void backend_get(ggml_backend_t b, const struct ggml_tensor *t, void *data, size_t offset, size_t size)
{
    add(b->context, data, (const char *)t->data + offset, size);
}

static void backend_synchronize(ggml_backend_t b)
{
    finish(b->context);
}

static void check(const struct ggml_tensor *t)
{
    const ggml_backend_buffer_t buffer = t && t->view_src ? t->view_src->buffer : t ? t->buffer : NULL;
    if (!t || (buffer && buffer->buft == &own_type))
        return;
    fprintf(stderr, "fake_device: %s is not in the device's memory\n", t->name);
    abort();
}

static enum ggml_status backend_compute(ggml_backend_t b, struct ggml_cgraph *graph)
{
    struct fake *f = b->context;
    finish(f);
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *node = ggml_graph_node(graph, i);
        check(node);
        for (unsigned s = 0; s < GGML_MAX_SRC; s++)
            check(node->src[s]);
    }
    if (++graphs == number("FAKE_FAIL", 0))
        return GGML_STATUS_FAILED;
    return ggml_backend_graph_compute(f->cpu, graph);
}

static void event_record(ggml_backend_t b, ggml_backend_event_t event)
{
    event->context = b;
}

static const char *backend_name(ggml_backend_t b)
{
    (void)b;
    return "FAKE0";
}

static void backend_free(ggml_backend_t b)
{
    struct fake *f = b->context;
    if (f->copies) {
        fprintf(stderr, "fake_device: freed while copies are in progress\n");
        abort();
    }
    pthread_mutex_lock(&lock);
    struct fake **at = &fakes;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&lock);
    ggml_backend_free(f->cpu);
    free(f);
    free(b);
}

static ggml_backend_t backend_new(ggml_backend_dev_t dev, const char *params)
{
    static ggml_guid guid = {0x66, 0x61, 0x6b, 0x65};
    ggml_backend_t b = calloc(1, sizeof(*b));
    struct fake *f = calloc(1, sizeof(*f));
    (void)params;
    if (!b || !f)
        abort();
    f->cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    pthread_mutex_lock(&lock);
    f->next = fakes;
    fakes = f;
    pthread_mutex_unlock(&lock);
    *b = (struct ggml_backend){.guid = &guid,
                               .iface = {.get_name = backend_name,
                                         .free = backend_free,
                                         .set_tensor_async = backend_set,
                                         .get_tensor_async = backend_get,
                                         .synchronize = backend_synchronize,
                                         .graph_compute = backend_compute,
                                         .event_record = event_record},
                               .device = dev,
                               .context = f};
    return b;
}

/* ---- the device ---- */

static const char *device_name(ggml_backend_dev_t dev)
{
    (void)dev;
    return "FAKE0";
}

static void device_memory(ggml_backend_dev_t dev, size_t *left, size_t *total)
{
    (void)dev;
    *total = number("FAKE_MEMORY", (size_t)1 << 30);
    *left = *total - allocated;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props)
{
    *props = (struct ggml_backend_dev_props){.name = "FAKE0",
                                             .description = "for tests",
                                             .type = device_type(dev),
                                             .caps = {.async = true, .host_buffer = true, .events = true}};
    device_memory(dev, &props->memory_free, &props->memory_total);
}

static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t dev)
{
    (void)dev;
    return &own_type;
}

static ggml_backend_buffer_type_t device_host_buffers(ggml_backend_dev_t dev)
{
    (void)dev;
    return &host_type;
}

static bool device_supports(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    (void)dev;
    return op->op != GGML_OP_GET_ROWS;
}

static bool device_supports_type(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type)
{
    (void)dev;
    return type == &own_type;
}

static ggml_backend_event_t event_new(ggml_backend_dev_t dev)
{
    ggml_backend_event_t event = calloc(1, sizeof(*event));
    if (event)
        event->device = dev;
    return event;
}

static void event_free(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    free(event);
}

static void event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    if (event->context)
        backend_synchronize(event->context);
}

static const char *registry_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "FAKE";
}

static size_t registry_count(ggml_backend_reg_t reg)
{
    (void)reg;
    return 1;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    (void)index;
    return &device;
}

static void *registry_call(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    (void)name;
    return NULL;
}

ggml_backend_reg_t fake_device_registry(void)
{
    static struct ggml_backend_reg registry = {.api_version = GGML_BACKEND_API_VERSION,
                                               .iface = {.get_name = registry_name,
                                                         .get_device_count = registry_count,
                                                         .get_device = registry_device,
                                                         .get_proc_address = registry_call}};
    const struct ggml_backend_buffer_type type = {.iface = {.get_name = type_name,
                                                            .alloc_buffer = type_alloc,
                                                            .get_alignment = type_alignment,
                                                            .is_host = type_is_host},
                                                  .device = &device};
    own_type = host_type = type;
    device = (struct ggml_backend_device){.iface = {.get_name = device_name,
                                                    .get_description = device_name,
                                                    .get_memory = device_memory,
                                                    .get_type = device_type,
                                                    .get_props = device_props,
                                                    .init_backend = backend_new,
                                                    .get_buffer_type = device_buffers,
                                                    .get_host_buffer_type = device_host_buffers,
                                                    .supports_op = device_supports,
                                                    .supports_buft = device_supports_type,
                                                    .event_new = event_new,
                                                    .event_free = event_free,
                                                    .event_synchronize = event_synchronize},
                                          .reg = &registry};
    return &registry;
}
