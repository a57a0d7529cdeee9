/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_mount.c - the experts' files of a mount, as a runtime gets at them: a layer's experts are named to the
 * client library, which tells the mount, opens and maps the files and keeps some of them mapped. Or the library runs
 * them, from the memory of the mount.
 */
#include "reader.h"

#include "mounted.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAT_BYTES 16384u

struct mount_reader {
    struct replay_reader reader;
    const struct replay_model *model;
    struct efs_client *client;
    struct efs_client_request *request; /* NULL: none */
    int root;
    uint32_t request_max, layer, shown; /* shown: number in the request, or its count: none */
    const uint32_t *experts, *tokens;   /* the caller's, for as long as there is a request */
    uint32_t count;
    bool guesses;
    struct efs_need *needs;
    enum efs_form form; /* in which experts are run */
    struct efs_route_to *routes;
};

/* ---- a request ---------------------------------------------------------------------------------------------- */

static errint_t mount_request(struct replay_reader *reader, uint32_t layer, const uint32_t *experts,
                              const uint32_t *tokens, uint32_t count, struct efs_error *err)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    const struct replay_layer *named = &r->model->layer[layer];
    if (count > r->request_max)
        return efs_fail(err, -EINVAL, "a request of %u experts", count);
    for (uint32_t i = 0; i < count; i++)
        r->needs[i] = (struct efs_need){replay_model_expert(r->model, layer, experts[i])->number, tokens[i]};
    r->layer = layer;
    r->experts = experts;
    r->tokens = tokens;
    r->count = r->shown = count;
    return efs_client_begin(r->client, named->stack, named->number, r->needs, sizeof(struct efs_need), count,
                            EFS_FORM_FULL, &r->request, err);
}

static errint_t mount_show(const struct mount_reader *r, uint32_t index, struct replay_view *view,
                           struct efs_error *err)
{
    const struct replay_expert *expert = replay_model_expert(r->model, r->layer, r->experts[index]);
    const struct efs_tensor *tensors;
    uint32_t count;
    errint_t rc = efs_client_tensors(r->request, index, &tensors, &count);
    if (rc < 0 || count != expert->count)
        return efs_fail(err, rc < 0 ? rc : -EUCLEAN, "%s in the mount: not what the store has", expert->path);
    view->expert = expert;
    view->tokens = r->tokens[index];
    for (uint32_t t = 0; t < count; t++) {
        const struct replay_tensor *tensor = &expert->tensors[t];
        const struct efs_tensor *found = NULL;
        for (uint32_t i = 0; i < count && !found; i++)
            found = strcmp(tensors[i].name, tensor->name) == 0 ? &tensors[i] : NULL;
        if (!found || found->bytes != tensor->bytes)
            return efs_fail(err, -EUCLEAN, "%s in the mount: no tensor %s as the store has it", expert->path,
                            tensor->name);
        view->data[t] = found->data;
    }
    return 0;
}

static errint_t mount_next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    uint32_t index;
    if (r->shown < r->count)
        efs_client_drop(r->request, r->shown);
    r->shown = r->count;
    errint_t rc = 0;
    if (efs_client_wait_any(r->request, -1, &index, &rc) < 1)
        rc = -EINVAL; /* asked for more than were requested */
    if (rc < 0)
        return efs_fail(err, rc, "an expert of layer %u in the mount: %s", r->model->layer[r->layer].number,
                        strerror(-rc));
    r->shown = index;
    return mount_show(r, index, view, err);
}

static void mount_release(struct replay_reader *reader)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    if (r->request)
        efs_client_release(r->request);
    r->request = NULL;
}

/* ---- run by the library ---- */

static errint_t mount_run(struct replay_reader *reader, struct efs_team *team, const struct efs_mixture *mixture,
                          struct efs_error *err)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    const struct replay_model *model = r->model;
    uint32_t at = 0, all = model->layers * model->experts;
    while (at < all && model->all[at].id != mixture->experts[0].expert.number)
        at++;
    uint32_t layer = at / model->experts;
    if (at == all || mixture->expert_count > r->request_max)
        return efs_fail(err, -EINVAL, "a mixture of experts that the mount has not");
    struct efs_mixture m = *mixture;                       /* with numbers in the layer */
    for (uint32_t i = 0, e = 0; i < m.expert_count; i++) { /* both go up */
        while (e < model->experts && replay_model_expert(model, layer, e)->id != mixture->experts[i].expert.number)
            e++;
        if (e == model->experts)
            return efs_fail(err, -EINVAL, "a mixture of experts of two layers");
        r->routes[i] = mixture->experts[i];
        r->routes[i].expert = efs_id(replay_model_expert(model, layer, e)->number);
    }
    m.experts = r->routes;
    m.form = r->form;
    return efs_client_ffn(r->client, team, model->layer[layer].stack, model->layer[layer].number, &m, err);
}

