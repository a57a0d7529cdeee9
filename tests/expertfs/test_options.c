/* SPDX-License-Identifier: Apache-2.0 */
/* The -o options: sizes, choices, what mount(8) passes, what is refused and how the refusal reads. */

#include "test.h"
#include "options.h"

static errint_t parse(struct efsd_options *options, const char *list, struct efs_error *err)
{
    efsd_options_init(options);
    return efsd_options_parse(options, list, err);
}

TEST(our_own)
{
    struct efsd_options o;
    assert_int_equal(parse(&o, "", NULL), 0);
    assert_int_equal(o.budget_bytes, 0);
    assert_int_equal(o.readahead_bytes, EFSD_READAHEAD_DEFAULT);
    assert_int_equal(o.lease, EFSD_LEASE_READ);
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_AUTO);
    assert_false(o.no_passthrough || o.no_direct);
    assert_int_equal(parse(&o,
                           "budget=512M,workers=3,threads=4,readahead=1M,ahead=64M,predictor=fmoe,prefetch=auto:share="
                           "20,nopassthrough,lease=wait,"
                           "direct_io=off,nodirect,,",
                           NULL),
                     0);
    assert_int_equal(o.budget_bytes, 512u << 20);
    assert_int_equal(o.workers, 3);
    assert_int_equal(o.threads, 4);
    assert_int_equal(o.readahead_bytes, 1u << 20);
    assert_int_equal(o.ahead_bytes, 64u << 20);
    assert_string_equal(o.predictor, "fmoe");
    assert_string_equal(o.prefetch, "auto:share=20");
    assert_int_equal(o.lease, EFSD_LEASE_WAIT);
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_OFF);
    assert_true(o.no_passthrough && o.no_direct);
    /* the last one wins, as for mount(8) */
    assert_int_equal(efsd_options_parse(&o, "budget=auto,passthrough,odirect,lease=fail,direct_io=on", NULL), 0);
    assert_int_equal(o.budget_bytes, 0);
    assert_int_equal(o.lease, EFSD_LEASE_FAIL);
    assert_int_equal(o.direct_io, EFSD_DIRECT_IO_ON);
    assert_false(o.no_passthrough || o.no_direct);
    efsd_options_free(&o);
}

TEST(what_mount_passes)
{
    struct efsd_options o;
    assert_int_equal(parse(&o,
                           "rw,ro,suid,nosuid,dev,nodev,exec,noexec,user,users,noauto,auto,nofail,_netdev,defaults,"
                           "relatime,noatime,default_permissions,x-systemd.automount,x-gvfs-show,user=joe,"
                           "comment=whatever,allow_other,fsname=a,fsname=b,subtype=c",
                           NULL),
                     0);
    assert_string_equal(o.mount, "noexec,allow_other");
    assert_string_equal(o.fsname, "b");
    assert_string_equal(o.subtype, "c");
    efsd_options_free(&o);
}

TEST(refused)
{
    static const struct {
        const char *list, *says;
    } bad[] = {
        {"budgets=1G", "unknown option \"budgets\""},
        {"frobnicate", "`expertfs --help` lists those that there are"},
        {"plan=F=10,C=90", "plan=F=10:C=90"},
        {"plan=F=10:S=5,C=90", "plan=F=10:S=5:C=90"},
        {"plan=F=10,C=80,E=10", "plan=F=10:C=80"},
        {"plan=auto,C=90", "unknown option \"C\""},
        {"C=90", "unknown option \"C\""},
        {"budget", "needs a value: budget=SIZE|auto"},
        {"budget=", "needs a value"},
        {"budget=much", "not a size"},
        {"budget=0", "greater than 0"},
        {"budget=99999999999999999999", "too large"},
        {"readahead=2G", "too large"},
        {"page_cache=4G", "option page_cache: gone; use a memory cgroup of the readers (memory.high)"},
        {"workers=0", "not a number from 1 to 1024"},
        {"workers=-1", "not a number"},
        {"workers=1x", "not a number"},
        {"threads=65", "from 1 to 64"},
        {"lease=never", "must be one of read|wait|fail"},
        {"lease=rea", "must be one of"},
        {"lease=readx", "must be one of"},
        {"nopassthrough=1", "takes no value"},
        {"nonempty=1", "takes no value"},
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
    for (const char *line = strchr(text, '\n'); line && *++line; line = strchr(line, '\n'), names++)
        assert_memory_equal(line, "  ", 2);
    assert_true(names >= 15);
    assert_non_null(strstr(text, "plan=PLAN"));
    free(text);
}

TEST_MAIN(NULL, NULL)
