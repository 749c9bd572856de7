//! `mullion hns fault`: the faults of simulated services, across the nodes of a cluster.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hns_sim::admin::{ActiveFault, AdminClient, Fault, FaultKind, KINDS, Value};
use lab::dir::Dirs;
use serde::Serialize;

use super::Output;
use super::simulated::{OfNode, admin, answer_of, show};
use crate::exit::Failure;
use crate::linux::cli::DirArgs;

/// How long a service may take to say which faults are set.
const PATIENCE: Duration = Duration::from_secs(2);

/// `mullion hns fault`.
#[derive(Clone, Debug, Subcommand)]
pub enum FaultCommand {
    /// Describe all faults: form, affected calls, effects and where they are seen
    #[command(alias = "names")]
    Kinds {
        /// Output format
        #[arg(short, long)]
        output: Option<KindsOutput>,
    },
    /// List the faults that are set, on all running Windows nodes or on those of --node
    List {
        #[command(flatten)]
        nodes: OfNodes,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Set a fault: NAME[=VALUE][,KEY=VALUE…] with keys call, id, text, delay, code, mode, probability, count, skip
    Add {
        #[command(flatten)]
        nodes: ToNodes,
        /// Fault to set, as slow-call=200ms,call=HcnCreateEndpoint,probability=0.1,count=5; `mullion hns fault kinds` lists the names
        fault: Fault,
        /// Output format [default: the number of the fault, with its node where there are several]
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Remove one fault from a node
    Remove {
        #[command(flatten)]
        node: OfNode,
        /// Number of the fault, from `mullion hns fault list`
        number: u32,
    },
    /// Remove every fault, on all running Windows nodes or on those of --node
    Clear {
        #[command(flatten)]
        nodes: OfNodes,
    },
}

/// How the kinds of faults are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KindsOutput {
    /// JSON document, for programs
    Json,
    /// Markdown table, as in docs/faults.md
    Markdown,
}

/// Windows nodes of a one-machine cluster: all unless some are named.
#[derive(Clone, Debug, Args)]
pub struct OfNodes {
    /// Name of a Windows node; repeat the option for several [default: all running Windows nodes]
    #[arg(long = "node", value_name = "NODE")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub dir: DirArgs,
}

impl OfNodes {
    /// The nodes that are named, or all running ones.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        if self.names.is_empty() { super::running(&self.dir) } else { Ok(self.names.clone()) }
    }
}

/// Windows nodes of a one-machine cluster to change: those named, or all when `--all-nodes` says so.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("target").args(["names", "all_nodes"]).required(true))]
pub struct ToNodes {
    /// Name of a Windows node to set the fault on; repeat the option for several
    #[arg(long = "node", value_name = "NODE")]
    names: Vec<String>,
    /// Set the fault on all running Windows nodes
    #[arg(long)]
    all_nodes: bool,
    #[command(flatten)]
    dir: DirArgs,
}

/// A fault that is set, with its node.
#[derive(Debug, Serialize)]
pub struct SetFault {
    node: String,
    #[serde(flatten)]
    active: ActiveFault,
    /// The fault as it is written.
    text: String,
}

impl SetFault {
    fn new(node: &str, active: ActiveFault) -> Self {
        Self { node: node.to_owned(), text: active.fault.to_string(), active }
    }
}

/// A kind of fault for programs.
#[derive(Serialize)]
struct Named {
    name: &'static str,
    form: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    #[serde(rename = "strikes")]
    hits: String,
    calls: Vec<&'static str>,
    what: &'static str,
    seen: &'static str,
    evidence: &'static str,
}

impl Named {
    fn of(kind: &FaultKind) -> Self {
        Self {
            name: kind.name,
            form: kind.form(),
            default: kind.default_value(),
            hits: kind.hits.to_string(),
            calls: kind.calls.split_whitespace().collect(),
            what: kind.what,
            seen: kind.seen,
            evidence: kind.evidence,
        }
    }
}

