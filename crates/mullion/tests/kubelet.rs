//! `mullion kubelet` and the program `kubelet` as scripts start them, without a cluster: what is read, refused and reported at the start.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program by upstream's name, as a link to it would.
fn kubelet(dir: &Path, args: &[&str]) -> Output {
    let program = dir.join("kubelet");
    if !program.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mullion"), &program).unwrap();
    }
    Command::new(program).args(args).env_remove("MULLION_LOG").env_remove("CONTAINER_NETWORK").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn kubeadm_reads_the_version_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let output = kubelet(dir.path(), &["--version"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("Kubernetes v1.36."), "{text}");
    let help = kubelet(dir.path(), &["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("      --config-dir "));
    let other = Command::new(env!("CARGO_BIN_EXE_mullion")).args(["kubelet", "--version"]).output().unwrap();
    assert_eq!(String::from_utf8(other.stdout).unwrap(), text);
}

#[test]
fn bad_command_lines_and_files_end_with_the_code_of_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: many\n").unwrap();
    let config = format!("--config={}", file.display());
    for (args, part) in [
        (&["--fly"][..], "unknown flag: --fly"),
        (&["--api_servers=10.0.0.2:8080"], "server: \"http://10.0.0.2:8080\""),
        (&[], "the node has no --kubeconfig: give it, or kubeconfig in --config"),
        (&[config.as_str()], "invalid value \"many\" of maxPods: write a whole number"),
        (&["--kubeconfig=/none", "--node-ip=127.0.0.1", "--eviction-hard=memory.available<much"], "eviction thresholds: "),
        (&["--kubeconfig=/none", "--node-ip=127.0.0.1", "--kube-reserved=gpu=1"], "kubeReserved.gpu cannot be reserved"),
        (&["--kubeconfig=/none", "--node-ip=127.0.0.1", "--container-log-max-files=1"], "keep at least 2 files"),
        (&["--kubeconfig=/none", "--node-ip=127.0.0.1", "--tls-min-version=VersionTLS10"], "cannot use VersionTLS10 as tlsMinVersion"),
        (&["--kubeconfig=/none", "--node-ip=127.0.0.1", "--tls-cipher-suites=TLS_NONE"], "Cipher suite TLS_NONE not supported"),
        (&["--bootstrap-kubeconfig=/none"], "the node has no --kubeconfig: give it"),
    ] {
        let output = kubelet(dir.path(), args);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn options_without_effect_are_reported_and_a_kubeconfig_is_all_that_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("pki");
    let flags = ["--kubeconfig=/none", "--node-ip=127.0.0.1", "--event-burst=3", "--network-plugin=cni"];
    let cert_dir = format!("--cert-dir={}", certs.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.arg("kubelet").args(flags).arg(cert_dir).env_remove("MULLION_LOG").env("CONTAINER_NETWORK", "nat");
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "the kubeconfig is missing: {text}");
    for part in [
        "--event-burst has no effect: ",
        "--network-plugin has no effect: the container runtime calls CNI",
        "CONTAINER_NETWORK=nat has no effect: the CNI configuration names the network today",
        "/none",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(certs.join("kubelet.crt").is_file() && certs.join("kubelet.key").is_file(), "a serving certificate of its own");
}

#[test]
fn a_node_that_cannot_be_bootstrapped_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let flags = [
        format!("--kubeconfig={}", path("kubelet.conf")),
        format!("--bootstrap-kubeconfig={}", path("bootstrap.conf")),
        format!("--cert-dir={}", path("pki")),
        "--node-ip=127.0.0.1".to_owned(),
        "--rotate-server-certificates".to_owned(),
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_256_GCM_SHA384".to_owned(),
    ];
    for rotates in [false, true] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(rotates.then_some("--rotate-certificates")).collect();
        let output = kubelet(dir.path(), &flags);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in
            ["TLS bootstrap failed: cannot use the bootstrap kubeconfig: ", "bootstrap.conf", "TLS_RSA_WITH_AES_256_GCM_SHA384 has no effect: "]
        {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
    assert!(!dir.path().join("pki/kubelet.crt").exists(), "the API server is asked for a serving certificate");
}
