//! Node specifications: `NAME:OS[:BUILD][:key=value,…]`, several separated by commas.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use kube_rules::{NodeOs, Quantity};
use serde::{Deserialize, Serialize};

/// Builds of Windows Server that nodes may have, with the names they are known by.
pub const BUILDS: [(u32, &str); 6] = [
    (14393, "Windows Server 2016"),
    (16299, "version 1709"),
    (17134, "version 1803"),
    (17763, "Windows Server 2019"),
    (20348, "Windows Server 2022"),
    (26100, "Windows Server 2025"),
];
/// The build of a Windows node that names none.
pub const DEFAULT_BUILD: u32 = 20348;
/// Names that hosts of the lab itself have.
pub const RESERVED: [&str; 2] = ["gw", "cp"];

/// Keys of a node's settings.
pub const KEYS: [&str; 6] = ["cpu", "mem", "drive", "hns", "loopback-dsr", "runtime"];
const GIB: u64 = 1 << 30;

/// A node as asked for. Capacity is what is declared, not the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Host name and Node name.
    pub name: String,
    pub os: NodeOs,
    pub cpu: u32,
    /// Memory in bytes.
    pub mem: u64,
    /// A second drive of a Windows node.
    pub drive: Option<char>,
    /// Version of the Host Networking Service, when not the build's own.
    pub hns: Option<String>,
    /// Pods of a Windows node reach themselves through load balancers that return directly.
    #[serde(default = "yes")]
    pub loopback_dsr: bool,
    /// Endpoint of another container runtime.
    pub runtime: Option<String>,
}

fn yes() -> bool {
    true
}

/// What is wrong with a node specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {node:?}: {problem}")]
pub struct SpecError {
    node: String,
    problem: String,
}

fn wrong(node: &str, problem: impl Into<String>) -> SpecError {
    SpecError { node: node.to_owned(), problem: problem.into() }
}

/// Reads a list of nodes, as `lin01:linux,win01:windows:20348:cpu=4,mem=8Gi`. After a comma, a piece
/// whose text up to `=` has no colon belongs to the node before it.
///
/// # Errors
/// One line that names the node, what is wrong and what is right.
pub fn parse_list(text: &str) -> Result<Vec<NodeSpec>, SpecError> {
    let mut pieces: Vec<String> = Vec::new();
    for piece in text.split(',') {
        let key = piece.split_once('=').map(|(key, _)| key);
        match (key, pieces.last_mut()) {
            (Some(key), Some(node)) if !key.contains(':') => {
                node.push(',');
                node.push_str(piece);
            }
            _ => pieces.push(piece.to_owned()),
        }
    }
    let nodes = pieces.iter().map(|p| p.parse()).collect::<Result<Vec<NodeSpec>, _>>()?;
    let mut names = BTreeSet::new();
    match nodes.iter().find(|n| !names.insert(n.name.as_str())) {
        Some(twice) => Err(wrong(&twice.name, "is listed twice: give each node a name of its own")),
        None => Ok(nodes),
    }
}

impl FromStr for NodeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        let (name, rest) = text
            .split_once(':')
            .ok_or_else(|| wrong(text, "has no operating system: write NAME:linux or NAME:windows[:BUILD], as win01:windows:20348"))?;
        check_name(name)?;
        let (os, rest) = rest.split_once(':').map_or((rest, None), |(os, rest)| (os, Some(rest)));
        let (build, keys) = match rest {
            Some(rest) if rest.split([':', '=']).next().is_some_and(|first| first.len() < rest.len() && rest[first.len()..].starts_with('=')) => {
                (None, Some(rest))
            }
            Some(rest) => rest.split_once(':').map_or((Some(rest), None), |(build, keys)| (Some(build), Some(keys))),
            None => (None, None),
        };
        let mut node = Self {
            name: name.to_owned(),
            os: read_os(name, os, build)?,
            cpu: 8,
            mem: 16 * GIB,
            drive: None,
            hns: None,
            loopback_dsr: true,
            runtime: None,
        };
        for pair in keys.into_iter().flat_map(|k| k.split(',')) {
            node.set(pair)?;
        }
        Ok(node)
    }
}

fn check_name(name: &str) -> Result<(), SpecError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(inner) || name.starts_with('-') || name.ends_with('-') {
        return Err(wrong(name, "is no host name: use at most 63 lower-case letters, digits and inner hyphens"));
    }
    if RESERVED.contains(&name) {
        return Err(wrong(name, "has the name of one of the lab's own hosts (gw, cp): choose another"));
    }
    Ok(())
}

