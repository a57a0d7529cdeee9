/* SPDX-License-Identifier: Apache-2.0 */
/* status_words.c - what a mount does, how fast, for whom, and what is wrong, in words. */
#include "sample.h"

#include "control_file.h"
#include "expertctl.h"
#include "expertfs-private.h"
#include "mountpoint.h"
#include "size.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- rates ------------------------------------------------------------------------------------------------------- */

/* The counters between two times; `was` NULL: since the mount. */
struct span {
    const char *was, *is; /* texts of `name: value` lines */
    double seconds;       /* > 0 */
};

static double growth(const struct span *span, const char *name)
{
    uint64_t is = tools_line_number(span->is, name), was = span->was ? tools_line_number(span->was, name) : 0;
    return is > was ? (double)(is - was) : 0;
}

static double rate(const struct span *span, const char *name)
{
    return growth(span, name) / span->seconds;
}

static double growth_of(const struct span *span, const char *const *names)
{
    double sum = 0;
    for (; *names; names++)
        sum += growth(span, *names);
    return sum;
}

/* The part of reads, leases and requests that found all their data in memory; < 0: there were none. */
static double hit_ratio(const struct span *span)
{
    static const char *const memory[] = {"reads_f",       "reads_c", "leases_f", "leases_c",
                                         "leases_shared", "coded_c", NULL},
                             *const disk[] = {"reads_m", "reads_past", "leases_m", "coded_m", NULL};
    double hits = growth_of(span, memory), all = hits + growth_of(span, disk);
    return all > 0 ? hits / all : -1;
}

static double errors(const struct span *span)
{
    static const char *const names[] = {"read_errors", "lease_errors", "coded_errors", "disk_errors", NULL};
    return growth_of(span, names);
}

static double requested(const struct span *span)
{
    static const char *const names[] = {"requests_f", "requests_c", "requests_s", "requests_e",
                                        "requests_p", "requests_m", NULL};
    return growth_of(span, names) / span->seconds;
}

static struct span span_minute(const struct ctl_sample *s)
{
    char seconds[32];
    double since = strtod(tools_line_text(s->recent, "seconds", seconds, sizeof(seconds)), NULL);
    return (struct span){s->recent, s->stat, since > 0.001 ? since : 0.001};
}

static struct span span_mount(const struct ctl_sample *s)
{
    double since = (double)time(NULL) - (double)tools_line_number(s->config, "started"),
           least = span_minute(s).seconds; /* `started` has whole seconds */
    return (struct span){NULL, s->stat, since > least ? since : least};
}

/* ---- what is wrong ------------------------------------------------------------------------------------------------
 */

struct problems {
    char line[10][400];
    unsigned count;
};

__attribute__((format(printf, 2, 3))) static void problem(struct problems *p, const char *format, ...)
{
    va_list arguments;
    if (p->count == sizeof(p->line) / sizeof(p->line[0]))
        return;
    va_start(arguments, format);
    vsnprintf(p->line[p->count++], sizeof(p->line[0]), format, arguments);
    va_end(arguments);
}

static void find_faults(const char *root, const struct ctl_sample *s, const char *store, struct problems *p)
{
    char *lost = ctl_mount_store_lost(s->config), fault[400];
    const struct span all = span_mount(s);
    unsigned long long damaged = tools_line_number(s->stat, "chunks_damaged"),
                       messages = tools_line_number(s->stat, "fuse_log_lost");
    if (damaged)
        problem(p, "damaged chunks were read %llu time%s: `expertctl verify %s` names them", damaged,
                damaged > 1 ? "s" : "", EFS_WORD(store));
    if (errors(&all) > 0 && !damaged)
        problem(p, "%.0f reads failed: `expertctl log %s` says why", errors(&all), EFS_WORD(root));
    if (lost)
        problem(p, "%s", lost);
    free(lost);
    static const char *const faults[] = {"local_fault", "placement_fault"};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        if (strcmp(tools_line_text(s->config, faults[i], fault, sizeof(fault)), "-") != 0 && *fault)
            problem(p, "%s", fault);
    if (messages)
        problem(p, "%llu log messages were lost: standard error or syslog was too slow", messages);
}

