use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use install::control::ServiceState;

/// A service that remembers what it was told, and may refuse to start.
#[derive(Default)]
struct Fake {
    calls: Mutex<Vec<&'static str>>,
    is_active: bool,
    refuses: bool,
    is_missing: bool,
}

impl Service for Fake {
    async fn state(&self) -> Result<Option<ServiceState>, ServiceError> {
        Ok(Some(ServiceState { exists: !self.is_missing, is_enabled: true, is_active: self.is_active }))
    }

    async fn start(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("start");
        if !self.refuses || self.calls.lock().unwrap().iter().filter(|call| **call == "start").count() > 1 {
            return Ok(());
        }
        Err(ServiceError::Failed { arguments: "start kubelet.service".into(), complaint: "no".into() })
    }

    async fn stop(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("stop");
        if self.is_missing && self.calls.lock().unwrap().len() > 1 {
            return Err(ServiceError::Failed { arguments: "stop kubelet.service".into(), complaint: "Unit kubelet.service not loaded.".into() });
        }
        Ok(())
    }

    fn can_install(&self) -> bool {
        self.is_missing
    }

    async fn install(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("install");
        Ok(())
    }

    async fn uninstall(&self) -> Result<(), ServiceError> {
        self.calls.lock().unwrap().push("uninstall");
        Ok(())
    }
}

struct Case {
    _dir: tempfile::TempDir,
    places: Places,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { places: Places::new(dir.path(), false), _dir: dir }
    }

    fn plan(&self) -> Plan {
        let file = |path: PathBuf, content: &str, is_secret| Step::Write(File { path, content: content.into(), is_secret });
        let steps = vec![
            Step::StopService,
            file(self.places.bootstrap_conf(), "secret", true),
            file(self.places.config(), "new", false),
            Step::Remove(self.places.bootstrap_conf()),
            Step::StartService,
        ];
        Plan { steps, warnings: Vec::new() }
    }

    fn journal(&self) -> Journal {
        Journal::read(&self.places).unwrap().unwrap_or_else(|| Journal::new("https://a", Vec::new(), "n"))
    }

    async fn apply(&self, service: &Fake, interrupted: impl Future<Output = ()>) -> Result<(), ApplyError> {
        let site = Site { places: &self.places, service, progress: &|_| {} };
        apply(&self.plan(), self.journal(), &site, interrupted).await
    }

    /// All files below the root.
    fn files(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        walk(self._dir.path(), &mut found);
        found.sort();
        found
    }
}

#[tokio::test]
async fn a_finished_join_leaves_its_files_and_the_list_of_them() {
    let case = Case::new();
    let service = Fake::default();
    case.apply(&service, std::future::pending()).await.unwrap();
    assert_eq!(case.files(), [case.places.config(), case.places.journal()]);
    assert_eq!(*service.calls.lock().unwrap(), ["stop", "start"]);
    let journal = case.journal();
    assert_eq!(journal.state, State::Joined);
    assert!(journal.files.iter().any(|entry| entry.path == case.places.config()));
}

#[tokio::test]
async fn a_failed_step_leaves_the_machine_as_it_was() {
    let case = Case::new();
    let service = Fake { refuses: true, ..Fake::default() };
    let error = case.apply(&service, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("the machine is as it was before"), "{error}");
    assert!(std::fs::read_dir(case._dir.path()).unwrap().next().is_none(), "directories too: {:?}", case.files());

    // What was there before comes back, with its mode, and the service that ran runs again.
    let case = Case::new();
    std::fs::create_dir_all(case.places.cert_dir()).unwrap();
    std::fs::write(case.places.config(), "old").unwrap();
    let certificate = case.places.cert_dir().join("kubelet-client-2020.pem");
    std::fs::write(&certificate, "theirs").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(case.places.config(), std::fs::Permissions::from_mode(0o640)).unwrap();
    }
    let service = Fake { refuses: true, is_active: true, ..Fake::default() };
    case.apply(&service, std::future::pending()).await.unwrap_err();
    assert_eq!(case.files(), [case.places.config(), certificate]);
    assert_eq!(std::fs::read_to_string(case.places.config()).unwrap(), "old");
    assert_eq!(*service.calls.lock().unwrap(), ["stop", "start", "stop", "start"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(case.places.config()).unwrap().permissions().mode() & 0o777, 0o640);
    }
}

/// A node of kubeadm's has a certificate, to which a link leads; the join would leave it without.
#[cfg(unix)]
#[tokio::test]
async fn the_certificate_of_before_is_the_present_one_again() {
    let case = Case::new();
    std::fs::create_dir_all(case.places.cert_dir()).unwrap();
    let current = case.places.cert_dir().join(CURRENT);
    std::fs::write(case.places.cert_dir().join("kubelet-client-2020.pem"), "theirs").unwrap();
    std::os::unix::fs::symlink("kubelet-client-2020.pem", &current).unwrap();
    let site = Site { places: &case.places, service: &Fake::default(), progress: &|_| {} };
    let mut plan = case.plan();
    plan.steps.insert(3, Step::RequestCertificate { node_name: "n".into(), within: Duration::ZERO });
    let journal = begin(&plan, case.journal(), &site).await.unwrap();
    std::fs::write(case.places.cert_dir().join("kubelet-client-2026.pem"), "ours").unwrap();
    relink(&current, Path::new("kubelet-client-2026.pem")).unwrap();
    assert_eq!(undo(&journal, &site).await, Vec::<String>::new());
    assert_eq!(std::fs::read_to_string(&current).unwrap(), "theirs");
    assert!(!case.places.cert_dir().join("kubelet-client-2026.pem").exists());
    // Once joined, the link is the join's.
    assert!(!journal.finished().foreign_certificates.contains(CURRENT));
}

