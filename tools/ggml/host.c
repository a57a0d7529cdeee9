/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - finds the functions of the ggml that loaded this library, and checks its version. ggml's headers do not
 * promise the same struct layouts in two versions, so the backend registers only with the versions listed here; with
 * any other version ggml runs without it.
 */
#include "plugin.h"

#include "expertfs-private.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Versions with the struct layouts, and the numbers of operations and types, that this library is compiled with: those
 * of llama-cpp-python 0.3.36, 0.3.35 and 0.3.34. */
static const char *const versions[] = {"0.25.3", "0.20.0", "0.16.0"};
#define VERSIONS (sizeof(versions) / sizeof(versions[0]))
#define OVERHEAD_BYTES 368 /* ggml_tensor_overhead() of these */

_Static_assert(GGML_BACKEND_API_VERSION == 2 && sizeof(struct ggml_tensor) == 336, "compiled with ggml as listed");

struct efsg_host efsg_host;

void efsg_log(enum ggml_log_level level, const char *format, ...)
{
    char line[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    efs_join_hint(line, sizeof(line));
    if (efsg_host.log)
        efsg_host.log(level, "expertfs: %s\n", line);
    else
        fprintf(stderr, "expertfs: %s\n", line);
}

static const struct {
    const char *name;
    size_t at;
} calls[] = {
    {"ggml_version", offsetof(struct efsg_host, version)},
    {"ggml_log_internal", offsetof(struct efsg_host, log)},
    {"ggml_backend_buffer_init", offsetof(struct efsg_host, buffer_init)},
    {"ggml_graph_n_nodes", offsetof(struct efsg_host, graph_n_nodes)},
    {"ggml_graph_node", offsetof(struct efsg_host, graph_node)},
    {"ggml_tensor_overhead", offsetof(struct efsg_host, tensor_overhead)},
    {"ggml_op_name", offsetof(struct efsg_host, op_name)},
    {"ggml_type_name", offsetof(struct efsg_host, type_name)},
    {"ggml_backend_reg_by_name", offsetof(struct efsg_host, reg_by_name)},
    {"ggml_row_size", offsetof(struct efsg_host, row_size)},
    {"ggml_get_type_traits", offsetof(struct efsg_host, type_traits)},
    {"ggml_init", offsetof(struct efsg_host, init)},
    {"ggml_free", offsetof(struct efsg_host, free)},
    {"ggml_new_tensor_2d", offsetof(struct efsg_host, new_tensor_2d)},
    {"ggml_new_tensor_3d", offsetof(struct efsg_host, new_tensor_3d)},
    {"ggml_mul_mat_id", offsetof(struct efsg_host, mul_mat_id)},
    {"ggml_new_graph_custom", offsetof(struct efsg_host, new_graph_custom)},
    {"ggml_build_forward_expand", offsetof(struct efsg_host, build_forward_expand)},
};
/* For experts in the memory of a device; NULL where the host does not export them. */
static const struct {
    const char *name;
    size_t at;
} device_calls[] = {
    {"ggml_backend_dev_count", offsetof(struct efsg_host, dev_count)},
    {"ggml_backend_dev_get", offsetof(struct efsg_host, dev_get)},
    {"ggml_gallocr_new", offsetof(struct efsg_host, gallocr_new)},
    {"ggml_gallocr_free", offsetof(struct efsg_host, gallocr_free)},
    {"ggml_gallocr_alloc_graph", offsetof(struct efsg_host, gallocr_alloc_graph)},
    {"ggml_view_3d", offsetof(struct efsg_host, view_3d)},
    {"ggml_backend_buffer_free", offsetof(struct efsg_host, buffer_free)},
};

/* Looks up all functions in the library that contains the address `caller` and in its dependencies, which may be loaded
 * without RTLD_GLOBAL. Returns the name of the first missing one; NULL: none is missing. */
static const char *host_missing(const void *caller)
{
    Dl_info info;
    void *library = dladdr(caller, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    const char *missing = NULL;
    if (!library) /* the program itself */
        library = dlopen(NULL, RTLD_LAZY);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *call = library ? dlsym(library, calls[i].name) : NULL;
        memcpy((char *)&efsg_host + calls[i].at, &call, sizeof(call));
        if (!call && !missing)
            missing = calls[i].name;
    }
    for (size_t i = 0; library && i < sizeof(device_calls) / sizeof(device_calls[0]); i++) {
        void *call = dlsym(library, device_calls[i].name);
        memcpy((char *)&efsg_host + device_calls[i].at, &call, sizeof(call));
    }
    if (library)
        dlclose(library);
    return missing;
}

bool efsg_host_has_devices(void)
{
    return efsg_host.dev_count && efsg_host.dev_get && efsg_host.gallocr_new && efsg_host.gallocr_free &&
           efsg_host.gallocr_alloc_graph && efsg_host.view_3d && efsg_host.buffer_free;
}

/* ---- kernels of the CPU backend ---- */

typedef const struct ggml_type_traits_cpu *traits_fn(enum ggml_type type);

/* The function that returns them, in the library of the CPU backend, which ggml may have loaded as a file of its own.
 * NULL: not found, which is logged once. */
static traits_fn *traits_find(void)
{
    static _Atomic(traits_fn *) found;
    static _Atomic bool logged;
    traits_fn *traits = atomic_load(&found);
    ggml_backend_reg_t cpu = traits ? NULL : efsg_host.reg_by_name("CPU");
    Dl_info info;
    if (!cpu)
        return traits; /* found, or the CPU backend is not loaded yet */
    void *library = dladdr((void *)cpu->iface.get_name, &info) && info.dli_fname
                        ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                        : NULL;
    void *call = dlsym(library ? library : RTLD_DEFAULT, "ggml_get_type_traits_cpu");
    if (library)
        dlclose(library);
    memcpy(&traits, &call, sizeof(call));
    atomic_store(&found, traits);
    if (!traits && !atomic_exchange(&logged, true))
        efsg_log(GGML_LOG_LEVEL_WARN,
                 "this ggml does not export ggml_get_type_traits_cpu: quantised experts are left to the processor");
    return traits;
}

bool efsg_host_kernels(enum ggml_type type, struct efsg_kernels *kernels)
{
    traits_fn *find = (unsigned)type < GGML_TYPE_COUNT ? traits_find() : NULL;
    const struct ggml_type_traits_cpu *traits = find ? find(type) : NULL;
    if (!traits || !traits->vec_dot || (unsigned)traits->vec_dot_type >= GGML_TYPE_COUNT)
        return false;
    *kernels = (struct efsg_kernels){.vec_dot = traits->vec_dot,
                                     .vector_type = traits->vec_dot_type,
                                     .from_float = find(traits->vec_dot_type)->from_float};
    return kernels->from_float != NULL;
}

static bool is_known(const char *version)
{
    char known[256] = "";
    for (size_t i = 0; i < VERSIONS; i++) {
        if (strcmp(versions[i], version) == 0)
            return true;
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "", versions[i]);
    }
    efsg_log(GGML_LOG_LEVEL_WARN, "ggml %s is not known, only %s: going on without expertfs", version, known);
    return false;
}

void efsg_host_warn(void)
{
    const char *(*version)(void);
    void *call = dlsym(RTLD_DEFAULT, "ggml_version");
    memcpy(&version, &call, sizeof(call));
    if (version)
        (void)is_known(version());
}

bool efsg_host_find(const void *caller)
{
    const char *missing = host_missing(caller);
    if (missing) {
        efsg_log(GGML_LOG_LEVEL_WARN, "this ggml does not export %s: going on without expertfs", missing);
        return false;
    }
    const char *version = efsg_host.version();
    if (!is_known(version))
        return false;
    if (efsg_host.tensor_overhead() == OVERHEAD_BYTES &&
        strcmp(efsg_host.op_name(GGML_OP_MUL_MAT_ID), "MUL_MAT_ID") == 0 &&
        strcmp(efsg_host.op_name(GGML_OP_GET_ROWS), "GET_ROWS") == 0 &&
        strcmp(efsg_host.type_name(GGML_TYPE_BF16), "bf16") == 0)
        return true;
    efsg_log(GGML_LOG_LEVEL_WARN, "ggml %s was built in another way than this knows: going on without expertfs",
             version);
    return false;
}
