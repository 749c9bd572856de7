//! `mullion kube-proxy` as scripts start it.

use std::process::Command;

/// The proxy ends without credentials, and has reported before which of its options HNS cannot follow.
#[test]
fn kube_proxy_reports_gaps_of_hns_at_the_start() {
    let run = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        let output = command.arg("kube-proxy").args(flags).env_remove("MULLION_LOG").env_remove("MULLION_HCN").output().unwrap();
        assert!(!output.status.success(), "it has no credentials");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let asked = ["--network-name=pods", "--nodeport-addresses=10.0.0.0/8,127.0.0.0/8", "--masquerade-all"];
    let windows = run(&[&["--proxy-mode=kernelspace"][..], &asked].concat());
    for part in
        ["nodePortAddresses) has no effect: HNS serves node ports at every address", "HNS has none at 127.0.0.1", "masqueradeAll) has no effect"]
    {
        assert!(windows.contains(part), "no {part:?} in {windows}");
    }
    assert!(!run(&["--proxy-mode=kernelspace", "--network-name=pods"]).contains("has no effect"), "nothing was asked for");
    assert!(!run(&[&["--proxy-mode=userspace"][..], &asked].concat()).contains("HNS"), "other backends do it");
    parity::proved(parity::Hns, &["nodePortAddresses", "NodePorts at localhost"]);
}