static void find_limits(const struct ctl_sample *s, struct problems *p)
{
    char serving[32], reason[300], usable[16], budget[16];
    const struct span minute = span_minute(s);
    uint64_t is = tools_line_number(s->stat, "effective_budget_bytes"),
             all = tools_line_number(s->stat, "budget_bytes");
    double hits = hit_ratio(&minute);
    if (is < all - all / 10)
        problem(p, "memory is short: %s of the budget of %s can be used: lower the budget, or free memory",
                tools_size_print(is, usable, sizeof(usable)), tools_size_print(all, budget, sizeof(budget)));
    tools_line_text(s->config, "passthrough_reason", reason, sizeof(reason));
    if (strcmp(tools_line_text(s->stat, "serving_path", serving, sizeof(serving)), "passthrough") != 0 &&
        !strstr(reason, "CAP_SYS_ADMIN")) /* every user's mount but root's: nothing is wrong, doctor mentions it */
        problem(p, "experts are served more slowly than possible: %s", reason);
    if (growth(&minute, "fuse_lease_fallbacks") > 0)
        problem(p, "%.0f experts were opened without passthrough: the budget is too small for all that are open",
                growth(&minute, "fuse_lease_fallbacks"));
    if (hits >= 0 && hits < 0.5 && rate(&minute, "disk_ns") > 0.8e9)
        problem(p, "the disk is busy and %.0f %% of the reads wait for it: raise the budget", 100 * (1 - hits));
}

static void find_problems(const char *root, const struct ctl_sample *s, const char *store, struct problems *p)
{
    p->count = 0;
    find_faults(root, s, store, p);
    find_limits(s, p);
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

/* Files that are open, without those below .expertfs. */
static uint64_t open_files(const struct ctl_table *readers)
{
    uint64_t files = 0;
    for (size_t row = 1; row <= readers->rows; row++)
        files += ctl_table_number(readers, row, "files");
    return files;
}

#define CLIENTS_SHOWN 5u
#define READERS_SHOWN 3u

static void print_readers(const struct ctl_table *readers)
{
    char name[32], user[32], size[16];
    for (size_t row = 1; row <= readers->rows && row <= READERS_SHOWN; row++)
        ctl_print_line(stdout, "          %s (pid %s, %s): %s file%s open, %s read by the daemon",
                       ctl_process_name((pid_t)ctl_table_number(readers, row, "pid"), name),
                       ctl_table_cell(readers, row, "pid"),
                       ctl_user_name((uid_t)ctl_table_number(readers, row, "uid"), user),
                       ctl_table_cell(readers, row, "files"), ctl_table_number(readers, row, "files") == 1 ? "" : "s",
                       tools_size_print(ctl_table_number(readers, row, "read_bytes"), size, sizeof(size)));
    if (readers->rows > READERS_SHOWN)
        printf("          and %zu more\n", readers->rows - READERS_SHOWN);
}

/* The experts that a client has in memory of a device. */
static void print_device(const struct ctl_table *clients, size_t row)
{
    char size[16], waited[24];
    const uint64_t slots = ctl_table_number(clients, row, "device_slots"),
                   hits = ctl_table_number(clients, row, "device_hits"),
                   all = hits + ctl_table_number(clients, row, "device_copied") +
                         ctl_table_number(clients, row, "device_computed");
    if (slots > 0 || all > 0)
        printf("          device: %llu slots, %.1f %% hits, %s copied, waited %s\n", (unsigned long long)slots,
               all ? 100 * (double)hits / (double)all : 0,
               tools_size_print(ctl_table_number(clients, row, "device_copied_bytes"), size, sizeof(size)),
               tools_duration_print((double)ctl_table_number(clients, row, "device_wait_ns") / 1e9, waited,
                                    sizeof(waited)));
}

static void print_clients(const struct ctl_sample *s)
{
    const struct ctl_table *clients = &s->clients;
    char name[32], user[32], since[24];
    printf("\nclients   %llu files are open, %zu programs use libexpertfs\n",
           (unsigned long long)open_files(&s->readers), clients->rows);
    print_readers(&s->readers);
    for (size_t row = 1; row <= clients->rows && row <= CLIENTS_SHOWN; row++) {
        tools_duration_print((double)time(NULL) - (double)ctl_table_number(clients, row, "connected"), since,
                             sizeof(since));
        ctl_print_line(stdout, "          %s (pid %s, %s) for %s: requested %s experts, holds %s",
                       ctl_process_name((pid_t)ctl_table_number(clients, row, "pid"), name),
                       ctl_table_cell(clients, row, "pid"),
                       ctl_user_name((uid_t)ctl_table_number(clients, row, "uid"), user), since,
                       ctl_table_cell(clients, row, "requested"), ctl_table_cell(clients, row, "held"));
        print_device(clients, row);
    }
    if (clients->rows > CLIENTS_SHOWN)
        printf("          and %zu more\n", clients->rows - CLIENTS_SHOWN);
}

/* ---- the screen -------------------------------------------------------------------------------------------------- */

static void print_bytes(const char *what, const struct span spans[2], const char *counter)
{
    char text[2][24], size[16];
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof(text[i]), "%s/s", tools_size_print((uint64_t)rate(&spans[i], counter), size, 16));
    printf("%-14s %14s %14s\n", what, text[0], text[1]);
}

