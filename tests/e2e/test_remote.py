# SPDX-License-Identifier: Apache-2.0
"""A store on an HTTP server: mounted, verified, unpacked by its address, byte for byte, also by an ordinary user, through
redirects and with signatures of AWS; and beside every lie of a server a message, EIO, and right bytes later or never."""
import socket

from e2e import *

import http_server
from http_server import Server, after, ranges, status, times

need_fuse()
model, store = shared(NARROW)
data, source = open(store, "rb").read(), contents(model)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
FAST = {"EXPERTFS_HTTP_TIMEOUT": "1"}
NAME = "/model.efs"
for variable in list(os.environ):  # of the user who runs the tests
    if variable.startswith(("AWS_", "EXPERTFS_HTTP_", "HF_")) or variable in ("CURL_CA_BUNDLE", "EXPERTFS_INSECURE_HTTP", "EXPERTFS_CURL"):
        del os.environ[variable]


probe = Server({NAME: data})
if "libcurl" in ctl("info", probe.url + NAME).stderr:
    skip("libcurl is not installed")
probe.close()


def wrong(folder):
    return [name for name, held in source.items() if open(f"{folder}/{name}", "rb").read() != held]


def failures(mount, names=source, count=-1):
    return reading_errors(mount, {name: held for name, held in source.items() if name in names}, count)


print("-- a server that does what it should")
server = Server({NAME: data})
mount = Mount(server.url + NAME, OPTIONS)
check("all files, byte for byte", wrong(mount.path) == [])
requests = server.taken()
etag = server.etag(NAME)
check("each request names a range, and all but the first the ETag", all("Range" in headers for _, headers in requests) and
      all(headers.get("If-Match") == etag for _, headers in requests[1:]) and "If-Match" not in requests[0][1], requests[:3])
check("the mount names the address", mount.config()["store"] == server.url + NAME and
      any(line.startswith(server.url + NAME + " ") for line in open("/proc/mounts")), mount.config()["store"])
fetched = sum(int(last) - int(first) + 1 for first, last in (headers["Range"][6:].split("-") for _, headers in requests))
check("the counters say what was read", fetched - 4096 - mount.count("disk_bytes") in range(0, 2 << 20), (fetched, mount.count("disk_bytes")))
note(f"{len(requests)} requests, {fetched} bytes of {len(data)}")
mount.unmount()
for words in (("info",), ("verify",), ("info", "--json"), ("verify", "--json")):
    result = ctl(*words, server.url + NAME + "?secret=5ec7e7")
    check(f"expertctl {words}", result.returncode == 0 and "5ec7e7" not in result.stdout + result.stderr, (result.stdout, result.stderr))
result = ctl("unpack", server.url + NAME, scratch("unpacked"))
check("expertctl unpack: the files are the files", result.returncode == 0 and wrong(scratch("unpacked")) == [], result.stderr)
os.mkdir(scratch("background"))
result = run(program("expertfs"), "-o", OPTIONS, server.url + NAME, scratch("background"))
if check("a mount in the background starts, too", result.returncode == 0 and is_mounted(scratch("background")), result.stderr):
    check("and serves", wrong(scratch("background")) == [])
    for words in (("status", scratch("background")), ("ls",), ("doctor", scratch("background")), ("doctor", server.url + NAME)):
        result = ctl(*words)
        check(f"expertctl {' '.join(words)}", result.returncode == 0 and "WRONG" not in result.stdout and
              (words[0] == "doctor" or server.url + NAME in result.stdout), (result.stdout, result.stderr))
    check("expertctl down", ctl("down", scratch("background")).returncode == 0)
result = as_nobody("""mkdir -p "$2/mnt" && "$1" -f -o "$4" "$3" "$2/mnt" 2>"$2/log" & daemon=$!
                   for i in $(seq 2400); do [ -d "$2/mnt/.expertfs" ] && break; sleep .1; done
                   cat "$2/mnt/model-00001-of-00001.safetensors" "$2/mnt/model.safetensors" 2>/dev/null | sha256sum; fusermount3 -u "$2/mnt"; wait $daemon; cat "$2/log" >&2""",
                   server.url + NAME, OPTIONS)
if result:
    import hashlib
    weights = next(name for name in source if name.endswith(".safetensors"))  # the only one
    check("as an ordinary user", result.stdout.split()[:1] == [hashlib.sha256(source[weights]).hexdigest()], (result.stdout, result.stderr))
server.close()

print("-- refused when it is opened, with a reason and a way out")


def endless(handler):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.send_header("ETag", '"x"')
    handler.end_headers()
    handler.server.outer.sent = 0
    while not handler.server.outer.free.is_set():
        handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        handler.server.outer.sent += 65536
    return True


