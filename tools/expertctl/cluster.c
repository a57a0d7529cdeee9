/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.c - expertctl cluster [plan] STORE [FILE]: which server holds which experts. */
#include "cluster.h"

#include "expertctl.h"
#include "expertfs-private.h"
#include "interrupt.h"
#include "options.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RULES "ours|prism|eplb|redundance|smartmoe|uniform"
static const enum efs_place_rule rules[] = {EFS_PLACE_TIME,       EFS_PLACE_PRISM,    EFS_PLACE_EPLB,
                                            EFS_PLACE_REDUNDANCE, EFS_PLACE_SMARTMOE, EFS_PLACE_UNIFORM};

struct arguments {
    struct tools_arguments given; /* [plan] STORE [FILE] */
    struct tools_list servers;    /* NAME=SIZE */
    const char *counts;
    unsigned rule;
    bool json, plan;
    const char *store, *file;
};

/* Takes NAME=SIZE apart. */
static void check_server(const struct argp_state *state, char *word)
{
    char *size = strchr(word, '=');
    uint64_t bytes;
    if (size)
        *size = '\0';
    bool good = efs_server_name_valid(word) && size && efs_parse_size(size + 1, &bytes) == 0 && bytes > 0;
    if (size)
        *size = '=';
    if (!good)
        argp_error(state, "--servers %s: NAME=SIZE is needed, such as left=8G", word);
}

