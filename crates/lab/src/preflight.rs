//! Checks of the machine before a lab is started.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use linux_sys::spawn::{Namespaces, Spawn, Step};

use crate::error::{Hint, LabError};

/// Bytes that a new cluster's directory may need before anybody would notice.
const DISK: u64 = 64 << 20;

/// Binds the API server's port on the real host; the descriptor is handed into the lab.
///
/// # Errors
/// [`LabError::PortTaken`].
pub fn bind_api(port: u16) -> Result<TcpListener, LabError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => LabError::PortTaken(port),
        _ => LabError::Init(format!("bind 127.0.0.1:{port}: {e}")),
    })
}

/// Whether the disk below `dir` (which may not exist yet) has room.
///
/// # Errors
/// [`LabError::Disk`].
pub fn disk(dir: &Path) -> Result<(), LabError> {
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    let stat = nix::sys::statvfs::statvfs(there).map_err(|e| LabError::file("look at", there)(e.into()))?;
    let free = stat.blocks_available() * stat.fragment_size();
    if free < DISK { Err(LabError::Disk { dir: dir.to_owned(), free, needed: DISK }) } else { Ok(()) }
}

/// Makes namespaces as the lab will and uses a capability in each of them: where AppArmor restricts
/// user namespaces (Ubuntu 24.04), they can be made, but give nothing.
///
/// # Errors
/// [`LabError::Namespaces`] with the switch that forbids them.
pub fn namespaces() -> Result<(), LabError> {
    let kinds = Namespaces::USER | Namespaces::MOUNT | Namespaces::NET | Namespaces::PID | Namespaces::IPC | Namespaces::UTS;
    let probe = Spawn::steps_only("namespaces").new_namespaces(kinds).map_unprivileged_users().steps([
        Step::MakePrivate,
        Step::Proc("/proc".into()),
        Step::Tmpfs { target: "/tmp".into(), options: "size=64k".into() },
        Step::SetHostname("probe".into()),
        Step::LoopbackUp,
    ]);
    let ended = probe.spawn().and_then(|child| child.wait());
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(LabError::Namespaces(explain(&format!("a probe ended with {status}"), &Switches::read()))),
        Err(e) => Err(LabError::Namespaces(explain(&e.to_string(), &Switches::read()))),
    }
}

/// The kernel's switches that forbid user namespaces; `None` where there is no such switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Switches {
    apparmor_restricts: Option<String>,
    unprivileged_clone: Option<String>,
    max_user_namespaces: Option<String>,
}

impl Switches {
    fn read() -> Self {
        let get = |name| linux_sys::sysctl::get(name).ok();
        Self {
            apparmor_restricts: get("kernel.apparmor_restrict_unprivileged_userns"),
            unprivileged_clone: get("kernel.unprivileged_userns_clone"),
            max_user_namespaces: get("user.max_user_namespaces"),
        }
    }
}

pub(crate) fn explain_now(error: &str) -> Hint {
    explain(error, &Switches::read())
}

fn explain(error: &str, switches: &Switches) -> Hint {
    let (reason, way_out) = if switches.max_user_namespaces.as_deref() == Some("0") {
        ("user.max_user_namespaces is 0", "allow them with `sudo sysctl -w user.max_user_namespaces=10000`")
    } else if switches.unprivileged_clone.as_deref() == Some("0") {
        ("kernel.unprivileged_userns_clone is 0", "allow them with `sudo sysctl -w kernel.unprivileged_userns_clone=1`")
    } else if switches.apparmor_restricts.as_deref() == Some("1") {
        (
            "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "allow them with `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    } else {
        (error, "in a container, allow it user namespaces and an unmasked /proc (docker: --privileged)")
    };
    Hint { reason: reason.into(), way_out: way_out.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_usable_here() {
        namespaces().unwrap();
    }

    #[test]
    fn the_switch_that_forbids_is_named() {
        let on = |value: &str| Some(value.to_owned());
        let cases = [
            (Switches { apparmor_restricts: on("1"), unprivileged_clone: on("1"), max_user_namespaces: on("100") }, "AppArmor restricts them"),
            (
                Switches { apparmor_restricts: on("0"), unprivileged_clone: on("0"), max_user_namespaces: on("100") },
                "kernel.unprivileged_userns_clone is 0",
            ),
            (Switches { max_user_namespaces: on("0"), ..Switches::default() }, "user.max_user_namespaces is 0"),
            (Switches::default(), "clone: EPERM; in a container"),
        ];
        for (switches, expected) in cases {
            let line = explain("clone: EPERM", &switches).to_string();
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_taken_port_is_named() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let e = bind_api(port).unwrap_err();
        assert_eq!(
            e.to_string(),
            format!("port {port} of 127.0.0.1 is in use: stop the program that uses it, or choose another with --port (0 takes a free one)")
        );
        assert!(matches!(e, LabError::PortTaken(_)));
    }

    #[test]
    fn a_full_disk_is_refused() {
        disk(Path::new("/no/such/directory/yet")).unwrap();
        assert!(matches!(disk(Path::new("/proc")), Err(LabError::Disk { free: 0, .. })));
    }
}