def endless_range(handler, headers, body):
    handler.send_response(206)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.server.outer.sent = 0
    while not handler.server.outer.free.is_set():
        handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        handler.server.outer.sent += 65536


def header(name, value):
    def change(_handler, headers, body):
        headers[name] = value(headers.get(name)) if callable(value) else value
        return body
    return ranges(change)


def without(name):
    def change(_handler, headers, body):
        del headers[name]
        return body
    return ranges(change)


def shifted(text):
    first, last, total = map(int, re.findall(r"\d+", text))
    return f"bytes {first + 1}-{last + 1}/{total}"


def longer(text):
    first, last, total = map(int, re.findall(r"\d+", text))
    return f"bytes {first}-{last}/{total + 1}"


REFUSED = (
    ("no such file", status(404, body=b"x" * 100), "no such file (404)", False),
    ("a token is missing", status(401), "refuses access (401)", True),
    ("access is denied", status(403), "refuses access (403)", True),
    ("the whole file", status(200, ("ETag", '"x"'), body=data), "the whole file in place of a range", True),
    ("a body without end", endless, "the whole file in place of a range", True),
    ("a range without end", ranges(endless_range), "is not the range that was requested", False),
    ("no ETag", without("ETag"), "no strong ETag", True),
    ("a weak ETag", header("ETag", 'W/"x"'), "no strong ETag", True),
    ("an ETag with a blank", header("ETag", '"x y"'), "no strong ETag", True),
    ("an ETag without end", header("ETag", '"' + "x" * 5000 + '"'), "no strong ETag", True),
    ("no Content-Range", without("Content-Range"), "the whole file in place of a range", True),
    ("another range", header("Content-Range", shifted), "is not the range that was requested", False),
    ("a length of 30 digits", header("Content-Range", f"bytes 0-4095/{'9' * 30}"), "the whole file in place of a range", True),
    ("a length below the range", header("Content-Range", "bytes 0-4095/10"), "the whole file in place of a range", True),
    ("a length of 8 EiB", header("Content-Range", f"bytes 0-4095/{2**63 - 1}"), "the whole file in place of a range", True),
    ("another length", header("Content-Range", longer), "should have", True),
    ("a compressed body", header("Content-Encoding", "gzip"), "the whole file in place of a range", True),
    ("an empty file", status(416, ("Content-Range", "bytes */0")), "the file is empty", False),
    ("a redirect in a circle", lambda handler: status(302, ("Location", handler.path))(handler), "more than 8 redirects", False),
    ("a redirect to nowhere", status(302), "a redirect (302) leads nowhere", False),
    ("a redirect to a file", status(302, ("Location", "file:///etc/passwd")), "not https://", False),
    ("a status of its own", status(299), "(299) is not the range", False),
    ("headers without end", lambda handler: status(206, *[(f"X-{i}", "x" * 1000) for i in range(90)] * 4)(handler), "more than 256 KiB of headers", False),
    ("a request to wait for an hour", status(503, ("Retry-After", "3600")), "asks to wait 3600 s", False),
    ("another file", header("X", "x"), "neither an expertfs store nor a file of weights", True),
)
for what, lie, text, hint in REFUSED:
    server = Server({NAME: data if what != "another file" else b"GIF89a" * 1000})
    server.lie, server.sent = lie, 0
    result = ctl("info", server.url + NAME)
    check(what, one_line(result, text, hint) if text else result.returncode == 1, result.stderr)
    check(f"{what}: is not downloaded", server.sent < 16 << 20 and len(server.taken()) <= 9, server.sent)
    server.close()
for address, text in (("http://192.0.2.1/model.efs", "http:// shows and trusts"), ("https:///x", "no address"), ("https://host", "no address"),
                      ("https://user:secret@host/x", "with a password"), ("s3://b", "no name of an object"), ("s3://b!/x", "no name of an object"),
                      ("ftp://host/x", "addresses of this kind are not read"), ("sftp://host/x", "addresses of this kind are not read")):
    result = ctl("info", address)
    check(f"{address} is refused", one_line(result, text), result.stderr)
    check("without the secret", "secret@" not in result.stderr, result.stderr)
result = ctl("info", "http://127.0.0.1:9/model.efs")
check("nothing listens there", one_line(result, "connect"), result.stderr)
server = Server({NAME: data})
result = ctl("info", server.url.replace("http://", "https://") + NAME)
server.close()
check("no TLS there", one_line(result, "SSL connect error"), result.stderr)
with socket.create_server(("127.0.0.1", 0)) as listening:
    def greet():
        connection = listening.accept()[0]
        connection.sendall(b"220 welcome\r\n")
        connection.recv(4096)
        connection.close()

    threading.Thread(target=greet, daemon=True).start()
    result = ctl("info", f"http://127.0.0.1:{listening.getsockname()[1]}/x")
