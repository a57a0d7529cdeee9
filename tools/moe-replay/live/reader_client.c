/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_client.c - reads by the client library, from a mount or from a store opened in this process. The library
 * returns the experts in full, or runs them.
 */
#include "reader.h"

#include "cleanup.h"
#include "control_file.h"

#include "expertfs-compute.h"
#include "expertfs-private.h"
#include "expertfs-stats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct client_reader {
    struct replay_reader reader;
    const struct replay_model *model;
    struct efs *fs; /* NULL: the client has opened a mount */
    struct efs_client *client;
    struct efs_client_request *request; /* NULL: none */
    const char *path;
    uint32_t layer, count, shown; /* shown: index in the request of the expert in view; count: none */
    struct efs_need needs[REPLAY_REQUEST_MAX];
    enum efs_form form, run_form;
};

/* ---- a request ---------------------------------------------------------------------------------------------- */

static errint_t client_request(struct replay_reader *reader, uint32_t layer, const uint32_t *experts,
                               const uint32_t *tokens, uint32_t count, struct efs_error *err)
{
    struct client_reader *r = (struct client_reader *)reader;
    for (uint32_t i = 0; i < count; i++)
        r->needs[i] = (struct efs_need){experts[i], tokens[i]};
    r->layer = layer;
    r->count = r->shown = count;
    return efs_client_begin(r->client, r->model->layer[layer].stack, r->model->layer[layer].number, r->needs, count,
                            r->form, &r->request, err);
}

static errint_t client_next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct client_reader *r = (struct client_reader *)reader;
    errint_t rc = 0;
    if (r->shown < r->count)
        efs_client_drop(r->request, r->shown);
    r->shown = r->count;
    if (efs_client_wait_any(r->request, -1, &r->shown, &rc) < 1)
        rc = -EINVAL; /* next was called more often than experts were requested */
    if (rc == 0)
        rc = efs_client_tensors(r->request, r->shown, &view->tensors, &view->count);
    if (rc < 0)
        return efs_fail(err, rc, "%s: an expert of layer %u: %s", r->path, r->model->layer[r->layer].number,
                        strerror(-rc));
    view->expert = r->needs[r->shown].expert;
    view->tokens = r->needs[r->shown].tokens;
    return 0;
}

static void client_release(struct replay_reader *reader)
{
    struct client_reader *r = (struct client_reader *)reader;
    efs_client_release(r->request);
    r->request = NULL;
}

static errint_t client_run(struct replay_reader *reader, uint32_t layer, struct efs_team *team,
                           const struct efs_mixture *mixture, struct efs_error *err)
{
    struct client_reader *r = (struct client_reader *)reader;
    struct efs_mixture m = *mixture;
    m.form = r->run_form;
    return efs_client_ffn(r->client, team, r->model->layer[layer].stack, r->model->layer[layer].number, &m, err);
}

/* ---- counters ----------------------------------------------------------------------------------------------- */

/* Sums the table by distance in the file predict, except the columns recall and precision. */
static void copy_prefetch_counts(struct replay_prefetch_counts *g, const char *text)
{
    const char *row = strstr(text, "\ndistance ");
    g->missing = tools_line_number(text, "misses");
    g->cancelled = tools_line_number(text, "cancelled");
    while (row && (row = strchr(row + 1, '\n')) && row[1]) {
        unsigned long long bytes, covered, late, wasted, wasted_bytes;
        if (sscanf(row + 1, "%*s %*s %*s %*s %*s %*u %llu %llu %*s %llu %llu %llu", &bytes, &covered, &late, &wasted,
                   &wasted_bytes) != 5)
            continue;
        g->bytes += bytes;
        g->right_bytes += bytes - wasted_bytes;
        g->used += covered;
        g->late += late;
        g->wasted += wasted;
    }
}

static errint_t client_count(struct replay_reader *reader, struct replay_counters *c, struct efs_error *err)
{
    const struct client_reader *r = (const struct client_reader *)reader;
    struct efs *fs = efs_client_fs(r->client);
    cleanup_free char *text = NULL, *guesses = NULL;
    struct efs_stats s = {0};
    size_t bytes;
    errint_t rc = fs ? 0 : tools_control_read(r->path, "stat", &text, err);
    if (rc == 0)
        rc = fs ? efs_describe(fs, "predict", &guesses, &bytes) : tools_control_read(r->path, "predict", &guesses, err);
    if (rc < 0)
        return rc;
    if (fs)
        efs_stats(fs, &s);
#define COPY(name, kind, unit, help) s.name = text ? tools_line_number(text, #name) : s.name;
    EFS_STATS(COPY)
#undef COPY
    /* partly cached experts (P) count as missing: their other parts had to be read */
    *c = (struct replay_counters){
        .hits = {s.requests_f, s.requests_c, s.requests_s, s.requests_e, s.requests_m + s.requests_p},
        .read_bytes = s.disk_bytes,
        .io_ns = s.disk_ns,
        .decode_ns = s.decode_ns,
        .policy_ns = s.policy_ns,
        .recoded_bytes = s.recoded_bytes};
    copy_prefetch_counts(&c->prefetch, guesses);
    return 0;
}

/* ---- open and close ----------------------------------------------------------------------------------------- */

static void client_close(struct replay_reader *reader)
{
    struct client_reader *r = (struct client_reader *)reader;
    client_release(reader);
    efs_client_close(r->client);
    efs_close(r->fs);
    free(r);
}

errint_t replay_client_model(const char *path, struct replay_model *model, struct efs_error *err)
{
    const struct efs_options options = {.no_state = true, .full_pool = true};
    char *config = NULL, store[4096];
    struct stat st;
    struct efs *fs = NULL;
    errint_t rc = 0;
    snprintf(store, sizeof(store), "%s", path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) { /* a mount: its config names the store */
        rc = tools_control_read(path, "config", &config, err);
        if (rc < 0 || !*tools_line_path(config, "store", store, sizeof(store)))
            rc = efs_fail(err, -ENODEV, "%s: neither a store nor a mount of one", path);
        free(config);
    }
    if (rc == 0)
        rc = efs_open(store, &options, &fs, err);
    if (rc == 0)
        rc = replay_model_of_store(fs, store, model, err);
    efs_close(fs);
    return rc;
}

errint_t replay_reader_client(const char *path, const struct efs_options *options, const struct replay_model *model,
                              enum efs_form form, enum efs_form run_form, struct replay_reader **reader,
                              struct efs_error *err)
{
    struct client_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct client_reader){
        .reader = {client_request, client_next, client_release, client_run, client_count, client_close, 0},
        .model = model,
        .path = path,
        .form = form,
        .run_form = run_form};
    errint_t rc = options ? efs_open(path, options, &r->fs, err) : efs_client_open(path, NULL, &r->client, err);
    if (rc == 0 && r->fs)
        rc = efs_client_new(r->fs, &r->client, err);
    if (rc < 0)
        client_close(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
