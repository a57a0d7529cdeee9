/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_device.c - efs_client_ffn() in EFS_FORM_DEVICE: runs each expert on the device when it is loaded. Experts that
 * did not fit in pool G are requested again after those that did were computed and dropped. In EFS_FORM_SHARED some
 * experts run on the device and the rest on the team, in parallel.
 */
#include "expertfs-clock-private.h"
#include "device_ops.h"
#include "device_run.h"
#include "expertfs-gpu.h"
#include "ffn.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The client's device. -EINVAL: it has none; -EOPNOTSUPP: activations are not F32. */
static errint_t device_of(const struct efs_client *client, const struct efs_mixture *m, struct efs_device **device,
                          struct efs_error *err)
{
    *device = efs_client_device(client);
    if (!*device)
        return efs_fail(err, -EINVAL, "experts in memory of a device need one: efs_client_gpu()");
    if (m->activation != EFS_ACTIVATION_F32)
        return efs_fail(err, -EOPNOTSUPP, "experts on a device run with activations in F32 alone");
    return 0;
}

/* The matrices of gate, up and down, by their device addresses. */
static errint_t device_matrices(const struct efs_tensor *tensors, uint32_t count, const struct efs_mixture *m,
                                struct efs_device_matrices *out, struct efs_error *err)
{
    struct efs_ffn_expert e = {.kind = EFS_FFN_SWIGLU};
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].dims != 2)
            return efs_fail(err, -EOPNOTSUPP, "%s: with it an expert does not run on a device", tensors[i].name);
    errint_t rc = efs_ffn_matrices(&e, tensors, count, m->hidden, err);
    free(e.shards);
    if (rc == 0 && e.kind != EFS_FFN_SWIGLU)
        rc = efs_fail(err, -EOPNOTSUPP, "%s: only gate, up and down run on a device", tensors[0].name);
    if (rc == 0)
        rc = efs_ffn_check_act(m->hidden_act, e.kind, tensors[0].name, err);
    *out = (struct efs_device_matrices){
        .gate = e.gate.plain, .up = e.up.plain, .down = e.down.plain, .inner = e.inner, .f16 = e.gate.f16};
    return rc;
}

/* Launches a loaded expert of the request. The errors of efs_device_run_expert() (-ENOMEM: nothing was launched);
 * -EOPNOTSUPP: its tensors are not gate, up and down. */
static errint_t device_launch(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                              uint32_t of_mixture, const struct efs_mixture *m, struct efs_error *err)
{
    struct efs_device_matrices matrices;
    const struct efs_tensor *tensors;
    uint32_t count;
    errint_t rc = efs_client_tensors(request, index, &tensors, &count);
    if (rc == 0)
        rc = device_matrices(tensors, count, m, &matrices, err);
    return rc < 0 ? rc : efs_device_run_expert(run, of_mixture, &matrices, err);
}

/* Drops the expert after the launched work. On an error, waits for that work instead, so that the caller may release
 * the request. Returns error or that of efs_client_drop_after(). */
static errint_t device_drop(struct efs_device_run *run, struct efs_client_request *request, uint32_t index,
                            errint_t error)
{
    const errint_t rc = error < 0 ? error : efs_client_drop_after(request, index, efs_device_run_stream(run));
    if (rc < 0) /* efs_client_release() drops it; launched work may still read it */
        efs_device_run_wait(run);
    return rc;
}

/* Requests needs[0 .. *count) and runs the experts that fit in pool G. Moves the rest to the front of needs, and their
 * indices in the mixture to the front of experts, and sets *count. -ENOMEM: none fitted. */
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
            rc = device_launch(run, request, index, experts[index], m, err);
            rc = device_drop(run, request, index, rc);
            needs[index].tokens = 0; /* it was run */
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

