/* SPDX-License-Identifier: Apache-2.0 */
/* address.c - see address.h. */
#include "address.h"

#include "expertfs-private.h"
#include "sys.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ADDRESS_BYTES_MAX 8192

/* ---- parts of a URL ---- */

struct origin {
    bool tls;
    const char *host; /* with port */
    size_t bytes;
};

/* false: neither http:// nor https://, or without a host. */
static bool origin_of(const char *url, struct origin *origin)
{
    origin->tls = strncasecmp(url, "https://", 8) == 0;
    if (!origin->tls && strncasecmp(url, "http://", 7) != 0)
        return false;
    origin->host = url + (origin->tls ? 8 : 7);
    origin->bytes = strcspn(origin->host, "/?#");
    return origin->bytes > 0;
}

/* The host without its port. */
static size_t host_bytes(const struct origin *origin)
{
    size_t bytes = origin->host[0] == '[' ? strcspn(origin->host, "]") + 1 : strcspn(origin->host, ":");
    return bytes < origin->bytes ? bytes : origin->bytes;
}

static bool host_is(const struct origin *origin, const char *name)
{
    return host_bytes(origin) == strlen(name) && strncasecmp(origin->host, name, strlen(name)) == 0;
}

bool efs_address_is_loopback(const char *url)
{
    struct origin origin;
    return origin_of(url, &origin) &&
           (host_is(&origin, "localhost") || host_is(&origin, "127.0.0.1") || host_is(&origin, "[::1]"));
}

/* Host and port, without the scheme's default port. */
static size_t origin_bytes(const struct origin *origin)
{
    const char *port = origin->tls ? ":443" : ":80";
    const size_t bytes = strlen(port);
    const bool is_default = origin->bytes > bytes && memcmp(origin->host + origin->bytes - bytes, port, bytes) == 0;
    return origin->bytes - (is_default ? bytes : 0);
}

bool efs_address_same_origin(const char *url, const char *other)
{
    struct origin a, b;
    return origin_of(url, &a) && origin_of(other, &b) && a.tls == b.tls && origin_bytes(&a) == origin_bytes(&b) &&
           strncasecmp(a.host, b.host, origin_bytes(&a)) == 0;
}

/* ---- what is given ---- */

static const char *environment(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

/* Whether a URL without TLS may be read. */
static bool may_be_plain(const char *url)
{
    return efs_address_is_loopback(url) || environment("EXPERTFS_INSECURE_HTTP");
}

static bool has_password(const struct origin *origin)
{
    return memchr(origin->host, '@', origin->bytes);
}

const char *efs_address_refused(const char *from, const char *to)
{
    struct origin a, b;
    if (!origin_of(from, &a) || !origin_of(to, &b) || strlen(to) > ADDRESS_BYTES_MAX)
        return "is not https://";
    if (has_password(&b))
        return "has a password";
    if (!b.tls && (a.tls || !may_be_plain(to)))
        return a.tls ? "is not https://" : "is http:// to another machine";
    return NULL;
}

/* A header's value: a line break would begin another header. */
static bool is_header_value(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x21 || (unsigned char)*text > 0x7E)
            return false;
    return true;
}

static errint_t secret_from(const char *variable, char **secret, struct efs_error *err)
{
    const char *value = environment(variable);
    if (!value)
        return 0;
    if (!is_header_value(value) || strlen(value) > ADDRESS_BYTES_MAX)
        return efs_fail(err, -EINVAL, "%s: the value has blanks or control characters", variable);
    *secret = strdup(value);
    return *secret ? 0 : efs_fail(err, -ENOMEM, "no memory");
}

const char *efs_hub_endpoint(void)
{
    const char *hub = environment("HF_ENDPOINT");
    return hub ? hub : "https://huggingface.co";
}

/* Blanks and bytes above ASCII of the path and the query, which a URL has not, as %XX. */
static char *encode_blanks(const char *text, const char *path)
{
    char *url = efs_sys_malloc(3 * strlen(text) + 1), *to = url;
    for (; url && *text; text++)
        if (text >= path && (*text == ' ' || (unsigned char)*text > 0x7E))
            to += sprintf(to, "%%%02X", (unsigned char)*text);
        else
            *to++ = *text;
    if (url)
        *to = '\0';
    return url;
}

static errint_t parse_http(const char *text, struct efs_address *a, struct efs_error *err)
{
    struct origin origin;
    if (strncasecmp(text, "http://", 7) != 0 && strncasecmp(text, "https://", 8) != 0)
        return efs_fail(err, -EINVAL,
                        "%s: addresses of this kind are not read\nhint: https://HOST/PATH, s3://BUCKET/KEY and "
                        "rados:POOL/NAME are; mount another server, as by sshfs or rclone, and give a path",
                        a->name);
    if (!origin_of(text, &origin) || strchr(origin.host, '/') != origin.host + origin.bytes)
        return efs_fail(err, -EINVAL, "%s: no address of a file\nhint: https://HOST/PATH", a->name);
    if (has_password(&origin))
        return efs_fail(
            err, -EINVAL,
            "an address with a password is shown to all users of this machine\nhint: leave out USER:PASSWORD@, and "
            "give a token by EXPERTFS_HTTP_TOKEN");
    if (!origin.tls && !may_be_plain(text))
        return efs_fail(err, -EINVAL,
                        "%s: http:// shows and trusts everything on the way\nhint: use https://, or set "
                        "EXPERTFS_INSECURE_HTTP=1",
                        a->name);
    a->hint = "give a token by EXPERTFS_HTTP_TOKEN, or a link that has not expired";
    a->url = encode_blanks(text, origin.host + origin.bytes);
    if (!a->url)
        return efs_fail(err, -ENOMEM, "no memory");
    a->hub = efs_address_same_origin(text, efs_hub_endpoint());
    if (a->hub)
        a->hint = "give a token by HF_TOKEN, and accept the terms on the model's page";
    return secret_from(a->hub && environment("HF_TOKEN") ? "HF_TOKEN" : "EXPERTFS_HTTP_TOKEN", &a->token, err);
}

