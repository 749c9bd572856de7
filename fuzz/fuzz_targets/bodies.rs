//! Bodies of writes: any JSON, YAML, protobuf and patch of each type, to kinds of many shapes, is answered. The first byte says which object
//! is written, the second how the body is encoded.

#![no_main]

mod server;

use libfuzzer_sys::fuzz_target;

/// Collections to create in.
const COLLECTIONS: [&str; 10] = [
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/services",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/batch/v1/namespaces/default/cronjobs",
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
];
/// Objects that are always there, to update and to patch.
const OBJECTS: [&str; 5] = [
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/default/services/kubernetes",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/admin",
    "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/none",
];
const ENCODINGS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// Each with the parameters that it needs.
const PATCHES: [(&str, &str); 4] = [
    ("application/json-patch+json", ""),
    ("application/merge-patch+json", ""),
    ("application/strategic-merge-patch+json", ""),
    ("application/apply-patch+yaml", "fieldManager=fuzz&force=true"),
];

fuzz_target!(|data: &[u8]| {
    let [object, encoding, body @ ..] = data else { return };
    let (object, encoding) = (usize::from(*object), usize::from(*encoding));
    match encoding % (2 * ENCODINGS.len() + PATCHES.len()) {
        choice if choice < ENCODINGS.len() => server::ask("POST", COLLECTIONS[object % COLLECTIONS.len()], ENCODINGS[choice], body),
        choice if choice < 2 * ENCODINGS.len() => {
            server::ask("PUT", OBJECTS[object % OBJECTS.len()], ENCODINGS[choice - ENCODINGS.len()], body);
        }
        choice => {
            let (content_type, query) = PATCHES[choice - 2 * ENCODINGS.len()];
            server::ask("PATCH", &format!("{}?{query}", OBJECTS[object % OBJECTS.len()]), content_type, body);
        }
    }
});
