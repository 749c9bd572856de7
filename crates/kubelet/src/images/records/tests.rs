use super::*;
use crate::images::keyring::{Coordinates, Login, Source};

struct Node {
    dir: tempfile::TempDir,
    root: Arc<HostRoot>,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Node { root: Arc::new(HostRoot::linux(dir.path()).unwrap()), dir }
    }

    fn load(&self, policy: Verification) -> Records {
        Records::load(self.root.clone(), &self.root.parse("/var/lib/kubelet").unwrap(), policy).unwrap()
    }

    fn records(&self) -> Records {
        self.load(Verification::default())
    }

    fn path(&self, place: &str, key: &str) -> std::path::PathBuf {
        self.dir.path().join("var/lib/kubelet/image_manager").join(place).join(file_name(key))
    }
}

fn secret(name: &str, password: &str) -> Credential {
    let of = Coordinates { uid: format!("{name}-uid"), namespace: "ns".into(), name: name.into() };
    Credential { login: Login { username: "u".into(), password: password.into(), email: String::new() }, source: Source::Secret(of) }
}

fn may_use(records: &Records, image: &str, reference: &str, credentials: &[Credential]) -> bool {
    match records.check(image, reference) {
        Verdict::Allowed(_) => true,
        Verdict::Pull => false,
        Verdict::Like(recorded) => records.compare(image, reference, &recorded, credentials),
    }
}

#[test]
fn an_image_is_for_those_who_may_pull_it() {
    let node = Node::new();
    let records = node.records();
    let (image, id, own) = ("reg.io/a:1", "sha256:1", secret("s", "p"));
    assert!(may_use(&records, image, id, &[]), "it came without the agent");
    let intent = records.intend(image).unwrap();
    assert!(node.path("pulling", image).exists());
    assert!(!may_use(&records, image, id, &[]), "not while it is being pulled");
    intent.pulled(id, Some(&own));
    assert!(!node.path("pulling", image).exists() && node.path("pulled", id).exists());
    assert!(!may_use(&records, image, id, &[]) && !may_use(&records, image, id, &[secret("other", "x")]));
    assert!(
        may_use(&records, image, id, std::slice::from_ref(&own)) && may_use(&records, "reg.io/a:2", id, std::slice::from_ref(&own)),
        "the tag does not count"
    );
    assert!(!may_use(&records, "other.io/a:1", id, std::slice::from_ref(&own)), "another registry was not asked");
    assert!(may_use(&records, image, id, &[secret("copy", "p")]), "the same login");
    assert!(may_use(&records, image, id, &[secret("copy", "changed")]), "which was noted");
    assert!(!may_use(&node.load(Verification::Always), "new", "sha256:2", &[]));
    assert!(may_use(&node.load(Verification::Never), image, id, &[]));
    // Another agent goes on with it.
    assert!(may_use(&node.records(), image, id, &[own]) && !may_use(&node.records(), image, id, &[]));
    records.intend(image).unwrap().pulled(id, None);
    assert!(may_use(&records, image, id, &[]), "the registry gives it to everybody now");
}

#[test]
fn a_pull_that_was_lost_sight_of_stays_written_down() {
    let node = Node::new();
    let records = node.records();
    let (image, id) = ("reg.io/a:1", "sha256:1");
    drop(records.intend(image).unwrap());
    assert!(node.path("pulling", image).exists() && !may_use(&records, image, id, &[]));
    let (first, second) = (records.intend(image).unwrap(), records.intend(image).unwrap());
    first.failed();
    assert!(node.path("pulling", image).exists(), "another pull runs");
    second.failed();
    assert!(!node.path("pulling", image).exists() && may_use(&records, image, id, &[]));
}