check("no HTTP there", one_line(result, "Unsupported protocol"), result.stderr)
result = ctl("info", "http://127.0.0.1:9/model.efs", EXPERTFS_CURL="off")
check("without libcurl", one_line(result, "libcurl"), result.stderr)
result = ctl("info", "http://127.0.0.1:9/model.efs", EXPERTFS_HTTP_TOKEN="a\nb: c")
check("a token with a line break", one_line(result, "EXPERTFS_HTTP_TOKEN", False), result.stderr)

WEIGHTS = [name for name in source if name.endswith(".safetensors")][:1]

print("-- faults while it is mounted: EIO and one line, and right bytes once they are over")


def short(handler, headers, body):
    headers["Content-Length"] = str(len(body))
    handler.close_connection = True
    return body[:len(body) // 2]


def shorter(_handler, headers, body):
    return body[:len(body) // 2]


def stall(handler):
    handler.server.outer.free.wait(PATIENCE)
    handler.close_connection = True
    return True


def stall_midway(handler, headers, body):
    handler.server.outer.send(handler, 206, [*headers.items(), ("Content-Length", str(len(body)))], body[:len(body) // 2])
    handler.server.outer.free.wait(PATIENCE)
    handler.close_connection = True


def cut(handler):
    handler.close_connection = True
    return True


PASSING = (
    ("503 for a while", times(3, status(503)), None),
    ("429 with Retry-After", times(1, status(429, ("Retry-After", "1"))), None),
    ("a connection that ends at once", times(3, cut), None),
    ("bodies that end midway", times(3, ranges(short)), None),
    ("503 without end", status(503), "the server answers 503, also after some time"),
    ("bodies that are half", ranges(lambda handler, headers, body: (headers.update({"Content-Length": "10"}), body[:10])[1]), "the server sends less than it announces"),
    ("no answer", stall, "imeout"),
    ("no answer midway", ranges(stall_midway), None),
    ("another range", header("Content-Range", shifted), "is not the range that was requested"),
    ("a range without end", ranges(endless_range), "is not the range that was requested"),
    ("access is denied", status(403), "refuses access (403)"),
    ("the file is removed", status(404), "no such file (404)"),
    ("the whole file", status(200, ("ETag", '"x"'), body=data), "the whole file in place of a range"),
)
for what, lie, text in PASSING:
    server = Server({NAME: data})
    mount = Mount(server.url + NAME, OPTIONS, environment=FAST if what.startswith("no answer") else None)
    server.lie = lie
    if what == "no answer midway":
        server.lie = times(1, lie)
    errors = failures(mount, *((WEIGHTS, 4096) if text else ()))
    if text:
        check(f"{what}: EIO", errors == {"EIO"}, errors)
        wait_until(lambda: text in mount.log_text())
        check(f"{what}: one line says so", mount.log_text().count(text) == 1, mount.log_text())
    else:
        check(f"{what}: nobody notices", errors == set(), (errors, mount.log_text()))
    server.lie = lambda handler: False
    server.free.set()
    check(f"{what}: later reads are right", failures(mount) == set(), mount.log_text())
    mount.unmount()
    server.close()

print("-- another file in its place: EIO from then on, never bytes of two files")
other = bytearray(data)
for at in range(4096, len(other), 4096):
    other[at] ^= 1
CHANGED = (
    ("412", lambda server: server.files.update({NAME: bytes(other)})),
    ("412, shorter", lambda server: server.files.update({NAME: data[:-4096]})),
    ("another ETag", lambda server: setattr(server, "lie", header("ETag", '"other"'))),
    ("no ETag any more", lambda server: setattr(server, "lie", without("ETag"))),
    ("another length", lambda server: setattr(server, "lie", header("Content-Range", longer))),
    ("another ETag in the middle", lambda server: setattr(server, "lie", after(3, header("ETag", '"other"')))),
)
for what, change in CHANGED:
    server = Server({NAME: data})
    mount = Mount(server.url + NAME, OPTIONS)
    change(server)
    errors = failures(mount)
    check(f"{what}: EIO", "EIO" in errors and "wrong bytes" not in errors, errors)
    wait_until(lambda: "changed since" in mount.log_text())
    check(f"{what}: one line names it", mount.log_text().count(f"{server.url + NAME}: the file changed since it was opened") == 1 and
          "hint: mount it again" in mount.log_text(), mount.log_text())
    server.files[NAME], server.lie = data, lambda handler: False
    server.taken()
    check(f"{what}: also later", "EIO" in failures(mount) and not server.taken())
    mount.unmount()
    server.close()

print("-- redirects, links that expire, tokens")
blobs = Server({NAME: data})
server = Server({})
server.blobs, server.token = blobs, "secret-token"
address = f"{server.url}/link{NAME}?link-secret=1"
result = ctl("info", address, EXPERTFS_HTTP_TOKEN="wrong")
check("a wrong token", one_line(result, "refuses the token (401)") and "link-secret" not in result.stderr, result.stderr)
mount = Mount(address, OPTIONS, environment={"EXPERTFS_HTTP_TOKEN": "secret-token"})
names = [name for name in source if name.endswith(".safetensors")]
check("a file through a redirect", open(mount / names[0], "rb").read() == source[names[0]])
check("the server is asked once", len(server.taken()) == 2)
check("the token is not sent to another host", not any("Authorization" in headers for _, headers in blobs.taken()))
check("the address is shown without its query", "link-secret" not in open("/proc/mounts").read() + mount.control("config") + mount.log_text(),
      mount.config()["store"])
check("files are for the user alone", os.stat(mount / names[0]).st_mode & 0o777 == 0o400, oct(os.stat(mount / names[0]).st_mode))
blobs.signature = 2
check("a link that has expired is resolved again", wrong(mount.path) == [], mount.log_text())
check("once a range at most", len(server.taken()) in range(1, 33))
mount.unmount()
mount = Mount(address, OPTIONS, environment={"EXPERTFS_HTTP_TOKEN": "secret-token"})
server.taken()
blobs.lie = status(403)
check("links that are refused again", failures(mount, WEIGHTS) == {"EIO"})
check("are said once", mount.log_text().count("refuses access (403)") == 1, mount.log_text())
mount.unmount()
blobs.close()
server.close()

print("-- the server is away and comes back")
server = Server({NAME: data})
mount = Mount(server.url + NAME, OPTIONS)
port = server.http.server_address[1]
server.close()
check("EIO", failures(mount, WEIGHTS) == {"EIO"}, mount.log_text())
back = []


def comes_back():
    try:
        back.append(Server({NAME: data}, port=port))
    except OSError:  # the port is another program's meanwhile
        return False
    return True


if not check("the port is free again", wait_until(comes_back)):
    done()
server = back[0]
check("right bytes", failures(mount) == set(), mount.log_text())
mount.unmount()
server.close()

print("-- https")
key, certificate = scratch("key.pem"), scratch("certificate.pem")
made = shutil.which("openssl") and run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "3650",
                                       "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
if made and made.returncode == 0:
    server = Server({NAME: data}, tls=(certificate, key))
    result = ctl("info", server.url + NAME)
    check("a certificate that nobody trusts", one_line(result, "the certificate is not trusted"), result.stderr)
    mount = Mount(server.url + NAME, OPTIONS, environment={"CURL_CA_BUNDLE": certificate})
    check("all files, byte for byte", wrong(mount.path) == [])
    mount.unmount()
    plain = Server({NAME: data})
    server.lie = status(302, ("Location", plain.url + NAME))
    result = ctl("info", server.url + NAME, CURL_CA_BUNDLE=certificate)
    check("a redirect to http:// is refused", one_line(result, "not https://", False), result.stderr)
    server.close()
    plain.close()
else:
    note("left out: needs openssl")

print("-- s3://")
server = Server({"/bucket/models/a model+1.efs": data})
server.keys = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG")
ADDRESS = "s3://bucket/models/a model+1.efs"
S3 = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": server.keys[0], "AWS_SECRET_ACCESS_KEY": server.keys[1], "AWS_REGION": "eu-central-1"}
mount = Mount(ADDRESS, OPTIONS, environment=S3)
check("all files, byte for byte", wrong(mount.path) == [])
check("signed for the region", all("/eu-central-1/s3/" in headers["Authorization"] for _, headers in server.taken()))
mount.unmount()
result = ctl("verify", ADDRESS, **S3, AWS_SESSION_TOKEN="session")
check("with a session's token", result.returncode == 0 and all(
    headers["x-amz-security-token"] == "session" and "x-amz-security-token" in headers["Authorization"] for _, headers in server.taken()), result.stderr)
result = ctl("info", ADDRESS, **{**S3, "AWS_SECRET_ACCESS_KEY": "wrong"})
check("a wrong key", one_line(result, "refuses access (403)") and "AWS_SECRET_ACCESS_KEY" in result.stderr and "wrong" not in result.stderr,
      result.stderr)
result = ctl("info", ADDRESS, **{**S3, "AWS_SECRET_ACCESS_KEY": ""})
check("half of the keys", one_line(result, "one of them is not set", False), result.stderr)
server.keys = None
result = ctl("info", ADDRESS, AWS_ENDPOINT_URL=server.url)
check("a public bucket needs no keys", result.returncode == 0 and "Authorization" not in server.taken()[-1][1], result.stderr)
server.close()
done()
