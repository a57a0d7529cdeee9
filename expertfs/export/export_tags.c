/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tags.c - see export_internal.h: the experts of a client by tag, in a hash table. Its size depends on the
 * number of experts, which is limited by the budget, and not on the tags, which the client chooses. Tags are below
 * EFS_EXPORT_TAGS, so that in n lists at most EFS_EXPORT_TAGS / n of them are in the same one. Lock held.
 */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>

#define LISTS_LEAST 16u

static struct efsd_export_item **list_of(const struct efsd_export_client *s, uint32_t tag)
{
    return &s->items[tag & (s->lists - 1)];
}

static void list_push(const struct efsd_export_client *s, struct efsd_export_item *item)
{
    struct efsd_export_item **list = list_of(s, item->tag);
    item->next = *list;
    *list = item;
}

struct efsd_export_item *efsd_export_item_find(const struct efsd_export_client *s, uint32_t tag)
{
    struct efsd_export_item *item = s->lists ? *list_of(s, tag) : NULL;
    while (item && item->tag != tag)
        item = item->next;
    return item;
}

/* Doubles the number of lists. */
static errint_t items_grow(struct efsd_export_client *s)
{
    const uint32_t old_lists = s->lists, lists = old_lists ? 2 * old_lists : LISTS_LEAST;
    struct efsd_export_item **old = s->items, **items = calloc(lists, sizeof(struct efsd_export_item *));
    if (!items)
        return -ENOMEM;
    s->items = items;
    s->lists = lists;
    for (uint32_t n = 0; n < old_lists; n++)
        for (struct efsd_export_item *item = old[n], *next; item; item = next) {
            next = item->next;
            list_push(s, item);
        }
    free(old);
    return 0;
}

errint_t efsd_export_item_add(struct efsd_export_item *item)
{
    struct efsd_export_client *s = item->client;
    errint_t rc = s->items_count == s->lists ? items_grow(s) : 0;
    if (rc)
        return rc;
    list_push(s, item);
    s->items_count++;
    return 0;
}

void efsd_export_item_remove(struct efsd_export_item *item)
{
    struct efsd_export_item **at = list_of(item->client, item->tag);
    while (*at != item)
        at = &(*at)->next;
    *at = item->next;
    item->client->items_count--;
}

struct efsd_export_item *efsd_export_item_pop(struct efsd_export_client *s, uint32_t *list)
{
    while (*list < s->lists && !s->items[*list])
        ++*list;
    struct efsd_export_item *item = *list < s->lists ? s->items[*list] : NULL;
    if (item)
        efsd_export_item_remove(item);
    return item;
}

uint32_t efsd_export_items_held(const struct efsd_export_client *s)
{
    uint32_t held = 0;
    for (uint32_t n = 0; n < s->lists; n++)
        for (const struct efsd_export_item *item = s->items[n]; item; item = item->next)
            held += item->request != NULL;
    return held;
}