errint_t efs_ffn_device(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_mixture *m,
                        struct efs_error *err)
{
    struct efs_device_run *run = NULL;
    struct efs_device *device;
    errint_t rc = device_of(client, m, &device, err);
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

/*
 * ---- shared with the processor ----
 *
 * The caller's thread launches the device's experts: those in pool G before the processor's part, the rest as they are
 * loaded, between two blocks of that part and after it. The processor also runs those that did not fit in pool G.
 */

struct share {
    struct efs_client *client;
    struct efs_team *team;
    const char *stack;
    uint32_t layer;
    const struct efs_mixture *mixture;
    struct efs_device *device;
    struct efs_route_to *cpu_experts, *device_experts; /* [experts]: run by the processor, by the device */
    uint32_t cpu_count, device_count, cpu_done;        /* cpu_done: number of cpu_experts that were run */
    struct efs_assign_choice choice;
    uint64_t *ns; /* [experts] */
    float *part;  /* [tokens][hidden]: output of one part */
    struct efs_mixture on_device;
    struct efs_device_run *run;         /* NULL: no expert is on the device */
    struct efs_client_request *request; /* for the experts of run */
    errint_t rc;                        /* result of the device's part */
    struct efs_error err;
};

static errint_t share_allocate(struct share *s, struct efs_error *err)
{
    const struct efs_mixture *m = s->mixture;
    s->cpu_experts = efs_sys_calloc(m->expert_count, sizeof(*s->cpu_experts));
    s->device_experts = efs_sys_calloc(m->expert_count, sizeof(*s->device_experts));
    s->ns = efs_sys_calloc(m->expert_count, sizeof(*s->ns));
    s->part = efs_sys_calloc((size_t)m->tokens * m->hidden, sizeof(*s->part));
    return s->cpu_experts && s->device_experts && s->ns && s->part ? 0
                                                                   : efs_fail(err, -ENOMEM, "no memory for a mixture");
}

static errint_t share_assign(struct share *s, struct efs_error *err)
{
    const struct efs_mixture *m = s->mixture;
    bool on_device[EFS_ROUTING_EXPERTS];
    errint_t rc = efs_device_assign(s->device, s->stack, s->layer, m, on_device, &s->choice, err);
    for (uint32_t i = 0; i < m->expert_count && rc == 0; i++)
        if (on_device[i])
            s->device_experts[s->device_count++] = m->experts[i];
        else
            s->cpu_experts[s->cpu_count++] = m->experts[i];
    return rc;
}

/* Moves an expert that the device cannot run now to the processor. Not an error. */
static void share_move_to_cpu(struct share *s, uint32_t index)
{
    s->err.text[0] = '\0';
    s->cpu_experts[s->cpu_count++] = s->device_experts[index];
}

/* Begins the device's part. On -ENOMEM moves half of its experts to the processor and retries. */
static errint_t share_begin_run(struct share *s, struct efs_error *err)
{
    s->on_device = *s->mixture;
    s->on_device.experts = s->device_experts;
    s->on_device.y = s->part;
    s->on_device.y_stride = s->mixture->hidden;
    for (;;) {
        s->on_device.expert_count = s->device_count;
        errint_t rc = s->device_count ? efs_device_run_begin(s->device, &s->on_device, &s->run, err) : 0;
        if (rc != -ENOMEM)
            return rc;
        err->text[0] = '\0';
        for (uint32_t kept = s->device_count / 2; s->device_count > kept;)
            share_move_to_cpu(s, --s->device_count);
    }
}

static errint_t share_begin(struct share *s, struct efs_error *err)
{
    errint_t rc = share_begin_run(s, err);
    if (rc < 0 || !s->run)
        return rc;
    struct efs_need *needs = efs_sys_calloc(s->device_count, sizeof(*needs));
    if (!needs)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < s->device_count; i++)
        needs[i] = (struct efs_need){s->device_experts[i].expert, s->device_experts[i].count};
    rc = efs_client_begin(s->client, s->stack, s->layer, needs, s->device_count, EFS_FORM_DEVICE, &s->request, err);
    free(needs);
    return rc;
}

