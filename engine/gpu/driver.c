/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - see driver.h. */
#include "driver.h"

#include "cuda/gpu.h"
#include "symbol.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

errint_t efs_driver_open(struct efs_driver *driver, struct efs_error *err)
{
    const char *named = secure_getenv("EXPERTFS_CUDA"), *name = named && *named ? named : "libcuda.so.1";
    *driver = (struct efs_driver){.library = NULL};
    if (strcmp(name, "off") == 0)
        return efs_fail(err, -ENODEV, "no graphics processor: EXPERTFS_CUDA says off");
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return efs_fail(err, -ENODEV, "no graphics processor: %s; its driver brings libcuda.so.1",
                        why ? why : "no libcuda.so.1");
    }
#define EFS_CU_FIND(field, symbol, arguments)                                                                          \
    if (!efs_symbol(library, symbol, &driver->field, sizeof(driver->field))) {                                         \
        dlclose(library);                                                                                              \
        return efs_fail(err, -ENODEV, "%s has no %s: a driver of CUDA 11 or later is needed", name, symbol);           \
    }
    EFS_CU_CALLS(EFS_CU_FIND)
#undef EFS_CU_FIND
#define EFS_CU_LOOK(field, symbol, arguments) (void)efs_symbol(library, symbol, &driver->field, sizeof(driver->field));
    EFS_CU_OPTIONAL_CALLS(EFS_CU_LOOK)
#undef EFS_CU_LOOK
    driver->library = library;
    return 0;
}

void efs_driver_close(struct efs_driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    driver->library = NULL;
}

const char *efs_driver_error(const struct efs_driver *driver, efs_cu_result result)
{
    const char *name = NULL;
    if (driver->error_name(result, &name) != 0 || !name)
        return "unknown error";
    return name;
}

errint_t efs_driver_fail(const struct efs_driver *driver, const char *call, efs_cu_result result, struct efs_error *err)
{
    return efs_fail(err, result == EFS_CU_OUT_OF_MEMORY ? -ENOMEM : -EIO, "the graphics processor: %s: %s (%d)", call,
                    efs_driver_error(driver, result), result);
}

efs_cu_result efs_driver_launch_shards(const struct efs_driver *driver, efs_cu_function function, bool decode,
                                       efs_cu_address table, uint32_t shards, uint32_t elements, efs_cu_stream stream)
{
    const uint32_t block = decode ? EFS_SPAN : EFS_BLOCK;
    void *arguments[] = {&table};
    return driver->launch(function, (elements + block - 1) / block, shards, 1,
                          decode ? EFS_GPU_DECODE_THREADS : EFS_GPU_THREADS, 1, 1, decode ? EFS_GPU_DECODE_SHARED : 0,
                          stream, arguments, NULL);
}
