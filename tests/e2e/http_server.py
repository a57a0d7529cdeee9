# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 server on the loopback interface that serves ranges of files in memory, and can lie.

    server = Server({"/model.efs": data})
    server.url + "/model.efs"

/link/NAME redirects to /blob/NAME?sig=N of server.blobs (itself, or another Server), which answers 403 unless N is
blobs.signature.
"""
import hashlib
import hmac
import http.server
import re
import socket
import ssl
import threading
import urllib.parse


class Server:
    def __init__(self, files, tls=None, port=0, host="127.0.0.1"):
        self.files, self.etags = dict(files), {}
        self.token = None        # requests without it are answered with 401
        self.keys = None         # (access key, secret key): requests must be signed
        self.lie = lambda handler: False  # called for each request; true: it has answered
        self.blobs, self.signature = self, 1
        self.requests = []       # (path, headers)
        self.lock, self.connections = threading.Lock(), []
        self.free = threading.Event()  # set: handlers that wait go on
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                with outer.lock:
                    outer.connections.append(self.connection)

            def do_GET(self):
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers)))
                try:
                    if not outer.lie(self):
                        outer.answer(self)
                except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        class Threads(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64
            allow_reuse_address = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, *_):  # connections that a client ends
                pass

        self.http = Threads((host, port), Handler)
        self.http.outer = self
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        name = "localhost" if tls else f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if tls else ''}://{name}:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.free.set()
        self.http.shutdown()
        self.http.server_close()
        with self.lock:
            connections, self.connections = self.connections, []
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def taken(self):
        """The requests since the last call."""
        with self.lock:
            taken, self.requests = self.requests, []
        return taken

    def etag(self, name):
        return self.etags.get(name, '"' + hashlib.md5(self.files[name]).hexdigest() + '"')

    def send(self, handler, status, headers=(), body=b""):
        handler.send_response(status)
        names = [name.lower() for name, _ in headers]
        for name, value in headers:
            handler.send_header(name, value)
        if "content-length" not in names and "transfer-encoding" not in names:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def range_of(self, handler, data):
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if not match or int(match[1]) >= len(data):
            return None
        return int(match[1]), min(int(match[2]), len(data) - 1)

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        name = urllib.parse.unquote(url.path)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self.send(handler, 401)
        if self.keys and not self.is_signed(handler, url):
            return self.send(handler, 403, body=b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if name.startswith("/link/"):
            return self.send(handler, 302, [("Location", f"{self.blobs.url}/blob/{name[6:]}?sig={self.blobs.signature}")])
        if name.startswith("/blob/"):
            if url.query != f"sig={self.signature}":
                return self.send(handler, 403, body=b"<Error><Code>AccessDenied</Code></Error>")
            name = name[5:]
        if name not in self.files:
            return self.send(handler, 404, body=b"no such file")
        data, etag = self.files[name], self.etag(name)
        if handler.headers.get("If-Match") not in (None, etag):
            return self.send(handler, 412)
        where = self.range_of(handler, data)
        if not where:
            return self.send(handler, 416, [("Content-Range", f"bytes */{len(data)}")])
        first, last = where
        self.send(handler, 206, self.headers(etag, first, last, len(data)), data[first:last + 1])

    def headers(self, etag, first, last, total):
        return [("ETag", etag), ("Content-Range", f"bytes {first}-{last}/{total}"),
                ("Last-Modified", "Sat, 28 Nov 2026 10:00:00 GMT")]

    def is_signed(self, handler, url):
        """Whether the request has a signature of AWS, version 4, by our keys."""
        access, secret = self.keys
        match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?"
                             r"Signature=([0-9a-f]{64})", handler.headers.get("Authorization", ""))
        if not match or match[1] != access:
            return False
        day, region, signed = match[2], match[3], match[4].split(";")
        lines = "".join(f"{name}:{' '.join((handler.headers.get(name) or '').split())}\n" for name in signed)
        if "x-amz-content-sha256" not in signed:  # as Amazon's S3 and Ceph's RGW
            return False
        payload = handler.headers["x-amz-content-sha256"]
        canonical = "\n".join(("GET", url.path, url.query, lines, match[4], payload))
        scope = f"{day}/{region}/s3/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", handler.headers.get("x-amz-date", ""), scope,
                          hashlib.sha256(canonical.encode()).hexdigest()))
        key = ("AWS4" + secret).encode()
        for part in (day, region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() == match[5]


# ---- lies: functions of a handler that answer in place of the server ----

def status(number, *headers, body=b""):
    """A lie: this answer."""
    def lie(handler):
        handler.server.outer.send(handler, number, list(headers), body)
        return True
    return lie


def ranges(change):
    """A lie: an answer with a range, after change(handler, headers as a dict, body), which returns the body, or None where
    it has sent it."""
    def lie(handler):
        outer = handler.server.outer
        name = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        where = outer.range_of(handler, outer.files[name])
        headers = dict(outer.headers(outer.etag(name), *where, len(outer.files[name])))
        body = change(handler, headers, outer.files[name][where[0]:where[1] + 1])
        if body is not None:
            outer.send(handler, 206, list(headers.items()), body)
        return True
    return lie


def after(count, lie):
    """A lie that begins after this many requests."""
    left = [count]

    def later(handler):
        left[0] -= 1
        return left[0] < 0 and lie(handler)
    return later


def times(count, lie):
    """A lie that ends after this many requests."""
    left = [count]

    def first(handler):
        left[0] -= 1
        return left[0] >= 0 and lie(handler)
    return first
