/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_device.c - efs_client_ffn() in EFS_FORM_DEVICE: experts are computed where they come to, each when it is there.
 * Those that found no room are asked for again when others were computed and dropped.
 */
#include "ffn_device.h"
#include "device_ops.h"
#include "expertfs-gpu.h"
#include "ffn.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* The matrices of gate, up and down, which are not looked into: they are the device's. */
static errint_t device_matrices(const struct efs_tensor *tensors, uint32_t count, uint32_t hidden,
                                struct efs_device_matrices *out, struct efs_error *err)
{
    struct efs_ffn_expert e = {.kind = EFS_FFN_SWIGLU};
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].dims != 2)
            return efs_fail(err, -EOPNOTSUPP, "%s: with it an expert does not run on a device", tensors[i].name);
    errint_t rc = efs_ffn_matrices(&e, tensors, count, hidden, err);
    free(e.shards);
    if (rc == 0 && e.kind != EFS_FFN_SWIGLU)
        rc = efs_fail(err, -EOPNOTSUPP, "%s: only gate, up and down run on a device", tensors[0].name);
    *out = (struct efs_device_matrices){
        .gate = e.gate.plain, .up = e.up.plain, .down = e.down.plain, .inner = e.inner, .f16 = e.gate.f16};
    return rc;
}

errint_t efs_ffn_device_launch(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                               uint32_t of_mixture, uint32_t hidden, struct efs_error *err)
{
    struct efs_device_matrices matrices;
    const struct efs_tensor *tensors;
    uint32_t count;
    errint_t rc = efs_client_tensors(request, index, &tensors, &count);
    if (rc == 0)
        rc = device_matrices(tensors, count, hidden, &matrices, err);
    return rc < 0 ? rc : efs_device_run_expert(run, of_mixture, &matrices, err);
}

errint_t efs_ffn_device_drop(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                             errint_t error)
{
    const errint_t rc = error < 0 ? error : efs_client_drop_after(request, index, efs_device_run_stream(run));
    if (rc < 0) /* it is dropped with its request, and some of it may be under way */
        efs_device_run_wait(run);
    return rc;
}

/* Of needs those that find room; the others are needs[count] then, and of the mixture experts[count]. */
static errint_t device_round(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_mixture *m,
                             struct efs_device_run *run, struct efs_need *needs, uint32_t *experts, uint32_t *count,
                             struct efs_error *err)
{
    struct efs_client_request *request;
    uint32_t index, asked = *count, left = 0;
    errint_t status;
    errint_t rc = efs_client_begin(client, stack, layer, needs, asked, EFS_FORM_DEVICE, &request, err);
    if (rc < 0)
        return rc;
    while (rc == 0 && efs_client_wait_any(request, -1, &index, &status) == 1)
        if (status == 0) {
            rc = efs_ffn_device_launch(run, request, index, experts[index], m->hidden, err);
            rc = efs_ffn_device_drop(run, request, index, rc);
            needs[index].tokens = 0; /* it is over */
        } else if (status != -ENOMEM) {
            rc = status;
        }
    efs_client_release(request);
    for (uint32_t i = 0; i < asked; i++)
        if (needs[i].tokens) {
            needs[left] = needs[i];
            experts[left++] = experts[i];
        }
    *count = left;
    return rc == 0 && left == asked ? efs_fail(err, -ENOMEM, "what is held of pool G leaves an expert no room") : rc;
}

errint_t efs_ffn_device_of(const struct efs_client *client, const struct efs_mixture *m, struct efs_device **device,
                           struct efs_error *err)
{
    *device = efs_client_device(client);
    if (!*device)
        return efs_fail(err, -EINVAL, "experts in memory of a device need one: efs_client_gpu()");
    if (m->activation != EFS_ACTIVATION_F32)
        return efs_fail(err, -EOPNOTSUPP, "experts on a device run with activations in F32 alone");
    return 0;
}

errint_t efs_ffn_device(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_mixture *m,
                        struct efs_error *err)
{
    struct efs_device_run *run = NULL;
    struct efs_device *device;
    errint_t rc = efs_ffn_device_of(client, m, &device, err);
    if (rc < 0)
        return rc;
    struct efs_need *needs = efs_sys_calloc(m->expert_count, sizeof(*needs));
    uint32_t *experts = efs_sys_calloc(m->expert_count, sizeof(*experts)), count = m->expert_count;
    rc = needs && experts ? 0 : efs_fail(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        needs[i] = (struct efs_need){m->experts[i].expert, m->experts[i].count};
        experts[i] = i;
    }
    if (rc == 0)
        rc = efs_device_run_begin(device, m, &run, err);
    while (rc == 0 && count > 0)
        rc = device_round(client, stack, layer, m, run, needs, experts, &count, err);
    if (run)
        rc = efs_device_run_end(run, rc, err);
    free(needs);
    free(experts);
    return rc;
}
