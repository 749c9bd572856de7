//! OVN and Open vSwitch of Debian's packages ovn-central, ovn-host and openvswitch-switch, in directories of the test: databases, `ovn-northd`,
//! and chassis with the userspace datapath. Also needs ethtool, and `/dev/net/tun` for chassis.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::NetNs;
use tempfile::TempDir;

use crate::net::{Lan, set_up};
use crate::until;

/// What a program prints that succeeds.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Programs whose files are in one directory, and which end with the test.
pub struct Programs {
    dir: PathBuf,
    children: Vec<(String, Child)>,
}

impl Programs {
    /// None yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), children: Vec::new() }
    }

    /// A file of the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same as a text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts a program, which is called `name` from now on.
    pub fn start(&mut self, name: &str, program: &str, args: &[String]) {
        let dir: &Path = &self.dir;
        let child = Command::new(program)
            .args(args)
            .arg("-vconsole:off")
            .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_DBDIR", "OVN_DBDIR", "OVS_LOGDIR", "OVN_LOGDIR"].map(|name| (name, dir)))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.children.push((name.to_owned(), child.unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup"))));
    }

    /// Starts an `ovsdb-server` with database `NAME.db`, which listens at `NAME.sock` and at `remotes`.
    pub fn start_database(&mut self, name: &str, remotes: &[&str]) {
        let (socket, control) = (self.path(&format!("{name}.sock")), self.path(&format!("{name}.ctl")));
        for file in [&socket, &control] {
            let _ = std::fs::remove_file(file);
        }
        let mut args = vec![
            format!("--remote=punix:{}", socket.display()),
            format!("--unixctl={}", control.display()),
            format!("--log-file={}", self.text(&format!("{name}.log"))),
            self.text(&format!("{name}.db")),
        ];
        args.extend(remotes.iter().map(|remote| format!("--remote={remote}")));
        self.start(name, "ovsdb-server", &args);
        until(format!("the sockets of {name}"), || socket.exists() && control.exists());
    }

    /// Ends one.
    pub fn end(&mut self, name: &str) {
        let at = self.children.iter().position(|(found, _)| found == name).unwrap_or_else(|| panic!("{name} does not run"));
        let mut child = self.children.remove(at).1;
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for (_, child) in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Both databases of OVN, `nb` and `sb`, and `ovn-northd`.
pub struct Central {
    /// They.
    pub programs: Programs,
    _dir: TempDir,
}

impl Default for Central {
    fn default() -> Self {
        Self::new()
    }
}

impl Central {
    /// With databases that are empty.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut central = Self { programs: Programs::new(dir.path()), _dir: dir };
        for name in ["nb", "sb"] {
            let schema = format!("/usr/share/ovn/ovn-{name}.ovsschema");
            run("ovsdb-tool", &["create", &central.programs.text(&format!("{name}.db")), &schema]);
            central.programs.start_database(name, &[]);
        }
        central.start_northd();
        central
    }

    /// Starts `ovn-northd`, which is called `northd`.
    pub fn start_northd(&mut self) {
        let args = [
            format!("--ovnnb-db={}", self.socket("nb")),
            format!("--ovnsb-db={}", self.socket("sb")),
            format!("--unixctl={}", self.programs.text("northd.ctl")),
        ];
        self.programs.start("northd", "ovn-northd", &args);
    }

    /// Where a database listens.
    pub fn socket(&self, database: &str) -> String {
        format!("unix:{}", self.programs.text(&format!("{database}.sock")))
    }

    /// What `ovn-nbctl` prints.
    pub fn nbctl(&self, args: &[&str]) -> String {
        let db = format!("--db={}", self.socket("nb"));
        run("ovn-nbctl", &[&[db.as_str()], args].concat())
    }

    /// What `ovn-sbctl` prints.
    pub fn sbctl(&self, args: &[&str]) -> String {
        let db = format!("--db={}", self.socket("sb"));
        run("ovn-sbctl", &[&[db.as_str()], args].concat())
    }
}

/// Lets the kernel complete checksums itself: in the userspace datapath nobody does what it left to the card.
pub fn no_offload(ns: &NetNs, link: &str) {
    ns.run(|| run("ethtool", &["-K", link, "tx", "off"])).unwrap();
}

/// Where a pod is in the network.
pub struct Place<'a> {
    /// Its address, with the length of its subnet.
    pub address: &'a str,
    /// Its MAC address.
    pub mac: &'a str,
    /// Its router.
    pub gateway: &'a str,
    /// Its UID, without which it does not get a port that asks for one.
    pub uid: &'a str,
}

