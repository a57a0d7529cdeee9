/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_core.h - what the files of the export share.
 *
 *   export.c          the socket and the thread that receives
 *   export_session.c  what a client asks; its end
 *   export_held.c     what it holds and has, packets to it
 *   export_answer.c   what it is told, from whichever thread the engine calls when an expert is there
 *   export_coded.c    the same of a coded one
 *   export_list.c     which experts are kept full, told by the thread that receives
 *
 *   tag free -> COMING (asked for) -> HELD (answered) -> free (dropped)
 */
#ifndef EFSD_EXPORT_CORE_H
#define EFSD_EXPORT_CORE_H

#include "daemon.h"
#include "export.h"
#include "export_socket.h"
#include "expertfs-private.h"

struct efsd_held {
    struct efsd_session *session;
    struct efsd_held *next_drop; /* of a session that is over */
    struct efs_request *request; /* that holds it, by index; NULL: COMING */
    uint32_t index, tag;
    bool with_layout; /* if it comes coded */
    bool dropped;     /* while it was coming */
    uint8_t *body;    /* coded: what struct efs_export_coded tells of it, until all was sent */
    uint32_t layout_bytes, body_bytes, sent_bytes;
};

/* What is to be dropped when no lock is held. */
struct efsd_drop {
    struct efs_request *request; /* NULL: nothing */
    uint32_t index;
};

/* An answer that the client's socket had no room for. */
struct efsd_late {
    struct efsd_late *next;
    uint32_t tag;
    errint_t error; /* of one that is held no more, else 0 */
};

struct efsd_session {
    struct efsd_export *export;
    struct efsd_session *next;
    int fd; /* < 0: it is over */
    uid_t user;
    uint32_t references;     /* the list's, and one for each that is coming */
    struct efsd_held **held; /* by tag */
    uint32_t tags;           /* that there is room for */
    uint8_t *has;            /* bits, by number of window: the client has it */
    uint32_t windows;        /* that there is room for */
    struct efsd_late *late, **late_end;
    uint32_t late_count;
    uint32_t observer; /* the thread's: by which the engine knows whose sequences it is told of; 0: of none */
    uint32_t list_at;  /* the thread's: the next expert to be listed; UINT32_MAX: no list is under way */
};

struct efsd_export {
    struct efsd *daemon;
    pthread_mutex_t lock; /* guards sessions and what is in them */
    struct efsd_session *sessions;
    uint32_t session_count;
    struct efsd_socket socket;
    int epoll, stop;
    int spare;   /* given up to turn a client away when there are no more descriptors */
    bool paused; /* the thread's: the socket is not looked at for a moment */
    pthread_t thread;
    bool started;
};

/* ---- export_held.c ---- */
/* Lock held: one reference less. */
void efsd_session_unref(struct efsd_session *session);
/* Lock held: what is held under the tag, or NULL. */
struct efsd_held *efsd_held_of(const struct efsd_session *session, uint32_t tag);
/* Lock held: it is let go of: what it holds is to be dropped. */
struct efsd_drop efsd_held_free(struct efsd_held *held);
/* Lock held: the array with room for index, whatever it was before; what is new is zero. NULL: no memory, it is as it
 * was. */
void *efsd_export_grow(void *array, uint32_t *room, uint32_t index, size_t element_bytes);
/* Lock held: has the client that window? It has it now. -ENOMEM. */
bool efsd_session_has(const struct efsd_session *session, uint32_t window);
errint_t efsd_session_have(struct efsd_session *session, uint32_t window);
/* Send a packet; fd < 0: none goes with it. 0, -EAGAIN: no room now; other errors: the client is as good as gone. */
errint_t efsd_session_send(const struct efsd_session *session, const struct efs_export_head *packet, int fd);
/* Look whether the client sends; room: also whether its socket has room. If that cannot be, it is cut off. */
void efsd_session_watch(const struct efsd_session *session, bool room);

/* ---- export_session.c ---- */
/* The client has sent something, or is gone: the session may be gone then. */
void efsd_export_receive(struct efsd_session *session);
/* The session is over; what it held is released. */
void efsd_export_end(struct efsd_session *session);

/* ---- export_list.c: by the thread that receives, without lock ---- */
/* The client asks which experts are kept full: it is told all over. */
void efsd_export_list(struct efsd_session *session);
/* Tell more of them, if there are more. */
void efsd_export_list_on(struct efsd_session *session);

/* ---- export_answer.c ---- */
/* As efs_arrived_fn: arg is a struct efsd_held, and holds a reference on its session. */
void efsd_export_arrived(void *arg, errint_t error, struct efs_request *request, uint32_t index);
/* Without lock. */
void efsd_export_drop(struct efsd_drop drop);
/* The client's socket has room again. */
void efsd_export_flush(struct efsd_session *session);

/* ---- export_coded.c ---- */
/* Lock held: tell where a coded expert is, or go on with it. 0: all was sent; -EAGAIN: no room now; other errors: it
 * cannot be handed out. */
errint_t efsd_session_answer_coded(struct efsd_session *session, struct efsd_held *held);

#endif
