use std::sync::atomic::{AtomicUsize, Ordering};

use test_lab::api::{Reply, fake_client};

use super::*;
use crate::journal::{Entry, Previous};
use install::control::Unmanaged;

struct Case {
    dir: tempfile::TempDir,
    places: Places,
}

impl Case {
    /// A machine after a join, with a file and a certificate of others.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path(), false);
        for path in
            known_files(&places).into_iter().chain(["kubelet-client-current.pem", "kubelet-client-old.pem"].map(|name| places.cert_dir().join(name)))
        {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        Self { dir, places }
    }

    fn journal(&self, state: State) -> Journal {
        let mut journal = Journal::new("https://a", Vec::new(), "n");
        journal.state = state;
        journal.files = [self.places.kubelet_conf(), self.places.config()].map(|path| Entry { path, previous: None }).into();
        journal.foreign_certificates = ["kubelet-client-old.pem".to_owned()].into();
        journal.directories = vec![self.places.kubelet_dir(), self.places.cert_dir()];
        journal
    }

    fn plan(&self, journal: Option<&Journal>, is_forced: bool) -> Result<Vec<Step>, NothingToRemove> {
        let present = known_files(&self.places).into_iter().filter(|path| path.exists()).collect();
        plan(&Inputs {
            places: &self.places,
            journal,
            present: &present,
            has_service: true,
            delete_node: Some("n"),
            pods_of: Some("unix:///none.sock"),
            is_forced,
        })
    }

    fn lines(&self, journal: Option<&Journal>, is_forced: bool) -> Vec<String> {
        self.plan(journal, is_forced).unwrap().iter().map(|step| step.text(&self.places)).collect()
    }
}

#[test]
fn only_what_the_join_wrote_is_removed() {
    let case = Case::new();
    let journal = Journal { installed_service: true, ..case.journal(State::Joined) };
    assert_eq!(
        case.lines(Some(&journal), false),
        [
            "stop the service kubelet",
            "remove the pods of the container runtime unix:///none.sock",
            "delete Node \"n\"",
            "remove the service kubelet, which the join has made",
            "remove /etc/kubernetes/kubelet.conf",
            "remove /var/lib/kubelet/config.yaml",
            "remove /var/lib/kubelet/pki/kubelet-client-current.pem",
            "remove /var/lib/kubelet/mullion-join.json",
            "remove the directory /var/lib/kubelet/pki if it is empty",
            "remove the directory /var/lib/kubelet if it is empty",
        ]
    );
}

#[test]
fn a_machine_that_mullion_did_not_join_is_left_alone_unless_forced() {
    let case = Case::new();
    assert_eq!(case.plan(None, false), Err(NothingToRemove));
    let lines = case.lines(None, true);
    for file in ["/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/bootstrap-kubelet.conf", "/var/lib/kubelet/pki/kubelet-client-old.pem"] {
        assert!(lines.contains(&format!("remove {file}")), "{lines:#?}");
    }
}

#[tokio::test]
async fn an_unfinished_join_is_taken_back() {
    let case = Case::new();
    let mut journal = case.journal(State::Joining);
    journal.files[1].previous = Some(Previous { text: "before".into(), mode: 0o644 });
    let steps = case.plan(Some(&journal), false).unwrap();
    assert_eq!(steps.last(), Some(&Step::Undo));
    let site = Site { places: &case.places, service: &Unmanaged, progress: &|_| {} };
    let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::DeleteNode(_))).collect();
    apply(&steps, Some(&journal), &site, None).await.unwrap();
    assert_eq!(std::fs::read_to_string(case.places.config()).unwrap(), "before");
    assert!(!case.places.kubelet_conf().exists() && !case.places.journal().exists());
    assert!(case.places.cert_dir().join("kubelet-client-old.pem").exists(), "it was there before");
    drop(case.dir);
}

#[tokio::test]
async fn a_node_that_may_not_be_deleted_keeps_the_credentials() {
    let case = Case::new();
    let journal = case.journal(State::Joined);
    let steps = case.plan(Some(&journal), false).unwrap();
    let site = Site { places: &case.places, service: &Unmanaged, progress: &|_| {} };
    let asked = std::sync::Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let client = fake_client(move |seen| {
        assert_eq!((seen.method.as_str(), seen.path.as_str()), ("DELETE", "/api/v1/nodes/n"));
        count.fetch_add(1, Ordering::Relaxed);
        Reply::status(403, "no")
    });
    let error = apply(&steps, Some(&journal), &site, Some(client)).await.unwrap_err();
    assert!(error.to_string().contains("give --kubeconfig of an administrator"), "{error}");
    assert!(case.places.kubelet_conf().exists() && asked.load(Ordering::Relaxed) == 1);
    // One that is gone is fine, and the next attempt finishes.
    apply(&steps, Some(&journal), &site, Some(fake_client(|_| Reply::status(404, "gone")))).await.unwrap();
    assert!(!case.places.kubelet_conf().exists() && !case.places.journal().exists());
    assert!(case.places.cert_dir().exists(), "others' files are in it");
}

#[tokio::test]
async fn a_runtime_that_does_not_answer_keeps_what_another_removal_needs() {
    let case = Case::new();
    let journal = case.journal(State::Joined);
    let socket = case.dir.path().join("silent.sock");
    // A file that nobody listens at.
    std::fs::write(&socket, "").unwrap();
    let steps = case.plan(Some(&journal), false).unwrap().into_iter();
    let at_socket = |step| if matches!(step, Step::RemovePods(_)) { Step::RemovePods(format!("unix://{}", socket.display())) } else { step };
    let steps: Vec<Step> = steps.map(at_socket).collect();
    let site = Site { places: &case.places, service: &Unmanaged, progress: &|_| {} };
    let nobody = fake_client(|seen| panic!("{} {}", seen.method, seen.path));
    let error = apply(&steps, Some(&journal), &site, Some(nobody)).await.unwrap_err();
    assert!(error.to_string().contains("--keep-pods"), "{error}");
    assert!(case.places.journal().exists() && case.places.kubelet_conf().exists());
    std::fs::remove_file(&socket).unwrap();
    apply(&steps, Some(&journal), &site, Some(fake_client(|_| Reply::status(404, "gone")))).await.unwrap();
    assert!(!case.places.journal().exists() && !case.places.kubelet_conf().exists());
}
