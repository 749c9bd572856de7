use clap::Parser as _;

use super::*;
use crate::cli::{Cli, Command};

fn args(line: &str) -> JoinArgs {
    match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
        Command::Join(args) => *args,
        other => panic!("another command: {other:?}"),
    }
}

const PIN: &str = "sha256:fd0e3bea72cc0695ec982ec2f63d7ac225d5808c4924aaf02b80087ed9e1e9d2";

#[test]
fn kubeadms_command_line_is_taken_as_it_is() {
    let line = format!("mullion join --v=5 --token abcdef.0123456789abcdef 10.127.44.20:6443 --discovery-token-ca-cert-hash {PIN} --node-name win01");
    let args = args(&line);
    assert!(!format!("{args:?}").contains("0123456789abcdef"), "tokens are in no debug text");
    let settings = settings(JoinArgs { cri_socket: Some("unix:///a".into()), ..args }).unwrap();
    assert_eq!(settings.node_name, "win01");
}

#[test]
fn a_configuration_that_is_wrong_ends_with_the_code_of_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("join.yaml");
    std::fs::write(&path, "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovry: {}\n").unwrap();
    let failure = settings(args(&format!("mullion join --config {}", path.display()))).unwrap_err();
    let text = format!("{:#}", failure.error);
    assert!(failure.code == Code::Usage && text.contains("unknown field `discovry`") && text.contains("join.yaml"), "{text}");
    let failure = settings(args("mullion join --config /nonexistent")).unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    let failure = settings(args("mullion join a:1 --token abc --node-name n --cri-socket unix:///a")).unwrap_err();
    assert_eq!(failure.code, Code::Usage);
}

#[test]
fn failures_have_their_codes() {
    let refused = JoinError::Preflight(join::preflight::Refused { findings: Vec::new() });
    assert_eq!(code(&refused), Code::Preflight);
    assert_eq!(code(&JoinError::Plan(PlanError::NameTaken { name: "n".into() })), Code::NameTaken);
    assert_eq!(code(&JoinError::Discovery(join::discovery::DiscoveryError::Changed { server: "s".into() })), Code::Untrusted);
    assert_eq!(code(&JoinError::Interrupted), Code::Failure);
}