/// Runs the subcommand.
pub fn main(command: &FaultCommand) -> Result<(), Failure> {
    match command {
        FaultCommand::Kinds { output: Some(KindsOutput::Markdown) } => super::print(&markdown()),
        FaultCommand::Kinds { output } => {
            let named: Vec<Named> = KINDS.iter().map(Named::of).collect();
            show(output.map(|_| Output::Json), &named, || KINDS.iter().map(paragraph).collect())
        }
        FaultCommand::List { nodes, output } => list(nodes, *output),
        FaultCommand::Add { nodes, fault, output } => add(nodes, fault, *output),
        FaultCommand::Remove { node, number } => node.answer(node.admin()?.remove_fault(*number)),
        FaultCommand::Clear { nodes } => {
            let clear = |node: &String| answer_of(node, admin(node, &nodes.dir)?.clear_faults());
            // Clears the others too when one node does not answer.
            nodes.names()?.iter().map(clear).fold(Ok(()), Result::and)
        }
    }
}

fn list(nodes: &OfNodes, output: Option<Output>) -> Result<(), Failure> {
    let mut set = Vec::new();
    let mut ending = Ok(());
    for node in nodes.names()? {
        match admin(&node, &nodes.dir).and_then(|admin| answer_of(&node, admin.faults())) {
            Ok(faults) => set.extend(faults.into_iter().map(|active| SetFault::new(&node, active))),
            Err(error) => ending = ending.and(Err(error)),
        }
    }
    show(output, &set, || table(&set))?;
    ending
}

fn add(nodes: &ToNodes, fault: &Fault, output: Option<Output>) -> Result<(), Failure> {
    let names = if nodes.all_nodes { super::running(&nodes.dir)? } else { nodes.names.clone() };
    let mut set = Vec::new();
    let mut ending = Ok(());
    for node in &names {
        match admin(node, &nodes.dir).and_then(|admin| answer_of(node, admin.add_fault(fault))) {
            Ok(number) => set.push(SetFault::new(node, ActiveFault { number, hits: 0, seen: 0, fault: fault.clone().settled() })),
            Err(error) => ending = ending.and(Err(error)),
        }
    }
    match (set.as_slice(), names.len()) {
        ([], _) => {}
        ([one], 1) => show(output, one, || format!("{}\n", one.active.number))?,
        (several, _) => show(output, &several, || several.iter().map(|set| format!("{} {}\n", set.node, set.active.number)).collect())?,
    }
    ending
}

/// A line for each fault that is set; nothing where none is.
pub fn table(set: &[SetFault]) -> String {
    if set.is_empty() {
        return String::new();
    }
    let mut text = format!("{:16} {:>6} {:>8}  FAULT\n", "NODE", "NUMBER", "HITS");
    for SetFault { node, active, text: fault } in set {
        text += &format!("{node:16} {:>6} {:>8}  {fault}\n", active.number, active.hits);
    }
    text
}

/// The faults that are set on the simulated services of a cluster, and a line for each service that does not answer.
pub fn set_on(dirs: &Dirs) -> (Vec<SetFault>, Vec<String>) {
    let run = dirs.socket("", "hcn");
    let (mut set, mut silent) = (Vec::new(), Vec::new());
    for node in run.parent().map(super::nodes_in).unwrap_or_default() {
        let admin = AdminClient::new(dirs.socket(&node, "hcn-admin")).within(PATIENCE);
        match admin.faults().and_then(|faults| Ok((faults, admin.status()?.running))) {
            Ok((faults, running)) => {
                set.extend(faults.into_iter().map(|active| SetFault::new(&node, active)));
                if !running {
                    silent.push(format!("the Host Networking Service of {node} is stopped: `mullion hns status --node {node}` shows why"));
                }
            }
            Err(error) => silent.push(format!("cannot list the faults of the Host Networking Service of {node}: {error}")),
        }
    }
    (set, silent)
}