static void print_part(const char *what, double minute, double mount)
{
    char text[2][24];
    const double value[2] = {minute, mount};
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof(text[i]), value[i] < 0 ? "-" : "%.1f %%", 100 * value[i]);
    printf("%-14s %14s %14s\n", what, text[0], text[1]);
}

static void print_rates(const struct ctl_sample *s)
{
    const struct span spans[2] = {span_minute(s), span_mount(s)};
    printf("\n%-14s %14s %14s\n", "", "last minute", "since mount");
    print_bytes("reads", spans, "read_bytes");
    print_part("from memory", hit_ratio(&spans[0]), hit_ratio(&spans[1]));
    print_bytes("disk", spans, "disk_bytes");
    print_part("disk busy", rate(&spans[0], "disk_ns") / 1e9, rate(&spans[1], "disk_ns") / 1e9);
    print_bytes("decoding", spans, "decoded_bytes");
    printf("%-14s %12.0f/s %12.0f/s\n", "experts", requested(&spans[0]), requested(&spans[1]));
    printf("%-14s %14.0f %14.0f\n", "errors", errors(&spans[0]), errors(&spans[1]));
}

static uint64_t held_bytes(const char *stat)
{
    return tools_line_number(stat, "fixed_bytes") + tools_line_number(stat, "chunk_pool_bytes") +
           tools_line_number(stat, "full_pool_bytes");
}

