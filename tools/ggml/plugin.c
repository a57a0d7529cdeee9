/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.c - libggml-expertfs.so: a ggml backend with one device of type ACCEL that computes the products (MUL_MAT_ID)
 * with experts of an expertfs store or mount. All other operations stay on their backends.
 */
#include "plugin.h"

#include <string.h>

#define EFSG_API __attribute__((visibility("default")))

EFSG_API ggml_backend_reg_t ggml_backend_init(void);

static struct ggml_backend_reg registry;
static struct ggml_backend_device device;
static struct efsg_device context = {.source_lock = PTHREAD_MUTEX_INITIALIZER,
                                     .router_lock = PTHREAD_MUTEX_INITIALIZER,
                                     .table_lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the initialization of registry and device */

/* ---- the device ---- */

static const char *device_name(ggml_backend_dev_t dev)
{
    (void)dev;
    return "expertfs";
}

static const char *device_description(ggml_backend_dev_t dev)
{
    (void)dev;
    return "experts from the form in which expertfs keeps them";
}

static void device_memory(ggml_backend_dev_t dev, size_t *available, size_t *total)
{
    (void)dev;
    *available = *total = 0; /* the device uses host memory */
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void device_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props)
{
    *props = (struct ggml_backend_dev_props){.name = device_name(dev),
                                             .description = device_description(dev),
                                             .type = device_type(dev),
                                             .caps = {.buffer_from_host_ptr = true, .mmap_support = true}};
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t dev)
{
    return &efsg_device_of(dev)->type;
}

/* While it loads a model, llama.cpp queries the operations of a tensor without name and data in a buffer of 0 bytes.
 * All MUL_MAT_ID of a supported type are accepted then, so that experts are placed in a buffer of this device, where
 * buffer_init_tensor() gets their names. Block types only if a source is expected: the CPU backend repacks them
 * otherwise, which makes its batches faster. */
static bool accepts_type(enum ggml_type type)
{
    return type == GGML_TYPE_BF16 || type == GGML_TYPE_F16 || (efsg_weight_type(type) && efsg_source_expected());
}

static bool device_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    const struct ggml_tensor *w = op->src[0];
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    case GGML_OP_MUL_MAT_ID:
        if (w && efsg_buffer_is_ours(w->buffer) && w->buffer->size == 0)
            return accepts_type(w->type);
        return efsg_product_weight(op) != NULL;
    case GGML_OP_GET_ROWS:
        if (w && efsg_buffer_is_ours(w->buffer) && w->buffer->size == 0)
            return efsg_table_is_large(w) && efsg_source_expected();
        return efsg_table_takes(efsg_device_of(dev), op);
    case GGML_OP_MUL_MAT: /* ggml queries every node before the first token, which finds routers and tables */
        if (w && !(efsg_buffer_is_ours(w->buffer) && w->buffer->size == 0)) {
            efsg_router_record(efsg_device_of(dev), w);
            efsg_table_read_whole(efsg_device_of(dev), w);
        }
        return false;
    default:
        return efsg_offload_takes(op);
    }
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft)
{
    (void)dev;
    return buft->iface.is_host && buft->iface.is_host(buft);
}

/* ---- the registry ---- */

static const char *registry_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "expertfs";
}

static size_t registry_devices(ggml_backend_reg_t reg)
{
    (void)reg;
    return 1;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    return index == 0 ? &device : NULL;
}

static void *registry_call(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? (void *)efsg_backend_set_threads : NULL;
}

static void fill(void)
{
    registry = (struct ggml_backend_reg){.api_version = GGML_BACKEND_API_VERSION,
                                         .iface = {.get_name = registry_name,
                                                   .get_device_count = registry_devices,
                                                   .get_device = registry_device,
                                                   .get_proc_address = registry_call}};
    device = (struct ggml_backend_device){.iface = {.get_name = device_name,
                                                    .get_description = device_description,
                                                    .get_memory = device_memory,
                                                    .get_type = device_type,
                                                    .get_props = device_props,
                                                    .init_backend = efsg_backend_new,
                                                    .get_buffer_type = device_buffer_type,
                                                    .buffer_from_host_ptr = efsg_buffer_mapped,
                                                    .supports_op = device_supports_op,
                                                    .supports_buft = device_supports_buft},
                                          .reg = &registry,
                                          .context = &context};
    efsg_buffer_type_set(&device);
}

/* Entry point of the backend. NULL: ggml logs that the backend failed to initialize and continues without it. */
ggml_backend_reg_t ggml_backend_init(void)
{
    pthread_mutex_lock(&lock);
    bool good = efsg_host_find(__builtin_return_address(0));
    if (good && !device.reg)
        fill();
    pthread_mutex_unlock(&lock);
    if (!good)
        return NULL;
    /* Without the lock: ggml may load backends in this call, this one included, and call this function again. */
    const ggml_backend_reg_t there = efsg_host.reg_by_name(registry_name(NULL));
    if (there && there != &registry) {
        efsg_log(GGML_LOG_LEVEL_WARN, "another copy of this backend is loaded: this one does nothing");
        return NULL;
    }
    efsg_populate_defer();
    return &registry;
}
