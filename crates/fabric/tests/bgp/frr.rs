//! FRRouting in a namespace: zebra and bgpd, asked by vtysh.

use std::path::PathBuf;
use std::process::Command;

use linux_sys::ns::NetNs;

use crate::daemons::{Daemons, prepare_frr, start_frr};
use crate::world::{Host, World};

/// A running FRR. Dropped, it is killed.
pub struct Frr {
    /// Ends with this value.
    zebra: Daemons,
    bgpd: Daemons,
    sockets: PathBuf,
    ns: NetNs,
    config: String,
}

impl Frr {
    /// Starts it on a host; `config` is bgpd's.
    pub fn start(world: &World, host: &Host, config: &str) -> Self {
        let sockets = prepare_frr(&world.path(&format!("frr-{}", host.number)));
        let frr = Self { zebra: Daemons::default(), bgpd: Daemons::default(), sockets, ns: host.ns.clone(), config: config.to_owned() };
        start_frr(&frr.zebra, &frr.ns, &frr.sockets, "zebra", "");
        frr.start_bgpd();
        frr
    }

    pub fn start_bgpd(&self) {
        start_frr(&self.bgpd, &self.ns, &self.sockets, "bgpd", &self.config);
    }

    /// As after a crash: zebra keeps the routes.
    pub fn kill_bgpd(&self) {
        self.bgpd.end();
    }

    /// bgpd's answer to commands of vtysh, one a line.
    pub fn ask(&self, commands: &str) -> String {
        let mut vtysh = Command::new("/usr/bin/vtysh");
        vtysh.arg("--vty_socket").arg(&self.sockets).args(["-d", "bgpd"]);
        commands.lines().for_each(|command| _ = vtysh.args(["-c", command]));
        let output = vtysh.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// Whether the session with a neighbour is established, else what FRR says of it.
    pub fn established(&self, neighbour: &str) -> Result<(), String> {
        let answer = self.ask(&format!("show bgp neighbors {neighbour}"));
        if answer.contains("BGP state = Established") { Ok(()) } else { Err(answer) }
    }

    /// How many messages of a kind FRR sent to and received from a neighbour.
    pub fn messages(&self, neighbour: &str, kind: &str) -> (usize, usize) {
        let answer = self.ask(&format!("show bgp neighbors {neighbour}"));
        let line = answer.lines().find_map(|line| line.trim().strip_prefix(kind)?.strip_prefix(':')).unwrap_or_else(|| panic!("{answer}"));
        let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }

    /// Whether FRR's best route to a prefix leads there, else what it knows.
    pub fn routes(&self, prefix: &str, next_hop: &str) -> Result<String, String> {
        let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
        let answer = self.ask(&format!("show bgp {family} unicast {prefix}"));
        if answer.contains(&format!("{next_hop} from ")) && answer.contains("best") { Ok(answer) } else { Err(answer) }
    }
}
