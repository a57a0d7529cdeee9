/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - the headers of an answer to a request for a range, and what they mean. Nothing in them is trusted: bytes
 * of the body are used only after EFS_ANSWER_RANGE.
 */
#ifndef EFS_ANSWER_H
#define EFS_ANSWER_H

#include "expertfs.h"

#define EFS_ETAG_BYTES 256
#define EFS_ANSWER_HEADER_BYTES (256u << 10) /* more is refused */

struct efs_answer {
    unsigned status; /* 0: no status line yet */
    bool complete;   /* all headers are here */
    bool encoded;    /* the body is compressed */
    bool has_range;  /* Content-Range, with all three numbers */
    uint64_t first, last, total;
    char etag[EFS_ETAG_BYTES]; /* a strong one with its quotes; else "" */
    char code[24];             /* X-Error-Code, by which the Hub says why; else "" */
    size_t header_bytes;
};

/* Identity of the file: learned from the first answer, then required of all. */
struct efs_identity {
    char etag[EFS_ETAG_BYTES]; /* "": not known yet */
    uint64_t bytes;
};

enum efs_verdict {
    EFS_ANSWER_RANGE,     /* the requested range of this object */
    EFS_ANSWER_REDIRECT,  /* 301, 302, 303, 307, 308 */
    EFS_ANSWER_CHANGED,   /* another object: 412, another ETag, another length */
    EFS_ANSWER_NO_RANGES, /* the whole object, or a compressed one */
    EFS_ANSWER_NO_ETAG,   /* no strong ETag */
    EFS_ANSWER_REFUSED,   /* 400, 401, 403 */
    EFS_ANSWER_MISSING,   /* 404, 410 */
    EFS_ANSWER_BUSY,      /* 408, 425, 429, 5xx: may be better later */
    EFS_ANSWER_EMPTY,     /* 416 for the first byte */
    EFS_ANSWER_WRONG      /* anything else */
};

/* A header line, with or without its line end; a status line begins another answer. */
void efs_answer_header(struct efs_answer *answer, const char *line, size_t bytes);
/* For a request of bytes (at least 1) from begin on. known->etag "": the first answer, whose range may end before. */
enum efs_verdict efs_answer_judge(const struct efs_answer *answer, const struct efs_identity *known, uint64_t begin,
                                  uint64_t bytes);

#endif
