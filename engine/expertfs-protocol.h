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
 * .expertfs/handout. A client sends asks and gets an answer for each item that has a tag, in any order; what was handed
 * out is held until its tag is dropped, or the socket closed. The memory comes as windows (efs_lease_window()), each
 * with its descriptor in the first answer that names it. libexpertfs uses it by itself.
 */
#define EFS_EXPORT_VERSION 1u
#define EFS_EXPORT_ITEMS 64u
#define EFS_EXPORT_TAGS 16384u     /* tags are below that */
#define EFS_EXPORT_TOLD UINT32_MAX /* in place of a tag: the expert is used, and is held by the client already */
enum efs_export_kind {
    EFS_EXPORT_ASK = 1,    /* a layer's experts, as one request (expertfs-proc(5), want); tags are free ones, or
                               EFS_EXPORT_TOLD: with these alone nothing is answered */
    EFS_EXPORT_DROP = 2,   /* what was handed out under these tags, or is on its way */
    EFS_EXPORT_FORGET = 3, /* windows, in place of tags, that the client unmapped */
};
struct efs_export_ask {
    uint32_t version, kind, layer, count;
    char stack[32]; /* "" for models with one; ended */
    struct {
        uint32_t expert, tokens, tag;
    } item[EFS_EXPORT_ITEMS]; /* a packet ends behind the last */
};
struct efs_export_answer {
    uint32_t version, tag;
    int32_t error; /* 0 or -errno: open the expert's file instead */
    uint32_t window;
    uint64_t window_bytes, file_bytes; /* the file begins where the window does */
};

#endif