static void print_mount(const char *root, const struct ctl_sample *s, const char *store)
{
    char up[24], path[32], packed[16], plain[16], held[16], budget[16], option[16];
    const char *config = s->config, *stat = s->stat;
    uint64_t store_bytes = tools_line_number(config, "store_bytes"),
             source_bytes = tools_line_number(config, "source_bytes"),
             budget_bytes = tools_line_number(stat, "budget_bytes");
    tools_duration_print((double)time(NULL) - (double)tools_line_number(config, "started"), up, sizeof(up));
    ctl_print_line(stdout, "%s serves %s", root, store);
    printf("%s for %s of files, by %s, up %s, pid %llu\n\n", tools_size_print(store_bytes, packed, sizeof(packed)),
           tools_size_print(source_bytes, plain, sizeof(plain)),
           tools_line_text(stat, "serving_path", path, sizeof(path)), up,
           (unsigned long long)tools_line_number(config, "pid"));
    tools_line_text(config, "budget_option", option, sizeof(option));
    printf("memory    %s of %s used (%.0f %%), %s%llu experts are open\n",
           tools_size_print(held_bytes(stat), held, sizeof(held)),
           tools_size_print(budget_bytes, budget, sizeof(budget)),
           budget_bytes ? 100 * (double)held_bytes(stat) / (double)budget_bytes : 0,
           strcmp(option, "auto") == 0 ? "budget=auto, " : "",
           (unsigned long long)tools_line_number(stat, "leased_experts"));
    if (efs_is_address(store))
        printf("fetched   %s of %s (%.1f %%)\n",
               tools_size_print(tools_line_number(stat, "fetched_bytes"), held, sizeof(held)), packed,
               store_bytes ? 100 * (double)tools_line_number(stat, "fetched_bytes") / (double)store_bytes : 0);
}

static void print_local(const struct ctl_sample *s)
{
    char held[16], limit[16], local[16], remote[16];
    uint64_t limit_bytes = tools_line_number(s->config, "local_limit_bytes"),
             local_bytes = tools_line_number(s->stat, "local_bytes"),
             disk_bytes = tools_line_number(s->stat, "disk_bytes");
    if (strcmp(tools_line_text(s->config, "local_open", held, sizeof(held)), "no") == 0 && limit_bytes > 0)
        puts("local     no copy");
    else if (limit_bytes > 0)
        printf("local     %s of %s used; of what memory lacked %s came from it, %s from the store\n",
               tools_size_print(tools_line_number(s->stat, "local_held_bytes"), held, sizeof(held)),
               tools_size_print(limit_bytes, limit, sizeof(limit)), tools_size_print(local_bytes, local, sizeof(local)),
               tools_size_print(disk_bytes - local_bytes, remote, sizeof(remote)));
}

static void print_placed(const struct ctl_sample *s)
{
    char rule[20];
    unsigned long long number = tools_line_number(s->config, "placement_number");
    if (number)
        printf("placed    %llu of %llu experts are in memory (placement %llu by %s)\n",
               (unsigned long long)tools_line_number(s->config, "placement_held"),
               (unsigned long long)tools_line_number(s->config, "placement_experts"), number,
               tools_line_text(s->config, "placement_rule", rule, sizeof(rule)));
}

/* Whether experts are read before they are requested, and what that waits for. */
static void print_warm(const struct ctl_sample *s)
{
    char state[100], stall[2][16];
    tools_line_text(s->predict, "warm_state", state, sizeof(state));
    printf("warm      %s", state);
    if (strcmp(state, "waits: the machine is busy") == 0)
        printf(" (programs wait %.0f %% of the time for disks, %.0f %% for processors)",
               100 * strtod(tools_line_text(s->predict, "io_stall", stall[0], sizeof(stall[0])), NULL),
               100 * strtod(tools_line_text(s->predict, "cpu_stall", stall[1], sizeof(stall[1])), NULL));
    putchar('\n');
}

