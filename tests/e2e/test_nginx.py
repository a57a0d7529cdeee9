# SPDX-License-Identifier: Apache-2.0
"""A store and a GGUF file on a real nginx, by HTTP/2 over TLS: byte for byte, ranges in flight on one connection, a certificate that
is not trusted, a file that is replaced, a server that stops and starts again. `make test-cluster` runs it."""
from e2e import *

need_fuse()
model, store = shared(NARROW)
gguf = make_model("gguf", *NARROW, "--format", "gguf")
name = next(name for name in files_below(gguf) if name.endswith(".gguf"))
www = scratch("www")
os.mkdir(www)
for file, path in (("model.efs", store), ("model.gguf", os.path.join(gguf, name))):
    shutil.copyfile(path, os.path.join(www, file))
nginx = servers("web", www)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
FAST = {"EXPERTFS_HTTP_TIMEOUT": "2"}
source, URL = contents(model), os.environ["URL"]
WHOLE = {"model.gguf": open(os.path.join(www, "model.gguf"), "rb").read()}

print("-- byte for byte, by HTTP/2")
for file, held in (("model.efs", source), ("model.gguf", WHOLE)):
    mount = Mount(f"{URL}/{file}", OPTIONS)
    check(f"{file}: all files, byte for byte", reading_errors(mount, held) == set(), mount.log_text())
    mount.unmount()
    answers = nginx.answers()
    check("each answer is a range, by HTTP/2", {answer[:1] + answer[2:3] for answer in answers} == {(206, "HTTP/2.0")}, answers)
check("verify", ctl("verify", URL + "/model.efs").returncode == 0)

print("-- ranges in flight share a connection")
nginx.answers()
mount = Mount(URL + "/slow/model.efs", OPTIONS)
names = list(source)
in_threads(lambda number: reading_errors(mount, {names[number]: source[names[number]]}), range(len(names)), 300)
mount.unmount()
answers = nginx.answers()
most = max(sum(begin <= other[4] < end for other in answers) for *_, begin, end in answers)
check("at least four at once", most >= 4, answers)
check("one connection", len({answer[3] for answer in answers}) == 1, answers)
note(f"{len(answers)} ranges, {most} at once")

print("-- a certificate that is not trusted")
for words in (("info",), ("verify",), ("up",)):
    result = ctl(*words, URL + "/model.efs", CURL_CA_BUNDLE="")
    check(words[0], one_line(result, "the certificate is not trusted"), result.stderr)
result = ctl("info", URL.replace("localhost", "127.0.0.1") + "/model.efs")
check("of another name", one_line(result, "the certificate is not trusted"), result.stderr)

print("-- nginx stops and starts again")
mount = Mount(URL + "/model.efs", OPTIONS, environment=FAST)
nginx.call("stop", "nginx")
check("EIO", reading_errors(mount, source, 4096) == {"EIO"}, mount.log_text())
check("one line", wait_until(lambda: mount.log_text().count("onnect to server") == 1), mount.log_text())
nginx.call("start", "nginx")
check("right bytes", wait_until(lambda: reading_errors(mount, source) == set()), mount.log_text())

mount.unmount()

print("-- another file in its place")
mount = Mount(URL + "/model.efs", OPTIONS)
other = bytearray(open(store, "rb").read())
for at in range(4096, len(other), 4096):
    other[at] ^= 1
with open(os.path.join(www, "new"), "wb") as file:
    file.write(other)
os.utime(os.path.join(www, "new"), (1, 1))  # nginx's ETag has the time of change in seconds
os.rename(os.path.join(www, "new"), os.path.join(www, "model.efs"))
errors = reading_errors(mount, source)
check("EIO, and no wrong byte", "EIO" in errors and "wrong bytes" not in errors, errors)
check("one line names it", wait_until(lambda: mount.log_text().count("/model.efs: the file changed since it was opened") == 1), mount.log_text())
os.remove(os.path.join(www, "model.efs"))
check("EIO where it is removed", reading_errors(mount, source, 4096) <= {"EIO"})
mount.unmount()
result = ctl("info", URL + "/model.efs")
check("which is not found any more", one_line(result, "no such file (404)", False), result.stderr)
done()
