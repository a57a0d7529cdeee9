/* SPDX-License-Identifier: Apache-2.0 */
/*
 * servers.h - simulates servers that process requests of their users with the experts each of them holds: Prism IV-C.
 *
 * A server processes one request at a time. A request passes through the layers with its whole prompt, then token by
 * token. Its server computes a layer up to the experts; experts that it holds run there, the rest on servers that hold
 * them, and the layer ends with the slowest of them. Computing and sending take a fixed time plus a time per token;
 * each server has one clock for computing, one for sending and one for receiving.
 *
 * Pure: same input, same output. Times are in seconds.
 */
#ifndef EFS_SERVERS_H
#define EFS_SERVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tables.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efs_servers_request {
    double arrival_s;        /* non-decreasing */
    uint32_t server;         /* of the user */
    uint32_t prompt, tokens; /* passes: one for the first `prompt` tokens (1 or more), then one for each of the rest */
    const uint16_t *ids;     /* [tokens][layers][chosen] */
};

enum efs_servers_missing {
    EFS_SERVERS_CALL,    /* another server computes missing experts */
    EFS_SERVERS_LOAD,    /* the server loads a missing expert for the call, from its own memory */
    EFS_SERVERS_REDIRECT /* the same, and a request goes to the server with the fewest waiting requests */
};

struct efs_servers_config {
    uint32_t servers, layers, experts, chosen;
    enum efs_servers_missing missing;
    double layer_s, layer_token_s;   /* a layer without its experts */
    double expert_s, expert_token_s; /* an expert */
    double latency_s;                /* of a message, one way */
    double bytes_per_second;         /* of a server's link, in each direction */
    double token_bytes;              /* sent and received per token */
    double load_s;                   /* load an expert */
    /* Called every review_s (0: never) with the calls since the last change: [servers][layers][experts], and the passes
     * of each server; not while a change is pending. True: it has rewritten placement, which takes effect at ready_s;
     * the counts then restart. */
    double review_s;
    bool (*review)(void *arg, double now_s, const double *calls, const double *passes, uint8_t *placement,
                   double *ready_s);
    bool (*stop)(void *arg); /* called every 65,536 events; true: cancel; NULL: never */
    void *arg;
};

struct efs_servers_result {
    uint64_t requests, local, calls; /* calls: experts called; local: those held by the calling server */
    uint64_t changes;                /* of the placement */
    double latency_s;                /* sum */
    double remote_s;                 /* remote calls: time from sending to the answer, minus the run time */
    double *server_latency_s;        /* [servers]: sums */
    uint64_t *server_requests;
    double *latencies; /* [requests], in order of completion */
    struct efs_tables tables;
};

/* Simulates all requests. placement: [servers][layers][experts], not kept; with EFS_SERVERS_CALL at least one server
 * must hold each expert. 0; -EINVAL: out of bounds, decreasing arrival times, an expert without a holder; -ENOMEM;
 * -ECANCELED by stop. The caller frees *result with efs_servers_free(). */
int efs_servers_run(const struct efs_servers_config *config, const uint8_t *placement,
                    const struct efs_servers_request *requests, size_t count, struct efs_servers_result *result);
void efs_servers_free(struct efs_servers_result *result); /* a zeroed one is allowed */

#ifdef __cplusplus
}
#endif
#endif
