//! Conformance suite of Host Networking Services: what any of them must do, whether it is the pure model, the simulator with packets, a Windows
//! program under Wine, or a real Windows Server.
//!
//! The suite knows nothing of a simulator: it makes networks, endpoints, namespaces and load balancers under names and identifiers of its
//! own, looks at what comes back, and removes them. A case that a version or a type of network has not is not applicable, never skipped in
//! silence. Each case names the evidence for what it expects, so that a real host that disagrees corrects the ledger in docs/fidelity.md.
//!
//! Guarantees: foreign networks are a refusal ([`Refusal::Foreign`]) unless [`Options::among_foreign`] is set, and nothing foreign is ever
//! changed. What an earlier, killed run left is removed first.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use serde::Serialize;

use hcn::blocking::Client;
use hcn::document::{HostComputeEndpoint, HostComputeNetwork, NetworkType, Query};
use hcn::error::HcnError;
use hcn::features::{HnsVersion, SupportedFeatures};
use hcn::port::HostNetwork;

mod bench;
mod cycles;
mod documents;
mod errors;
mod features;
mod policies;
mod restart;

pub use bench::Bench;

/// The start of every name that the suite gives.
pub const MARK: &str = "mullion-conformance";

/// Restarts the service and waits until it answers again; an error says what stood in the way.
pub type Restart = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How the suite runs.
#[derive(Clone)]
pub struct Options {
    /// The type of the networks that most cases use.
    pub network_type: NetworkType,
    /// The physical adapter under external networks; none lets the service choose.
    pub adapter: Option<String>,
    /// Where subnets are taken from: a /24 each. It must be nobody else's.
    pub prefix: Ipv4Net,
    /// Run although the host has networks of others.
    pub among_foreign: bool,
    /// Only cases whose group or name contain this.
    pub only: Option<String>,
    /// How the service is restarted; without it the cases about restarts are not applicable.
    pub restart: Option<Restart>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            network_type: NetworkType::L2Bridge,
            adapter: None,
            prefix: Ipv4Net::new_assert([10, 213, 0, 0].into(), 16),
            among_foreign: false,
            only: None,
            restart: None,
        }
    }
}

/// Why the suite did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The host is in use.
    #[error(
        "this host has networks that are not the suite's ({}): run on a host without them, or allow it with --among-foreign (external networks \
         share their adapter's switch)", .0.join(", ")
    )]
    Foreign(Vec<String>),
    /// The service has no V2 interface.
    #[error("the Host Networking Service is version {0}, without the V2 interface: 9.2 (Windows Server 2019 with updates) is the first to have it")]
    TooOld(HnsVersion),
    /// There is no room for subnets.
    #[error("{0} has no room for the suite's 256 subnets of /24: give a prefix of /16 or larger")]
    Prefix(Ipv4Net),
    /// The service did not answer.
    #[error("the Host Networking Service cannot be tested")]
    Service(#[from] HcnError),
}

/// What kind of source an expectation rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Evidence {
    /// Microsoft's documentation or schema.
    #[serde(rename = "D")]
    Documentation,
    /// Client code or its tests.
    #[serde(rename = "C")]
    Client,
    /// A user's report or log.
    #[serde(rename = "U")]
    Report,
    #[serde(rename = "I")]
    Inference,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Documentation => "D",
            Self::Client => "C",
            Self::Report => "U",
            Self::Inference => "I",
        })
    }
}

/// Why a case did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The service does something else.
    Differs(String),
    /// The service, or the type of network, has nothing to test.
    NotApplicable(String),
}

impl From<HcnError> for Finding {
    fn from(error: HcnError) -> Self {
        Self::Differs(error.to_string())
    }
}

/// What a case found.
pub type Check = Result<(), Finding>;

pub struct Case {
    /// What it is about: documents, errors, cycles, policies, features or restart.
    pub group: &'static str,
    /// What must hold.
    pub name: &'static str,
    /// What that rests on.
    pub evidence: Evidence,
    run: fn(&Bench<'_>) -> Check,
}

/// Makes a case.
const fn case(group: &'static str, name: &'static str, evidence: Evidence, run: fn(&Bench<'_>) -> Check) -> Case {
    Case { group, name, evidence, run }
}

/// Every case, in the order they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [documents::CASES, errors::CASES, cycles::CASES, policies::CASES, features::CASES, restart::CASES].into_iter().flatten()
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As expected.
    Passed,
    /// Otherwise.
    Failed,
    /// Nothing to test.
    NotApplicable,
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub group: &'static str,
    pub name: &'static str,
    /// What its expectation rests on.
    pub evidence: Evidence,
    /// How it ended.
    pub outcome: Outcome,
    /// What differed, or why there was nothing to test.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// How long it took.
    pub micros: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub hns_version: String,
    /// The type of network under test.
    pub network_type: String,
    /// One line a case.
    pub cases: Vec<Line>,
}

impl Report {
    /// How many cases ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.cases.iter().filter(|line| line.outcome == outcome).count()
    }

