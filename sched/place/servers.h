/* SPDX-License-Identifier: Apache-2.0 */
/*
 * servers.h - servers that serve requests of their users with the experts that each holds, event by event: Prism IV-C.
 *
 * A server takes one request after the other. A request goes through the layers with its prompt at once, then token by
 * token. A layer is computed by its server up to the experts; those that it holds run there, the others on a server
 * that does, and the layer ends with the slowest of them. Computing and sending take a fixed part and one by the token;
 * each server has a clock for computing, and one each for what it sends and gets.
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
    double arrival_s;        /* rising from one to the next */
    uint32_t server;         /* whose user asks */
    uint32_t prompt, tokens; /* passes: one of the first prompt tokens (1 or more), then one for each of the others */
    const uint16_t *ids;     /* [tokens][layers][chosen] */
};

enum efs_servers_missing {
    EFS_SERVERS_CALL,    /* what a server does not hold is computed elsewhere */
    EFS_SERVERS_LOAD,    /* it is loaded for the call, from the server's own memory */
    EFS_SERVERS_REDIRECT /* the same, and a request goes to the server that has the fewest waiting */
};

struct efs_servers_config {
    uint32_t servers, layers, experts, chosen;
    enum efs_servers_missing missing;
    double layer_s, layer_token_s;   /* all of a layer but its experts */
    double expert_s, expert_token_s; /* an expert */
    double latency_s;                /* of a message, one way */
    double bytes_per_second;         /* of a server's link, each way */
    double token_bytes;              /* what is sent of a token, and comes back */
    double load_s;                   /* bring an expert */
    /* Called every review_s (0: never) with what was called since the last change: [servers][layers][experts], and the
     * passes of each server. true: held was written anew, and holds from ready_s on; the counts then begin anew. */
    double review_s;
    bool (*review)(void *arg, double now_s, const double *calls, const double *passes, uint8_t *held, double *ready_s);
    bool (*stop)(void *arg); /* asked now and then whether to give up; NULL: never */
    void *arg;
};

struct efs_servers_result {
    uint64_t requests, local, calls; /* calls: experts called, local: of them here */
    uint64_t changes;                /* of the placement */
    double latency_s;                /* sum */
    double remote_s;                 /* calls elsewhere: from sending to the answer, over running here */
    double *server_latency_s;        /* [servers]: sums, beside: */
    uint64_t *server_requests;
    double *latencies; /* [requests], as they ended */
    struct efs_tables tables;
};

/* Serve them all. held: [servers][layers][experts], every expert held somewhere (EFS_SERVERS_CALL); it is not kept. 0;
 * -EINVAL: out of bounds, requests that fall in time, an expert that nobody holds; -ENOMEM; -ECANCELED by stop. */
int efs_servers_run(const struct efs_servers_config *config, const uint8_t *held,
                    const struct efs_servers_request *requests, size_t count, struct efs_servers_result *result);
void efs_servers_free(struct efs_servers_result *result); /* a zeroed one is fine */

#ifdef __cplusplus
}
#endif
#endif
