/* SPDX-License-Identifier: Apache-2.0 */
/* The -o options: sizes, choices, options that mount(8) passes, refused ones and their messages. */

#include "test.h"
#include "options.h"

static errint_t parse(struct efsd_options *options, const char *list, struct efs_error *err)
{
    efsd_options_init(options);
    return efsd_options_parse(options, list, err);
}

/* The value that the daemon passes to efs_set() for this name. */
static const char *tuned(const struct efsd_options *options, const char *name)
{
    return options->tune[efs_tunable_find(name) - efs_tunables];
}

TEST(expertfs_options)
{
    struct efsd_options o;
    assert_int_equal(parse(&o, "", NULL), 0);
    assert_int_equal(o.budget_bytes, 0);
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_AUTO);
    assert_false(o.no_passthrough);
    assert_int_equal(parse(&o,
                           "budget=512M,workers=3,prefetch=on,policy=lru,plan=F=10:C=90,policy=fifo,"
                           "nopassthrough,direct_io=off,,",
                           NULL),
                     0);
    assert_int_equal(o.budget_bytes, 512u << 20);
    assert_int_equal(o.workers, 3);
    assert_string_equal(tuned(&o, "prefetch"), "on");
    assert_string_equal(tuned(&o, "policy"), "fifo");
    assert_string_equal(tuned(&o, "plan"), "F=10:C=90");
    assert_null(tuned(&o, "goal"));
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_OFF);
    assert_true(o.no_passthrough);
    /* the last one wins, as for mount(8) */
    assert_int_equal(efsd_options_parse(&o, "budget=auto,direct_io=on", NULL), 0);
    assert_int_equal(o.budget_bytes, 0);
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_ON);
    efsd_options_free(&o);
}

TEST(mount_options)
{
    struct efsd_options o;
    assert_int_equal(parse(&o,
                           "rw,ro,suid,nosuid,dev,nodev,exec,noexec,user,users,noauto,auto,nofail,_netdev,defaults,"
                           "relatime,noatime,default_permissions,x-systemd.automount,x-gvfs-show,user=joe,"
                           "comment=whatever,allow_other,fsname=a,fsname=b",
                           NULL),
                     0);
    assert_string_equal(o.mount, "noexec,allow_other");
    assert_string_equal(o.fsname, "b");
    efsd_options_free(&o);
}

TEST(refused)
{
    static const struct {
        const char *list, *says;
    } bad[] = {
        {"budgets=1G", "unknown option \"budgets\"\nhint: did you mean budget?"},
        {"frobnicate", "hint: `expertfs --help` lists the options"},
        {"plan=auto,C=90", "unknown option \"C\""},
        {"C=90", "unknown option \"C\""},
        {"budget", "needs a value: budget=SIZE|auto"},
        {"budget=", "needs a value"},
        {"budget=much", "allowed are auto and sizes"},
        {"budget=0", "allowed are"},
        {"budget=99999999999999999999", "allowed are"},
        {"policy=best", "policy=best: allowed are zipmoe, "},
        {"prefetch=auto", "prefetch=auto: allowed are off, on"},
        {"warm=now", "warm=now: allowed are"},
        {"pools=X", "pools=X: allowed are FCSE"},
        {"plan=F=90:C=90", "plan=F=90:C=90: allowed are auto"},
        {"workers=0", "not a number from 1 to 1024"},
        {"workers=-1", "not a number"},
        {"workers=1x", "not a number"},
        {"direct_io=o", "direct_io=o: allowed are auto, on, off"},
        {"direct_io=onn", "allowed are"},
        {"policy", "option policy needs a value"},
        {"goal=", "option goal needs a value"},
        {"nopassthrough=1", "takes no value"},
        {"nonempty=1", "takes no value"},
        {"noexperts=1", "takes no value"},
        {"allow_other=yes", "takes no value"},
        {"fsname=", "needs a value"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct efsd_options o;
        struct efs_error err = {.text = ""};
        assert_int_equal(parse(&o, bad[i].list, &err), -EINVAL);
        if (!strstr(err.text, bad[i].says))
            fail_msg("-o %s: \"%s\" does not say \"%s\"", bad[i].list, err.text, bad[i].says);
        efsd_options_free(&o);
    }
}

TEST(help_has_a_line_for_each)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    efsd_options_help(out);
    fclose(out);
    unsigned names = 0;
    for (const char *line = text; line; line = strchr(line, '\n'))
        names += strncmp(line += *line == '\n', "  ", 2) == 0;
    assert_in_range(names, EFS_TUNABLES + 8, EFS_TUNABLES + 17);
    assert_non_null(strstr(text, "budget=SIZE|auto"));
    free(text);
}

TEST_MAIN(NULL, NULL)
