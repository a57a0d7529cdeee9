/* SPDX-License-Identifier: Apache-2.0 */
/* client_peers.c - efs_client_peers(): the addresses and the key, and the end with the client. */
#include "device_ops.h"
#include "matvec.h"
#include "expertfs-private.h"
#include "peer_address.h"
#include "peer_ops.h"
#include "peers.h"
#include "sys.h"
#include "thread.h"

#include "deadline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LATE_NS 1000000000u

static void peers_close(struct efs_peers *peers, bool here)
{
    if (here) {
        pthread_mutex_lock(&peers->lock);
        peers->stop = true;
        for (uint32_t i = 0; i < peers->count; i++) {
            pthread_cond_signal(&peers->peer[i].changed);
            if (peers->peer[i].fd >= 0)
                shutdown(peers->peer[i].fd, SHUT_RDWR); /* its thread may be in a handshake */
        }
        pthread_mutex_unlock(&peers->lock);
    }
    for (uint32_t i = 0; i < peers->count; i++) {
        struct efs_peer *peer = &peers->peer[i];
        if (here && peer->thread)
            pthread_join(peer->thread, NULL);
        else if (!here && peer->fd >= 0)
            close(peer->fd);
        free(peer->layers);
        free(peer->address);
    }
    explicit_bzero(&peers->key, sizeof(peers->key));
    free(peers);
}

/* Takes the addresses apart. */
static errint_t peers_parse(struct efs_peers *peers, const char *addresses, struct efs_error *err)
{
    for (const char *at = addresses; *at; at += strspn(at, ",")) {
        const size_t bytes = strcspn(at, ",");
        if (peers->count == EFS_PEERS_MAX)
            return efs_fail(err, -EINVAL, "more than %u peers", EFS_PEERS_MAX);
        char *address = strndup(at, bytes);
        if (!address)
            return efs_fail(err, -ENOMEM, "no memory");
        struct efs_peer *peer = &peers->peer[peers->count++];
        *peer = (struct efs_peer){.peers = peers, .address = address, .fd = -1};
        efs_cond_init(&peer->changed);
        errint_t rc = efs_peer_check(address, err);
        if (rc < 0)
            return rc;
        at += bytes;
    }
    return peers->count ? 0 : efs_fail(err, -EINVAL, "no peer: HOST:PORT is needed");
}

errint_t efs_client_peers(struct efs_client *client, const char *addresses, const char *key_file, struct efs_error *err)
{
    static const struct efs_peer_ops ops = {.run = efs_peers_run, .close = peers_close};
    struct efs_peers *peers = efs_sys_calloc(1, sizeof(*peers));
    if (!peers)
        return efs_fail(err, -ENOMEM, "no memory");
    pthread_mutex_init(&peers->lock, NULL);
    efs_cond_init(&peers->answered);
    peers->late_ns = LATE_NS;
    peers->hello.version = EFS_WIRE_VERSION;
    strncpy(peers->hello.order, efs_matvec_order() ? efs_matvec_order() : "", sizeof(peers->hello.order) - 1);
    errint_t rc = efs_client_check(client, err);
    if (rc == 0)
        rc = efs_client_hash(client, &peers->hello.store, err);
    if (rc == 0)
        rc = efs_peer_key_read(key_file, &peers->key, err);
    if (rc == 0)
        rc = peers_parse(peers, addresses, err);
    if (rc == 0)
        rc = efs_tls_load(err);
    for (uint32_t i = 0; rc == 0 && i < peers->count; i++)
        if ((rc = efs_thread_start(efs_peer_thread, &peers->peer[i], "efs-peers", &peers->peer[i].thread)) < 0)
            peers->peer[i].thread = 0;
    if (rc == 0)
        rc = efs_client_attach_peers(client, peers, &ops);
    if (rc < 0)
        peers_close(peers, true);
    return rc;
}

void efs_client_peer_stats(struct efs_client *client, struct efs_peer_stats *stats)
{
    const struct efs_peer_ops *ops;
    struct efs_peers *peers = efs_client_peers_of(client, &ops);
    *stats = (struct efs_peer_stats){0};
    if (!peers)
        return;
    pthread_mutex_lock(&peers->lock);
    *stats = peers->stats;
    stats->peers = peers->count;
    for (uint32_t i = 0; i < peers->count; i++)
        stats->ready += peers->peer[i].measured.ready;
    pthread_mutex_unlock(&peers->lock);
}
