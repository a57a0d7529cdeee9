/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-protocol.h - what a program says to a mount without the library: the packets of its socket.
 *
 * Numbers are those of the machine. Nothing here is a call of the library.
 */
#ifndef EXPERTFS_PROTOCOL_H
#define EXPERTFS_PROTOCOL_H

#include <stdint.h>

/* At most, of a line of .expertfs/want, and of a text that is written to it at once (expertfs-proc(5)). */
#define EFS_WANT_LINE_BYTES 4096u
#define EFS_WANT_BYTES 65536u

/*
 * Experts of a mount handed out without files, over a socket of type SOCK_SEQPACKET whose path is in
 * .expertfs/handout. Packets of both sides begin with a head. A client sends asks and gets an answer for each item that
 * has a tag, in any order; what was handed out is held until its tag is dropped, or the socket closed. The memory comes
 * as windows, each with its descriptor in the first answer that names it. libexpertfs uses it by itself.
 */
#define EFS_EXPORT_VERSION 3u
#define EFS_EXPORT_ITEMS 64u
#define EFS_EXPORT_TAGS 16384u       /* tags are below that */
#define EFS_EXPORT_NOTIFY UINT32_MAX /* in place of a tag: the expert is used, and is held by the client already */
#define EFS_EXPORT_LISTED 256u
#define EFS_EXPORT_ROUTED 512u
enum efs_export_kind {
    EFS_EXPORT_ASK = 1,  /* efs_export_ask: a layer's experts, as one request (expertfs-proc(5), want); tags are free
                            ones, or EFS_EXPORT_NOTIFY: with these alone nothing is answered */
    EFS_EXPORT_DROP = 2, /* efs_export_ask: what was handed out under these tags, or is on its way */
    EFS_EXPORT_UNMAPPED = 3, /* efs_export_ask: windows, in place of tags, that the client unmapped */
    EFS_EXPORT_LIST = 4,     /* efs_export_head, count 0: which experts does the mount keep full? */
    EFS_EXPORT_ANSWER = 5,   /* to an ask: efs_export_answer, count 1 */
    EFS_EXPORT_KEPT = 6,     /* to a list: some efs_export_kept, a layer or a part of one each */
    EFS_EXPORT_OBSERVE = 7,  /* efs_export_routing: a layer of a sequence has chosen these; count 0: it is over */
    EFS_EXPORT_HINT = 8      /* efs_export_routing: a layer to come will choose these */
};
struct efs_export_head {
    uint32_t bytes, version, kind, count; /* bytes: of the packet; count: of what its last member has */
};
struct efs_export_ask {
    struct efs_export_head head;
    uint32_t layer;
    char stack[32]; /* "" for models with one; ended */
    struct {
        uint32_t expert, tokens, tag;
    } item[EFS_EXPORT_ITEMS]; /* a packet ends behind the last */
};
struct efs_export_answer {
    struct efs_export_head head;
    uint32_t tag;
    int32_t error; /* 0 or -errno: open the expert's file instead */
    uint32_t window, reserved;
    uint64_t window_bytes, file_bytes; /* the file begins where the window does */
};
struct efs_export_kept {
    struct efs_export_head head;
    uint32_t layer, last; /* 1: with this packet all were listed; it may list none */
    uint64_t raw_bytes;   /* of those in this packet, decoded */
    char stack[32];
    uint32_t expert[EFS_EXPORT_LISTED]; /* a packet ends behind the last */
};
/* Nothing is answered. */
struct efs_export_routing {
    struct efs_export_head head;
    uint32_t layer, sequence; /* sequence: of the client's own numbers */
    uint32_t tokens, weighed; /* weighed: 1: weights are known */
    char stack[32];
    struct {
        uint32_t expert;
        float weight;          /* the gate's score; of a hint, how probable it is */
    } item[EFS_EXPORT_ROUTED]; /* a packet ends behind the last */
};

#endif
