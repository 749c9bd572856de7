#!/usr/bin/env python3
"""Makes of greeter.exe the image archive that the Dockerfile would: for machines without docker.

The archive has the service's own layer alone. Mullion puts Wine below it, as it does in place of nanoserver; a real Windows
needs the base, and so the Dockerfile.
"""

import argparse
import hashlib
import io
import json
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def archive(members):
    """A tar archive of name -> bytes (None for a directory), the same whenever it is made."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.mode = 0o755
            info.size = len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exe", type=Path, default=HERE / "target/x86_64-pc-windows-gnu/release/greeter.exe")
    parser.add_argument("--name", default="docker.io/example/greeter:1")
    parser.add_argument("--os-version", default="10.0.20348.1", help="the Windows build that the image is for")
    parser.add_argument("--output", type=Path, default=Path("greeter.tar"))
    args = parser.parse_args()
    layer = archive([
        ("Files", None),
        ("Files/greeter", None),
        ("Files/greeter/greeter.exe", args.exe.read_bytes()),
        ("Files/greeter/message.txt", (HERE / "message.txt").read_bytes()),
        ("Hives", None),
    ])
    config = json.dumps({
        "architecture": "amd64",
        "os": "windows",
        "os.version": args.os_version,
        "config": {
            "Entrypoint": ["C:\\greeter\\greeter.exe"],
            "WorkingDir": "C:\\greeter",
            "Env": ["GREETER_FROM=image.py"],
            "ExposedPorts": {"8080/tcp": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }).encode()
    oci = "application/vnd.oci.image"
    manifest = json.dumps({
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json", "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": f"{oci}.layer.v1.tar", "digest": digest(layer), "size": len(layer)}],
    }).encode()
    index = json.dumps({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": f"{oci}.manifest.v1+json",
            "digest": digest(manifest),
            "size": len(manifest),
            "platform": {"os": "windows", "architecture": "amd64", "os.version": args.os_version},
            "annotations": {"io.containerd.image.name": args.name},
        }],
    }).encode()
    blobs = [(f"blobs/sha256/{digest(data)[7:]}", data) for data in (layer, config, manifest)]
    args.output.write_bytes(archive([("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index), *blobs]))
    print(f"{args.output}: {args.name}, windows/amd64 {args.os_version}")


if __name__ == "__main__":
    main()
