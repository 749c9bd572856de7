//! Routing programs in namespaces: BIRD 2 and FRRouting (Debian's packages bird2 and frr). Without them a test fails and says what to install.
#![allow(dead_code, reason = "each suite uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use linux_sys::ns::NetNs;
use rustix::mount::mount_bind;
use test_lab::until;

/// Programs that end with the test.
#[derive(Clone, Default)]
pub struct Daemons(pub Arc<Mutex<Vec<Child>>>);

impl Daemons {
    /// Starts a program in a namespace, and waits for the socket that it makes.
    pub fn start(&self, ns: &NetNs, program: &str, args: &[&str], socket: &Path) {
        let _ = std::fs::remove_file(socket);
        let spawn = || Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = ns.run(spawn).unwrap().unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup"));
        self.0.lock().unwrap().push(child);
        until(format!("the socket of {program}"), || socket.exists());
    }

    pub fn end(&self) {
        for mut child in self.0.lock().unwrap().drain(..) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 1 {
            self.end();
        }
    }
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Where FRR's programs have their files, below a directory of the test. They want to be of a group, which this test's root is not outside.
pub fn prepare_frr(dir: &Path) -> PathBuf {
    let (sockets, group) = (dir.join("frr"), dir.join("group"));
    std::fs::create_dir_all(&sockets).unwrap();
    if !group.exists() {
        let groups = std::fs::read_to_string("/etc/group").unwrap();
        let mine = groups.lines().map(|line| if line.starts_with("frrvty:") { "frrvty:x:0:root" } else { line });
        std::fs::write(&group, mine.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        mount_bind(&group, "/etc/group").unwrap();
    }
    sockets
}

/// Starts one of FRR's programs with a configuration. `sockets` comes from [`prepare_frr`]; zebra is the first.
pub fn start_frr(daemons: &Daemons, ns: &NetNs, sockets: &Path, name: &str, config: &str) {
    let (pid, zserv, conf) = (sockets.join(format!("{name}.pid")), sockets.join("zserv.api"), sockets.join(format!("{name}.conf")));
    std::fs::write(&conf, config).unwrap();
    let args = ["-i", path(&pid), "-z", path(&zserv), "--vty_socket", path(sockets), "-f", path(&conf), "-u", "root", "-g", "root", "-P", "0"];
    daemons.start(ns, &format!("/usr/lib/frr/{name}"), &args, &sockets.join(format!("{name}.vty")));
}
