use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::config::JoinConfiguration;
use crate::settings::{Flags, Machine};

const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [10.96.0.10]\n";

/// A join to a cluster of 1.36, which nothing hinders.
struct Case {
    settings: Settings,
    places: Places,
    discovered: Discovered,
    authority: Vec<String>,
    cluster: ClusterConfig,
    journal: Option<Journal>,
    there: BTreeMap<PathBuf, String>,
    has_certificate: bool,
    has_service: bool,
    installs_service: bool,
}

impl Case {
    fn new() -> Self {
        let flags = Flags { discovery_file: Some("a".into()), ..Flags::default() };
        let machine = Machine { host_name: "n1".into(), ..Machine::default() };
        Self {
            settings: Settings::new(flags.merged_into(JoinConfiguration::default()), &machine).unwrap(),
            places: Places::new(Path::new("/r"), false),
            discovered: Discovered { server: "https://a:6443".into(), ca_pem: "CA".into(), kubeconfig: "SECRET".into() },
            authority: vec!["sha256:0".into()],
            cluster: ClusterConfig { kubelet: KUBELET.into(), version: "v1.36.2".parse().unwrap(), node_is_ready: false },
            journal: None,
            there: BTreeMap::new(),
            has_certificate: false,
            has_service: true,
            installs_service: false,
        }
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        plan(&Inputs {
            settings: &self.settings,
            places: &self.places,
            discovered: &self.discovered,
            authority: &self.authority,
            cluster: &self.cluster,
            journal: self.journal.as_ref(),
            there: &self.there,
            has_certificate: self.has_certificate,
            has_service: self.has_service,
            installs_service: self.installs_service,
        })
    }

    fn lines(&self) -> Vec<String> {
        self.plan().unwrap().steps.iter().map(|step| step.text(&self.places)).collect()
    }

    fn earlier(&self, state: State) -> Journal {
        Journal { state, ..Journal::new(&self.discovered.server, self.authority.clone(), &self.settings.node_name) }
    }
}

#[test]
fn a_fresh_machine_gets_everything_in_kubeadms_places() {
    let case = Case::new();
    let lines = case.lines();
    let expected = [
        "stop the service kubelet",
        "write /etc/kubernetes/pki/ca.crt (2 bytes)",
        "write /etc/kubernetes/bootstrap-kubelet.conf (6 bytes)",
        "write /var/lib/kubelet/instance-config.yaml (",
        "write /var/lib/kubelet/config.yaml (",
        "write /var/lib/kubelet/kubeadm-flags.env (",
        "ask for a client certificate of node \"n1\", and write /etc/kubernetes/kubelet.conf",
        "remove /etc/kubernetes/bootstrap-kubelet.conf",
        "start the service kubelet",
        "wait until http://127.0.0.1:10248/healthz answers, at most 240s",
        "wait until Node \"n1\" exists, at most 300s",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{line} does not begin with {start}");
    }
}

#[test]
fn printed_plans_have_no_secret() {
    let case = Case::new();
    let plan = case.plan().unwrap();
    let text = plan.text(&case.places);
    assert!(text.contains("KUBELET_KUBEADM_ARGS=") && text.contains("clusterDNS:"), "{text}");
    let json: Vec<Value> = plan.steps.iter().map(|step| step.json(&case.places)).collect();
    for printed in [text, format!("{plan:?}"), serde_json::to_string(&json).unwrap()] {
        assert!(!printed.contains("SECRET"), "{printed}");
    }
    assert!(json.iter().any(|step| step["content"].as_str().is_some_and(|content| content.contains("clusterDNS"))));
}

#[test]
fn without_a_service_the_agent_is_left_to_the_caller() {
    let case = Case { has_service: false, ..Case::new() };
    let lines = case.lines();
    assert!(!lines.iter().any(|line| line.contains("service") || line.starts_with("wait")), "{lines:#?}");
    assert!(lines.last().unwrap().starts_with("remove /etc/kubernetes/bootstrap-kubelet.conf"));
    let mut case = Case::new();
    case.settings.waits = false;
    assert_eq!(case.lines().last().unwrap(), "start the service kubelet");
}

