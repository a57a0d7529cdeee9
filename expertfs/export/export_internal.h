/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_internal.h - declarations shared by the files of the export.
 *
 *   export.c          the listening socket and the export thread, which receives packets
 *   export_receive.c  packets of a client; the end of its connection
 *   export_client.c   the experts and windows of a client; sending packets
 *   export_tags.c     the experts of a client by tag
 *   export_unsent.c   packets that clients do not read
 *   export_short.c    memory is short: how long requests wait for clients to drop experts
 *   export_answer.c   answers, sent by the thread on which the engine completes a request
 *   export_coded.c    answers for coded experts
 *
 *   tag free -> PENDING (requested) -> EXPORTED (answered) -> free (dropped)
 */
#ifndef EFSD_EXPORT_INTERNAL_H
#define EFSD_EXPORT_INTERNAL_H

#include "daemon.h"
#include "export.h"
#include "export_socket.h"
#include "expertfs-private.h"

/* The experts of a request, counted until the last one with a tag is dropped: until then the engine keeps the memory of
 * all of them. */
struct efsd_export_charge {
    struct efsd_export_client *client; /* a reference */
    uint32_t references;               /* items, and one until the request was submitted */
    uint32_t experts;
    uint64_t requested_at; /* its first packet was received; see efs_clock_ns() */
};

struct efsd_export_item {
    struct efsd_export_client *client;
    struct efsd_export_charge *charge;
    struct efsd_export_item *next;      /* of client->items; or the next to drop, of a client that has disconnected */
    struct efs_client_request *request; /* completed request, whose expert `index` this is; NULL: PENDING */
    uint32_t index, tag;
    bool with_layout;     /* include the layout if the expert is coded */
    _Atomic bool dropped; /* the client dropped it while it was PENDING */
    uint8_t *body;        /* coded: payload of the struct efs_export_coded packets, until all were sent */
    uint32_t layout_bytes, body_bytes, sent_bytes;
    bool oversize, told_oversize;               /* PENDING: its request is; the state that was sent */
    uint32_t own_drops, told_own_drops;         /* of efs_oversize_fn, and what was sent */
    struct efsd_queued_packet *queued_oversize, /* EFS_EXPORT_OVERSIZE or FITS is to be sent; NULL: it is not */
        *queued_answer;
};

/* An expert that is to be dropped after the lock was released. */
struct efsd_drop {
    struct efs_client_request *request; /* NULL: none */
    uint32_t index;
};

/* A request of a client, while its packets are received. */
struct efsd_export_ask {
    uint32_t layer, form, count;
    char stack[32];
    struct efsd_export_charge *charge; /* NULL: no packet of a request was received */
    struct efs_need needs[EFS_EXPORT_ROUTED];
    void *args[EFS_EXPORT_ROUTED]; /* struct efsd_export_item */
};

/* A packet that did not fit into the client's socket. */
struct efsd_queued_packet {
    struct efsd_queued_packet *next;
    struct efsd_export_item *item; /* NULL: an error, or the item was freed */
    uint32_t tag;
    errint_t error; /* 0: the item's answer or oversize packet; else the error to report, the tag is free */
};

struct efsd_export_client {
    struct efsd_export *export;
    struct efsd_export_client *next;
    int fd; /* < 0: the connection has ended */
    uid_t user;
    pid_t pid; /* that connected */
    time_t connected;
    uint64_t requested;              /* experts */
    struct efs_export_device device; /* the last one; zeros: none */
    struct efs_holder *holder;       /* NULL: no memory; each request is counted alone */
    uint32_t references;             /* one of the list of clients, one of each charge */
    uint32_t pending, experts;       /* PENDING experts; experts of its charges */
    bool refused;                    /* the log has that requests of it were refused */
    struct efsd_export_item **items; /* lists by the low bits of the tag, linked by next; see export_tags.c */
    uint32_t lists, items_count;     /* elements of items, 0 or a power of two; items in them */
    uint8_t *window_map;             /* bitmap by window number: the client has the window */
    uint32_t window_map_bytes;       /* allocated bytes of window_map */
    uint8_t *late; /* a message that did not fit into its socket: nothing else is sent before it; NULL: none */
    uint32_t late_bytes;
    struct efsd_queued_packet *queued, **queued_end;
    size_t unsent_bytes;         /* memory of late and queued; see export_unsent.c */
    struct efsd_export_ask *ask; /* export thread; NULL: none yet */
    uint64_t heard_at;           /* last packet received; see export_short.c */
    bool silent;
    uint32_t observer;   /* export thread: id of the client as an observer of routing; 0: none */
    bool leaves;         /* export thread: it has sent disk_bytes */
    uint64_t disk_bytes; /* of its last LEAVE */
};

