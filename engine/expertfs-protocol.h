/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-protocol.h - the socket protocol of a mount, for programs without the library.
 *
 * Numbers have the representation of the machine. This header declares no functions of the library.
 */
#ifndef EXPERTFS_PROTOCOL_H
#define EXPERTFS_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

/* Maximum sizes of a line of .expertfs/want, and of a text that is written to it at once (expertfs-proc(5)). */
#define EFS_WANT_LINE_BYTES 4096u
#define EFS_WANT_BYTES 65536u

/*
 * Experts of a mount without files, over a socket of type SOCK_SEQPACKET whose path is in .expertfs/handout. Every
 * packet starts with a head. A message to the mount is one packet; one from the mount is one or more, each at a
 * multiple of 8 bytes, and has a descriptor only for the first. A client sends requests (efs_export_ask) and gets, in
 * any order, an answer for each item that has a tag. It holds the expert until it drops the tag or closes the socket.
 * The memory is passed as windows: the first answer that names the window of a full expert carries its descriptor; the
 * windows of coded experts are sent before the answer, in packets of kind EFS_EXPORT_WINDOW. libexpertfs uses this
 * protocol.
 */
#define EFS_EXPORT_VERSION 16u /* also in .expertfs/version, as socket_protocol; 15 and less are not */
#define EFS_EXPORT_ITEMS 64u
#define EFS_EXPORT_TAGS 16384u            /* tags are less than this */
#define EFS_EXPORT_WITH_LAYOUT (1u << 31) /* with a tag: send the layout, too, if the expert is sent coded */
#define EFS_EXPORT_MORE (1u << 31)        /* with a form: the next packet has more experts of this request */
#define EFS_EXPORT_COUNTED (1u << 30) /* with a form: a COUNT has counted these experts, here or on another machine */
#define EFS_EXPORT_ROUTED 512u        /* experts of a layer in a packet of routing, or in the packets of one request */
#define EFS_EXPORT_PART_BYTES 32768u
#define EFS_EXPORT_COUNT_MAX (1ull << 60)
#define EFS_EXPORT_MESSAGE_BYTES (EFS_EXPORT_PART_BYTES + 32u) /* from the mount, at most */
/*
 * The packets: number, name, sender, name of the receiver's handler, shape. Each is a struct efs_export_..., which ends
 * after the last of head.count items.
 *
 * ASK       efs_export_ask: experts of a layer, as one request (expertfs-proc(5), want), each with a free tag. The
 *           experts get memory all at once, so a request names all that the client needs at once, also those that it
 *           holds by other tags
 * DROP      efs_export_ask: releases the experts of these tags, which were received; the tags are free for the next
 *           request
 * UNMAPPED  efs_export_ask: numbers of windows, in place of tags, that the client has unmapped
 * ANSWER    answers ASK: efs_export_answer
 * OBSERVE   efs_export_routing: a layer of a sequence has chosen these; count 0: end of sequence. Not answered
 * HINT      efs_export_routing: predicted experts of a later layer. Not answered
 * COUNT     efs_export_routing: a layer has chosen these, of which other machines compute some: they count as one
 *           request; weight: tokens. Those that the client then requests itself have EFS_EXPORT_COUNTED, as those that
 *           it requests for another machine, which has counted them. Not answered
 * WINDOW    efs_export_answer, with a descriptor: only window and window_bytes are set
 * CODED     answers ASK: one or more efs_export_coded, in order for each tag
 * OVERSIZE  efs_export_answer, only tag and window are set: the experts of the request with this tag do not fit into
 *           memory at once: the next is sent when the client drops some. Holds until the tag is answered or cancelled,
 *           or FITS. window: the number of its experts that wait if the next one does not fit next to those of this
 *           request that the client holds or is being sent; else 0. Sent again when that number has changed
 * FITS      efs_export_answer, as OVERSIZE: that is over, the other experts fit now
 * CANCEL    efs_export_ask: releases the experts of these tags, for which no answer was received. Each is answered with
 *           -ECANCELED, which no other answer has; the tag is free when the client receives that, and ignores answers
 *           for it that come before
 * REFRESH   efs_export_ask: for each of these tags that is not answered, the mount sends OVERSIZE or FITS, by the drops
 *           that it has received
 * LEAVE     efs_export_leave: the program computes with all of the model's files but its experts, which are mapped or
 *           read, except disk_bytes of them: budget=auto leaves memory to these until the socket closes. With several
 *           clients the smallest disk_bytes counts. Not answered
 * DEVICE    efs_export_device: experts that the client keeps in memory of a device itself, as it has counted them since
 *           it connected; replaces what it has sent before. Counts above EFS_EXPORT_COUNT_MAX, and slots above
 *           UINT32_MAX, are malformed. Not answered
 */