#[test]
fn older_control_planes_get_the_annotation() {
    let mut case = Case::new();
    case.cluster.version = "v1.35.4".parse().unwrap();
    let last = "annotate Node \"n1\" with kubeadm.alpha.kubernetes.io/cri-socket=unix:///var/run/containerd/containerd.sock";
    assert_eq!(case.lines().last().unwrap(), last);
}

#[test]
fn a_run_that_was_cut_off_is_finished() {
    let mut case = Case::new();
    case.journal = Some(case.earlier(State::Joining));
    let whole = case.plan().unwrap();
    // Before the certificate: what was written is not written again.
    for step in &whole.steps {
        if let Step::Write(file) = step {
            case.there.insert(file.path.clone(), file.content.clone());
        }
    }
    let lines = case.lines();
    assert!(!lines.iter().any(|line| line.starts_with("write")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("ask for a client certificate")));
    // After it, when the agent has registered the Node already.
    (case.has_certificate, case.cluster.node_is_ready) = (true, true);
    let lines = case.lines();
    assert_eq!(lines[..3], ["stop the service kubelet", "remove /etc/kubernetes/bootstrap-kubelet.conf", "start the service kubelet"]);
    // And after the bootstrap kubeconfig is gone, another token changes nothing.
    case.there.remove(&case.places.bootstrap_conf());
    case.discovered.kubeconfig = "ANOTHER".into();
    assert_eq!(case.lines()[..2], ["stop the service kubelet", "start the service kubelet"]);
}

#[test]
fn names_of_ready_nodes_and_other_joins_are_refused() {
    let mut case = Case::new();
    case.cluster.node_is_ready = true;
    assert!(matches!(case.plan(), Err(PlanError::NameTaken { name }) if name == "n1"));
    // A certificate alone does not make the Node this machine's: it may be a copy of another machine.
    case.has_certificate = true;
    assert!(matches!(case.plan(), Err(PlanError::NameTaken { .. })));
    let mut case = Case::new();
    case.journal = Some(case.earlier(State::Joined));
    assert!(matches!(case.plan(), Err(PlanError::Joined { .. })));
    case.journal = Some(Journal { node_name: "other".into(), ..case.earlier(State::Joining) });
    assert!(matches!(case.plan(), Err(PlanError::OtherJoin { .. })));
    case.journal = Some(Journal { authority: vec!["sha256:1".into()], ..case.earlier(State::Joining) });
    assert!(matches!(case.plan(), Err(PlanError::OtherJoin { .. })));
    let mut case = Case::new();
    case.cluster.kubelet = "kind: Pod".into();
    assert!(matches!(case.plan(), Err(PlanError::KubeletConfig(_))));
}

#[test]
fn flags_are_read_as_they_were_written() {
    assert_eq!(flags("KUBELET_KUBEADM_ARGS=\"\"\n"), None);
    assert_eq!(flags("KUBELET_KUBEADM_ARGS=\"--v=2 --root-dir=C:\\\\k\"\n").as_deref(), Some(r"--v=2 --root-dir=C:\k"));
    assert_eq!(flags("OTHER=\"x\""), None);
}

#[test]
fn windows_has_the_same_places_on_drive_c() {
    let case = Case { places: Places::new(Path::new("/r"), true), ..Case::new() };
    let lines = case.lines();
    assert!(lines[1].starts_with(r"write C:\etc\kubernetes\pki\ca.crt"), "{lines:#?}");
    assert!(case.plan().unwrap().text(&case.places).contains("resolvConf: ''"));
}

#[test]
fn a_machine_without_the_service_gets_one_before_it_is_started() {
    let mut case = Case { has_service: false, installs_service: true, ..Case::new() };
    let of_service = |case: &Case| case.lines().into_iter().filter(|line| line.contains("service")).collect::<Vec<_>>();
    let both = ["make the service kubelet, as mullion install kubelet does", "start the service kubelet"];
    assert_eq!(of_service(&case), both);
    // One that there is stays as it is, but for that of a run that was cut off.
    case.has_service = true;
    assert_eq!(of_service(&case), ["stop the service kubelet", "start the service kubelet"]);
    case.journal = Some(Journal { installed_service: true, ..case.earlier(State::Joining) });
    assert_eq!(of_service(&case), ["stop the service kubelet", both[0], both[1]]);
}
