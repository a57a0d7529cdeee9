/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - context, wake-up and loss of a device, for all of engine/gpu/. */
#include "device_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

efs_cu_result efs_device_push_context(struct efs_device *device)
{
    return device->driver.context_push(device->context);
}

void efs_device_pop_context(struct efs_device *device)
{
    efs_cu_context context;
    (void)device->driver.context_pop(&context);
}

void efs_device_wake(struct efs_device *device)
{
    uint64_t one = 1;
    ssize_t n = write(device->wake, &one, sizeof(one));
    (void)n; /* fails only if the eventfd is readable already */
}

void efs_device_lose(struct efs_device *device, const char *call, efs_cu_result result)
{
    pthread_mutex_lock(&device->lock);
    if (!device->lost)
        (void)efs_driver_fail(&device->driver, call, result, &device->lost_error);
    device->lost = -EIO;
    pthread_mutex_unlock(&device->lock);
}