/// A host of a LAN: its namespace, Open vSwitch and `ovn-controller`. Its tunnels end at its address.
pub struct Chassis {
    /// Its name, which is also its `system-id`.
    pub name: &'static str,
    /// Its namespace.
    pub ns: NetNs,
    /// `db`, `vswitchd` and `controller`.
    pub programs: Programs,
}

impl Chassis {
    /// A host with that address.
    pub fn new(central: &Central, lan: &Lan, name: &'static str, address: &str) -> Self {
        let dir = central.programs.path(name);
        std::fs::create_dir(&dir).unwrap();
        let mut host = Self { name, ns: lan.host(address), programs: Programs::new(dir) };
        run("ovsdb-tool", &["create", &host.programs.text("db.db"), "/usr/share/openvswitch/vswitch.ovsschema"]);
        host.programs.start_database("db", &[]);
        host.vsctl(&["--no-wait", "init"]);
        let ids = [
            ("system-id", name.to_owned()),
            ("hostname", name.to_owned()),
            ("ovn-remote", central.socket("sb")),
            ("ovn-nb", central.socket("nb")),
            ("ovn-encap-type", "geneve".to_owned()),
            ("ovn-encap-ip", address.to_owned()),
            ("ovn-bridge-datapath-type", "netdev".to_owned()),
        ];
        for (key, value) in ids {
            host.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", &format!("external_ids:{key}=\"{value}\"")]);
        }
        let args = [host.local(), format!("--unixctl={}", host.programs.text("vswitchd.ctl"))];
        host.start("vswitchd", "ovs-vswitchd", &args);
        host.bridge("br-phys", "eth0", &format!("{address}/24"));
        host.start_controller();
        host
    }

    /// Starts `ovn-controller`, which is called `controller`.
    pub fn start_controller(&mut self) {
        let args = [self.local()];
        self.start("controller", "ovn-controller", &args);
    }

    fn start(&mut self, name: &str, program: &str, args: &[String]) {
        let Self { ns, programs, .. } = self;
        ns.run(|| programs.start(name, program, args)).unwrap();
    }

    /// Gives a link to a new bridge of the userspace datapath, which takes over its address.
    pub fn bridge(&self, bridge: &str, link: &str, address: &str) {
        self.vsctl(&["add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev", "--", "add-port", bridge, link]);
        let rtnl = Rtnl::open_in(&self.ns).unwrap();
        let index = rtnl.link(link).unwrap().unwrap().index;
        rtnl.del_addr(index, address.parse().unwrap()).unwrap();
        set_up(&rtnl, bridge, &[address]);
        [link, bridge].iter().for_each(|link| no_offload(&self.ns, link));
    }

    /// Where the switch's database listens.
    pub fn local(&self) -> String {
        format!("unix:{}", self.programs.text("db.sock"))
    }

    /// What `ovs-vsctl` prints.
    pub fn vsctl(&self, args: &[&str]) -> String {
        let db = format!("--db={}", self.local());
        run("ovs-vsctl", &[&["--timeout=20", &db], args].concat())
    }

    /// Whether OVN has made the flows of an interface.
    pub fn is_installed(&self, interface: &str) -> bool {
        self.vsctl(&["--if-exists", "get", "Interface", interface, "external_ids:ovn-installed"]).contains("true")
    }

    /// Connects a pod to its logical port `port` by hand, with a link `link` on the host.
    pub fn pod(&self, link: &str, port: &str, place: &Place<'_>) -> NetNs {
        let (ns, near) = (NetNs::new_anonymous().unwrap(), Rtnl::open_in(&self.ns).unwrap());
        near.add_veth(link, "eth0", Some(&ns)).unwrap();
        set_up(&near, link, &[]);
        let inside = Rtnl::open_in(&ns).unwrap();
        let eth0 = inside.link("eth0").unwrap().unwrap().index;
        let mac: Vec<u8> = place.mac.split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        inside.set_mac(eth0, mac.try_into().unwrap()).unwrap();
        inside.set_mtu(eth0, 1400).unwrap();
        set_up(&inside, "eth0", &[place.address]);
        inside.add_route(&Route::new("0.0.0.0/0".parse().unwrap()).via(place.gateway.parse().unwrap())).unwrap();
        no_offload(&ns, "eth0");
        no_offload(&self.ns, link);
        let (id, version) = (format!("external_ids:iface-id={port}"), format!("external_ids:iface-id-ver={}", place.uid));
        self.vsctl(&["add-port", "br-int", link, "--", "set", "Interface", link, &id, &version]);
        until(format!("ovn-installed of {link}"), || self.is_installed(link));
        ns
    }
}
