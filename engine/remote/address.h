/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h - names of files on servers: https://HOST/PATH, http:// of this machine, s3://BUCKET/KEY.
 *
 * remote/ opens stores on HTTP servers as backings, by libcurl, which it loads at run time; efs_store_open() is here.
 * serve/ and the tools call it, through the public headers. It never uses a byte of an answer whose headers it has not
 * checked, and never writes to a server.
 */
#ifndef EFS_ADDRESS_H
#define EFS_ADDRESS_H

#include "expertfs.h"

/* Where a file is, and with what it may be read. */
struct efs_address {
    char *url;     /* http:// or https:// */
    char *name;    /* for messages and the mount table: the address without query and fragment, which may be secret */
    char *token;   /* sent to the host of url alone, as a bearer token; NULL: none */
    char *keys;    /* "ACCESS:SECRET" for signatures of AWS, version 4; NULL: none */
    char *sign;    /* "aws:amz:REGION:s3" */
    char *session; /* the token of temporary keys; NULL: none */
    bool hub;      /* url is on the Hugging Face Hub, or where HF_ENDPOINT says that it is */
    const char *hint; /* for an answer that access is refused */
};

/* -EINVAL with err: no address of a file, or http:// to another host; -ENOMEM. efs_address_free()
 * also after an error. */
errint_t efs_address_parse(const char *text, struct efs_address *address, struct efs_error *err);
void efs_address_free(struct efs_address *address);
/* Whether the URLs have the same scheme, host and port. */
bool efs_address_same_origin(const char *url, const char *other);
/* Why a redirect must not lead from one URL to another; NULL: it may. http:// leads to http:// only where an address
 * of it may be given, too. */
const char *efs_address_refused(const char *from, const char *to);
/* Whether the URL's host is this machine, by its name: no proxy is used. */
bool efs_address_is_loopback(const char *url);

#endif