/* Launches the experts that are loaded; with timeout_ms < 0 waits for and launches all. */
static void share_launch_loaded(struct share *s, int timeout_ms)
{
    uint32_t index;
    errint_t status;
    while (s->request && s->rc == 0 && efs_client_wait_any(s->request, timeout_ms, &index, &status) == 1) {
        const bool loaded = status == 0;
        if (loaded)
            status = device_launch(s->run, s->request, index, index, s->mixture, &s->err);
        if (status == -ENOMEM || (status == -EOPNOTSUPP && !loaded)) {
            efs_client_drop(s->request, index);
            share_move_to_cpu(s, index);
        } else {
            s->rc = loaded ? device_drop(s->run, s->request, index, status) : status;
        }
    }
}

static void share_poll(void *share)
{
    share_launch_loaded(share, 0);
}

static void share_add(const struct share *s)
{
    const struct efs_mixture *m = s->mixture;
    for (uint32_t t = 0; t < m->tokens; t++)
        for (uint32_t c = 0; c < m->hidden; c++)
            m->y[t * m->y_stride + c] += s->part[(size_t)t * m->hidden + c];
}

/* Runs cpu_experts[cpu_done .. cpu_count) on the team and adds the result to y. */
static errint_t share_run_cpu(struct share *s, struct efs_error *err)
{
    const struct efs_ffn_source from = {
        .client = s->client, .stack = s->stack, .layer = s->layer, .before_block = share_poll, .arg = s, .ns = s->ns};
    struct efs_mixture part = *s->mixture;
    part.experts = s->cpu_experts + s->cpu_done;
    part.expert_count = s->cpu_count - s->cpu_done;
    part.form = EFS_FORM_ANY;
    part.y = s->part;
    part.y_stride = part.hidden;
    if (part.expert_count == 0)
        return 0;
    errint_t rc = efs_ffn_run(&from, s->team, &part, err);
    if (rc < 0)
        return rc;
    share_add(s);
    for (uint32_t i = 0; i < part.expert_count; i++)
        efs_device_report_cpu(s->device, part.experts[i].count, s->ns[i]);
    s->cpu_done += part.expert_count;
    return 0;
}

static errint_t share_run(struct share *s, struct efs_error *err)
{
    const struct efs_mixture *m = s->mixture;
    const uint64_t began_ns = efs_now_ns();
    errint_t rc = share_assign(s, err);
    const uint32_t dealt = s->cpu_count;
    if (rc == 0)
        rc = share_begin(s, err);
    for (uint32_t t = 0; t < m->tokens; t++)
        memset(m->y + t * m->y_stride, 0, m->hidden * sizeof(float));
    if (rc == 0) {
        share_launch_loaded(s, 0);
        rc = share_run_cpu(s, err);
    }
    if (rc == 0) {
        share_launch_loaded(s, -1);
        rc = s->rc;
        if (rc < 0)
            *err = s->err;
    }
    if (rc == 0)
        rc = share_run_cpu(s, err);
    efs_client_release(s->request);
    if (s->run)
        rc = efs_device_run_end(s->run, rc, err);
    if (rc == 0 && s->run)
        share_add(s);
    if (rc == 0 && s->cpu_count == dealt) /* all experts ran where they were to */
        efs_device_report_layer(s->device, &s->choice, efs_now_ns() - began_ns);
    return rc;
}

errint_t efs_ffn_share(struct efs_client *client, struct efs_team *team, const char *stack, uint32_t layer,
                       const struct efs_mixture *m, struct efs_error *err)
{
    struct share s = {.client = client, .team = team, .stack = stack, .layer = layer, .mixture = m};
    errint_t rc = device_of(client, m, &s.device, err);
    if (rc == 0)
        rc = share_allocate(&s, err);
    if (rc == 0)
        rc = share_run(&s, err);
    free(s.cpu_experts);
    free(s.device_experts);
    free(s.ns);
    free(s.part);
    return rc;
}
