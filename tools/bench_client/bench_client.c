/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_client PATH: from naming a layer's experts to pointers to all of their tensors, when all are in memory in the
 * form that is asked for and, of a mount, mapped before. PATH is a store, opened in this process, or a mount. Its peer,
 * of full experts of a mount: the same files opened, mapped and closed by hand. Both take turns; medians and 99th
 * percentiles.
 */
#include "clock.h"
#include "expertfs.h"
#include "surroundings.h"

#include <argp.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BAR_US 20.

struct arguments {
    const char *path;
    unsigned experts, layers, requests;
    uint64_t budget_bytes, keep_bytes;
    enum efs_form form;
    bool json;
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'e':
        a->experts = (unsigned)atoi(value);
        return a->experts >= 1 && a->experts <= 64 ? 0 : EINVAL;
    case 'l':
        a->layers = (unsigned)atoi(value);
        return a->layers >= 1 ? 0 : EINVAL;
    case 'n':
        a->requests = (unsigned)atoi(value);
        return a->requests >= 1 ? 0 : EINVAL;
    case 'b':
        return efs_parse_size(value, &a->budget_bytes) < 0 ? EINVAL : 0;
    case 'k':
        return efs_parse_size(value, &a->keep_bytes) < 0 ? EINVAL : 0;
    case 'f':
        a->form = strcmp(value, "coded") == 0 ? EFS_FORM_CODED : EFS_FORM_FULL;
        return a->form == EFS_FORM_CODED || strcmp(value, "full") == 0 ? 0 : EINVAL;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        a->path = value;
        return state->arg_num == 0 ? 0 : ARGP_ERR_UNKNOWN;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int compare_sizes(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static volatile uint8_t sink;

/* Microseconds until every tensor of the request has its pointer; < 0: failed. */
static double request_once(struct efs_client *client, const struct arguments *a, uint32_t layer, struct efs_error *err)
{
    struct efs_need needs[64];
    struct efs_client_request *r;
    const struct efs_tensor *tensors;
    uint32_t count;
    bool good = true;
    for (uint32_t i = 0; i < a->experts; i++)
        needs[i] = (struct efs_need){i, 1};
    double begin = 1e6 * tools_now_s();
    if (efs_client_begin(client, "", layer, needs, sizeof(struct efs_need), a->experts, a->form, &r, err) < 0)
        return -1;
    good = efs_client_wait(r) == 0;
    for (uint32_t i = 0; good && i < a->experts; i++)
        good = efs_client_tensors(r, i, &tensors, &count) == 0;
    double took = 1e6 * tools_now_s() - begin;
    if (good)
        sink = *(a->form == EFS_FORM_FULL ? (const uint8_t *)tensors[count - 1].data : tensors[count - 1].shards[0].sm);
    else
        efs_fail(err, -1, "an expert of layer %u could not be read", layer);
    efs_client_release(r);
    return good ? took : -1;
}

static double open_by_hand(const struct arguments *a, uint32_t layer)
{
    void *maps[64];
    size_t bytes[64];
    int fds[64];
    char path[4096];
    bool good = true;
    double begin = 1e6 * tools_now_s();
    for (uint32_t i = 0; i < a->experts; i++) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/experts/L%02u/E%03u.safetensors", a->path, layer, i);
        fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        good = good && fds[i] >= 0 && fstat(fds[i], &st) == 0;
        bytes[i] = good ? (size_t)st.st_size : 0;
        maps[i] = good ? mmap(NULL, bytes[i], PROT_READ, MAP_SHARED, fds[i], 0) : MAP_FAILED;
        good = good && maps[i] != MAP_FAILED;
    }
    double took = 1e6 * tools_now_s() - begin;
    for (uint32_t i = 0; i < a->experts; i++) {
        if (maps[i] != MAP_FAILED)
            munmap(maps[i], bytes[i]);
        if (fds[i] >= 0)
            close(fds[i]);
    }
    return good ? took : -1;
}

static void print_result(const struct arguments *a, const char *what, double *us, const char *behind)
{
    qsort(us, a->requests, sizeof(*us), compare_sizes);
    double median = us[a->requests / 2], p99 = us[(size_t)(a->requests * 0.99)];
    if (a->json)
        printf("{\"what\": \"%s\", \"median_us\": %.3f, \"p99_us\": %.3f, \"bar_over_median\": %.3f}%s", what, median,
               p99, BAR_US / median, behind);
    else
        printf("%-24s %u experts: median %.1f us, p99 %.1f us; %.0f us over the median: %.2f\n", what, a->experts,
               median, p99, BAR_US, BAR_US / median);
}

static int measure_layers(struct efs_client *client, const struct arguments *a, struct efs_error *err)
{
    bool mount = !efs_client_fs(client), peer = mount && a->form == EFS_FORM_FULL;
    double *us = calloc(a->requests, 2 * sizeof(*us));
    int failed = !us;
    struct efs_stats before, after;
    for (uint32_t l = 0; l < 2 * a->layers && !failed; l++) /* the first time they are brought */
        failed = request_once(client, a, l % a->layers, err) < 0;
    if (!mount)
        efs_stats(efs_client_fs(client), &before, sizeof(before));
    for (uint32_t n = 0; n < a->requests && !failed; n++) {
        us[n] = request_once(client, a, n % a->layers, err);
        us[a->requests + n] = peer ? open_by_hand(a, n % a->layers) : 0;
        failed = us[n] < 0 || us[a->requests + n] < 0;
    }
    if (!failed && !mount) {
        efs_stats(efs_client_fs(client), &after, sizeof(after));
        uint64_t hits = a->form == EFS_FORM_FULL ? after.leases_f - before.leases_f : after.coded_c - before.coded_c;
        if (hits != (uint64_t)a->requests * a->experts)
            failed = efs_fail(err, -1, "not all experts stayed in memory: give it more budget") < 0;
    }
    if (!failed) {
        printf(a->json ? "[" : "");
        print_result(a, mount ? "client, mount" : "client, in process", us, peer ? ", " : "]\n");
        if (peer)
            print_result(a, "open and mmap by hand", us + a->requests, "]\n");
    }
    free(us);
    return failed;
}

int main(int argc, char **argv)
{
    const struct argp_option options[] = {{"experts", 'e', "N", 0, "Experts of a request (8)", 0},
                                          {"layers", 'l', "N", 0, "Layers that are asked for in turn (4)", 0},
                                          {"requests", 'n', "N", 0, "Requests that are measured (2000)", 0},
                                          {"budget", 'b', "SIZE", 0, "Of a store in process (auto)", 0},
                                          {"keep", 'k', "SIZE", 0, "That the client of a mount keeps mapped (1G)", 0},
                                          {"form", 'f', "full|coded", 0, "As which they are asked for (full)", 0},
                                          {"json", 'j', NULL, 0, "Tell JSON", 0},
                                          {NULL, 0, NULL, 0, NULL, 0}};
    const struct argp argp = {.options = options,
                              .parser = parse_option,
                              .args_doc = "PATH",
                              .doc = "Time of a request whose experts are all there"};
    struct arguments a = {.experts = 8, .layers = 4, .requests = 2000, .keep_bytes = UINT64_C(1) << 30};
    struct efs_error err = {""};
    struct efs_client *client;
    tools_surroundings();
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    const struct efs_options store = {.size = sizeof(struct efs_options),
                                      .budget_bytes = a.budget_bytes,
                                      .full_pool = true,
                                      .lease_wait = true,
                                      .no_state = true};
    const struct efs_client_options how = {
        .size = sizeof(struct efs_client_options), .store = &store, .keep_bytes = a.keep_bytes};
    int failed = efs_client_open(a.path, &how, &client, &err) < 0;
    if (!failed) {
        failed = measure_layers(client, &a, &err);
        efs_client_close(client);
    }
    if (failed)
        fprintf(stderr, "bench_client: %s\n", err.text);
    return failed;
}
