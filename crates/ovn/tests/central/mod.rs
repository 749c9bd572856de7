//! OVN's central programs in a directory of the test (Debian's packages ovn-central and openvswitch-switch).
#![allow(dead_code, reason = "each suite uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ovn::rows::{Plan, Want, plan};
use ovn::schema::{NORTHBOUND, NORTHBOUND_USES};
use ovsdb::Replica;
use ovsdb::session::Wants;
use ovsdb::{Client, Config, Remote};
use tempfile::TempDir;
use test_lab::until;

pub const LIMIT: Duration = Duration::from_secs(30);

pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts a program that ends with the test. Its files are where `dir` is.
pub fn start(dir: &Path, program: &str, args: &[String]) -> Child {
    let child = Command::new(program)
        .args(args)
        .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_DBDIR", "OVN_DBDIR", "OVS_LOGDIR", "OVN_LOGDIR"].map(|name| (name, dir)))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup"))
}

/// Both databases and `ovn-northd`.
pub struct Central {
    pub dir: TempDir,
    children: Vec<(&'static str, Child)>,
}

impl Central {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn socket(&self, database: &str) -> String {
        format!("unix:{}", self.text(&format!("{database}.sock")))
    }

    /// `remotes`: where the southbound database listens beside its socket.
    pub fn new(remotes: &[&str]) -> Self {
        let mut central = Self { dir: tempfile::tempdir().unwrap(), children: Vec::new() };
        for name in ["nb", "sb"] {
            run("ovsdb-tool", &["create", &central.text(&format!("{name}.db")), &format!("/usr/share/ovn/ovn-{name}.ovsschema")]);
        }
        central.start_database("nb", &[]);
        central.start_database("sb", remotes);
        central.start_northd();
        central
    }

    pub fn start_database(&mut self, name: &'static str, remotes: &[&str]) {
        let socket = self.path(&format!("{name}.sock"));
        let _ = std::fs::remove_file(&socket);
        let mut args = vec![
            format!("--remote=punix:{}", socket.display()),
            format!("--unixctl={}", self.text(&format!("{name}.ctl"))),
            "-vconsole:off".into(),
            self.text(&format!("{name}.db")),
        ];
        args.extend(remotes.iter().map(|remote| format!("--remote={remote}")));
        let child = start(self.dir.path(), "ovsdb-server", &args);
        self.children.push((name, child));
        until(format!("the socket of {name}"), || socket.exists());
    }

    pub fn start_northd(&mut self) {
        let args = [
            format!("--ovnnb-db={}", self.socket("nb")),
            format!("--ovnsb-db={}", self.socket("sb")),
            format!("--unixctl={}", self.text("northd.ctl")),
            "-vconsole:off".into(),
        ];
        let child = start(self.dir.path(), "ovn-northd", &args);
        self.children.push(("northd", child));
    }

    /// Ends one of the programs.
    pub fn end(&mut self, name: &str) {
        let at = self.children.iter().position(|(found, _)| *found == name).unwrap();
        let mut child = self.children.remove(at).1;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn config(&self) -> Config {
        let wants = Wants { database: NORTHBOUND.into(), uses: NORTHBOUND_USES, lock: None, leader_only: false };
        Config::new(vec![self.socket("nb").parse::<Remote>().unwrap()], wants)
    }

    pub async fn client(&self) -> Client {
        let client = Client::start(self.config());
        client.ready(LIMIT).await.unwrap();
        client
    }

    pub fn nbctl(&self, args: &[&str]) -> String {
        let db = format!("--db={}", self.socket("nb"));
        run("ovn-nbctl", &[&[db.as_str()], args].concat())
    }
}

impl Drop for Central {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Plans and writes; what is left to do afterwards is nothing.
pub async fn apply(client: &Client, scope: &str, wants: impl Fn(&Replica) -> Vec<Want>) -> Plan {
    let replica = client.state().replica;
    let first = plan(&replica, scope, &wants(&replica));
    assert!(first.problems.is_empty(), "{first}");
    if !first.is_empty() {
        client.transact(first.transaction(None)).await.unwrap_or_else(|error| panic!("{error}: {first}"));
    }
    let replica = client.state().replica;
    let second = plan(&replica, scope, &wants(&replica));
    assert!(second.is_empty() && second.problems.is_empty(), "{first}\nand then\n{second}");
    first
}
