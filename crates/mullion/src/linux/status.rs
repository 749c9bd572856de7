//! `mullion status`: processes from the supervisor, nodes from the API.

use std::fmt::Display;

use anyhow::Context as _;
use lab::dir::Dirs;
use lab::protocol::{ProcessStatus, Status};
use lab::supervisor;
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;

use super::cli::{Output, StatusArgs};
use super::cluster_file::{self, Cluster};
use super::nodes::NodeStatus;
use super::processes::FIRST_WITH_V2;
use super::{limitations, nodes};
use crate::exit::Failure;

/// Prints how the cluster is; not running is a failure with its own exit code.
pub fn main(args: &StatusArgs) -> Result<(), Failure> {
    let dirs = cluster_file::dirs(&args.dir)?;
    let status = supervisor::status(&dirs)?;
    let cluster = Cluster::load(&dirs)?;
    let nodes = nodes::list(&dirs.dir.join("pki").join("admin.conf"));
    let (faults, silent) = crate::hns::faults::set_on(&dirs);
    let missing = cluster.as_ref().map(|cluster| limitations::list(cluster, &dirs)).unwrap_or_default();
    if args.output == Some(Output::Json) {
        let mut document = document(&status)?;
        match &nodes {
            Ok(nodes) => {
                let (hollow, others) = hollow_and_others(nodes);
                document["nodes"] = others.into_iter().map(node_document).collect();
                document["hollowReady"] = hollow.iter().filter(|status| nodes::is_ready(&status.node)).count().into();
            }
            Err(error) => document["nodes"] = json!({"error": error.to_report_string()}),
        }
        document["lacks"] = missing.into();
        document["faults"] = serde_json::to_value(&faults).context("the status cannot be printed")?;
        println!("{}", serde_json::to_string_pretty(&document).context("the status cannot be printed")?);
        return Ok(());
    }
    print!("{}", processes(&status, &dirs));
    match nodes {
        Ok(nodes) => print!("\n{}{}", node_table(&nodes), hcn_table(&nodes)),
        Err(error) => println!("\nthe API does not answer: {}", error.as_report()),
    }
    for node in cluster.iter().flat_map(|cluster| &cluster.nodes) {
        if let (kube_rules::NodeOs::Windows { build }, None) = (node.os, &node.hns)
            && build < FIRST_WITH_V2
        {
            println!(
                "{} runs the Host Networking Service of build {FIRST_WITH_V2}: that of its own build has no V2 API, which agents need (hns=VERSION chooses).",
                node.name
            );
        }
    }
    if !faults.is_empty() {
        print!("\nFaults are set; `mullion hns fault clear --dir {}` clears them:\n{}", dirs.dir.display(), crate::hns::faults::table(&faults));
    }
    for line in missing.into_iter().chain(silent) {
        println!("{line}");
    }
    for port in status.ports.iter().filter(|port| port.error.is_some()) {
        println!("port {} of this machine is not served: {}", port.port, port.error.as_deref().unwrap_or_default());
    }
    match cluster.is_some_and(|cluster| cluster.no_stand_ins) {
        true => println!("\nImages that need a real Windows are refused (--no-stand-ins)."),
        false => println!(
            "\nStand-ins answer for images that need a real Windows (label mullion.io/stand-in); `{}` refuses them.",
            dirs.command("up --no-stand-ins")
        ),
    }
    Ok(())
}

/// The status as programs read it, also that of `up -o json`: what only the supervisor knows stands beside the rest.
pub fn document(status: &Status) -> Result<Value, Failure> {
    let mut document = serde_json::to_value(status).context("the status cannot be printed")?;
    if let Value::Object(members) = &mut document
        && let Some(Value::Object(extra)) = members.shift_remove("extra")
    {
        // It is known once all nodes have been Ready.
        members.insert("ready".to_owned(), extra.contains_key("apiServer").into());
        members.extend(extra);
    }
    Ok(document)
}