fn read_os(name: &str, os: &str, build: Option<&str>) -> Result<NodeOs, SpecError> {
    let known = || BUILDS.map(|(number, title)| format!("{number} ({title})")).join(", ");
    match (os, build) {
        ("linux", None) => Ok(NodeOs::Linux),
        ("linux", Some(build)) => Err(wrong(name, format!("is Linux and has no build: leave {build:?} out"))),
        ("windows", None) => Ok(NodeOs::Windows { build: DEFAULT_BUILD }),
        ("windows", Some(build)) => match build.parse() {
            Ok(number) if BUILDS.iter().any(|(b, _)| *b == number) => Ok(NodeOs::Windows { build: number }),
            _ => Err(wrong(name, format!("has the unknown build {build:?}: choose one of {}", known()))),
        },
        (other, _) => Err(wrong(name, format!("has the unknown operating system {other:?}: write linux or windows"))),
    }
}

impl NodeSpec {
    fn set(&mut self, pair: &str) -> Result<(), SpecError> {
        let name = self.name.clone();
        let (key, value) =
            pair.split_once('=').ok_or_else(|| wrong(&name, format!("{pair:?} is no setting: write key=value with one of {}", KEYS.join(", "))))?;
        let bad = |right: &str| wrong(&name, format!("{key}={value}: {right}"));
        let windows = matches!(self.os, NodeOs::Windows { .. });
        match key {
            "cpu" => self.cpu = value.parse().ok().filter(|n| (1..=1024).contains(n)).ok_or_else(|| bad("write a whole number from 1 to 1024"))?,
            "mem" => self.mem = read_size(value).ok_or_else(|| bad("write a quantity from 64Mi to 1Pi, as 512Mi, 16Gi or 16G"))?,
            "drive" | "hns" | "loopback-dsr" if !windows => return Err(bad("only Windows nodes have it")),
            "drive" => self.drive = Some(read_drive(value).ok_or_else(|| bad("write one letter from D to Z; drive C is there anyway"))?),
            "hns" => {
                let mut parts = value.split('+');
                let version = parts.next().and_then(|version| version.split_once('.'));
                let numbers = version.is_some_and(|(a, b)| a.parse::<u16>().is_ok() && b.parse::<u16>().is_ok());
                if !numbers || parts.any(|switch| !switch.contains('=')) {
                    return Err(bad("write MAJOR.MINOR, as 13.2, with +SWITCH=VALUE for each behaviour to change"));
                }
                self.hns = Some(value.to_owned());
            }
            "loopback-dsr" => self.loopback_dsr = value.parse().map_err(|_| bad("write true or false"))?,
            "runtime" if value.is_empty() => return Err(bad("write an endpoint, as unix:///run/containerd/containerd.sock")),
            "runtime" => self.runtime = Some(value.to_owned()),
            _ => return Err(wrong(&name, format!("has the unknown setting {key:?}: use {}", KEYS.join(", ")))),
        }
        Ok(())
    }
}

fn read_size(text: &str) -> Option<u64> {
    u64::try_from(Quantity::parse(text).ok()?.value()).ok().filter(|bytes| (64 << 20..=1 << 50).contains(bytes))
}

fn read_drive(text: &str) -> Option<char> {
    let mut letters = text.chars();
    let letter = letters.next()?.to_ascii_uppercase();
    (letters.next().is_none() && ('D'..='Z').contains(&letter)).then_some(letter)
}