/* Any packet of a client. */
union efsd_export_packet {
    struct efs_export_head head;
    struct efs_export_ask ask;
    struct efs_export_routing routing;
    struct efs_export_leave leave;
    struct efs_export_device device;
};

struct efsd_export {
    struct efsd *daemon;
    pthread_mutex_t lock; /* guards clients and their contents */
    struct efsd_export_client *clients;
    uint32_t client_count;
    struct efsd_export_client *corked; /* its packets are collected in message; NULL: none */
    uint32_t message_bytes;
    uint8_t message[EFS_EXPORT_MESSAGE_BYTES];
    uint32_t pending, experts;         /* of all clients */
    size_t unsent_bytes, unsent_max;   /* of all clients */
    uint32_t pending_max, experts_max; /* by the budget when a client connects */
    struct efsd_socket socket;
    int epoll, stop, timer;
    int taken[2];           /* pipe: struct efsd_taken, to the export thread */
    bool armed;             /* the timer runs */
    uint64_t progressed_at; /* see efs_memory_short_fn; changed with efs.lock held */
    uint64_t now, next;     /* export thread: the timer ended; it is to end again */
    uint64_t disk_bytes;    /* export thread: the smallest of its clients'; EFS_LEAVE_HALF: none has sent one */
    uint32_t silent_count;  /* silent clients; changed by the export thread */
    int spare;              /* reserved descriptor, closed to accept and disconnect a client on EMFILE */
    bool paused;            /* export thread: the listening socket is not polled, for PAUSE_MS */
    pthread_t thread;
    bool started;
};

/* ---- export_client.c ---- */
/* Lock held. Drops a reference; the last one frees the client. */
void efsd_export_client_unref(struct efsd_export_client *client);
/* Lock held. Adds experts to a charge; NULL: to a new one, with a reference. NULL: no memory. */
struct efsd_export_charge *efsd_export_charge_add(struct efsd_export_client *client, struct efsd_export_charge *charge,
                                                  uint32_t experts);
/* Lock held. Drops a reference; the last one frees the charge. NULL: no effect. */
void efsd_export_charge_unref(struct efsd_export_charge *charge);
/* Lock held. Frees item, which no tag refers to any more, and removes its queued packets. The caller drops the returned
 * expert without the lock. */
struct efsd_drop efsd_export_item_free(struct efsd_export_item *item);
/* Lock held. Whether the client has the window; efsd_export_client_add_window() marks it so. -ENOMEM. */
bool efsd_export_client_has_window(const struct efsd_export_client *client, uint32_t window);
errint_t efsd_export_client_add_window(struct efsd_export_client *client, uint32_t window);
/* Sends a packet without blocking, with a descriptor unless fd < 0. 0; -EAGAIN: the socket is full; other errors: the
 * client is treated as disconnected. */
errint_t efsd_export_client_send(struct efsd_export_client *client, const struct efs_export_head *packet, int fd);
/* The same for a packet whose first `bytes` bytes are at packet, and the rest at `rest`. */
errint_t efsd_export_client_send_with(struct efsd_export_client *client, const struct efs_export_head *packet,
                                      uint32_t bytes, const uint8_t *rest, int fd);
/* Export thread, without lock: from now on collects the packets of the client, to send them in one message; sends them.
 * Not nested. */
void efsd_export_client_cork(struct efsd_export_client *client);
void efsd_export_client_uncork(struct efsd_export_client *client);
/* Lock held. Sends the message that did not fit. 0; -EAGAIN: it still does not. */
errint_t efsd_export_client_send_late(struct efsd_export_client *client);
/* Whether the next packet has descriptors (SCM_RIGHTS). It must not be received: the calling thread would close them,
 * which may block. */