fn processes(status: &Status, dirs: &Dirs) -> String {
    let mut text = format!("{}\n", status.dir.display());
    if let Some(Value::String(name)) = status.extra.get("name") {
        text += &format!("name         {name}\n");
    }
    if let Some(Value::String(server)) = status.extra.get("apiServer") {
        text += &format!("API server   {server}\n");
    }
    if let Some(Value::String(kubeconfig)) = status.extra.get("kubeconfig") {
        text += &format!("kubeconfig   {kubeconfig}\n");
    }
    text += &format!("sockets      {}\n", dirs.run.display());
    text += &match status.extra.get("outside") {
        Some(Value::Bool(true)) => "outside      reached through pasta\n".to_owned(),
        _ => format!(
            "outside      not reached: packets of pods to other networks are answered with \"net unreachable\"; to let them out, run `{}`, then `{}`\n",
            dirs.command("down"),
            dirs.command("up --outside")
        ),
    };
    text += &format!("supervisor   process {}; enter the lab: {}\n\n", status.supervisor, enter(status.init));
    text += &format!("{:24} {:10} {:>8}  LAST EXIT\n", "PROCESS", "STATE", "RESTARTS");
    for process in &status.processes {
        let state = state(process);
        text += &format!("{:24} {state:10} {:>8}  {}\n", process.name, process.restarts, process.last_exit.as_deref().unwrap_or("-"));
    }
    text
}

fn state(process: &ProcessStatus) -> &'static str {
    match (process.pid, process.ready) {
        (None, _) => "ended",
        (Some(_), false) => "starting",
        (Some(_), true) => "running",
    }
}

/// The command that enters the lab of `init`.
fn enter(init: impl Display) -> String {
    let setgroups = std::fs::read_to_string(format!("/proc/{init}/setgroups")).unwrap_or_default();
    enter_command(init, setgroups.trim() == "allow")
}

/// Entering a lab makes a process its root, which takes `setgroups`. Only where the kernel denies that (an ordinary user's lab) the
/// credentials stay as they are; they are those of the lab's root there.
fn enter_command(init: impl Display, may_set_groups: bool) -> String {
    format!("nsenter -t {init} -U -m -p -n{}", if may_set_groups { "" } else { " --preserve-credentials" })
}

/// A node as programs read it.
fn node_document(status: &NodeStatus) -> Value {
    let mut document = json!({"name": status.node.metadata.name, "ready": nodes::is_ready(&status.node)});
    match &status.hcn {
        Some(Ok(counts)) => document["hcn"] = counts.clone(),
        Some(Err(error)) => document["hcn"] = json!({"error": error}),
        None => {}
    }
    document
}

/// How the Host Networking Services answer their nodes; nothing where there is none.
fn hcn_table(nodes: &[NodeStatus]) -> String {
    let mut text = String::new();
    for NodeStatus { node, hcn } in nodes {
        let Some(counts) = hcn else { continue };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if text.is_empty() {
            text =
                format!("\n{:16} {:>9} {:>7} {:>8} {:>8} {:>9} {:>8}\n", "NODE", "HNS CALLS", "FAILED", "RUNNING", "WAITING", "TIMED OUT", "REFUSED");
        }
        match counts {
            Ok(counts) => {
                let number = |key: &str| counts[key].as_u64().unwrap_or_default();
                let running = format!("{}/{}", number("running"), number("places"));
                let (calls, failed, waiting) = (number("calls"), number("failed"), number("waiting"));
                text += &format!("{name:16} {calls:>9} {failed:>7} {running:>8} {waiting:>8} {:>9} {:>8}\n", number("timedOut"), number("refused"));
                for hung in counts["hung"].as_array().into_iter().flatten() {
                    let call = hung["call"].as_str().unwrap_or("an operation");
                    text += &format!("{name:16} {call} hangs for {} s\n", hung["seconds"].as_u64().unwrap_or_default());
                }
            }
            Err(error) => text += &format!("{name:16} {error}\n"),
        }
    }
    text
}

