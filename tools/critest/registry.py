#!/usr/bin/env python3
"""A registry on 127.0.0.1 with the images that critest asks for, made of busybox and small scripts.

registry.py PORT: serves until it is ended. It is meant as a mirror of registry.k8s.io, k8s.gcr.io, gcr.io and docker.io
(critest's own --registry-prefix loses tags). The images behave as critest expects of the real ones; they are not them:
"nginx" and "httpd" are busybox' web server, and the one image that is asked for by the digest of upstream's cannot be made.
"""
import gzip
import hashlib
import http.server
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile

BUSYBOX = "/bin/busybox"
WEB = """#!/bin/sh
echo $$ > /var/run/nginx.pid
mkdir -p /var/run /www
echo '<title>Welcome to nginx!</title>It works!' > /www/index.html
httpd -f -p %d -h /www &
trap 'kill $!' TERM
wait
"""
# Prints whether a set-user-ID program gained rights.
NO_NEW_PRIVS = r"""
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("Effective uid: %d\n", (int)geteuid()); return 0; }
"""


def busybox_files():
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with open(BUSYBOX, "rb") as binary:
        yield "bin/busybox", binary.read(), 0o755
    for applet in applets:
        if applet != "busybox":
            yield f"bin/{applet}", "/bin/busybox", None
    users = ["root:x:0:0:root:/root:/bin/sh", "daemon:x:1:1::/:/bin/false", "www-data:x:33:33::/var/www:/bin/false",
             "default-user:x:1000:1000::/home/default-user:/bin/sh"]
    groups = ["root:x:0:", "www-data:x:33:", "default-user:x:1000:", "group-defined-in-image:x:50000:default-user"]
    yield "etc/passwd", "\n".join(users).encode() + b"\n", 0o644
    yield "etc/group", "\n".join(groups).encode() + b"\n", 0o644
    for directory in ("root/", "var/run/", "var/www/", "www/"):
        yield directory, None, 0o755
    yield "tmp/", None, 0o1777


def layer(files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, mode in files:
            entry = tarfile.TarInfo(name.rstrip("/"))
            if name.endswith("/"):
                entry.type, entry.mode = tarfile.DIRTYPE, mode
                archive.addfile(entry)
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def compiled(source):
    with tempfile.TemporaryDirectory() as scratch:
        with open(f"{scratch}/a.c", "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run(["gcc", "-static", "-O", "-o", f"{scratch}/a", f"{scratch}/a.c"], check=True)
        with open(f"{scratch}/a", "rb") as binary:
            return binary.read()


class Images:
    def __init__(self):
        self.blobs, self.manifests = {}, {}
        self.base = layer(busybox_files())
        for name in ("e2e-test-images/busybox:1.29-2", "library/busybox:1.28"):
            self.add(name, cmd=["sh"])
        web = lambda port: {"bin/nginx": (WEB % port).encode()}
        self.add("e2e-test-images/nginx:1.14-2", web(80), cmd=["/bin/nginx"])
        self.add("k8s-staging-cri-tools/hostnet-nginx-amd64:latest", web(12003), cmd=["/bin/nginx"])
        self.add("e2e-test-images/httpd:2.4.39-4", web(80), cmd=["/bin/nginx"])
        self.add("e2e-test-images/nonewprivs:1.3", {"nnp": (compiled(NO_NEW_PRIVS), 0o4755)}, entrypoint=["/nnp"])
        self.add("pause:3.9", cmd=["sleep", "2147483647"])
        staging = "k8s-staging-cri-tools/"
        for name in ("latest:latest", "1:latest", "2:latest", "3:latest", "tag:test", "tag:all", "digest:latest", "tags:1", "tags:2", "tags:3"):
            content = "tags" if name.startswith("tags") else name
            self.add(f"{staging}test-image-{name}", {"name": content.encode()}, cmd=["sh"])
        for name, user in (("uid", "1002"), ("username", "www-data"), ("uid-group", "1003:users"), ("username-group", "www-data:100")):
            self.add(f"{staging}test-image-user-{name}:latest", cmd=["sh"], user=user)
        self.add(f"{staging}test-image-predefined-group:latest", cmd=["sh"], user="1000")

    def blob(self, data):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def add(self, name, files=None, cmd=None, entrypoint=None, user=""):
        layers = [self.base]
        if files:
            pairs = {name: value if isinstance(value, tuple) else (value, 0o755) for name, value in files.items()}
            layers.append(layer((name, content, mode) for name, (content, mode) in pairs.items()))
        config = {
            "architecture": "amd64", "os": "linux",
            "config": {"Cmd": cmd, "Entrypoint": entrypoint, "User": user, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest() for data in layers]},
        }
        packed = [gzip.compress(data, 1, mtime=0) for data in layers]
        encoded = json.dumps(config).encode()
        manifest = json.dumps({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": self.blob(encoded), "size": len(encoded)},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": self.blob(data), "size": len(data)} for data in packed],
        }).encode()
        repository, tag = name.rsplit(":", 1)
        self.manifests[repository, tag] = manifest
        self.manifests[repository, "sha256:" + hashlib.sha256(manifest).hexdigest()] = manifest


def handler(images):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path.rstrip("/") == "/v2":
                return self.answer(200, "application/json", b"{}")
            found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/?]+)(\?.*)?", self.path)
            name, kind, reference = found.group(1, 2, 3) if found else ("", "", "")
            data = images.manifests.get((name, reference)) if kind == "manifests" else images.blobs.get(reference)
            if data is None:
                return self.answer(404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
            kind = "application/vnd.oci.image.manifest.v1+json" if kind == "manifests" else "application/octet-stream"
            return self.answer(200, kind, data)

        do_HEAD = do_GET

        def answer(self, status, kind, data):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", "sha256:" + hashlib.sha256(data).hexdigest())
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler(Images())).serve_forever()