    /// Whether nothing differed.
    pub fn passed(&self) -> bool {
        self.count(Outcome::Failed) == 0
    }

    /// The cases that differed, a line each; for tests.
    pub fn failures(&self) -> String {
        let failed = self.cases.iter().filter(|line| line.outcome == Outcome::Failed);
        failed.map(|line| format!("{}: {}: {}\n", line.group, line.name, line.detail)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "HNS {}, {} networks", self.hns_version, self.network_type)?;
        let width = self.cases.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        for line in &self.cases {
            let outcome = match line.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "DIFFERS",
                Outcome::NotApplicable => "n/a",
            };
            let millis = Duration::from_micros(line.micros).as_secs_f64() * 1e3;
            let text = format!("{:<10} {:<width$} {} {millis:>9.1} ms  {outcome:<8}{}", line.group, line.name, line.evidence, line.detail);
            writeln!(f, "{}", text.trim_end())?;
        }
        let [passed, failed, none] = [Outcome::Passed, Outcome::Failed, Outcome::NotApplicable].map(|outcome| self.count(outcome));
        writeln!(f, "{passed} as expected, {failed} different, {none} not applicable")
    }
}

/// Networks of others.
fn foreign(client: &Client) -> Result<Vec<String>, HcnError> {
    let networks = client.list::<HostComputeNetwork>(&Query::default())?;
    Ok(networks.into_iter().filter(|network| !network.name.starts_with(MARK)).map(|network| network.name).collect())
}

/// Removes what an earlier run left under names of ours. What has no name has the same identifiers in every run, and goes when they are used.
fn sweep(client: &Client) -> Result<(), HcnError> {
    for endpoint in client.list::<HostComputeEndpoint>(&Query::default())? {
        if endpoint.name.starts_with(MARK) {
            client.delete::<HostComputeEndpoint>(&endpoint.id)?;
        }
    }
    for network in client.list::<HostComputeNetwork>(&Query::default())? {
        if network.name.starts_with(MARK) {
            client.delete::<HostComputeNetwork>(&network.id)?;
        }
    }
    Ok(())
}

/// Runs every case against `port`. `progress` is called with each as it ends.
pub fn run(port: Arc<dyn HostNetwork>, options: &Options, mut progress: impl FnMut(&Line)) -> Result<Report, Refusal> {
    let client = Client::new(port);
    if options.prefix.prefix_len() > 16 {
        return Err(Refusal::Prefix(options.prefix));
    }
    let features: SupportedFeatures = client.features()?;
    if !features.api_v2 {
        return Err(Refusal::TooOld(features.version));
    }
    let others = foreign(&client)?;
    if !others.is_empty() && !options.among_foreign {
        return Err(Refusal::Foreign(others));
    }
    sweep(&client)?;
    let mut report = Report { hns_version: features.version.to_string(), network_type: options.network_type.to_string(), cases: Vec::new() };
    let selected = |case: &Case| options.only.as_deref().is_none_or(|part| case.group.contains(part) || case.name.contains(part));
    let mut bench = Bench::new(client, features, options);
    for case in cases().filter(|case| selected(case)) {
        let started = Instant::now();
        bench.begin(case.name);
        let found = (case.run)(&bench);
        let found = found.and(bench.end());
        let (outcome, detail) = match found {
            Ok(()) => (Outcome::Passed, String::new()),
            Err(Finding::Differs(detail)) => (Outcome::Failed, detail),
            Err(Finding::NotApplicable(detail)) => (Outcome::NotApplicable, detail),
        };
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let line = Line { group: case.group, name: case.name, evidence: case.evidence, outcome, detail, micros };
        progress(&line);
        report.cases.push(line);
    }
    bench.close();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cases_are_their_identity() {
        let names: std::collections::BTreeSet<_> = cases().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().count());
    }
}
