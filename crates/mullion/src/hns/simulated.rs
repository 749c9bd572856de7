//! Commands for a simulated service, over its admin socket: calls, counters, rules, faults, latencies, restarts.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use hcn::Guid;
use hcn::blocking::Client;
use hcn::{Function, HostComputeNamespace, Kind, Query, SupportedFeatures};
use hns_sim::admin::{ActiveFault, AdminClient, CallFilter, Counter, Latency, LoggedCall, RestartMode, Status, is_function};
use serde::Serialize;

use super::Output;
use super::faults::{FaultCommand, OfNodes};
use crate::exit::{Code, Failure};
use crate::linux::cli::DirArgs;

/// How often `--follow` asks.
const FOLLOW: Duration = Duration::from_millis(500);

/// How long a service may take to answer the call by which `status` looks whether it answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A Windows node of a one-machine cluster.
#[derive(Clone, Debug, Args)]
pub struct OfNode {
    /// Name of the Windows node
    #[arg(long)]
    pub node: String,
    #[command(flatten)]
    pub dir: DirArgs,
}

/// Commands for a simulated service.
#[derive(Clone, Debug, Subcommand)]
pub enum SimulatedCommand {
    /// Show the state of HNS on each node: whether it answers, its version, objects, faults and latencies
    Status {
        #[command(flatten)]
        nodes: OfNodes,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Show the latest calls of a node's service
    Calls {
        #[command(flatten)]
        node: OfNode,
        /// Show only calls of this function, as HcnCreateEndpoint, or HcnCreate* for several
        #[arg(long, value_parser = function)]
        call: Option<String>,
        /// Show only calls for the object with this GUID
        #[arg(long)]
        id: Option<Guid>,
        /// Show only calls that failed
        #[arg(long)]
        failed: bool,
        /// Show at most this many calls
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Follow new calls until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Count the calls of a node's service, by function
    Counters {
        #[command(flatten)]
        node: OfNode,
        /// Set the counters to zero afterwards
        #[arg(long)]
        reset: bool,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Dump the rules of a switch's ports: layers, groups and rules as Microsoft's scripts name them
    Vfp {
        #[command(flatten)]
        node: OfNode,
        /// Show only the port of this endpoint, by GUID or name
        #[arg(long)]
        endpoint: Option<String>,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Inject faults that the real service is known for
    Fault {
        #[command(subcommand)]
        command: FaultCommand,
    },
    /// Show or set the behaviours of a node's service that are uncertain, with their evidence
    Switches {
        #[command(flatten)]
        node: OfNode,
        /// Set a switch until the node's host stops; repeat the option for several. The node setting hns=VERSION+NAME=VALUE sets it from the start
        #[arg(long, value_name = "NAME=VALUE")]
        set: Vec<String>,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Show or set the latencies of calls
    Latency {
        #[command(flatten)]
        node: OfNode,
        /// Latencies to set: read=2ms,write=20ms,jitter=5ms,balancer=50us, or windows, or none
        latency: Option<Latency>,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Restart a node's service
    Restart {
        #[command(flatten)]
        node: OfNode,
        /// How the service ends: clean keeps its objects, crash loses some, reboot keeps only networks
        #[arg(long, default_value_t)]
        mode: RestartMode,
        /// How long the service stays stopped, as 5s
        #[arg(long, default_value = "0", value_parser = hns_sim::latency::duration)]
        away: Duration,
        /// Restart without any object, as after the removal of HNS.data
        #[arg(long)]
        wipe: bool,
    },
}

/// A function's name, or several with `*`.
fn function(call: &str) -> Result<String, String> {
    is_function(call).map(|()| call.to_owned())
}

/// A client of a node's admin socket.
pub fn admin(node: &str, dir: &DirArgs) -> Result<AdminClient, Failure> {
    Ok(AdminClient::new(super::socket(node, "hcn-admin", dir)?))
}

impl OfNode {
    pub(super) fn admin(&self) -> Result<AdminClient, Failure> {
        admin(&self.node, &self.dir)
    }

    /// [`answer_of`] this node.
    pub(super) fn answer<T>(&self, outcome: io::Result<T>) -> Result<T, Failure> {
        answer_of(&self.node, outcome)
    }
}

/// What the service of `node` answered; an error names the node.
pub(super) fn answer_of<T>(node: &str, outcome: io::Result<T>) -> Result<T, Failure> {
    outcome.map_err(|error| match error.kind() {
        // The simulator explains what it refuses.
        ErrorKind::InvalidInput => Failure::new(Code::Usage, anyhow!("{node}: {error}")),
        _ => anyhow!(error).context(format!("the service of node {node} does not answer")).into(),
    })
}

/// Runs the subcommand.
pub fn main(command: &SimulatedCommand) -> Result<(), Failure> {
    match command {
        SimulatedCommand::Status { nodes, output } => status(nodes, *output),
        SimulatedCommand::Calls { node, call, id, failed, limit, follow, output } => {
            let filter = CallFilter { since: 0, call: call.clone(), id: *id, failed: *failed, limit: Some(*limit) };
            calls(node, filter, *follow, *output)
        }
        SimulatedCommand::Counters { node, reset, output } => {
            let admin = node.admin()?;
            let counters = node.answer(admin.counters())?;
            show(*output, &counters, || counters_table(&counters))?;
            if *reset { node.answer(admin.reset_counters()) } else { Ok(()) }
        }
        SimulatedCommand::Vfp { node, endpoint, output } => vfp(node, endpoint.as_deref(), *output),
        SimulatedCommand::Fault { command } => super::faults::main(command),
        SimulatedCommand::Switches { node, set, output } => {
            let admin = node.admin()?;
            set.iter().try_for_each(|switch| node.answer(admin.set_switch(switch)))?;
            let switches = node.answer(admin.switches())?;
            show(*output, &switches, || switches.iter().map(|switch| format!("{}={}\n    {}\n", switch.name, switch.value, switch.doc)).collect())
        }
        SimulatedCommand::Latency { node, latency, output } => {
            let admin = node.admin()?;
            if let Some(latency) = latency {
                node.answer(admin.set_latency(latency))?;
            }
            let latency = node.answer(admin.latency())?;
            show(*output, &latency, || format!("{latency}\n"))
        }
        SimulatedCommand::Restart { node, mode, away, wipe } => {
            let admin = node.admin()?;
            let restarted = node.answer(if *wipe { admin.wipe() } else { admin.restart(*mode, *away) });
            // No usage error: the service does not stop.
            restarted.map_err(|failure| Failure { code: Code::Failure, ..failure })
        }
    }
}

/// How a node's service is.
#[derive(Serialize)]
struct Seen {
    node: String,
    /// Whether a client's call was answered; none where none was made.
    answers: Option<bool>,
    /// Why a client's call failed, or why none was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(flatten)]
    status: Status,
    /// The faults that are set.
    set: Vec<ActiveFault>,
}

fn status(nodes: &OfNodes, output: Option<Output>) -> Result<(), Failure> {
    let names = nodes.names()?;
    let (mut all, mut ending) = (Vec::new(), Ok(()));
    for node in &names {
        match seen(node, &nodes.dir) {
            Ok(seen) => all.push(seen),
            Err(error) => ending = ending.and(Err(error)),
        }
    }
    match (all.as_slice(), nodes.names.len()) {
        ([one], 1) => show(output, one, || status_table(one, false))?,
        ([], 1) => {}
        (several, _) => show(output, &several, || several.iter().map(|seen| status_table(seen, true)).collect::<Vec<_>>().join("\n"))?,
    }
    ending
}

fn seen(node: &str, dir: &DirArgs) -> Result<Seen, Failure> {
    let admin = admin(node, dir)?.within(PATIENCE);
    let (status, before) = answer_of(node, admin.status().and_then(|status| Ok((status, admin.faults()?))))?;
    let socket = super::socket(node, "hcn", dir)?;
    let api_v2 = SupportedFeatures::of(status.version).api_v2;
    let function = if api_v2 { Function::Enumerate(Kind::Namespace) } else { Function::HnsCall };
    let spent = before.iter().find(|active| active.fault.is_spent_by(function));
    let (answers, problem) = match spent {
        _ if !status.running => {
            let away =
                format!("no client is answered: it restarts, or its data are damaged and `mullion hns restart --node {node} --wipe` starts it");
            (Some(false), Some(away))
        }
        // The call of `status` must not use up a fault that is meant for other clients.
        Some(active) => (None, Some(format!("not asked: fault {} ({}) hits the next call", active.number, active.fault))),
        None => match ask(&format!("unix:{}", socket.display()), api_v2) {
            Ok(()) => (Some(true), None),
            Err(error) => (Some(false), Some(error)),
        },
    };
    let set = answer_of(node, admin.faults())?;
    let hit = |active: &&ActiveFault| before.iter().any(|old| old.number == active.number && old.hits < active.hits);
    let culprits: Vec<String> = set.iter().filter(hit).map(|active| format!("fault {} ({}) hit it", active.number, active.fault)).collect();
    let problem = problem.map(|problem| [vec![problem], culprits].concat().join("; "));
    Ok(Seen { node: node.to_owned(), answers, problem, status, set })
}

/// Makes a client's call: faults act on clients' calls, not on those of the admin socket.
fn ask(address: &str, api_v2: bool) -> Result<(), String> {
    let client = Client::connect(address).map_err(|error| error.to_string())?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let answer = if api_v2 { client.ids::<HostComputeNamespace>(&Query::default()).map(drop) } else { client.features().map(drop) };
        sender.send(answer)
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("a call did not return within {} s", PATIENCE.as_secs())),
    }
}

/// A line for each thing that is known of a service, and for each of its faults.
fn status_table(seen: &Seen, named: bool) -> String {
    let status = &seen.status;
    let objects: Vec<String> = status.objects.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let answers = match (seen.answers, &seen.problem) {
        (Some(true), None) => "yes".to_owned(),
        (Some(answers), problem) => format!("{}: {}", if answers { "yes" } else { "no" }, problem.as_deref().unwrap_or_default()),
        (None, problem) => problem.clone().unwrap_or_default(),
    };
    let node = if named { format!("{:<9} {}\n", "node", seen.node) } else { String::new() };
    let mut text = node
        + &[
            ("answers", answers),
            ("version", status.version.to_string()),
            ("objects", objects.join(", ")),
            ("restarts", status.restarts.to_string()),
            ("latency", status.latency.to_string()),
            ("seed", status.seed.to_string()),
            ("faults", seen.set.len().to_string()),
        ]
        .map(|(name, value)| format!("{name:<9} {value}\n"))
        .concat();
    for active in &seen.set {
        text += &format!("{:>9} {} (hit {} calls)\n", active.number, active.fault, active.hits);
    }
    text
}

/// Prints for people or for programs.
pub(super) fn show<T: Serialize>(output: Option<Output>, answer: &T, table: impl FnOnce() -> String) -> Result<(), Failure> {
    super::print(&match output {
        Some(Output::Json) => serde_json::to_string_pretty(answer)? + "\n",
        None => table(),
    })
}

fn calls(node: &OfNode, mut filter: CallFilter, follow: bool, output: Option<Output>) -> Result<(), Failure> {
    let admin = node.admin()?;
    loop {
        let calls = node.answer(admin.calls(&filter))?;
        if !follow {
            return show(output, &calls, || calls.iter().map(call_line).collect());
        }
        for call in &calls {
            super::print(&match output {
                Some(Output::Json) => serde_json::to_string(call)? + "\n",
                None => call_line(call),
            })?;
            filter.since = call.number;
        }
        std::thread::sleep(FOLLOW);
    }
}

/// Number, time, session, function, object, how long, how it ended, which faults hit it.
fn call_line(call: &LoggedCall) -> String {
    let time = jiff::Timestamp::from_millisecond(i64::try_from(call.time_ms).unwrap_or_default()).unwrap_or_default();
    let object = call.path.clone().or_else(|| call.id.map(|id| id.to_string())).unwrap_or_default();
    let millis = Duration::from_micros(call.micros).as_secs_f64() * 1e3;
    let end = call.hresult.name().map_or_else(|| format!("{:?}", call.hresult), str::to_owned);
    let faults = if call.faults.is_empty() { String::new() } else { format!("  [{}]", call.faults.join(", ")) };
    format!("{:>6} {time:.3} #{:<3} {:<32} {object:<37} {millis:>9.3} ms  {end}{faults}\n", call.number, call.session, call.call)
}

fn counters_table(counters: &std::collections::BTreeMap<String, Counter>) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(8).max(8);
    let mut text = format!("{:<width$} {:>9} {:>8} {:>8} {:>12} {:>12}\n", "FUNCTION", "CALLS", "FAILED", "HITS", "MEAN", "SLOWEST");
    for (name, counter) in counters {
        let mean = counter.micros as f64 / counter.calls.max(1) as f64 / 1e3;
        let slowest = counter.slowest_micros as f64 / 1e3;
        let Counter { calls, failed, hits, .. } = counter;
        text.push_str(&format!("{name:<width$} {calls:>9} {failed:>8} {hits:>8} {mean:>9.3} ms {slowest:>9.3} ms\n"));
    }
    text
}

fn vfp(node: &OfNode, endpoint: Option<&str>, output: Option<Output>) -> Result<(), Failure> {
    let endpoint = endpoint.map(|endpoint| find(node, endpoint)).transpose()?;
    let dump = node.answer(node.admin()?.vfp(endpoint))?;
    show(output, &dump, || dump.to_string())
}

/// The endpoint of that GUID or name.
fn find(node: &OfNode, endpoint: &str) -> Result<Guid, Failure> {
    if let Ok(id) = endpoint.parse() {
        return Ok(id);
    }
    let socket = super::socket(&node.node, "hcn", &node.dir)?;
    let client = Client::connect(&format!("unix:{}", socket.display()))?;
    let found = client.get_by_name::<hcn::HostComputeEndpoint>(endpoint)?;
    let unknown = || anyhow!("node {} has no endpoint {endpoint}: `mullion hns list endpoints --node {}` lists them", node.node, node.node);
    Ok(found.ok_or_else(|| Failure::new(Code::Usage, unknown()))?.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The ledger's table has each switch with its default, and no switch that is gone.
    #[test]
    fn fidelity_page_lists_every_switch_with_its_default() {
        let ledger = include_str!("../../../../docs/fidelity.md");
        let table = ledger.split_once("| Switch | Default |").unwrap().1;
        let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| `")?.split_once("` | "));
        let mut rows: BTreeMap<&str, &str> = rows.map(|(name, rest)| (name, rest.split(" | ").next().unwrap())).collect();
        let versions =
            [(9, 2), (9, 3), (10, 0), (12, 0), (13, 3), (14, 0), (15, 5), (16, 0)].map(|(major, minor)| hcn::HnsVersion::new(major, minor));
        let defaults: Vec<BTreeMap<String, String>> = versions
            .iter()
            .map(|version| hns_sim::switches::Switches::of(*version).list().into_iter().map(|switch| (switch.name, switch.value)).collect())
            .collect();
        for (name, first) in &defaults[0] {
            let stated = rows.remove(name.as_str()).unwrap_or_else(|| panic!("docs/fidelity.md has no row for the switch {name}"));
            if defaults.iter().all(|of_version| of_version[name] == *first) {
                assert_eq!(stated, first, "the default of {name} in docs/fidelity.md");
            } else {
                let values: Vec<&String> = defaults.iter().map(|of_version| &of_version[name]).collect();
                assert!(stated.contains(' ') && values.iter().any(|value| stated.starts_with(value.as_str())), "{name}: {stated:?}, not {values:?}");
            }
        }
        assert!(rows.is_empty(), "docs/fidelity.md has rows for switches that do not exist: {rows:?}");
    }

    #[test]
    fn table_lines_describe_calls() {
        let call = LoggedCall {
            number: 7,
            time_ms: 1_763_719_200_123,
            session: 3,
            call: "HcnCreateEndpoint".into(),
            id: None,
            path: None,
            micros: 1500,
            hresult: hcn::HResult::INVALID_IP,
            faults: vec!["ep-dup-ip".into()],
        };
        let line = call_line(&call);
        for part in ["7 2025-11-21T", "#3", "HcnCreateEndpoint", "1.500 ms", "HCN_E_INVALID_IP", "[ep-dup-ip]"] {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        let counter = Counter { calls: 4, failed: 1, hits: 1, micros: 8000, slowest_micros: 5000 };
        let table = counters_table(&[("HcnOpenNetwork".to_owned(), counter)].into());
        assert!(table.contains("HcnOpenNetwork         4        1        1     2.000 ms     5.000 ms"), "{table}");
    }
}
