# SPDX-License-Identifier: Apache-2.0
"""Which host is asked for a file on a server, and with what: redirects to other machines, targets of redirects that end,
Retry-After, proxies, IPv6, addresses with blanks, queries and secrets."""
import email.utils

from e2e import *

from http_server import Server, ranges, status, times

need_fuse()
model, store = shared(NARROW)
data, source = open(store, "rb").read(), contents(model)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
NAME = "/model.efs"
for variable in list(os.environ):  # of the user who runs the tests
    if variable.startswith(("AWS_", "EXPERTFS_HTTP_", "HF_")) or variable.lower().endswith("_proxy") or variable in ("CURL_CA_BUNDLE", "EXPERTFS_INSECURE_HTTP"):
        del os.environ[variable]
probe = Server({NAME: data})
if "libcurl" in ctl("info", probe.url + NAME).stderr:
    skip("libcurl is not installed")
probe.close()


def info(address, **environment):
    return ctl("info", address, **environment)


print("-- redirects from this machine to other ones")
server, other = Server({NAME: data}), Server({NAME: data}, host="127.0.0.2")  # not a name of this machine: any other one
for what, location, text in (
        ("another machine", other.url + NAME, "is http:// to another machine"),
        ("one without a scheme", other.url[5:] + NAME, "is http:// to another machine"),
        ("a user and a password", server.url.replace("//", "//user:pw@") + NAME, "has a password"),
        ("a user of another machine", other.url.replace("//", "//127.0.0.1@") + NAME, "has a password"),
        ("ftp", "ftp://127.0.0.1/model.efs", "is not https://")):
    server.lie = status(302, ("Location", location))
    result = info(server.url + NAME, EXPERTFS_HTTP_TOKEN="secret-token")
    check(f"{what}: refused", one_line(result, f"a redirect leads to an address that {text}", False), result.stderr)
    check(f"{what}: not asked, and shown without a secret", not other.taken() and "pw" not in result.stderr, result.stderr)
server.lie = status(302, ("Location", other.url + NAME))
result = info(server.url + NAME, EXPERTFS_HTTP_TOKEN="secret-token", EXPERTFS_INSECURE_HTTP="1")
taken = other.taken()
check("allowed by EXPERTFS_INSECURE_HTTP, without the token", result.returncode == 0 and taken and
      not any("Authorization" in headers for _, headers in taken), (result.stderr, taken))
server.close()
other.close()

print("-- the target of a redirect is no more: the first address is asked again")


def ends(server, target):
    target.close()


def says(*lie):
    def change(server, target):
        target.lie = status(*lie[:1], *lie[1:-1], body=lie[-1]) if len(lie) > 1 else status(*lie)
    return change


for what, change in (
        ("its host ends", ends), ("403", says(403)), ("400, as S3 says of a token", says(400)), ("404", says(404)), ("410", says(410)),
        ("503", says(503)), ("a page", says(200, ("Content-Type", "text/html"), b"<p>expired</p>")), ("another answer", says(299))):
    server, target, second = Server({}), Server({NAME: data}), Server({NAME: data})
    server.blobs = target
    mount = Mount(f"{server.url}/link{NAME}", OPTIONS, environment={"EXPERTFS_HTTP_TIMEOUT": "5"})
    server.blobs = second
    change(server, target)
    check(f"{what}: right bytes from the second one", reading_errors(mount, source) == set() and second.taken(), mount.log_text())
    server.blobs = target
    second.close()
    if what != "its host ends":
        target.lie = lambda handler: False
        check(f"{what}: and from the first one again", reading_errors(mount, source) == set() and target.taken(), mount.log_text())
    mount.unmount()
    server.close()
    target.close()

print("-- Retry-After")
for number in (429, 503):
    for what, value, least in (("seconds", lambda: "2", 2), ("a date", lambda: email.utils.formatdate(time.time() + 3, usegmt=True), 2),
                               ("a date of the past", lambda: email.utils.formatdate(time.time() - 1000, usegmt=True), 0),
                               ("a word", lambda: "later", 0), ("a negative number", lambda: "-5", 0)):
        server, at = Server({NAME: data}), []

        def busy(handler):
            at.append(time.time())
            return len(at) == 1 and status(number, ("Retry-After", value()))(handler)

        server.lie = busy
        result = info(server.url + NAME)
        check(f"{number}, {what}: obeyed", result.returncode == 0 and at[1] - at[0] >= least, (result.stderr, at))
        server.close()
server = Server({NAME: data})
server.lie = status(503, ("Retry-After", email.utils.formatdate(time.time() + 86400, usegmt=True)))
check("a date of tomorrow is not waited for", one_line(info(server.url + NAME), "asks to wait 86", False))