static void check_arguments(const struct argp_state *state, void *into)
{
    struct arguments *a = into;
    a->plan = a->given.count > 0 && strcmp(a->given.word[0], "plan") == 0;
    const uint32_t count = a->given.count - a->plan;
    if (count != 2 && !(count == 1 && efs_is_rados(a->given.word[a->plan])))
        argp_error(state, "STORE and the FILE of the placement are needed, or rados:POOL/NAME");
    a->store = a->given.word[a->plan];
    a->file = a->given.word[a->given.count - 1];
    const bool pool = efs_is_rados(a->file);
    if (pool && a->counts)
        argp_error(state, "--counts goes with a FILE: counts are in the pool, too");
    for (uint32_t i = 0; i < a->servers.count; i++) {
        check_server(state, a->servers.word[i]);
        const size_t bytes = strcspn(a->servers.word[i], "=") + 1;
        for (uint32_t k = 0; k < i; k++)
            if (strncmp(a->servers.word[i], a->servers.word[k], bytes) == 0)
                argp_error(state, "--servers %s: is named twice", a->servers.word[i]);
    }
    if (a->plan && (a->servers.count == 0 || (!a->counts && !pool)))
        argp_error(state, "plan: --servers NAME=SIZE,... is needed, and with a FILE --counts DIR");
    if (!a->plan && (a->servers.count || a->rule))
        argp_error(state, "--servers and --rule go with plan");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"counts", 0, "DIR", "Where DIR/SERVER is EXPERTFS_STATE of that server's mount; not for a pool", TOOLS_TEXT,
     .at = AT(counts)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {"rule", 0, "RULE", "plan: by ours, prism, eplb, redundance, smartmoe or uniform (default: ours)", TOOLS_WORD,
     .at = AT(rule), .words = RULES},
    {"servers", 0, "NAME=SIZE,...", "plan: the servers, and what memory each has for experts", TOOLS_LIST,
     .at = AT(servers)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE [FILE]\nplan STORE [FILE]",
    .help =
        "Show which experts of STORE each server holds by the placement in FILE, when it was seen last, and how many "
        "of its calls find their expert there, on another server, or in the store alone. plan: make a placement "
        "from the servers' counts, and replace FILE. FILE may be rados:POOL/NAME, in a pool of Ceph; it is STORE "
        "if that is such an address.\v"
        "Examples:\n  expertctl cluster plan --counts state --servers a=8G,b=4G m.efs placement\n"
        "  expertctl cluster --counts state m.efs placement",
    .at = AT(given),
    .finish = check_arguments};

/* ---- show ---- */

struct shown {
    uint32_t experts;       /* of the placement */
    double calls, share[3]; /* of its calls: its own experts, those of other servers, of none */
};

static void look_at(const struct ctl_cluster *c, const struct efs_cluster_placement *p, uint32_t n,
                    const struct ctl_server *s, const uint8_t *anywhere, struct shown *shown)
{
    const size_t cells = (size_t)c->layers * c->experts;
    const uint8_t *held = p->held + n * cells;
    *shown = (struct shown){.calls = 0};
    for (size_t i = 0; i < cells; i++) {
        const double calls = s->count.counts ? s->count.counts[i] : 0;
        shown->experts += held[i];
        shown->calls += calls;
        shown->share[held[i] ? 0 : anywhere[i] ? 1 : 2] += calls;
    }
    for (unsigned k = 0; k < 3; k++)
        shown->share[k] = shown->calls > 0 ? shown->share[k] / shown->calls : 0;
}

static json_t *server_json(const struct ctl_server *s, const struct shown *shown)
{
    json_t *age = isnan(s->age_seconds) ? json_null() : json_real(s->age_seconds);
    return json_pack("{s:s, s:o, s:i, s:f, s:f, s:f, s:f, s:o}", "name", s->name, "seen_seconds", age, "experts",
                     (int)shown->experts, "calls", shown->calls, "local", shown->share[0], "peer", shown->share[1],
                     "store", shown->share[2], "fault", *s->fault ? ctl_json_text(s->fault) : json_null());
}

static void print_server(const struct ctl_server *s, const struct shown *shown)
{
    char seen[24] = "never";
    if (!isnan(s->age_seconds))
        snprintf(seen, sizeof(seen), "%.0f s %s", fabs(s->age_seconds), s->age_seconds < 0 ? "ahead" : "ago");
    printf("%-16.16s %-12s %8u %12.0f %7.1f %7.1f %7.1f\n", s->name, seen, shown->experts, shown->calls,
           100 * shown->share[0], 100 * shown->share[1], 100 * shown->share[2]);
}

static int show_placement(const struct ctl_cluster *c, const struct efs_cluster_placement *p,
                          struct ctl_server *servers, uint8_t *anywhere, bool json)
{
    char planner[100] = "";
    if (c->pool && efs_cluster_owner(c->pool, planner, sizeof(planner)) < 0)
        strcpy(planner, "not known");
    const size_t cells = (size_t)c->layers * c->experts;
    size_t covered = 0;
    for (size_t i = 0; i < p->servers * cells; i++)
        anywhere[i % cells] |= p->held[i];
    for (size_t i = 0; i < cells; i++)
        covered += anywhere[i];
    json_t *list = json_array();
    if (!json) {
        const int64_t age_seconds = time(NULL) - p->made_at; /* < 0: a clock is wrong */
        const long long minutes = llabs(age_seconds) / 60;
        ctl_print_line(stdout, "placement %llu by %s, %lld minute%s %s: %zu of %zu experts are on %u server%s",
                       (unsigned long long)p->number, p->rule, minutes, minutes == 1 ? "" : "s",
                       age_seconds < 0 ? "ahead" : "old", covered, cells, p->servers, p->servers == 1 ? "" : "s");
        if (*planner)
            ctl_print_line(stdout, "planner %s", planner);
        printf("%-16s %-12s %8s %12s %7s %7s %7s\n", "server", "seen", "experts", "calls", "local%", "peer%", "store%");
    }
    for (uint32_t n = 0; n < p->servers; n++) {
        struct shown shown;
        look_at(c, p, n, &servers[n], anywhere, &shown);
        if (json)
            json_array_append_new(list, server_json(&servers[n], &shown));
        else
            print_server(&servers[n], &shown);
    }
    for (uint32_t n = 0; n < p->servers && !json; n++)
        if (*servers[n].fault)
            ctl_print_line(stdout, "%s: %s", servers[n].name, servers[n].fault);
    if (!json) {
        json_decref(list);
        return CTL_OK;
    }
    return ctl_print_json(json_pack("{s:I, s:s, s:I, s:o, s:f, s:o}", "number", (json_int_t)p->number, "rule", p->rule,
                                    "made", (json_int_t)p->made_at, "planner",
                                    *planner ? ctl_json_text(planner) : json_null(), "coverage",
                                    (double)covered / (double)cells, "servers", list));
}

static int show(const struct ctl_cluster *c, bool json)
{
    struct efs_cluster_placement p;
    struct efs_error err = {""};
    uint64_t version;
    errint_t rc = ctl_cluster_placement(c, &p, &version, &err);
    struct ctl_server *servers = rc == 0 ? calloc(p.servers, sizeof(*servers)) : NULL;
    uint8_t *anywhere = rc == 0 ? calloc(c->layers, c->experts) : NULL;
    if (rc == 0 && (!servers || !anywhere))
        rc = efs_fail(&err, -ENOMEM, "no memory");
    for (uint32_t n = 0; rc == 0 && n < p.servers; n++) {
        memcpy(servers[n].name, p.name[n], sizeof(servers[n].name));
        ctl_cluster_counts(c, &servers[n]);
    }
    int status = rc < 0 ? ctl_fail(rc, &err) : show_placement(c, &p, servers, anywhere, json);
    if (servers)
        ctl_servers_free(servers, p.servers);
    free(anywhere);
    efs_placement_free(&p);
    return status;
}

/* ---- the command ---- */

static int compare_servers(const void *a, const void *b)
{
    return strcmp(((const struct ctl_server *)a)->name, ((const struct ctl_server *)b)->name);
}

static int plan(struct arguments *a, const struct ctl_cluster *c)
{
    struct ctl_server *servers = calloc(a->servers.count, sizeof(*servers));
    if (!servers)
        return ctl_fail(-ENOMEM, &(struct efs_error){"no memory"});
    for (uint32_t n = 0; n < a->servers.count; n++) {
        char *size = strchr(a->servers.word[n], '=');
        snprintf(servers[n].name, sizeof(servers[n].name), "%.*s", (int)(size - a->servers.word[n]),
                 a->servers.word[n]);
        efs_parse_size(size + 1, &servers[n].memory_bytes);
    }
    qsort(servers, a->servers.count, sizeof(*servers), compare_servers);
    tools_interrupt_catch(); /* a signal must not end the program while it writes */
    int status = ctl_cluster_plan(c, servers, a->servers.count, rules[a->rule], a->json);
    ctl_servers_free(servers, a->servers.count);
    return status;
}

static int cluster_run(int argc, char **argv)
{
    struct arguments a = {.rule = 0};
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, &a);
    struct ctl_cluster c = {.store = a.store, .file = a.file, .counts = a.counts};
    errint_t rc = ctl_cluster_open(&c, &err);
    int status = rc < 0 ? ctl_fail(rc, &err) : a.plan ? plan(&a, &c) : show(&c, a.json);
    efs_cluster_close(c.pool);
    return status;
}

const struct ctl_command ctl_cluster = {"cluster", "show or make which server holds which experts", cluster_run};