bool efsd_export_client_sends_descriptors(const struct efsd_export_client *client);
/* Closes a connection. If its client can send descriptors, queued packets may have some: a thread closes them. */
void efsd_export_close(const struct efsd_export *export, int fd);

/* ---- export_tags.c: lock held ---- */
/* The PENDING or EXPORTED expert of the tag, or NULL. */
struct efsd_export_item *efsd_export_item_find(const struct efsd_export_client *client, uint32_t tag);
/* Makes item the expert of its tag, which is free; frees that tag. -ENOMEM. */
errint_t efsd_export_item_add(struct efsd_export_item *item);
void efsd_export_item_remove(struct efsd_export_item *item);
/* Frees the tag of some expert, and returns it. NULL: all are free. *list: 0 at first. */
struct efsd_export_item *efsd_export_item_pop(struct efsd_export_client *client, uint32_t *list);
/* EXPORTED experts. */
uint32_t efsd_export_items_held(const struct efsd_export_client *client);

/* ---- export_unsent.c: lock held ---- */
/* Queues the answer or the oversize packet of an item, or an error for a tag without one (item NULL). NULL: the client
 * was disconnected. Takes all that is queued off the list; the caller frees each. */
struct efsd_queued_packet *efsd_export_client_queue(struct efsd_export_client *client, struct efsd_export_item *item,
                                                    uint32_t tag, errint_t error);
struct efsd_queued_packet *efsd_export_client_take_queued(struct efsd_export_client *client);
/* Copies the message to client->late. -EAGAIN: it is sent later; -ENOMEM: the client was disconnected. Frees it. */
errint_t efsd_export_client_keep_late(struct efsd_export_client *client, const uint8_t *message, uint32_t bytes);
void efsd_export_client_late_sent(struct efsd_export_client *client);
/* Polls the client for input and, if room, for space in its socket. If polling for space fails, disconnects the
 * client. */
void efsd_export_client_poll(const struct efsd_export_client *client, bool room);
/* Frees late and queued. The client is disconnected, or was. */
void efsd_export_client_forget_unsent(struct efsd_export_client *client);

/* ---- export_receive.c ---- */
/* Receives packets of the client. May end the connection and free the client. */
void efsd_export_client_receive(struct efsd_export_client *client);
/* Answers a request that was not submitted with this error. Export thread, or after it has ended. */
void efsd_export_client_end_request(struct efsd_export_client *client, errint_t error);
/* Ends the connection, which may free the client, and drops its experts. */
void efsd_export_client_end(struct efsd_export_client *client);

/* ---- export_short.c ---- */
/* An efs_memory_short_fn; arg is a struct efsd_export. Takes the lock while the engine's lock is held. */
void efsd_export_memory_short(void *arg, bool progressed);
/* Lock held. A packet of the client was received, or its connection has ended. */
void efsd_export_client_heard(struct efsd_export_client *client);
/* Export thread, without lock: the timer has ended. */
void efsd_export_timer_ended(struct efsd_export *export);

/* ---- export_answer.c ---- */
/* An efs_arrived_fn. arg is a struct efsd_export_item. */
void efsd_export_complete(void *arg, errint_t error, struct efs_client_request *request, uint32_t index);
/* An efs_oversize_fn with the same argument. Takes the lock while the engine's lock is held. */
void efsd_export_oversize(void *arg, bool oversize, uint32_t own_drops);
/* Lock held. Reports to the client whether the request of an item, which is PENDING, is oversize, unless it knows. */
void efsd_export_client_report_oversize(struct efsd_export_client *client, struct efsd_export_item *item);
/* Lock held. Reports that a tag is free: after all packets that are queued. */
void efsd_export_client_refuse(struct efsd_export_client *client, uint32_t tag, errint_t error);
/* Drops an expert, if any. Call without lock. */
void efsd_export_drop(struct efsd_drop drop);
/* Sends the answers that did not fit, after the client's socket has space again. */
void efsd_export_flush(struct efsd_export_client *client);

/* ---- export_coded.c ---- */
/* Lock held. Sends the places of a coded expert, or continues after -EAGAIN. 0: all was sent; -EAGAIN: the socket is
 * full; other errors: the expert cannot be sent. */
errint_t efsd_export_client_answer_coded(struct efsd_export_client *client, struct efsd_export_item *item);

#endif