print("-- proxies")
server.lie = lambda handler: False
server.taken()
elsewhere = "http://127.0.0.2:9" + NAME
result = info(elsewhere, http_proxy=server.url, EXPERTFS_INSECURE_HTTP="1")
taken = server.taken()
check("http_proxy", result.returncode == 0 and taken and all(path == elsewhere for path, _ in taken), (result.stderr, taken))
result = info(elsewhere, http_proxy=server.url, no_proxy="127.0.0.2", EXPERTFS_INSECURE_HTTP="1")
check("no_proxy", one_line(result, "connect") and not server.taken(), result.stderr)
result = info("https://192.0.2.1/x.efs", https_proxy=server.url)
check("a proxy that refuses", one_line(result, "the proxy refuses the connection (501)"), result.stderr)
result = info(server.url + NAME, http_proxy="http://127.0.0.1:9", all_proxy="http://127.0.0.1:9")
check("this machine without a proxy", result.returncode == 0, result.stderr)
server.close()

print("-- IPv6")
try:
    server = Server({NAME: data}, host="::1")
    result = info(server.url + NAME)
    check("a literal address", result.returncode == 0, result.stderr)
    result = ctl("unpack", server.url + NAME, scratch("six"))
    check("unpack", result.returncode == 0 and contents(scratch("six")) == source, result.stderr)
    server.close()
except OSError as error:
    note(f"left out: {error}")
for address in ("http://[::1]evil/x", "http://[::1/x", "http://[::2]/x", "http://[::ffff:127.0.0.1]/x", "http://127.1/x"):
    result = info(address)
    check(f"{address} is refused", result.returncode == 1 and len(result.stderr.splitlines()) <= 2, result.stderr)

print("-- addresses with blanks, escapes, queries, a fragment, capitals")
server = Server({"/a b/\u00fc, %+.efs": data, NAME: data})
for what, path in (("blanks and letters", "/a b/\u00fc, %25+.efs"), ("escapes", "/a%20b/%C3%BC%2C%20%25%2B.efs"), ("a query", NAME + "?x=/y z&secret=5ec7e7"),
                   ("a fragment", NAME + "#5ec7e7")):
    for words in (("info",), ("verify",), ("doctor",)):
        result = ctl(*words, server.url + path)
        check(f"{what}: {words[0]}", result.returncode == 0 and "5ec7e7" not in result.stdout + result.stderr, (result.stdout, result.stderr))
    mount = Mount(server.url + path, OPTIONS)
    check(f"{what}: mounted", reading_errors(mount, source) == set(), mount.log_text())
    for words in (("status", mount.path), ("ls",), ("doctor", mount.path)):
        result = ctl(*words)
        check(f"{what}: {words[0]} of the mount", result.returncode == 0 and "5ec7e7" not in result.stdout, (result.stdout, result.stderr))
    mount.unmount()
upper = server.url.replace("http", "HTTP") + NAME + "?5ec7e7"
mount = Mount(upper, OPTIONS)
check("HTTP://: no secret is shown", mount.ready and "5ec7e7" not in open("/proc/mounts").read() + mount.control("config") + mount.log_text())
mount.unmount()
for words in (("info", "unpack", "verify", "doctor")):
    result = ctl(words, upper.replace(NAME, "/none"), *((scratch("none"),) if words == "unpack" else ()))
    check(f"{words} of nothing: no secret is shown", result.returncode == 1 and "5ec7e7" not in result.stdout + result.stderr, (result.stdout, result.stderr))
mnt = scratch("up")
for words in (("up", "-o", OPTIONS, server.url + NAME + "?5ec7e7", mnt), ("up", server.url + NAME + "?5ec7e7"), ("status", server.url + NAME + "?5ec7e7"),
              ("down", server.url + NAME + "?5ec7e7")):
    result = ctl(*words)
    check(f"{words[0]} by an address with a query", result.returncode == 0 and "5ec7e7" not in result.stdout + result.stderr, (result.stdout, result.stderr))
server.close()
server = Server({"/bucket/a/../b.efs": data, "/bucket/b.efs": b"another object"})
result = ctl("info", "s3://bucket/a/../b.efs", AWS_ENDPOINT_URL=server.url)
check("s3://: the key is requested as it is", result.returncode == 0 and {path for path, _ in server.taken()} == {"/bucket/a/../b.efs"}, result.stderr)
server.lie = status(301)
result = ctl("info", "s3://bucket/b.efs", AWS_ENDPOINT_URL=server.url)
check("s3://: another region, as S3 says it", one_line(result, "leads nowhere") and "AWS_REGION" in result.stderr, result.stderr)
server.close()
done()
