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
 * as windows: of full experts, each with its descriptor in the first answer that names it; of coded ones in packets of
 * their own before that. libexpertfs uses it by itself.
 */
#define EFS_EXPORT_VERSION 5u
#define EFS_EXPORT_ITEMS 64u
#define EFS_EXPORT_TAGS 16384u            /* tags are below that */
#define EFS_EXPORT_NOTIFY UINT32_MAX      /* in place of a tag: the expert is used, and is held by the client already */
#define EFS_EXPORT_WITH_LAYOUT (1u << 31) /* with a tag: if the expert comes coded, then with its layout */
#define EFS_EXPORT_LISTED 256u
#define EFS_EXPORT_ROUTED 512u
#define EFS_EXPORT_PART_BYTES 32768u
enum efs_export_kind {
    EFS_EXPORT_ASK = 1,  /* efs_export_ask: a layer's experts, as one request (expertfs-proc(5), want); tags are free
                            ones, or EFS_EXPORT_NOTIFY: with these alone nothing is answered */
    EFS_EXPORT_DROP = 2, /* efs_export_ask: what was handed out under these tags, or is on its way */
    EFS_EXPORT_UNMAPPED = 3, /* efs_export_ask: windows, in place of tags, that the client unmapped */
    EFS_EXPORT_LIST = 4,     /* efs_export_head, count 0: which experts does the mount keep full? */
    EFS_EXPORT_ANSWER = 5,   /* to an ask: efs_export_answer, count 1 */
    EFS_EXPORT_KEPT = 6,     /* to a list: some efs_export_kept, a layer or a part of one each */
    EFS_EXPORT_OBSERVE = 7,  /* efs_export_routing: a layer of a sequence has chosen these; count 0: it is over */
    EFS_EXPORT_HINT = 8,     /* efs_export_routing: a layer to come will choose these */
    EFS_EXPORT_WINDOW = 9,   /* efs_export_answer, count 1, with a descriptor: of it only window and window_bytes mean
                                something */
    EFS_EXPORT_CODED = 10, /* to an ask: efs_export_coded, one or more, which follow each other among those of a tag */
    EFS_EXPORT_WAIT = 11,  /* efs_export_wait: nothing of it is dropped before all of it has come */
    EFS_EXPORT_STUCK = 12  /* to a wait: efs_export_wait, count 0: so it does not come */
};
struct efs_export_head {
    uint32_t bytes, version, kind, count; /* bytes: of the packet; count: of what its last member has */
};
struct efs_export_ask {
    struct efs_export_head head;
    uint32_t layer;
    uint32_t form;  /* enum efs_form of expertfs.h: 0 full, 1 coded, 2 as the mount likes */
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
/*
 * An expert that comes coded: layout_bytes of its layout, if it was asked for, and its places behind them, cut in parts
 * that come in order. Places tell where its extents are now, the layout what is in them, which never changes.
 */
struct efs_export_coded {
    struct efs_export_head head; /* count: bytes of this part */
    uint32_t tag, layout_bytes;
    uint32_t at, total; /* where this part begins; bytes of all parts */
    uint8_t part[EFS_EXPORT_PART_BYTES];
};
struct efs_export_place {
    uint32_t e_window, sm_window; /* 0: the extent has no such component */
    uint64_t e_offset, sm_offset; /* where in the window the extent's component begins */
};
/*
 * Behind it: `header_bytes` with which the expert's file begins, from which names, types and shapes are taken, padded
 * with zeros to a multiple of 8; `tensors` efs_export_layout_tensor in the order of the file; `shards`
 * efs_export_layout_shard, tensor by tensor.
 */
struct efs_export_layout {
    uint64_t file_bytes;
    uint32_t header_bytes, tensors, extents, shards, shard_elements, reserved;
};
struct efs_export_layout_tensor {
    uint64_t file_offset; /* of its bytes in the expert's file */
    uint32_t shards, reserved;
};
struct efs_export_layout_shard { /* as struct efs_coded_shard of expertfs.h */
    uint64_t elements;
    uint32_t extent, codec;
    uint32_t e_at, e_bytes, sm_at, sm_bytes; /* at: in the extent's component; no bytes: there is no such chunk */
};
struct efs_export_kept {
    struct efs_export_head head;
    uint32_t layer, last; /* 1: with this packet all were listed; it may list none */
    uint64_t raw_bytes;   /* of those in this packet, decoded */
    char stack[32];
    uint32_t expert[EFS_EXPORT_LISTED]; /* a packet ends behind the last */
};
/* Answered only if what of it waits for room has none beside the rest. */
struct efs_export_wait {
    struct efs_export_head head;
    uint32_t number;                 /* the client's own, which an answer has, too */
    uint32_t tag[EFS_EXPORT_ROUTED]; /* a packet ends behind the last */
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