/// Hollow nodes are many and alike: they are counted.
fn hollow_and_others(nodes: &[NodeStatus]) -> (Vec<&NodeStatus>, Vec<&NodeStatus>) {
    nodes.iter().partition(|status| nodes::is_hollow(&status.node))
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let mut text = format!("{:16} {:9} OS\n", "NODE", "STATE");
    let (hollow, others) = hollow_and_others(nodes);
    for NodeStatus { node, .. } in others {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let system = info.map(|info| format!("{} ({})", info.os_image, info.kernel_version)).unwrap_or_default();
        let state = if nodes::is_ready(node) { "Ready" } else { "NotReady" };
        text += &format!("{:16} {state:9} {system}\n", node.metadata.name.as_deref().unwrap_or_default());
    }
    if !hollow.is_empty() {
        let ready = hollow.iter().filter(|status| nodes::is_ready(&status.node)).count();
        text += &format!("{:16} {ready} of {} Ready\n", "hollow nodes", hollow.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_the_way_outside_are_named() {
        let dirs = Dirs { dir: "/c".into(), run: "/tmp/mullion-0/0011aabb".into() };
        let text = processes(&Status { dir: dirs.dir.clone(), ..Status::default() }, &dirs);
        assert!(text.contains("sockets      /tmp/mullion-0/0011aabb\n"), "{text}");
        assert!(text.contains("; to let them out, run `mullion down --dir /c`, then `mullion up --outside --dir /c`\n"), "{text}");
    }

    #[test]
    fn credentials_are_preserved_only_where_groups_cannot_be_set() {
        assert_eq!(enter_command(17, true), "nsenter -t 17 -U -m -p -n");
        assert_eq!(enter_command(17, false), "nsenter -t 17 -U -m -p -n --preserve-credentials");
    }

    #[test]
    fn hollow_nodes_are_counted() {
        let node = |name: &str, labels: Value, ready: &str| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}});
            NodeStatus { node: serde_json::from_value(node).unwrap(), hcn: None }
        };
        let hollow = json!({"mullion.io/hollow": "true"});
        let nodes = [node("hollow-0001", hollow.clone(), "True"), node("hollow-0002", hollow, "False"), node("lin01", json!({}), "True")];
        let lines: Vec<String> = node_table(&nodes).lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(lines, ["NODE             STATE     OS", "lin01            Ready", "hollow nodes     1 of 2 Ready"]);
    }

    #[test]
    fn calls_to_hns_are_shown_for_nodes_that_have_one() {
        let node = |name: &str, hcn| {
            let mut node = k8s_openapi::api::core::v1::Node::default();
            node.metadata.name = Some(name.to_owned());
            NodeStatus { node, hcn }
        };
        let counts = json!({
            "calls": 120, "failed": 3, "places": 16, "running": 2, "waiting": 1, "timedOut": 4, "cancelled": 0, "refused": 5,
            "hung": [{"call": "HcnCreateEndpoint", "seconds": 63}],
        });
        let nodes = [node("lin01", None), node("win01", Some(Ok(counts.clone()))), node("win02", Some(Err("no answer".to_owned())))];
        let expected = "
NODE             HNS CALLS  FAILED  RUNNING  WAITING TIMED OUT  REFUSED
win01                  120       3     2/16        1         4        5
win01            HcnCreateEndpoint hangs for 63 s
win02            no answer
";
        assert_eq!(hcn_table(&nodes), expected);
        assert_eq!(hcn_table(&nodes[..1]), "");
        assert_eq!(node_document(&nodes[0]), json!({"name": "lin01", "ready": false}));
        assert_eq!(node_document(&nodes[1])["hcn"], counts);
        assert_eq!(node_document(&nodes[2])["hcn"], json!({"error": "no answer"}));
    }
}