/* ---- what the mount counts ---------------------------------------------------------------------------------- */

/* The number behind "name: "; false: there is no such line. */
static bool value_of(const char *text, const char *name, uint64_t *value)
{
    const char *at = tools_line_value(text, name);
    if (at)
        *value = strtoull(at, NULL, 10);
    return at != NULL;
}

/* A file of .expertfs/, with a NUL behind it. */
static errint_t read_control(const struct mount_reader *r, const char *name, char text[STAT_BYTES],
                             struct efs_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), ".expertfs/%s", name);
    int fd = openat(r->root, path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : pread(fd, text, STAT_BYTES - 1, 0);
    int rc = got < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return efs_fail(err, rc, "%s of the mount: %s", path, strerror(-rc));
    text[got] = '\0';
    return 0;
}

static errint_t mount_count(struct replay_reader *reader, struct replay_counters *c, struct efs_error *err)
{
    static const char *const states[REPLAY_STATES] = {"requests_f", "requests_c", "requests_s", "requests_e",
                                                      "requests_m"};
    static const char *const leases[REPLAY_STATES] = {"leases_f", "leases_c", NULL, NULL, "leases_m"};
    const struct mount_reader *r = (const struct mount_reader *)reader;
    char text[STAT_BYTES];
    uint64_t parts;
    *c = (struct replay_counters){0};
    errint_t rc = read_control(r, "stat", text, err);
    if (rc < 0)
        return rc;
    bool by_request = strstr(text, "\nrequests_m: ") != NULL;
    for (unsigned s = 0; s < REPLAY_STATES; s++)
        if (by_request || leases[s])
            value_of(text, by_request ? states[s] : leases[s], &c->hits[s]);
    if (value_of(text, "requests_p", &parts)) /* something of them had to be read, too */
        c->hits[REPLAY_STATES - 1] += parts;
    value_of(text, "disk_bytes", &c->read_bytes);
    value_of(text, "disk_ns", &c->io_ns);
    value_of(text, "decode_ns", &c->decode_ns);
    value_of(text, "policy_ns", &c->policy_ns);
    value_of(text, "recoded_bytes", &c->recoded_bytes);
    if (r->guesses && (rc = read_control(r, "predict", text, err)) == 0)
        replay_counters_guesses(c, text);
    return rc;
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */

static void mount_close(struct replay_reader *reader)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    mount_release(reader);
    efs_client_close(r->client);
    if (r->root >= 0)
        close(r->root);
    free(r->needs);
    free(r->routes);
    free(r);
}

errint_t replay_reader_mount(const struct replay_model *model, const char *mountpoint, uint32_t request_max,
                             const enum efs_form *form, bool guesses, struct replay_reader **reader,
                             struct efs_error *err)
{
    struct mount_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct mount_reader){
        .reader = {mount_request, mount_next, mount_release, form ? mount_run : NULL, mount_count, mount_close, 0},
        .model = model,
        .root = open(mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC),
        .request_max = request_max,
        .guesses = guesses,
        .needs = calloc(request_max, sizeof(struct efs_need)),
        .form = form ? *form : EFS_FORM_FULL,
        .routes = calloc(request_max, sizeof(struct efs_route_to))};
    const struct efs_client_options options = {.size = sizeof(struct efs_client_options), .keep_bytes = EFS_KEEP_AUTO};
    errint_t rc = r->root < 0 ? efs_fail(err, -errno, "%s: %s", mountpoint, strerror(errno)) : 0;
    if (rc == 0 && (!r->needs || !r->routes))
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = efs_client_open(mountpoint, &options, &r->client, err);
    if (rc < 0)
        mount_close(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
