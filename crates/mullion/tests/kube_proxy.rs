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

/// As a unit of systemd with `Type=notify` and a watchdog: the API server may come later.
#[cfg(target_os = "linux")]
#[test]
fn systemd_is_told_that_the_proxy_is_ready_and_lives() {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let flags = ["--proxy-mode=userspace", "--hostname-override=x", "--master=http://127.0.0.1:9", "--bind-address=127.0.0.1"];
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_mullion"))
        .arg("kube-proxy")
        .args(flags)
        .args(["--metrics-port=0", "--healthz-port=0"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "600000")
        .env_remove("WATCHDOG_PID")
        .spawn()
        .unwrap();
    let mut told = Vec::new();
    while told.iter().filter(|message| *message == "WATCHDOG=1").count() < 2 {
        let mut buffer = [0; 256];
        let received = manager.recv(&mut buffer);
        let Ok(length) = received else { break };
        told.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    let signs: Vec<&str> = told.iter().map(String::as_str).filter(|message| !message.starts_with("EXTEND")).collect();
    assert_eq!(signs, ["READY=1\nSTATUS=running", "WATCHDOG=1", "WATCHDOG=1"], "{told:?}");
}