/// Its absence was ignored in preflight.
#[tokio::test]
async fn a_service_that_there_is_not_is_no_problem_of_the_way_back() {
    let case = Case::new();
    let service = Fake { refuses: true, is_missing: true, ..Fake::default() };
    let error = case.apply(&service, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("the machine is as it was before"), "{error}");
    assert_eq!(*service.calls.lock().unwrap(), ["stop", "start"], "those of the plan alone");
}

#[tokio::test]
async fn an_interrupted_join_is_taken_back() {
    let case = Case::new();
    let service = Fake::default();
    let error = case.apply(&service, std::future::ready(())).await.unwrap_err();
    assert!(matches!(error, ApplyError::Step { source: StepError::Interrupted, .. }), "{error}");
    assert!(case.files().is_empty(), "{:?}", case.files());
    assert_eq!(*service.calls.lock().unwrap(), ["stop"], "of the way back: no step was begun");
    // In the middle of a step, as one that waits.
    let (told, mut reached) = tokio::sync::mpsc::unbounded_channel();
    let progress = |step: &Step| {
        if *step == Step::StartService {
            told.send(()).unwrap()
        }
    };
    let site = Site { places: &case.places, service: &Fake::default(), progress: &progress };
    let error = apply(&case.plan(), case.journal(), &site, async { assert!(reached.recv().await.is_some()) }).await.unwrap_err();
    assert!(matches!(error, ApplyError::Step { source: StepError::Interrupted, .. }), "{error}");
    assert!(case.files().is_empty(), "{:?}", case.files());
}

/// A run that is killed has no chance to take anything back: the next one knows what was there before the first.
#[tokio::test]
async fn a_killed_join_can_be_finished_or_taken_back() {
    for finishes in [true, false] {
        let case = Case::new();
        std::fs::create_dir_all(case.places.kubelet_dir()).unwrap();
        std::fs::write(case.places.config(), "old").unwrap();
        let first = Fake::default();
        let site = Site { places: &case.places, service: &first, progress: &|_| {} };
        let journal = begin(&case.plan(), case.journal(), &site).await.unwrap();
        assert_eq!(journal.state, State::Joining);
        for step in &case.plan().steps[..3] {
            carry_out(step, &site).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(case.places.config()).unwrap(), "new");

        let service = Fake { refuses: !finishes, ..Fake::default() };
        let done = case.apply(&service, std::future::pending()).await;
        assert_eq!(done.is_ok(), finishes);
        let expected = if finishes { "new" } else { "old" };
        assert_eq!(std::fs::read_to_string(case.places.config()).unwrap(), expected);
        assert!(!case.places.bootstrap_conf().exists());
    }
}

#[cfg(unix)]
#[tokio::test]
async fn secrets_are_for_root_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let case = Case::new();
    std::fs::create_dir_all(case.places.config().parent().unwrap()).unwrap();
    let path = case.places.config();
    write(&File { path: path.clone(), content: "x".into(), is_secret: true }).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn health_is_an_answer_of_200() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/healthz", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in ["HTTP/1.1 500 Internal Server Error\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nok"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 256];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    wait_healthy(&url, Duration::from_secs(10)).await.unwrap();
    let error = wait_healthy(&url, Duration::from_millis(300)).await.unwrap_err();
    assert!(error.to_string().contains("did not answer within"), "{error}");
}

/// What the join made goes with it, whichever way.
#[tokio::test]
async fn a_service_of_the_join_goes_with_it() {
    let case = Case::new();
    let plan = Plan { steps: vec![Step::InstallService, Step::StartService], warnings: Vec::new() };
    let service = Fake { refuses: true, is_missing: true, ..Fake::default() };
    let site = Site { places: &case.places, service: &service, progress: &|_| {} };
    apply(&plan, case.journal(), &site, std::future::pending()).await.unwrap_err();
    assert_eq!(*service.calls.lock().unwrap(), ["install", "start", "uninstall"]);
    let service = Fake { is_missing: true, ..Fake::default() };
    let site = Site { places: &case.places, service: &service, progress: &|_| {} };
    apply(&plan, case.journal(), &site, std::future::pending()).await.unwrap();
    assert!(case.journal().installed_service && case.journal().state == State::Joined);
}

/// A kubeconfig that is good already is not written: it stays, and so does its certificate.
#[tokio::test]
async fn a_kubeconfig_that_was_there_is_not_of_the_join() {
    let mut case = Case::new();
    std::fs::create_dir_all(case.places.cert_dir()).unwrap();
    std::fs::create_dir_all(case.places.kubelet_conf().parent().unwrap()).unwrap();
    for path in [case.places.kubelet_conf(), case.places.cert_dir().join(CURRENT)] {
        std::fs::write(path, "theirs").unwrap();
    }
    let of_join = |case: &Case| case.journal().files.iter().any(|entry| entry.path == case.places.kubelet_conf());
    case.apply(&Fake::default(), std::future::pending()).await.unwrap();
    assert!(!of_join(&case) && case.journal().foreign_certificates.contains(CURRENT));
    case = Case::new();
    let request = Step::RequestCertificate { node_name: "n".into(), within: Duration::ZERO };
    let plan = Plan { steps: vec![request], ..case.plan() };
    let site = Site { places: &case.places, service: &Fake::default(), progress: &|_| {} };
    let journal = begin(&plan, case.journal(), &site).await.unwrap();
    assert!(journal.files.iter().any(|entry| entry.path == case.places.kubelet_conf()), "one that is asked for is");
}
