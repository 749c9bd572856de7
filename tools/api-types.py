#!/usr/bin/env python3
"""Writes crates/apiserver/src/schema/types.txt: what upstream's Go types say about each field of the served kinds.

    tools/api-types.py API APIMACHINERY APIEXTENSIONS > crates/apiserver/src/schema/types.txt

The arguments are work trees of github.com/kubernetes/api, apimachinery and apiextensions-apiserver at the release whose version the server
reports. Only facts are taken: names of types and fields, Go types, `omitempty`, patch strategies, list and map types.
The file's grammar is described in crates/apiserver/src/schema/types.rs, which reads it.
"""

import pathlib
import re
import sys

# Kinds whose types are written, with everything they reach.
ROOTS = """core/v1.Binding core/v1.ConfigMap core/v1.Endpoints core/v1.Event core/v1.Namespace core/v1.Node core/v1.PersistentVolume
core/v1.LimitRange core/v1.PersistentVolumeClaim core/v1.Pod core/v1.PodTemplate core/v1.ReplicationController core/v1.ResourceQuota
core/v1.Secret core/v1.Service core/v1.ServiceAccount apps/v1.ControllerRevision apps/v1.DaemonSet
admissionregistration/v1.MutatingAdmissionPolicy admissionregistration/v1.MutatingAdmissionPolicyBinding
admissionregistration/v1.MutatingWebhookConfiguration admissionregistration/v1.ValidatingAdmissionPolicy
admissionregistration/v1.ValidatingAdmissionPolicyBinding admissionregistration/v1.ValidatingWebhookConfiguration
apps/v1.Deployment apps/v1.ReplicaSet apps/v1.StatefulSet autoscaling/v1.HorizontalPodAutoscaler autoscaling/v1.Scale
autoscaling/v2.HorizontalPodAutoscaler batch/v1.CronJob batch/v1.Job certificates/v1.CertificateSigningRequest
certificates/v1beta1.ClusterTrustBundle networking/v1.IPAddress
networking/v1.Ingress networking/v1.IngressClass networking/v1.NetworkPolicy networking/v1.ServiceCIDR coordination/v1.Lease
discovery/v1.EndpointSlice events/v1.Event
node/v1.RuntimeClass policy/v1.Eviction policy/v1.PodDisruptionBudget scheduling/v1.PriorityClass storage/v1.CSIDriver
storage/v1.CSINode storage/v1.CSIStorageCapacity storage/v1.StorageClass storage/v1.VolumeAttachment storage/v1.VolumeAttributesClass
rbac/v1.ClusterRole rbac/v1.ClusterRoleBinding rbac/v1.Role rbac/v1.RoleBinding
authentication/v1.SelfSubjectReview authentication/v1.TokenRequest authentication/v1.TokenReview
authorization/v1.LocalSubjectAccessReview authorization/v1.SelfSubjectAccessReview authorization/v1.SelfSubjectRulesReview
authorization/v1.SubjectAccessReview apiextensions/v1.CustomResourceDefinition""".split()

LEAVES = {
    "meta/v1.Time": "time", "meta/v1.MicroTime": "microtime", "meta/v1.Duration": "string", "meta/v1.FieldsV1": "raw",
    "resource.Quantity": "quantity", "intstr.IntOrString": "intorstring", "runtime.RawExtension": "extension", "types.UID": "string",
    "types.NamespacedName": "raw", "apiextensions/v1.JSON": "json", "apiextensions/v1.JSONSchemaPropsOrBool": "schemaorbool",
    "apiextensions/v1.JSONSchemaPropsOrArray": "schemaorarray", "apiextensions/v1.JSONSchemaPropsOrStringArray": "schemaorstrings",
}
SCALARS = {"string", "bool", "int32", "int64", "float64", "int", "uint32"}


def package(path, name, found):
    """Reads every type of one package directory into `found` under NAME.TYPE."""
    for file in sorted(path.glob("*.go")):
        if file.name.startswith("zz_") or file.name.endswith("_test.go") or "generated" in file.name:
            continue
        text = file.read_text()
        imports = dict((alias or full.split("/")[-1], full) for alias, full in re.findall(r'^\s*(\w+)?\s*"(k8s\.io/[^"]+)"', text, re.M))
        for kind, body in re.findall(r"^type (\w+) struct \{\n(.*?)^\}", text, re.M | re.S):
            head = text[: text.index(f"type {kind} struct")].rsplit("\n\n", 1)[-1]
            found[f"{name}.{kind}"] = ("struct", body, imports, "+structType=atomic" in head)
        for kind in re.findall(r"^type (\w+) struct\{\}$", text, re.M):
            found[f"{name}.{kind}"] = ("struct", "", imports, False)
        for kind, base in re.findall(r"^type (\w+) ([\w\[\]*.]+)$", text, re.M):
            found[f"{name}.{kind}"] = ("alias", base, imports, False)
        for group in re.findall(r"^type \(\n(.*?)^\)", text, re.M | re.S):
            for kind, base in re.findall(r"^\t(\w+) +([\w\[\]*.]+)$", group, re.M):
                found[f"{name}.{kind}"] = ("alias", base, imports, False)