void ctl_status_words(const char *root, const struct ctl_sample *s)
{
    char store[4200];
    struct problems problems;
    tools_line_path(s->config, "store", store, sizeof(store));
    print_mount(root, s, store);
    print_local(s);
    print_placed(s);
    print_warm(s);
    print_rates(s);
    print_clients(s);
    find_problems(root, s, store, &problems);
    ctl_print_line(stdout, "problems  %s", problems.count ? problems.line[0] : "none");
    for (unsigned i = 1; i < problems.count; i++)
        ctl_print_line(stdout, "          %s", problems.line[i]);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *span_json(const struct span *span)
{
    double hits = hit_ratio(span);
    return json_pack("{s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "seconds", span->seconds, "read_bytes_per_second",
                     rate(span, "read_bytes"), "hit_ratio", hits < 0 ? json_null() : json_real(hits),
                     "disk_bytes_per_second", rate(span, "disk_bytes"), "local_bytes_per_second",
                     rate(span, "local_bytes"), "disk_busy", rate(span, "disk_ns") / 1e9, "decoded_bytes_per_second",
                     rate(span, "decoded_bytes"), "experts_per_second", requested(span), "errors", errors(span));
}

/* The rows of a table as objects of these columns, which are numbers; columns ends with NULL. */
static json_t *rows_json(const struct ctl_table *table, const char *const *columns)
{
    json_t *array = json_array();
    for (size_t row = 1; row <= table->rows; row++) {
        json_t *object = json_object();
        for (size_t i = 0; columns[i]; i++)
            json_object_set_new(object, columns[i], json_integer((json_int_t)ctl_table_number(table, row, columns[i])));
        json_array_append_new(array, object);
    }
    return array;
}

/* Adds the numbers that lines have under these names, which end with NULL. */
static void add_numbers(json_t *object, const char *lines, const char *const *names)
{
    for (; *names; names++)
        json_object_set_new(object, *names, json_integer((json_int_t)tools_line_number(lines, *names)));
}

/* The placement that the mount follows; null: none. */
static json_t *placement_json(const char *config)
{
    char file[4200], server[80], rule[20], fault[400];
    if (strcmp(tools_line_path(config, "placement", file, sizeof(file)), "-") == 0)
        return json_null();
    tools_line_text(config, "placement_fault", fault, sizeof(fault));
    return json_pack("{s:o, s:s, s:I, s:s, s:I, s:I, s:o}", "placement", ctl_json_text(file), "server",
                     tools_line_text(config, "placement_server", server, sizeof(server)), "number",
                     (json_int_t)tools_line_number(config, "placement_number"), "rule",
                     tools_line_text(config, "placement_rule", rule, sizeof(rule)), "experts",
                     (json_int_t)tools_line_number(config, "placement_experts"), "held",
                     (json_int_t)tools_line_number(config, "placement_held"), "fault",
                     strcmp(fault, "-") == 0 ? json_null() : ctl_json_text(fault));
}

json_t *ctl_status_json(const char *root, const struct ctl_sample *s)
{
    static const char *const
        of_config[] = {"store_bytes", "source_bytes", "pid", "started", NULL},
        *const of_stat[] = {"budget_bytes", "effective_budget_bytes", "fetched_bytes", "leased_experts", NULL},
        *const client[] =
            {"pid",         "uid",           "connected",       "requested",           "held",           "device_slots",
             "device_hits", "device_copied", "device_computed", "device_copied_bytes", "device_wait_ns", NULL},
        *const reader[] = {"pid", "uid", "files", "read_bytes", NULL};
    char store[4200], path[32], warm[100];
    struct problems problems;
    const struct span minute = span_minute(s), all = span_mount(s);
    json_t *wrong = json_array();
    tools_line_path(s->config, "store", store, sizeof(store));
    find_problems(root, s, store, &problems);
    for (unsigned i = 0; i < problems.count; i++)
        json_array_append_new(wrong, ctl_json_text(problems.line[i]));
    json_t *json = json_pack(
        "{s:o, s:o, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "mountpoint", ctl_json_text(root), "store",
        ctl_json_text(store), "serving_path", tools_line_text(s->stat, "serving_path", path, sizeof(path)), "warm",
        tools_line_text(s->predict, "warm_state", warm, sizeof(warm)), "used_bytes", (json_int_t)held_bytes(s->stat),
        "open_files", (json_int_t)open_files(&s->readers), "placement", placement_json(s->config), "minute",
        span_json(&minute), "since_mount", span_json(&all), "clients", rows_json(&s->clients, client), "readers",
        rows_json(&s->readers, reader), "problems", wrong);
    if (json) {
        add_numbers(json, s->config, of_config);
        add_numbers(json, s->stat, of_stat);
    }
    return json;
}