/// The shortest text that reads as this node.
impl fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.os {
            NodeOs::Linux => write!(f, "{}:linux", self.name)?,
            NodeOs::Windows { build } => write!(f, "{}:windows:{build}", self.name)?,
        }
        let mut keys = Vec::new();
        if self.cpu != 8 {
            keys.push(format!("cpu={}", self.cpu));
        }
        if self.mem != 16 * GIB {
            keys.push(format!("mem={}", Quantity::from_bytes(i64::try_from(self.mem).unwrap_or(i64::MAX))));
        }
        keys.extend(self.drive.map(|d| format!("drive={d}")));
        keys.extend(self.hns.as_ref().map(|v| format!("hns={v}")));
        keys.extend((!self.loopback_dsr).then(|| "loopback-dsr=false".to_owned()));
        keys.extend(self.runtime.as_ref().map(|r| format!("runtime={r}")));
        if keys.is_empty() { Ok(()) } else { write!(f, ":{}", keys.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn default_node_list_is_parsed() {
        let nodes = parse_list("lin01:linux,win01:windows:20348,win02:windows").unwrap();
        assert_eq!(nodes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["lin01:linux", "win01:windows:20348", "win02:windows:20348"]);
        assert_eq!((nodes[0].cpu, nodes[0].mem), (8, 16 * GIB));
    }

    #[test]
    fn settings_belong_to_the_node_before_them() {
        let plain: NodeSpec = "a:windows:loopback-dsr=true".parse().unwrap();
        let off: NodeSpec = "a:windows:loopback-dsr=false,cpu=2".parse().unwrap();
        assert_eq!((plain.to_string(), off.to_string()), ("a:windows:20348".into(), "a:windows:20348:cpu=2,loopback-dsr=false".into()));
        let nodes = parse_list("a:windows:17763:cpu=4,mem=8Gi,drive=d,b:linux:runtime=unix:///run/x.sock,cpu=2,c:windows:hns=9.5").unwrap();
        assert_eq!((nodes[0].cpu, nodes[0].mem, nodes[0].drive), (4, 8 * GIB, Some('D')));
        assert_eq!((nodes[1].runtime.as_deref(), nodes[1].cpu), (Some("unix:///run/x.sock"), 2));
        assert_eq!((nodes[2].os, nodes[2].hns.as_deref()), (NodeOs::Windows { build: DEFAULT_BUILD }, Some("9.5")));
    }

    #[test]
    fn every_setting_is_written_parsed_and_listed() {
        let node = NodeSpec {
            name: "a".into(),
            os: NodeOs::Windows { build: 17763 },
            cpu: 2,
            mem: GIB,
            drive: Some('E'),
            hns: Some("13.2".into()),
            loopback_dsr: false,
            runtime: Some("unix:///r".into()),
        };
        let text = node.to_string();
        let settings = text.strip_prefix("a:windows:17763:").unwrap();
        assert_eq!(settings.split(',').map(|pair| pair.split_once('=').unwrap().0).collect::<Vec<_>>(), KEYS);
        assert_eq!(text.parse(), Ok(node));
    }

    #[test]
    fn memory_is_a_quantity_as_in_kubernetes() {
        let cases = [
            ("512Mi", 512 << 20, "mem=512Mi"),
            ("1.5Gi", 1536 << 20, "mem=1536Mi"),
            ("16G", 16_000_000_000, "mem=15625000Ki"),
            ("8e9", 8_000_000_000, "mem=7812500Ki"),
            ("67108865", (64 << 20) + 1, "mem=67108865"),
            ("1Pi", 1 << 50, "mem=1Pi"),
        ];
        for (text, bytes, written) in cases {
            let node: NodeSpec = format!("a:linux:mem={text}").parse().unwrap();
            assert_eq!((node.mem, node.to_string()), (bytes, format!("a:linux:{written}")), "{text}");
            assert_eq!(node.to_string().parse(), Ok(node));
        }
    }

    #[test]
    fn each_error_is_one_clear_line() {
        let cases = [
            ("", r#"node "": has no operating system: write NAME:linux or NAME:windows[:BUILD], as win01:windows:20348"#),
            ("win01", r#"node "win01": has no operating system"#),
            ("win01:beos", r#"node "win01": has the unknown operating system "beos": write linux or windows"#),
            ("win01:windows:2022", r#"node "win01": has the unknown build "2022": choose one of 14393 (Windows Server 2016)"#),
            ("win01:windows:", r#"node "win01": has the unknown build """#),
            ("l:linux:20348", r#"node "l": is Linux and has no build: leave "20348" out"#),
            ("Win:windows", r#"node "Win": is no host name"#),
            ("-a:linux", "is no host name"),
            ("cp:linux", "has the name of one of the lab's own hosts"),
            ("a:linux,a:linux", r#"node "a": is listed twice"#),
            ("a:linux:cpu=0", "cpu=0: write a whole number from 1 to 1024"),
            ("a:linux:mem=1Mi", "mem=1Mi: write a quantity from 64Mi to 1Pi"),
            ("a:linux:mem=lots", "mem=lots: write a quantity"),
            ("a:linux:mem=-1Gi", "mem=-1Gi: write a quantity"),
            ("a:linux:mem=2Pi", "mem=2Pi: write a quantity"),
            ("a:linux:drive=D", "drive=D: only Windows nodes have it"),
            ("a:windows:drive=C", "drive=C: write one letter from D to Z"),
            ("a:linux:loopback-dsr=false", "loopback-dsr=false: only Windows nodes have it"),
            ("a:windows:loopback-dsr=no", "loopback-dsr=no: write true or false"),
            ("a:windows:hns=new", "hns=new: write MAJOR.MINOR"),
            ("a:windows:hns=13.2+ipv6", "hns=13.2+ipv6: write MAJOR.MINOR, as 13.2, with +SWITCH=VALUE"),
            ("a:linux:colour=red", r#"has the unknown setting "colour": use cpu, mem, drive, hns, loopback-dsr, runtime"#),
            ("a:windows:20348:fast", r#""fast" is no setting"#),
        ];
        for (text, expected) in cases {
            let message = parse_list(text).expect_err(text).to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9:=,.\\-]{0,60}") {
            if let Ok(nodes) = parse_list(&text) {
                let again = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                prop_assert_eq!(parse_list(&again).unwrap(), nodes);
            }
        }
    }
}
