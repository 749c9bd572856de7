//! Windows programs in pods of a simulated Windows node, as an ordinary user would run them. Wine is required; the
//! template is built when it is missing.

#[allow(dead_code, reason = "shared with tests/lab.rs, which uses the rest")]
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cri::v1;
use support::{Node, container, describe, lab, run_all, windows_sandbox};

/// The base image for which Wine's own programs stand.
const NANOSERVER: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";

fn main() -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    if cni::is_own_plugin(&name) {
        return cni::plugin_main(&name);
    }
    let args: Vec<String> = args.collect();
    match args.first().map(String::as_str) {
        Some("shim") => container_sim::shim_main(args.into_iter().skip(1)),
        Some("inside") => run_all(&[("a_command_runs_and_its_whole_exit_code_arrives", |dir| Box::pin(command(dir)))]),
        _ => {
            template();
            lab()
        }
    }
}

/// `~/.cache/mullion`, where the template is built.
fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home directory")).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("mullion")
}

fn template() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wine/template");
    let status = std::process::Command::new(script).status().expect("tools/wine/template starts");
    assert!(status.success(), "tools/wine/template failed: these tests need Wine (tools/setup)");
}

/// A Windows node over the user's template, with the base image.
async fn node(dir: &Path, build: u32) -> Node {
    std::os::unix::fs::symlink(cache().join("wine-template"), dir.join("wine-template")).unwrap();
    let node = Node::windows(dir, build, true).await;
    let tag = if build == 17763 { "mcr.microsoft.com/windows/nanoserver:1809" } else { NANOSERVER };
    node.pull(tag).await.unwrap();
    node
}

fn log(dir: &Path, pod: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(format!("host/var/log/pods/{pod}/{name}/0.log"))).unwrap();
    text.lines().map(|line| line.split_once(' ').unwrap().1.trim_end_matches('\r').to_owned()).collect()
}

async fn command(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("hello")).await;
    let mut request = container("main", NANOSERVER, &["cmd", "/c", "echo hello %GREETING%.&echo bad>&2&cd&ver&exit 300"]);
    request.envs.push(v1::KeyValue { key: "greeting".into(), value: "world".into() });
    request.working_dir = r"C:\app\new".into();
    let id = node.start(&pod, request).await;
    let status = node.wait_exit(&id).await;
    let log = log(&dir, "hello", "main");
    assert_eq!((status.exit_code, status.reason.as_str()), (300, "Error"), "{} {log:?}", describe(&status));
    for line in ["stdout F hello world.", "stderr F bad", r"stdout F C:\app\new", "stdout F Microsoft Windows 10.0.20348"] {
        assert!(log.iter().any(|known| known == line), "{line:?} is missing in {log:?}");
    }
    node.remove(&pod).await;
}
