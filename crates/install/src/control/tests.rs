//! Tests of services, with a program in the place of systemctl.

use super::*;

#[test]
fn the_state_of_a_unit_is_read() {
    let state = |exists, is_enabled, is_active| ServiceState { exists, is_enabled, is_active };
    for (text, expected) in [
        ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n", state(true, true, true)),
        ("LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n", state(true, false, false)),
        ("LoadState=loaded\nActiveState=activating\nUnitFileState=static\n", state(true, true, true)),
        ("LoadState=not-found\nActiveState=inactive\nUnitFileState=\n", state(false, false, false)),
        ("", state(false, false, false)),
    ] {
        assert_eq!(parse(text), expected, "{text}");
    }
}

/// A program that writes down what it is asked, and says that the service runs.
#[cfg(unix)]
fn double(dir: &Path) -> (Systemctl, PathBuf) {
    use std::os::unix::fs::PermissionsExt as _;
    let (program, log) = (dir.join("systemctl"), dir.join("log"));
    let text = format!("#!/bin/sh\necho \"$@\" >> {}\necho LoadState=loaded\necho ActiveState=active\n", log.display());
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (Systemctl::new(program), log)
}

#[cfg(unix)]
#[tokio::test]
async fn systemd_reads_its_units_before_it_starts_one() {
    let dir = tempfile::tempdir().unwrap();
    let (systemctl, log) = double(dir.path());
    let service = Systemd { systemctl, ..Systemd::new("kubelet") };
    let state = service.state().await.unwrap().unwrap();
    assert!(state.exists && state.is_active && !state.is_enabled);
    service.start().await.unwrap();
    service.stop().await.unwrap();
    let asked = std::fs::read_to_string(log).unwrap();
    let asked: Vec<&str> = asked.lines().collect();
    let show = "show --property=LoadState,ActiveState,UnitFileState kubelet.service";
    assert_eq!(asked, [show, "daemon-reload", "start kubelet.service", "stop kubelet.service"]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_service_is_installed_and_goes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (systemctl, _) = double(dir.path());
    let desired = Desired::new(crate::Part::Kubelet, "/opt/mullion", Vec::new(), false).unwrap();
    let root = dir.path().join("root");
    let service = Systemd { systemctl, root: root.clone(), ..Systemd::new("kubelet").installing(desired) };
    assert!(service.can_install() && !Systemd::new("kubelet").can_install());
    service.uninstall().await.unwrap();
    service.install().await.unwrap();
    let unit = root.join("etc/systemd/system/kubelet.service");
    assert!(std::fs::read_to_string(&unit).unwrap().contains("ExecStart=/opt/mullion kubelet\n"));
    assert_eq!(std::fs::read_link(root.join("usr/local/bin/kubelet")).unwrap(), Path::new("/opt/mullion"));
    service.uninstall().await.unwrap();
    assert!(!unit.exists() && !unit.with_extension("service.d").exists());
    // A unit of others stays as it is.
    std::fs::write(&unit, "[Service]\n").unwrap();
    assert!(service.install().await.unwrap_err().to_string().contains("was not written by mullion install"));
    service.uninstall().await.unwrap();
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), "[Service]\n");
}

#[cfg(unix)]
#[tokio::test]
async fn a_missing_systemctl_says_what_to_do() {
    let service = Systemd { systemctl: Systemctl::new("/nonexistent/systemctl"), ..Systemd::new("kubelet") };
    let error = service.state().await.unwrap_err().to_report_string();
    assert!(error.contains("--no-service does without it"), "{error}");
    // A program that fails: its complaint is the reason.
    let error = Systemd { systemctl: Systemctl::new("/bin/false"), ..service }.start().await.unwrap_err();
    assert!(matches!(error, ServiceError::Failed { .. }), "{error}");
}
