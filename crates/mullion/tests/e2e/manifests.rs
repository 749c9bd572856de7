//! Manifests as users write them.

/// The examples of the repository: what the documentation has users apply.
pub const IIS: &str = include_str!("../../../../examples/iis.yaml");
pub const ENV: &str = include_str!("../../../../examples/env.yaml");
pub const HOST_PATH: &str = include_str!("../../../../examples/host-path.yaml");

/// One stand-in of IIS with a NodePort of its own; `pod` is the indented rest of the pod's `spec`, `container` that of
/// its container. The stand-in serves the pages that show the inside of its pod.
pub fn web(name: &str, node: &str, pod: &str, container: &str) -> String {
    const PAGES: &str = "{name: MULLION_STAND_IN_PAGES, value: 'env,fetch,files'}";
    let container = if container.contains(" env: [") {
        container.replacen(" env: [", &format!(" env: [{PAGES}, "), 1)
    } else if container.contains(" env:\n") {
        container.replacen(" env:\n", &format!(" env:\n        - {PAGES}\n"), 1)
    } else {
        format!("        env: [{PAGES}]\n{container}")
    };
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {node}}}
{pod}
      containers:
      - name: iis
        image: mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022
        ports: [{{containerPort: 80}}]
{container}
{}",
        node_port(name)
    )
}

/// A Service for the pods of an app.
pub fn node_port(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: NodePort
  selector: {{app: {name}}}
  ports: [{{port: 80}}]
"
    )
}

/// A Linux pod that runs one shell script with an argument, and ends.
pub fn script(name: &str, script: &str, argument: &str) -> String {
    let script = serde_json::Value::from(script);
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  restartPolicy: Never
  nodeSelector: {{kubernetes.io/os: linux}}
  containers:
  - {{name: main, image: \"{}\", imagePullPolicy: Never, command: [/bin/sh, -c, {script}, sh, \"{argument}\"]}}
",
        crate::busybox::IMAGE
    )
}

/// A Windows pod that nothing else belongs to.
pub fn windows_pod(name: &str, image: &str, selector: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeSelector: {{kubernetes.io/os: windows{selector}}}
  containers:
  - {{name: main, image: \"{image}\"}}
"
    )
}