def qualify(type_, here, imports):
    """The full name (PACKAGE.TYPE) of a Go type name used in package `here`."""
    if "." in type_:
        alias, base = type_.split(".")
        full = imports[alias]
        short = {"k8s.io/apimachinery/pkg/apis/meta/v1": "meta/v1"}.get(full, full.split("/")[-1])
        if full.startswith("k8s.io/api/"):
            short = full[len("k8s.io/api/"):]
        return f"{short}.{base}"
    return type_ if type_ in SCALARS or type_ == "byte" else f"{here}.{type_}"


def openapi(name):
    pkg, base = name.rsplit(".", 1)
    if pkg == "apiextensions/v1":
        return "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1." + base
    return "io.k8s.apimachinery.pkg.apis.meta.v1." + base if pkg == "meta/v1" else f"io.k8s.api.{pkg.replace('/', '.')}.{base}"


def go_name(name):
    """How reflect prints the type: the last element of the package's path, then the name."""
    pkg, _, base = name.rpartition(".")
    return f"{pkg.split('/')[-1]}.{base}" if pkg else base


class Writer:
    def __init__(self, types):
        self.types, self.done, self.queue = types, {}, list(ROOTS)

    def shape(self, type_, here, imports):
        """(how reflect prints it, its shape in our grammar)."""
        if type_.startswith("*"):
            return self.shape(type_[1:], here, imports)
        if type_ == "[]byte":
            return "[]uint8", "bytes"
        if type_.startswith("[]"):
            go, shape = self.shape(type_[2:], here, imports)
            return f"[]{'*' if type_[2] == '*' else ''}{go}", f"[]{shape}"
        if type_.startswith("map["):
            key, value = type_[4:].split("]", 1)
            key_go, _ = self.shape(key, here, imports)
            go, shape = self.shape(value, here, imports)
            return f"map[{key_go}]{go}", "{}" + shape
        name = qualify(type_, here, imports)
        if name in SCALARS:
            return name, name
        if name in LEAVES:
            return go_name(name), LEAVES[name]
        what, body, its_imports, _ = self.types[name]
        if what == "alias":
            return go_name(name), self.shape(body, name.rsplit(".", 1)[0], its_imports)[1]
        self.queue.append(name)
        return go_name(name), "@" + openapi(name)

    def fields(self, name):
        _, body, imports, _ = self.types[name]
        here = name.rsplit(".", 1)[0]
        comments = []
        for line in body.splitlines():
            line = line.strip()
            if line.startswith("//"):
                comments.append(line[2:].strip())
                continue
            tag = re.search(r'`(.*)`', line)
            declared = re.match(r"(?:(\w+) +)?([\w\[\]*.]+) +`", line)
            if not tag or not declared:
                comments = [] if not line else comments
                continue
            tags = dict(re.findall(r'(\w+):"([^"]*)"', tag[1]))
            field, *options = tags["json"].split(",")
            if field == "-":
                continue
            if "inline" in options or (not field and not declared[1]):
                yield from self.fields(qualify(declared[2].lstrip("*"), here, imports))
                comments = []
                continue
            go, shape = self.shape(declared[2], here, imports)
            flags = []
            if declared[2].startswith("*"):
                flags.append("ptr")
            flags += [option for option in ("omitempty", "omitzero") if option in options]
            marks = dict(re.findall(r"^\+(\w+)=(\S+)$", "\n".join(comments), re.M))
            keys = re.findall(r"^\+listMapKey=(\S+)$", "\n".join(comments), re.M)
            if "listType" in marks:
                flags.append("list:" + ",".join([marks["listType"], *keys]))
            if marks.get("mapType") == "atomic" or marks.get("structType") == "atomic":
                flags.append("map:atomic")
            if "patchStrategy" in tags:
                flags.append("patch:" + tags["patchStrategy"])
            if "patchMergeKey" in tags:
                flags.append("key:" + tags["patchMergeKey"])
            yield " ".join([f" {field}", go, shape, *flags])
            comments = []

    def run(self):
        while self.queue:
            name = self.queue.pop()
            if name not in self.done:
                self.done[name] = None
                self.done[name] = list(self.fields(name))
        for name in sorted(self.done, key=openapi):
            print(openapi(name) + (" map:atomic" if self.types[name][3] else ""))
            for line in self.done[name]:
                print(line)


def main(api, machinery, extensions):
    types = {}
    for name in ["core/v1", "admissionregistration/v1", "apps/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1", "certificates/v1",
                 "coordination/v1", "discovery/v1", "events/v1", "networking/v1", "node/v1", "policy/v1", "rbac/v1", "authentication/v1",
                 "authorization/v1", "scheduling/v1", "storage/v1"]:
        package(pathlib.Path(api) / name, name, types)
    package(pathlib.Path(machinery) / "pkg/apis/meta/v1", "meta/v1", types)
    package(pathlib.Path(extensions) / "pkg/apis/apiextensions/v1", "apiextensions/v1", types)
    print("# Written by tools/api-types.py from upstream's Go types: do not edit.")
    Writer(types).run()


main(*sys.argv[1:])
