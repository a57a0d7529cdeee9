/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - expertpeer STORE|MNT: compute with the experts of a store for programs on other machines.
 *
 * expertpeer/ is that server's command line; engine/peer/ has the rest. It is a separate process, so that the one
 * that the network reaches holds no mount and no file of the user's open for writing.
 */
#include "expertfs-peer.h"
#include "interrupt.h"
#include "options.h"
#include "process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define LISTEN "127.0.0.1:7433"
#define THREADS_MAX 1024

struct arguments {
    struct tools_arguments given;
    const char *listen, *key;
    unsigned threads;
    bool json, quiet;
    struct efs_client_options options;
};

static void finish(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (!a->key)
        argp_error(state, "--key FILE is needed: `openssl rand -hex 32 >FILE; chmod 600 FILE` makes one");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"listen", 'l', "HOST:PORT", "Where callers connect; port 0: any (default " LISTEN ", this machine alone)",
     TOOLS_TEXT, .at = AT(listen)},
    {"key", 'k', "FILE", "32 to 128 hexadecimal digits, which callers have, too, in a file that no other user can read",
     TOOLS_TEXT, .at = AT(key)},
    {"budget", 'b', "SIZE", "Of a store: memory for all of it (default: half of the available memory)", TOOLS_SIZE,
     AT(options.budget_bytes), .least = 1},
    {"threads", 't', "N", "Compute with N threads (default: all cores)", TOOLS_UNSIGNED, AT(threads), .least = 1,
     .most = THREADS_MAX},
    {"quiet", 'q', NULL, "Print nothing but errors", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print JSON: a line at the start, one at the end", TOOLS_FLAG, .at = AT(json)},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|MNT",
    .help = "Compute with the experts of STORE, or of a mount, for programs on other machines that have the same store "
            "and the key: they send inputs, and get the products that they would have computed, to the bit.\v"
            "Runs until it is interrupted, then prints what it has done. Exit status: 0 interrupted, 1 failed, 2 wrong "
            "usage. expertpeer(1) leads from two machines to a running model.",
    .at = AT(given),
    .finish = finish};

static void print_log(void *arg, enum efs_log_level level, const char *line)
{
    const struct arguments *a = arg;
    if (level < EFS_LOG_INFO && !(a->quiet && level > EFS_LOG_ERROR))
        fprintf(stderr, "expertpeer: %s\n", line);
}

#define U(x) ((unsigned long long)(x))

static void print_stats(const struct arguments *a, const struct efs_peer_server_stats *s)
{
    if (a->json)
        printf("{\"requests\": %llu, \"vectors\": %llu, \"connections\": %llu, \"refused\": %llu, \"bad\": %llu, "
               "\"failed\": %llu}\n",
               U(s->requests), U(s->vectors), U(s->connections), U(s->refused), U(s->bad), U(s->failed));
    else if (!a->quiet)
        printf("%llu requests answered with %llu vectors, %llu failed; %llu connections, %llu refused, %llu closed for "
               "a wrong message\n",
               U(s->requests), U(s->vectors), U(s->failed), U(s->connections), U(s->refused), U(s->bad));
}

static errint_t serve(const struct arguments *a, struct efs_client *client, struct efs_error *err)
{
    struct efs_peer_server *server;
    struct efs_peer_server_stats stats;
    struct efs_store_info info = {.in_place = false};
    struct efs_error why = {""};
    errint_t rc = efs_peer_serve(client, a->listen, a->key, a->threads, &server, &why);
    if (rc < 0 && efs_client_fs(client))
        efs_store_info(efs_get_store(efs_client_fs(client)), &info);
    if (rc < 0)
        return efs_fail(err, rc, "%s%s%s", info.in_place ? a->given.word[0] : "", info.in_place ? ": " : "", why.text);
    if (a->json)
        printf("{\"port\": %u}\n", efs_peer_server_port(server));
    else if (!a->quiet)
        printf("%s: serving on port %u\n", a->given.word[0], efs_peer_server_port(server));
    fflush(stdout);
    while (!tools_interrupt_pause(3600u * 1000u))
        ;
    efs_peer_server_stats(server, &stats);
    efs_peer_server_end(server);
    print_stats(a, &stats);
    return 0;
}

int main(int argc, char **argv)
{
    struct arguments a = {.listen = LISTEN};
    struct efs_error err = {""};
    struct efs_client *client = NULL;
    tools_init();
    tools_parse(&command, argc, argv, &a);
    a.options.warm = true; /* callers send what this memory holds */
    a.options.log = print_log;
    a.options.log_arg = &a;
    tools_interrupt_catch();
    errint_t rc = efs_client_open(a.given.word[0], &a.options, &client, &err);
    if (rc == 0 && a.options.budget_bytes && !efs_client_fs(client))
        rc = efs_fail(&err, -EINVAL, "--budget is for a store: %s is a mount, which has its own", a.given.word[0]);
    if (rc == 0)
        rc = serve(&a, client, &err);
    efs_client_close(client);
    if (rc < 0)
        return tools_fail("expertpeer", rc, &err);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
