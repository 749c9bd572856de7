//! Command lines that documents and scripts of Kubernetes on Windows print, as they stand there, from 2016 to 2020: each is taken with the same
//! meaning, taken with a warning for each flag that has no effect any more, or answered with today's form.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::process::Command;

use node_config::document::to_document;
use node_config::kube_proxy::flags::Options as ProxyOptions;
use node_config::node::flags::{Options, Program};
use serde_json::{Value, json};

/// A command line: where it stands, the line, members of the configuration that it sets, and its flags without effect.
struct Line {
    of: &'static str,
    line: &'static str,
    sets: &'static [(&'static str, &'static str)],
    idle: &'static [&'static str],
}

const FORMER: &[&str] =
    &["allow-privileged", "cni-bin-dir", "hairpin-mode", "image-pull-progress-deadline", "log-dir", "network-plugin", "pod-infra-container-image"];

const KUBELET: &[Line] = &[
    Line {
        of: "alpha of 2016, without --api_servers",
        line: r#"--hostname-override=win01 --pod-infra-container-image="apprenda/pause" --resolv-conf="""#,
        sets: &[("node.nodeName", r#""win01""#), ("kubelet.resolvConf", r#""""#)],
        idle: &["pod-infra-container-image"],
    },
    Line {
        of: "start-kubelet.ps1, while it waits for the pod CIDR",
        line: r#"--hostname-override=WIN01 --pod-infra-container-image=kubeletwin/pause --resolv-conf="" --kubeconfig=c:\k\config"#,
        sets: &[("node.kubeconfig", r#""c:\\k\\config""#), ("kubelet.resolvConf", r#""""#)],
        idle: &["pod-infra-container-image"],
    },
    Line {
        of: "start-kubelet.ps1 -IsolationType process",
        line: r#"--hostname-override=win01 --v=6 --pod-infra-container-image=kubeletwin/pause --resolv-conf="" --allow-privileged=true
            --enable-debugging-handlers --cluster-dns=11.0.0.10 --cluster-domain=cluster.local --kubeconfig=c:\k\config
            --hairpin-mode=promiscuous-bridge --image-pull-progress-deadline=20m --cgroups-per-qos=false --log-dir=c:\k --logtostderr=false
            --enforce-node-allocatable="" --network-plugin=cni --cni-bin-dir="c:\k\cni" --cni-conf-dir "c:\k\cni\config""#,
        sets: &[
            ("node.nodeName", r#""win01""#),
            ("node.cniConfDir", r#""c:\\k\\cni\\config""#),
            ("kubelet.clusterDNS", r#"["11.0.0.10"]"#),
            ("kubelet.clusterDomain", r#""cluster.local""#),
            ("kubelet.cgroupsPerQOS", "false"),
            ("kubelet.enforceNodeAllocatable", "[]"),
            ("kubelet.logging.verbosity", "6"),
        ],
        idle: FORMER,
    },
    Line {
        of: "start-kubelet.ps1 -IsolationType hyperv",
        line: r#"--hostname-override=win01 --v=6 --pod-infra-container-image=kubeletwin/pause --resolv-conf="" --allow-privileged=true
            --enable-debugging-handlers --cluster-dns=11.0.0.10 --cluster-domain=cluster.local --kubeconfig=c:\k\config
            --hairpin-mode=promiscuous-bridge --image-pull-progress-deadline=20m --cgroups-per-qos=false --feature-gates=HyperVContainer=true
            --enforce-node-allocatable="" --log-dir=c:\k --logtostderr=false --network-plugin=cni --cni-bin-dir="c:\k\cni"
            --cni-conf-dir "c:\k\cni\config""#,
        sets: &[("kubelet.featureGates", r#"{"HyperVContainer": true}"#)],
        idle: FORMER,
    },
    Line {
        of: "10-kubeadm.conf with kubeadm-flags.env of 1.23",
        line: "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf --network-plugin=cni \
               --pod-infra-container-image=k8s.gcr.io/pause:3.6",
        sets: &[("node.bootstrapKubeconfig", r#""/etc/kubernetes/bootstrap-kubelet.conf""#)],
        idle: &["network-plugin", "pod-infra-container-image"],
    },
    Line {
        of: "PrepareNode.ps1's StartKubelet.ps1",
        line: "--cert-dir=C:/var/lib/kubelet/pki --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
               --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=win01 --enable-debugging-handlers --cgroups-per-qos=false \
               --enforce-node-allocatable= --resolv-conf= --windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS",
        sets: &[("node.certDir", r#""C:/var/lib/kubelet/pki""#), ("kubelet.cgroupsPerQOS", "false")],
        idle: &[],
    },
];

const PROXY: &[Line] = &[
    Line {
        of: "alpha of 2016",
        line: "--v=3 --proxy-mode=userspace --hostname-override=win01 --master=http://10.0.0.2:8080 --bind-address=10.0.0.5",
        sets: &[("mode", r#""userspace""#), ("hostnameOverride", r#""win01""#), ("bindAddress", r#""10.0.0.5""#), ("logging.verbosity", "3")],
        idle: &[],
    },
    Line {
        of: "start-kubeproxy.ps1",
        line: r"--v=4 --proxy-mode=kernelspace --hostname-override=win01 --kubeconfig=c:\k\config --log-dir=C:\k --logtostderr=false",
        sets: &[("mode", r#""kernelspace""#), ("clientConnection.kubeconfig", r#""c:\\k\\config""#)],
        idle: &["log-dir"],
    },
    Line {
        of: "start-kubeproxy.ps1 of flannel, l2bridge",
        line: r"--v=4 --proxy-mode=kernelspace --hostname-override=win01 --kubeconfig=c:\k\config --cluster-cidr=10.244.0.0/16 --log-dir=C:\k --logtostderr=false",
        sets: &[("clusterCIDR", r#""10.244.0.0/16""#)],
        idle: &["log-dir"],
    },
    Line {
        of: "start-kubeproxy.ps1 of flannel, overlay",
        line: r#"--v=4 --proxy-mode=kernelspace --feature-gates="WinOverlay=true" --hostname-override=win01 --kubeconfig=c:\k\config
            --network-name=vxlan0 --source-vip=10.244.3.2 --enable-dsr=false --cluster-cidr=10.244.0.0/16 --log-dir=C:\k --logtostderr=false"#,
        sets: &[("winkernel.networkName", r#""vxlan0""#), ("winkernel.sourceVip", r#""10.244.3.2""#), ("winkernel.enableDSR", "false")],
        idle: &["log-dir"],
    },
];

/// Words of a line, without its quotes.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(|word| word.replace('"', "")).collect()
}

/// Names of flags in warnings of the form "--NAME has no effect: WHY".
fn idle(warnings: &[String]) -> BTreeSet<&str> {
    warnings.iter().filter_map(|warning| warning.strip_prefix("--")?.split_once(" has no effect").map(|(name, _)| name)).collect()
}

fn check(line: &Line, documents: &Value, warnings: &[String]) {
    for (path, expected) in line.sets {
        let member = path.split('.').fold(documents, |place, part| &place[part]);
        assert_eq!(*member, serde_json::from_str::<Value>(expected).unwrap(), "{}: {path}", line.of);
    }
    assert_eq!(idle(warnings), line.idle.iter().copied().collect(), "{}: {warnings:#?}", line.of);
    assert_eq!(warnings.len(), line.idle.len(), "{}: {warnings:#?}", line.of);
}

#[test]
fn every_printed_line_of_the_kubelet_keeps_its_meaning() {
    for line in KUBELET {
        let options = Options::parse(Program::Kubelet, words(line.line)).unwrap_or_else(|error| panic!("{}: {error}", line.of));
        let documents = json!({"node": to_document(&options.config.node), "kubelet": to_document(&options.config.kubelet)});
        check(line, &documents, &options.warnings);
    }
}

#[test]
fn every_printed_line_of_kube_proxy_keeps_its_meaning() {
    for line in PROXY {
        let options = ProxyOptions::parse(words(line.line)).unwrap_or_else(|error| panic!("{}: {error}", line.of));
        check(line, &to_document(&options.config), &options.warnings);
    }
}

/// What has no meaning any more is answered with what has.
#[test]
fn the_api_servers_of_2016_are_answered_with_a_kubeconfig() {
    let line = r#"--hostname-override=win01 --pod-infra-container-image="apprenda/pause" --resolv-conf="" --api_servers=http://10.0.0.2:8080"#;
    let error = Options::parse(Program::Kubelet, words(line)).unwrap_err().to_string();
    assert!(error.contains(r#"server: "http://10.0.0.2:8080""#) && error.contains("--kubeconfig=FILE"), "{error}");
}

/// `--help` behind a command makes the program read what stands before it, and run nothing.
#[test]
fn every_printed_line_of_kubeadm_is_one_of_mullion() {
    let hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    for line in [
        // The betas of 1.9, for both systems.
        format!("join --token abcdef.0123456789abcdef 10.0.0.2:6443 --discovery-token-ca-cert-hash {hash}"),
        // kubeadm's own, and of the scripts for containerd.
        format!(
            "join 10.0.0.2:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash {hash} --cri-socket npipe:////./pipe/containerd-containerd --v=5"
        ),
        "join --config join.yaml --ignore-preflight-errors=Swap,CRI".to_owned(),
        "reset --force --cri-socket npipe:////./pipe/containerd-containerd".to_owned(),
        "token create --print-join-command".to_owned(),
        "token create --ttl 0 --description win01".to_owned(),
        "token list".to_owned(),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_mullion")).args(words(&line)).arg("--help").output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Each parameter of the scripts, by script.
const SCRIPTS: &[(&str, &[&str])] = &[
    (
        "start-kubelet.ps1",
        &["ClusterCidr", "NetworkMode", "NetworkName", "IsolationType", "KubeDnsServiceIP", "LogDir", "KubeletFeatureGates", "RegisterOnly"],
    ),
    ("start-kubeproxy.ps1", &["LogDir", "NetworkName", "NetworkMode", "ClusterCidr"]),
    ("AddRoutes.ps1", &["masterIp"]),
    (
        "start.ps1",
        &[
            "ManagementIP",
            "NetworkMode",
            "ClusterCIDR",
            "KubeDnsServiceIP",
            "ServiceCIDR",
            "InterfaceName",
            "LogDir",
            "DeployAsService",
            "KubeletSvc",
            "KubeProxySvc",
            "FlanneldSvc",
            "KubeletFeatureGates",
        ],
    ),
];

/// Scripts are no programs of ours: the documentation says what each of their parameters is today, in flags that there are.
#[test]
fn every_parameter_of_the_scripts_has_a_row_with_flags_that_there_are() {
    let page = include_str!("../../../docs/install.md");
    let table: Vec<&str> = page.split("## In the place of scripts").nth(1).unwrap().lines().filter(|line| line.starts_with("| `")).collect();
    for (script, parameters) in SCRIPTS {
        for parameter in *parameters {
            let is_it = |row: &&&str| {
                row.split('|')
                    .nth(1)
                    .is_some_and(|cell| cell.contains(script) && cell.to_lowercase().contains(&format!("`-{}`", parameter.to_lowercase())))
            };
            assert!(table.iter().filter(is_it).count() == 1, "{script} -{parameter}");
        }
    }
    for row in table {
        let today = row.split('|').nth(2).unwrap();
        for flag in today.split('`').skip(1).step_by(2).filter(|text| text.starts_with("--")) {
            let args = || vec![flag.to_owned()];
            let is_known = Options::check(args()).is_ok() || ProxyOptions::check(args()).is_ok();
            assert!(is_known, "{flag} in {row}");
        }
    }
}
