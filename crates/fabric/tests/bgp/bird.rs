//! BIRD 2 (Debian package bird2) in a namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::world::{Host, World};

const BIRD: &str = "/usr/sbin/bird";
const BIRDC: &str = "/usr/sbin/birdc";

/// A running BIRD. Dropped, it is killed, and its routes stay in the kernel as after a crash.
pub struct Bird {
    child: Child,
    socket: PathBuf,
}

impl Drop for Bird {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What every configuration of these tests begins with: the kernel's tables, and the pods of the host.
fn preamble(number: u8) -> String {
    format!(
        "router id 10.240.0.{number};\nprotocol device {{}}\nprotocol direct {{ ipv4; ipv6; interface \"eth0\"; }}\n\
         protocol kernel {{ ipv4 {{ export where source = RTS_BGP; }}; }}\nprotocol kernel {{ ipv6 {{ export where source = RTS_BGP; }}; }}\n\
         protocol static pods4 {{ ipv4; route 192.168.{number}.0/24 unreachable; }}\nprotocol static pods6 {{ ipv6; route fd00:{number}::/64 unreachable; }}\n"
    )
}

impl Bird {
    /// Starts it on a host; `protocols` follows what all have in common.
    pub fn start(world: &World, host: &Host, protocols: &str) -> Self {
        Self::run(world, host, protocols, &[])
    }

    /// As after a crash, in graceful restart.
    pub fn restart(world: &World, host: &Host, protocols: &str) -> Self {
        Self::run(world, host, protocols, &["-R"])
    }

    fn run(world: &World, host: &Host, protocols: &str, options: &[&str]) -> Self {
        assert!(Path::new(BIRD).exists(), "BIRD 2 is missing: tools/setup installs bird2");
        let (config, socket) = (world.path(&format!("bird-{}.conf", host.number)), world.path(&format!("bird-{}.ctl", host.number)));
        std::fs::write(&config, format!("{}{protocols}", preamble(host.number))).unwrap();
        let mut command = Command::new(BIRD);
        command.arg("-f").arg("-c").arg(&config).arg("-s").arg(&socket).arg("-P").arg(world.path(&format!("bird-{}.pid", host.number))).args(options);
        command.stdin(Stdio::null());
        let child = host.ns.run(|| command.spawn()).unwrap().unwrap();
        let bird = Self { child, socket };
        test_lab::until("BIRD to answer", || bird.socket.exists());
        bird
    }

    /// The answer to a command of birdc.
    pub fn ask(&self, command: &str) -> String {
        let output = Command::new(BIRDC).arg("-r").arg("-s").arg(&self.socket).args(command.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that changes something.
    pub fn tell(&self, command: &str) -> String {
        let output = Command::new(BIRDC).arg("-s").arg(&self.socket).args(command.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// How many announcements came by a protocol.
    pub fn updates(&self, protocol: &str) -> usize {
        let text = self.ask(&format!("show protocols all {protocol}"));
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("Import updates:"));
        lines.filter_map(|counts| counts.split_whitespace().next()?.parse::<usize>().ok()).sum()
    }

    /// Whether a protocol's session is established, else its state.
    pub fn established(&self, protocol: &str) -> Result<(), String> {
        let state = self.ask(&format!("show protocols {protocol}"));
        if state.contains("Established") { Ok(()) } else { Err(state) }
    }
}
