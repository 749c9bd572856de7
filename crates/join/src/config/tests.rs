use thiserror_ext::AsReport as _;

use super::*;

/// As `kubeadm config print join-defaults` of 1.36 prints it.
const DEFAULTS: &str = "apiVersion: kubeadm.k8s.io/v1beta4
caCertPath: /etc/kubernetes/pki/ca.crt
discovery:
  bootstrapToken:
    apiServerEndpoint: kube-apiserver:6443
    token: abcdef.0123456789abcdef
    unsafeSkipCAVerification: true
  tlsBootstrapToken: abcdef.0123456789abcdef
kind: JoinConfiguration
nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  imagePullPolicy: IfNotPresent
  imagePullSerial: true
  name: node
  taints: null
timeouts:
  controlPlaneComponentHealthCheck: 4m0s
  discovery: 5m0s
  etcdAPICall: 2m0s
  kubeletHealthCheck: 4m0s
  kubernetesAPICall: 1m0s
  tlsBootstrap: 5m0s
  upgradeManifests: 5m0s
";

fn refusal(text: &str) -> String {
    parse(text).err().unwrap_or_else(|| panic!("{text} was read")).to_report_string()
}

#[test]
fn kubeadms_defaults_are_read() {
    let (read, others) = parse(DEFAULTS).unwrap();
    assert!(others.is_empty());
    let token = read.discovery.token.clone().unwrap();
    assert_eq!((token.endpoint.as_deref(), token.token.as_deref()), (Some("kube-apiserver:6443"), Some("abcdef.0123456789abcdef")));
    assert!(token.is_unpinned && token.ca_cert_hashes.is_empty());
    assert_eq!((read.node_name.as_deref(), read.taints.len()), (Some("node"), 0));
    assert_eq!(read.timeouts.discovery, Some(Duration::from_secs(300)));
    assert_eq!(read.timeouts.kubelet_health, Some(Duration::from_secs(240)));
    assert!(!format!("{read:?}").contains("0123456789abcdef"), "tokens are in no debug text");
}

#[test]
fn both_versions_have_their_own_form_of_arguments_and_times() {
    let v4 = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  taints:\n  - {key: a, value: b, effect: NoSchedule}\n  \
              - {key: c, effect: NoExecute}\n  kubeletExtraArgs:\n  - {name: node-ip, value: 10.0.0.3}\n  - {name: v, value: '2'}\n";
    let (read, _) = parse(v4).unwrap();
    assert_eq!(read.taints, ["a=b:NoSchedule", "c:NoExecute"]);
    assert_eq!(read.kubelet_extra_args, [("node-ip".to_owned(), "10.0.0.3".to_owned()), ("v".to_owned(), "2".to_owned())]);
    let v3 = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\ndiscovery:\n  timeout: 1m30s\n  file: {kubeConfigPath: /a}\n\
              nodeRegistration:\n  kubeletExtraArgs: {v: '2', node-ip: 10.0.0.3}\ncontrolPlane: {certificateKey: x}\n";
    let (read, _) = parse(v3).unwrap();
    assert_eq!(read.kubelet_extra_args.len(), 2);
    assert_eq!((read.timeouts.discovery, read.discovery.file.as_deref()), (Some(Duration::from_secs(90)), Some("/a")));
    assert!(read.is_control_plane);
}

#[test]
fn unknown_members_are_named() {
    let with = |version: &str, rest: &str| format!("apiVersion: kubeadm.k8s.io/{version}\nkind: JoinConfiguration\n{rest}\n");
    for (text, part) in [
        (with("v1beta4", "discovry: {}"), "unknown field `discovry`"),
        (with("v1beta4", "discovery: {bootstrapToken: {tokn: x}}"), "unknown field `tokn`"),
        (with("v1beta4", "discovery: {timeout: 5m}"), "unknown field `timeout`"),
        (with("v1beta4", "nodeRegistration: {kubeletExtraArgs: {v: '2'}}"), "kubeletExtraArgs"),
        (with("v1beta3", "timeouts: {}"), "unknown field `timeouts`"),
        (with("v1beta3", "dryRun: true"), "unknown field `dryRun`"),
        (with("v1beta3", "nodeRegistration: {imagePullSerial: true}"), "unknown field `imagePullSerial`"),
        (with("v1beta3", "nodeRegistration: {kubeletExtraArgs: [{name: v, value: '2'}]}"), "kubeletExtraArgs"),
        (with("v1beta4", "timeouts: {discovery: soon}"), "\"soon\" is no duration"),
        (with("v1beta4", "discovery: {}\ndiscovery: {}"), "discovery"),
        (with("v1beta2", ""), "apiVersion \"kubeadm.k8s.io/v1beta2\""),
        ("kind: ClusterConfiguration\n".to_owned(), "no JoinConfiguration"),
        (format!("{DEFAULTS}---\n{DEFAULTS}"), "two JoinConfigurations"),
        ("a: [".to_owned(), "no YAML"),
        ("---\na: 1\n".repeat(MOST_DOCUMENTS + 1), "more than 32 documents"),
        ("#".repeat(LARGEST + 1), "larger than"),
    ] {
        assert!(refusal(&text).contains(part), "{}", refusal(&text));
    }
}

#[test]
fn other_documents_of_the_file_are_named() {
    let text = format!("kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n---\n{DEFAULTS}---\nkind: KubeletConfiguration\n");
    assert_eq!(parse(&text).unwrap().1, ["ClusterConfiguration", "KubeletConfiguration"]);
}

/// Each alias stands for ten of the one before: the reader gives up long before the memory does.
#[test]
fn aliases_that_stand_for_much_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", "));
    }
    let began = std::time::Instant::now();
    let error = parse(&format!("kind: JoinConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n{text}")).unwrap_err().to_report_string();
    assert!(error.contains("repetition limit exceeded"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