#[test]
fn intents_of_an_earlier_agent_become_records_of_images_that_came() {
    let node = Node::new();
    for image in ["reg.io/a:1", "reg.io/b:1"] {
        drop(node.records().intend(image).unwrap());
    }
    let records = node.records();
    let came = v1::Image { id: "sha256:1".into(), repo_tags: vec!["other.io/x:1".into(), "reg.io/a:1".into()], ..Default::default() };
    let intents = BTreeSet::from(["reg.io/a:1".to_owned(), "reg.io/b:1".to_owned()]);
    records.adopt_all(&intents, &[came]).unwrap();
    assert!(!node.path("pulling", "reg.io/a:1").exists() && node.path("pulling", "reg.io/b:1").exists());
    assert!(!may_use(&records, "other.io/x:1", "sha256:1", &[]), "the agent pulled it, under whichever name");
}

#[test]
fn records_end_with_their_images() {
    let node = Node::new();
    let records = node.records();
    for (image, id) in [("reg.io/a:1", "sha256:1"), ("reg.io/b:1", "sha256:2")] {
        records.intend(image).unwrap().pulled(id, None);
    }
    let left = BTreeSet::from(["sha256:2".to_owned()]);
    let now = Timestamp::now();
    records.prune(&left, now - jiff::SignedDuration::from_secs(10));
    assert!(node.path("pulled", "sha256:1").exists(), "it came after the list was made");
    records.prune(&left, now + jiff::SignedDuration::from_secs(10));
    assert!(!node.path("pulled", "sha256:1").exists() && node.path("pulled", "sha256:2").exists());
}

#[test]
fn older_files_are_written_anew_and_broken_ones_make_their_image_be_pulled() {
    let node = Node::new();
    drop(node.records());
    let older = r#"{"kind":"KIND","apiVersion":"kubelet.config.k8s.io/v1alpha1",MORE}"#;
    let intent = older.replace("KIND", "ImagePullIntent").replace("MORE", r#""image":"reg.io/a:1""#);
    let more = r#""lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"sha256:1","credentialMapping":{"reg.io/b":{"nodePodsAccessible":true}}"#;
    let record = older.replace("KIND", "ImagePulledRecord").replace("MORE", more);
    std::fs::write(node.path("pulling", "reg.io/a:1"), intent).unwrap();
    std::fs::write(node.path("pulled", "sha256:1"), &record).unwrap();
    std::fs::write(node.path("pulled", "sha256:2"), "{").unwrap();
    std::fs::write(node.path("pulled", "sha256:3"), &record).unwrap();
    let records = node.records();
    for path in [node.path("pulling", "reg.io/a:1"), node.path("pulled", "sha256:1")] {
        assert!(std::fs::read_to_string(path).unwrap().contains("kubelet.config.k8s.io/v1beta1"));
    }
    assert!(may_use(&records, "reg.io/b", "sha256:1", &[]));
    assert!(!may_use(&records, "reg.io/b", "sha256:2", &[]), "a record that cannot be read allows nothing");
    assert!(may_use(&records, "reg.io/b", "sha256:3", &[]), "a record under another's name is none");
    records.intend("reg.io/b").unwrap().pulled("sha256:2", None);
    assert!(may_use(&records, "reg.io/b", "sha256:2", &[]), "it was written anew");
}

#[test]
fn without_the_feature_nothing_is_recorded_and_every_pod_may_use_an_image() {
    let node = Node::new();
    let (image, id) = ("reg.io/a:1", "sha256:1");
    let records = node.load(Verification::Off);
    records.intend(image).unwrap().pulled(id, Some(&secret("s", "p")));
    assert!(may_use(&records, image, id, &[]));
    assert!(!node.path("pulling", image).exists() && !node.path("pulled", id).exists());
    // What was recorded before stays, for when the feature is on again.
    node.records().intend(image).unwrap().pulled(id, Some(&secret("s", "p")));
    let records = node.load(Verification::Off);
    assert!(may_use(&records, image, id, &[]));
    records.prune(&BTreeSet::new(), Timestamp::MAX);
    assert!(node.path("pulled", id).exists() && !may_use(&node.records(), image, id, &[]));
}