/// What a kind is, for people.
fn paragraph(kind: &FaultKind) -> String {
    let default = kind.default_value().map(|value| format!("; without it {value}")).unwrap_or_default();
    let value = match kind.value() {
        Value::None => String::new(),
        Value::Duration => format!(" (DURATION as 200ms or 3s{default})"),
        Value::Code => format!(" (CODE as 0x803b0013 or HCN_E_PORT_ALREADY_EXISTS{default})"),
        Value::Mode => format!(" (MODE clean, crash or reboot{default})"),
    };
    format!("{}{value}, hits {}\n    {}\n    seen: {}\n    reported: {}\n", kind.form(), kind.hits, kind.what, kind.seen, kind.evidence)
}

/// The table of docs/faults.md.
fn markdown() -> String {
    let mut text =
        "| Fault | VALUE left out | Hits | What it does | What is then seen, and where | Reported |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for kind in KINDS {
        let default = match (kind.value(), kind.default_value()) {
            (Value::None, _) => "-".to_owned(),
            (_, Some(value)) => format!("`{value}`"),
            (_, None) => "refused".to_owned(),
        };
        text += &format!("| `{}` | {default} | {} | {} | {} | {} |\n", kind.form(), kind.hits, kind.what, kind.seen, kind.evidence);
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const COOKBOOK: &str = include_str!("../../../../docs/faults.md");

    #[test]
    fn faults_page_has_the_printed_table() {
        assert!(COOKBOOK.contains(&markdown()), "docs/faults.md is behind: put the output of `mullion hns fault kinds -o markdown` there");
    }

    /// The commands of the cookbook: lines of its `console` blocks that begin with a prompt, split as a shell does.
    fn commands() -> Vec<Vec<String>> {
        let mut inside = false;
        let mut commands = Vec::new();
        for line in COOKBOOK.lines() {
            if line.starts_with("```") {
                inside = line == "```console";
            } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
                for part in command.split(" && ") {
                    commands.push(part.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect());
                }
            }
        }
        commands
    }

    #[test]
    fn every_command_of_the_cookbook_is_read_by_the_program() {
        let ours: Vec<_> = commands().into_iter().filter(|words| words[0] == "mullion").collect();
        for words in &ours {
            if let Err(error) = crate::cli::Cli::try_parse_from(words) {
                panic!("docs/faults.md: {}: {error}", words.join(" "));
            }
        }
        let added: Vec<&String> = ours.iter().filter(|words| words[1..].starts_with(&["hns", "fault", "add"].map(str::to_owned))).flatten().collect();
        let shown = KINDS.iter().filter(|kind| added.iter().any(|word| word.split([',', '=']).next() == Some(kind.name))).count();
        assert!(ours.len() >= 20 && shown >= 10, "the cookbook has {} commands and shows {shown} faults", ours.len());
    }

    #[test]
    fn targets_of_a_fault_are_some_nodes_or_all() {
        let parse = |target: &[&str]| crate::cli::Cli::try_parse_from([&["mullion", "hns", "fault", "add", "svc-down"], target].concat());
        for target in [&["--all-nodes"][..], &["--node", "win01"], &["--node", "win01", "--node", "win02"]] {
            assert!(parse(target).is_ok(), "{target:?}");
        }
        let both = parse(&["--all-nodes", "--node", "win01"]).unwrap_err().to_string();
        assert!(both.contains("cannot be used with"), "{both}");
        let neither = parse(&[]).unwrap_err().to_string();
        assert!(neither.contains("<--node <NODE>|--all-nodes>"), "{neither}");
    }

    #[test]
    fn faults_are_listed_with_their_nodes() {
        let active = ActiveFault { number: 3, hits: 17, seen: 20, fault: "svc-down,count=all".parse().unwrap() };
        let set = [SetFault::new("win02", active)];
        assert_eq!(table(&set).lines().last().unwrap().split_whitespace().collect::<Vec<_>>(), ["win02", "3", "17", "svc-down,count=all"]);
        assert_eq!(table(&[]), "");
        let json = serde_json::to_value(&set[0]).unwrap();
        assert_eq!((&json["node"], &json["number"], &json["fault"]["name"]), (&"win02".into(), &3.into(), &"svc-down".into()));
    }
}
