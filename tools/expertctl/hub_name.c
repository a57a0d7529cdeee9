/* SPDX-License-Identifier: Apache-2.0 */
/* hub_name.c - see hub_name.h. */
#include "hub_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool ctl_hub_is_name(const char *text, size_t bytes)
{
    bool good = bytes > 0 && bytes < CTL_HUB_PART && *text != '.' && *text != '-';
    for (size_t i = 0; i < bytes && good; i++)
        good = isalnum((unsigned char)text[i]) || strchr("-_.", text[i]);
    return good;
}

/* Copies an address up to its query and fragment, with %2F decoded. */
static void address_copy(const char *address, char *text, size_t room)
{
    size_t bytes = 0;
    for (; *address && !strchr("?#", *address) && bytes + 1 < room; address++) {
        bool escaped = strncasecmp(address, "%2f", 3) == 0;
        text[bytes++] = escaped ? '/' : *address;
        address += escaped ? 2 : 0;
    }
    text[bytes] = '\0';
}

/* Skips what web pages and programs put before a name. */
static const char *skip_host(const char *given)
{
    static const char *const before[] = {"https://", "http://", "www.", "huggingface.co/", "hf.co/", "hf://"};
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++)
        given += strncmp(given, before[i], strlen(before[i])) == 0 ? strlen(before[i]) : 0;
    return given;
}

bool ctl_hub_has_host(const char *address)
{
    const char *host = strstr(address, "://");
    host = host ? host + 3 : address;
    host += strncmp(host, "www.", 4) == 0 ? 4 : 0;
    return strncmp(host, "huggingface.co/", 15) == 0 || strncmp(host, "hf.co/", 6) == 0;
}

/* Takes /blob/REVISION/FILE of an address as @REVISION/FILE; *revision: whether it did. */
static const char *skip_view(const char *rest, bool *revision)
{
    static const char *const views[] = {"/blob/", "/resolve/", "/raw/", "/tree/"};
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++)
        if (strncmp(rest, views[i], strlen(views[i])) == 0) {
            *revision = true;
            return rest + strlen(views[i]);
        }
    return rest;
}

/* Whether each part of the path is a name; "" is none, and fine. */
static bool is_path(const char *path)
{
    while (*path) {
        size_t bytes = strcspn(path, "/");
        if (bytes == 0 || bytes >= CTL_HUB_PART || *path == '.')
            return false;
        path += bytes;
        path += *path == '/';
    }
    return true;
}

bool ctl_hub_parse(const char *given, struct ctl_hub *hub)
{
    char text[1400];
    const char *at = skip_host(given);
    bool address = at != given;
    address_copy(at, text, sizeof(text));
    if (!address)
        snprintf(text, sizeof(text), "%s", given);
    *hub = (struct ctl_hub){.has_revision = false};
    size_t org = strcspn(text, "/");
    const char *name = text + org + (text[org] == '/'), *rest = name + strcspn(name, "@/:");
    if (strlen(at) >= sizeof(text) || !ctl_hub_is_name(text, org) || !ctl_hub_is_name(name, (size_t)(rest - name)))
        return false;
    snprintf(hub->org, CTL_HUB_PART, "%.*s", (int)org, text);
    snprintf(hub->name, CTL_HUB_PART, "%.*s", (int)(rest - name), name);
    hub->has_revision = *rest == '@';
    if (address)
        rest = skip_view(rest, &hub->has_revision);
    rest += *rest == '@' || *rest == '/';
    size_t quant = strcspn(rest, ":");
    if (rest[quant] == ':' && strchr(rest + quant, '/'))
        return false;
    if (rest[quant] == ':' && strcmp(rest + quant, ":latest") != 0) /* of ollama: no QUANT */
        snprintf(hub->quant, CTL_HUB_PART, "%s", rest + quant + 1);
    snprintf(hub->rest, sizeof(hub->rest), "%.*s", (int)quant, rest);
    for (size_t bytes = strlen(hub->rest); bytes > 0 && hub->rest[bytes - 1] == '/'; bytes--)
        hub->rest[bytes - 1] = '\0';
    return is_path(hub->rest) && !(hub->has_revision && !*hub->rest) &&
           (!*hub->quant || ctl_hub_is_name(hub->quant, strlen(hub->quant)));
}

bool ctl_hub_name(const char *given, char *name, size_t room)
{
    struct ctl_hub hub;
    bool is = ctl_hub_parse(given, &hub);
    snprintf(name, room, "%s%s%s", is ? hub.org : "", is ? "--" : "", is ? hub.name : "");
    return is;
}