#define EFS_EXPORT_PACKETS(X)                                                                                          \
    X(1, ASK, CLIENT, request, EFS_EXPORT_ARRAY(ask, item, EFS_EXPORT_ITEMS))                                          \
    X(2, DROP, CLIENT, drop, EFS_EXPORT_ARRAY(ask, item, EFS_EXPORT_ITEMS))                                            \
    X(3, UNMAPPED, CLIENT, unmapped, EFS_EXPORT_ARRAY(ask, item, EFS_EXPORT_ITEMS))                                    \
    X(5, ANSWER, MOUNT, answer, EFS_EXPORT_ONE(answer))                                                                \
    X(7, OBSERVE, CLIENT, routing, EFS_EXPORT_ARRAY(routing, item, EFS_EXPORT_ROUTED))                                 \
    X(8, HINT, CLIENT, routing, EFS_EXPORT_ARRAY(routing, item, EFS_EXPORT_ROUTED))                                    \
    X(9, WINDOW, MOUNT, window, EFS_EXPORT_ONE(answer))                                                                \
    X(10, CODED, MOUNT, coded, EFS_EXPORT_ARRAY(coded, part, EFS_EXPORT_PART_BYTES))                                   \
    X(11, OVERSIZE, MOUNT, oversize, EFS_EXPORT_ONE(answer))                                                           \
    X(12, FITS, MOUNT, oversize, EFS_EXPORT_ONE(answer))                                                               \
    X(13, CANCEL, CLIENT, drop, EFS_EXPORT_ARRAY(ask, item, EFS_EXPORT_ITEMS))                                         \
    X(14, REFRESH, CLIENT, refresh, EFS_EXPORT_ARRAY(ask, item, EFS_EXPORT_ITEMS))                                     \
    X(15, LEAVE, CLIENT, leave, EFS_EXPORT_ONE(leave))                                                                 \
    X(16, DEVICE, CLIENT, device, EFS_EXPORT_ONE(device))                                                              \
    X(17, COUNT, CLIENT, routing, EFS_EXPORT_ARRAY(routing, item, EFS_EXPORT_ROUTED))
#define EFS_EXPORT_ARRAY(body, member, most)                                                                           \
    {                                                                                                                  \
        offsetof(struct efs_export_##body, member), sizeof(((struct efs_export_##body *)0)->member[0]), most           \
    }
#define EFS_EXPORT_ONE(body)                                                                                           \
    {                                                                                                                  \
        sizeof(struct efs_export_##body), 0, 1                                                                         \
    }
#define EFS_EXPORT_KIND(number, name, ...) EFS_EXPORT_##name = number,
enum efs_export_kind { EFS_EXPORT_PACKETS(EFS_EXPORT_KIND) EFS_EXPORT_KINDS };
struct efs_export_shape {
    uint32_t fixed_bytes, item_bytes, most; /* most: items */
};
struct efs_export_head {
    uint32_t bytes, version, kind, count; /* bytes: of the packet; count: elements of its last member */
};
/* Whether the packet of this shape at the start of `bytes` bytes has the right size. */
static inline int efs_export_has_shape(const struct efs_export_head *head, uint64_t bytes,
                                       struct efs_export_shape shape)
{
    return head->bytes <= bytes && head->count <= shape.most &&
           head->bytes == shape.fixed_bytes + (uint64_t)head->count * shape.item_bytes;
}
struct efs_export_ask {
    struct efs_export_head head;
    uint32_t layer;
    uint32_t form;  /* enum efs_form of expertfs.h: 0 full, 1 coded, 2 the mount chooses; may have _MORE, _COUNTED */
    char stack[32]; /* "" for models with one; terminated */
    struct {
        uint32_t expert, tokens, tag;
    } item[EFS_EXPORT_ITEMS]; /* the packet ends after the last item */
};
struct efs_export_answer {
    struct efs_export_head head;
    uint32_t tag;
    int32_t error; /* 0, or -errno */
    uint32_t window;
    uint32_t once; /* 1: an open or mapped file; the client unmaps the window when it drops its last expert in it */
    uint64_t window_bytes, file_bytes; /* the file starts at the start of the window */
};
/*
 * A coded expert: layout_bytes of its layout, if it was requested, followed by its places, split into parts that are
 * sent in order. The places are the current windows and offsets of its extents; the layout describes their content and
 * is constant.
 */
struct efs_export_coded {
    struct efs_export_head head; /* count: bytes of this part */
    uint32_t tag, layout_bytes;
    uint32_t at, total;                  /* at: offset of this part; total: bytes of all parts */
    uint8_t part[EFS_EXPORT_PART_BYTES]; /* the parts but the last, and all of them, are multiples of 8 bytes */
};
struct efs_export_place {
    uint32_t e_window, sm_window; /* 0: the extent has no such component */
    uint64_t e_offset, sm_offset; /* of the extent's component in the window */
};
/*
 * Followed by: `header_bytes` bytes, the start of the expert's file, with the names, types and shapes, padded with
 * zeros to a multiple of 8; `tensors` efs_export_layout_tensor in the order of the file; `shards`
 * efs_export_layout_shard, tensor by tensor.
 */
struct efs_export_layout {
    uint64_t file_bytes;
    uint32_t header_bytes, tensors, extents, shards, shard_elements, reserved;
};
struct efs_export_layout_tensor {
    uint64_t file_offset; /* of the tensor's bytes in the expert's file */
    uint32_t shards, reserved;
};
struct efs_export_layout_shard { /* as struct efs_coded_shard of expertfs.h */
    uint64_t elements;
    uint32_t extent, codec;
    uint32_t e_at, e_bytes, sm_at, sm_bytes; /* at: offset in the extent's component; bytes 0: no such chunk */
};
struct efs_export_leave {
    struct efs_export_head head;
    uint64_t disk_bytes; /* less than UINT64_MAX - 1 */
};
struct efs_export_routing {
    struct efs_export_head head;
    uint32_t layer, sequence;   /* sequence: numbered by the client */
    uint32_t weighed, reserved; /* weighed: 1: weights are set */
    char stack[32];
    struct {
        uint32_t expert;
        float weight;          /* the router's score; of a hint, the probability; of COUNT, tokens */
    } item[EFS_EXPORT_ROUTED]; /* the packet ends after the last */
};
struct efs_export_device {
    struct efs_export_head head;
    uint64_t slots;                  /* experts for which the device has memory */
    uint64_t hits, copied, computed; /* chosen experts: that were there; copied to it; computed by the processor */
    uint64_t copied_bytes, wait_ns;  /* wait_ns: time of the copies, with their reads */
};

#endif