char *efs_url_encode(const char *path)
{
    char *text = efs_sys_malloc(3 * strlen(path) + 1), *to = text;
    for (; text && *path; path++)
        if (isalnum((unsigned char)*path) || strchr("-._~/", *path))
            *to++ = *path;
        else
            to += sprintf(to, "%%%02X", (unsigned char)*path);
    if (text)
        *to = '\0';
    return text;
}

static bool is_bucket(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-._", name[i]))
            return false;
    return bytes >= 3 && bytes <= 63;
}

/* s3://BUCKET/KEY: below AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else at Amazon. */
static errint_t parse_s3(const char *text, struct efs_address *a, struct efs_error *err)
{
    const char *bucket = text + strlen("s3://"), *slash = strchr(bucket, '/');
    const size_t bucket_bytes = slash ? (size_t)(slash - bucket) : 0;
    if (!slash || !slash[1] || !is_bucket(bucket, bucket_bytes))
        return efs_fail(err, -EINVAL, "%s: no name of an object\nhint: s3://BUCKET/KEY", a->name);
    const char *endpoint = environment("AWS_ENDPOINT_URL_S3"), *region = environment("AWS_REGION");
    endpoint = endpoint ? endpoint : environment("AWS_ENDPOINT_URL");
    region = region ? region : environment("AWS_DEFAULT_REGION");
    region = region ? region : "us-east-1";
    const char *access = environment("AWS_ACCESS_KEY_ID"), *secret = environment("AWS_SECRET_ACCESS_KEY");
    if (!is_header_value(region) || strchr(region, ':') || strchr(region, '/'))
        return efs_fail(err, -EINVAL, "AWS_REGION: not the name of a region");
    struct origin origin;
    if (endpoint && !origin_of(endpoint, &origin))
        return efs_fail(err, -EINVAL, "AWS_ENDPOINT_URL: not an address\nhint: https://HOST[:PORT]");
    if (!access != !secret)
        return efs_fail(err, -EINVAL, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: one of them is not set");
    char *key = efs_url_encode(slash + 1), *url = NULL;
    int n = -1;
    if (key && endpoint)
        n = asprintf(&url, "%.*s/%.*s/%s", (int)(strlen(endpoint) - (endpoint[strlen(endpoint) - 1] == '/')), endpoint,
                     (int)bucket_bytes, bucket, key);
    else if (key && memchr(bucket, '.', bucket_bytes)) /* a certificate of *.s3 has no names with more dots */
        n = asprintf(&url, "https://s3.%s.amazonaws.com/%.*s/%s", region, (int)bucket_bytes, bucket, key);
    else if (key)
        n = asprintf(&url, "https://%.*s.s3.%s.amazonaws.com/%s", (int)bucket_bytes, bucket, region, key);
    free(key);
    if (n < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = parse_http(url, a, err);
    free(url);
    free(a->token);
    a->token = NULL;
    a->hint = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_SESSION_TOKEN for temporary keys";
    if (rc < 0 || !access)
        return rc;
    if (asprintf(&a->keys, "%s:%s", access, secret) < 0)
        a->keys = NULL;
    if (asprintf(&a->sign, "aws:amz:%s:s3", region) < 0)
        a->sign = NULL;
    return a->keys && a->sign ? secret_from("AWS_SESSION_TOKEN", &a->session, err)
                              : efs_fail(err, -ENOMEM, "no memory");
}

errint_t efs_address_parse(const char *text, struct efs_address *a, struct efs_error *err)
{
    *a = (struct efs_address){.url = NULL};
    a->name = strdup(text);
    if (!a->name)
        return efs_fail(err, -ENOMEM, "no memory");
    efs_hide_secret(a->name);
    if (strlen(text) > ADDRESS_BYTES_MAX)
        return efs_fail(err, -EINVAL, "an address of more than %d bytes", ADDRESS_BYTES_MAX);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return efs_fail(err, -EINVAL, "%s: an address has no control characters", a->name);
    return strncmp(text, "s3://", 5) == 0 ? parse_s3(text, a, err) : parse_http(text, a, err);
}

void efs_address_free(struct efs_address *a)
{
    char *secrets[] = {a->token, a->keys, a->session, a->url};
    for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
        if (secrets[i])
            explicit_bzero(secrets[i], strlen(secrets[i]));
        free(secrets[i]);
    }
    free(a->sign);
    free(a->name);
    *a = (struct efs_address){.url = NULL};
}
