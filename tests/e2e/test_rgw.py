# SPDX-License-Identifier: Apache-2.0
"""A store in a bucket of a real S3 server, Ceph's RGW: signed requests, wrong keys, missing buckets and objects, an object that is
replaced, a gateway that stops and starts again. `make test-cluster` runs it."""
from e2e import *

need_fuse()
for variable in [variable for variable in os.environ if variable.startswith("AWS_")]:  # of the user who runs the tests
    del os.environ[variable]
gateway = servers("up", "1", "--rgw")
model, store = shared(NARROW)
source = contents(model)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
KEY = "models/a model+1.efs"
ADDRESS = "s3://expertfs/" + KEY


def put(file, key=KEY, *more):
    """Uploads by curl, which signs on its own."""
    result = run("curl", "-K", gateway.path("s3.curl"), "-T", file, *more,
                 f"{os.environ['AWS_ENDPOINT_URL']}/expertfs/{key.replace(' ', '%20').replace('+', '%2B')}")
    if not check(f"{key} is uploaded", result.returncode == 0, result.stderr):
        done()


put(store)
put(store, "public.efs", "-H", "x-amz-acl: public-read")

print("-- byte for byte, with signed requests")
mount = Mount(ADDRESS, OPTIONS)
check("all files", reading_errors(mount, source) == set(), mount.log_text())
result = ctl("verify", ADDRESS)
check("verify", result.returncode == 0, result.stderr)
mount.unmount()
result = ctl("info", ADDRESS, AWS_REGION="eu-central-1")
check("another region", result.returncode == 0, result.stderr)

print("-- refused with one line")
for what, address, environment, text, hint in (
        ("a wrong secret", ADDRESS, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "refuses access (403)", True),
        ("a key that is not known", ADDRESS, {"AWS_ACCESS_KEY_ID": "other"}, "refuses access (403)", True),
        ("no keys", ADDRESS, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "refuses access (403)", True),
        ("no such object", "s3://expertfs/none.efs", {}, "no such file (404)", False),
        ("no such bucket", "s3://none-such/x.efs", {}, "no such file (404)", False)):
    result = ctl("info", address, **environment)
    check(what, one_line(result, text, hint), result.stderr)
result = ctl("info", "s3://expertfs/public.efs", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
check("a public object needs no keys", result.returncode == 0, result.stderr)

print("-- the gateway stops and starts again")
mount = Mount(ADDRESS, OPTIONS, environment={"EXPERTFS_HTTP_TIMEOUT": "2"})
gateway.call("stop", "rgw")
check("EIO", reading_errors(mount, source, 4096) == {"EIO"}, mount.log_text())
gateway.call("start", "rgw")
check("right bytes", wait_until(lambda: reading_errors(mount, source) == set()), mount.log_text())
mount.unmount()

print("-- another object in its place")
mount = Mount(ADDRESS, OPTIONS)
other = scratch("other")
with open(other, "wb") as file, open(store, "rb") as old:
    file.write(bytes(byte ^ 1 for byte in old.read()))
put(other)
errors = reading_errors(mount, source)
check("EIO, and no wrong byte", "EIO" in errors and "wrong bytes" not in errors, errors)
check("one line names it", wait_until(lambda: mount.log_text().count(ADDRESS + ": the file changed since it was opened") == 1), mount.log_text())
mount.unmount()
done()
