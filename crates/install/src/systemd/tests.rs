//! Tables from what is desired and what there is to steps, and the units of each part.

use std::path::PathBuf;

use super::*;

const UNIT: &str = "/etc/systemd/system/kubelet.service";
const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf";
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/kubelet.service";

fn desired(part: Part, flags: &[&str]) -> Desired {
    Desired::new(part, "/usr/local/bin/mullion", flags.iter().map(|flag| (*flag).to_owned()).collect(), false).unwrap()
}

/// What there is after an install, with systemd.
fn installed(desired: &Desired) -> Observed {
    Observed { present: artefacts(desired).into_iter().collect(), runs: true, is_active: false }
}

fn lines(plan: &Plan<Step>) -> Vec<String> {
    plan.steps.iter().map(ToString::to_string).collect()
}

#[test]
fn units_are_those_in_the_files() {
    for (part, flags, golden, text) in [
        (Part::Kubelet, &[][..], "kubelet.service", include_str!("../testdata/kubelet.service")),
        (Part::Node, &["--cluster-cidr=10.1.0.0/16"][..], "node.service", include_str!("../testdata/node.service")),
        (Part::KubeProxy, &[][..], "kube-proxy.service", include_str!("../testdata/kube-proxy.service")),
    ] {
        let all: String = artefacts(&desired(part, flags))
            .into_iter()
            .map(|(path, content)| match content {
                Content::File(text) => format!("== {path}\n{text}"),
                Content::Link(target) => format!("== {path} -> {target}\n"),
            })
            .collect();
        // MULLION_GOLDEN=1 writes the files anew.
        if std::env::var_os("MULLION_GOLDEN").is_some() {
            std::fs::write(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/testdata").join(golden), &all).unwrap();
            continue;
        }
        assert_eq!(all, text, "{golden}");
    }
}

/// Options of systemd.exec(5) that make a mount namespace.
#[test]
fn no_unit_makes_a_mount_namespace() {
    let forbidden = [
        "Private",
        "Protect",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "ExecPaths",
        "NoExecPaths",
        "Bind",
        "TemporaryFileSystem",
        "RootDirectory",
        "RootImage",
        "MountFlags",
        "MountAPIVFS",
        "MountImages",
        "ExtensionImages",
        "ExtensionDirectories",
        "DynamicUser",
        "Directory",
    ];
    for part in Part::ALL {
        for (path, content) in artefacts(&desired(part, &[])) {
            let Content::File(text) = content else { continue };
            let options = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name);
            let found: Vec<&str> =
                options.filter(|name| forbidden.iter().any(|option| name.contains(option)) && *name != "ConditionPathExists").collect();
            assert!(found.is_empty(), "{path}: {found:?}");
        }
    }
}

#[test]
fn words_mean_themselves() {
    for (text, expected) in [
        ("--v=4", "--v=4"),
        ("", "\"\""),
        ("a b", "\"a b\""),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        (r#"a"b\"#, r#""a\"b\\""#),
        ("it's", "\"it's\""),
        (";", "\";\""),
    ] {
        assert_eq!(word(text), expected);
    }
}

#[test]
fn a_bare_machine_gets_all_files_and_a_second_run_changes_nothing() {
    let kubelet = desired(Part::Kubelet, &[]);
    let bare = Observed { runs: true, ..Observed::default() };
    let plan_of = |observed: &Observed, starts| plan(&kubelet, observed, Wishes { starts, replaces: false }).unwrap();
    let first = plan_of(&bare, true);
    assert_eq!(
        lines(&first).iter().map(|line| line.split(" (").next().unwrap()).collect::<Vec<_>>(),
        [
            "write /etc/systemd/system/kubelet.service",
            "write /etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
            "link /etc/systemd/system/multi-user.target.wants/kubelet.service to /etc/systemd/system/kubelet.service",
            "link /usr/local/bin/kubelet to /usr/local/bin/mullion",
            "systemctl daemon-reload",
            "systemctl start kubelet.service",
        ]
    );
    assert!(first.contents().contains("\n/etc/systemd/system/kubelet.service:\n# Written by mullion install"));
    assert_eq!(plan_of(&installed(&kubelet), false), Plan::default());
    assert_eq!(plan_of(&installed(&kubelet), true).steps, [Step::Start("kubelet")]);
    let active = Observed { is_active: true, ..installed(&kubelet) };
    assert_eq!(plan_of(&active, true), Plan::default(), "what runs as it should goes on");
    // Another part under the same name, while it runs.
    let node = desired(Part::Node, &[]);
    let other = plan(&node, &active, Wishes { starts: true, replaces: false }).unwrap();
    assert_eq!(lines(&other).last().unwrap(), "systemctl restart kubelet.service");
    assert_eq!(other.steps.len(), 4);
    let quiet = plan(&node, &active, Wishes::default()).unwrap();
    assert!(quiet.remarks[0].contains("systemctl restart kubelet.service puts the change into effect"));
}

#[test]
fn without_systemd_files_alone_are_written() {
    let kubelet = desired(Part::Kubelet, &[]);
    let bare = plan(&kubelet, &Observed::default(), Wishes::default()).unwrap();
    assert_eq!(bare.steps.len(), 4);
    assert!(bare.remarks[0].starts_with("systemd does not run here"));
    assert_eq!(plan(&kubelet, &Observed::default(), Wishes { starts: true, replaces: false }), Err(PlanError::NoSystemd));
}

#[test]
fn files_of_others_are_kept_and_come_back() {
    let kubelet = desired(Part::Kubelet, &[]);
    let theirs = Content::File("[Service]\nExecStart=/usr/bin/kubelet\n".into());
    let foreign = |path: &str| Observed { runs: true, present: [(path.to_owned(), theirs.clone())].into(), is_active: true };
    for path in [UNIT, DROP_IN] {
        let error = plan(&kubelet, &foreign(path), Wishes::default()).unwrap_err();
        assert_eq!(error, PlanError::Foreign { path: path.into() });
        assert!(error.to_string().contains(&format!("give --replace, which keeps it as {path}.before-mullion")));
        let replaced = plan(&kubelet, &foreign(path), Wishes { starts: false, replaces: true }).unwrap();
        assert!(replaced.steps.contains(&Step::PutAside(path.into())));
        let mut there = installed(&kubelet);
        there.present.insert(format!("{path}{ASIDE}"), theirs.clone());
        let removed = removal(&kubelet, &there).unwrap().steps;
        let place = |wanted: &Step| removed.iter().position(|step| step == wanted).unwrap();
        assert!(place(&Step::Remove(path.into())) < place(&Step::GiveBack(path.into())));
    }
    // kubeadm's kubelet in the path is kept in any case, and so is the link that enables a package's unit.
    let mut there = foreign(KUBELET);
    there.present.insert(WANTED.into(), Content::Link("/usr/lib/systemd/system/kubelet.service".into()));
    let kept = plan(&kubelet, &there, Wishes { starts: false, replaces: true }).unwrap();
    assert_eq!(lines(&kept).len(), 3, "{kept:?}");
    assert!(kept.remarks[0].contains("/usr/local/bin/kubelet is another program"));
    assert_eq!(removal(&kubelet, &there), Err(PlanError::NotInstalled("kubelet")));
}

#[test]
fn a_removal_stops_its_own_service_and_what_starts_it_goes_first() {
    let kubelet = desired(Part::Kubelet, &[]);
    let there = Observed { is_active: true, ..installed(&kubelet) };
    let removed = [
        Step::Stop("kubelet"),
        Step::Remove(KUBELET.into()),
        Step::Remove(WANTED.into()),
        Step::Remove(DROP_IN.into()),
        Step::Remove(UNIT.into()),
        Step::RemoveDirectory("/etc/systemd/system/kubelet.service.d".into()),
        Step::Reload,
    ];
    assert_eq!(removal(&kubelet, &there).unwrap().steps, removed);
    assert_eq!(removal(&desired(Part::KubeProxy, &[]), &there), Err(PlanError::NotInstalled("kube-proxy")));
    // A unit of others runs: what is left of ours goes, and the service stays, enabled as it is.
    let mut mixed = there;
    mixed.present.insert(UNIT.into(), Content::File("[Service]\n".into()));
    let drop_in = [Step::Remove(DROP_IN.into()), Step::RemoveDirectory("/etc/systemd/system/kubelet.service.d".into()), Step::Reload];
    assert_eq!(removal(&kubelet, &mixed).unwrap().steps, drop_in);
    // An administrator's own service, with the link that systemctl enable makes.
    mixed.present.remove(DROP_IN);
    assert_eq!(removal(&kubelet, &mixed), Err(PlanError::NotInstalled("kubelet")));
}

#[test]
fn a_unit_that_comes_back_stays_enabled_and_runs_again() {
    let kubelet = desired(Part::Kubelet, &[]);
    let aside = format!("{UNIT}{ASIDE}");
    let theirs = Content::File("[Service]\n".into());
    let mut there = Observed { is_active: true, ..installed(&kubelet) };
    there.present.insert(aside.clone(), theirs.clone());
    let back = [
        Step::Stop("kubelet"),
        Step::Remove(KUBELET.into()),
        Step::Remove(DROP_IN.into()),
        Step::Remove(UNIT.into()),
        Step::GiveBack(UNIT.into()),
        Step::RemoveDirectory("/etc/systemd/system/kubelet.service.d".into()),
        Step::Reload,
        Step::Start("kubelet"),
    ];
    assert_eq!(removal(&kubelet, &there).unwrap().steps, back);
    // Cut off before the unit was back.
    let cut = Observed { runs: true, is_active: false, present: [(aside.clone(), theirs.clone())].into() };
    assert_eq!(removal(&kubelet, &cut).unwrap().steps[0], Step::GiveBack(UNIT.into()));
    // Another one has come since: it is not written over, and a second --replace does not lose the first.
    let mut newer = cut;
    newer.present.insert(UNIT.into(), Content::File("[Service]\nRestart=no\n".into()));
    assert_eq!(removal(&kubelet, &newer), Err(PlanError::NotInstalled("kubelet")));
    let error = plan(&kubelet, &newer, Wishes { starts: false, replaces: true }).unwrap_err();
    assert_eq!(error, PlanError::Aside { path: UNIT.into() });
}

#[test]
fn a_link_named_kubelet_is_ours_when_it_leads_to_the_services_program() {
    let kubelet = desired(Part::Kubelet, &[]);
    let link = |target: &str| Content::Link(target.to_owned());
    // Made by hand, for another copy of the program.
    let by_hand = Observed { present: [(KUBELET.to_owned(), link("/opt/mullion"))].into(), ..Observed::default() };
    let made = plan(&kubelet, &by_hand, Wishes::default()).unwrap();
    assert!(!lines(&made).iter().any(|line| line.contains(KUBELET)) && made.remarks[0].contains("stays"), "{made:?}");
    assert_eq!(removal(&kubelet, &by_hand), Err(PlanError::NotInstalled("kubelet")));
    // Of an install with another program, which is asked for now, or removed by a program of another name.
    let before = Desired::new(Part::Kubelet, "/opt/mullion-1.2", Vec::new(), false).unwrap();
    let moved = plan(&kubelet, &installed(&before), Wishes::default()).unwrap();
    assert!(lines(&moved).contains(&"link /usr/local/bin/kubelet to /usr/local/bin/mullion".to_owned()), "{moved:?}");
    assert!(removal(&kubelet, &installed(&before)).unwrap().steps.contains(&Step::Remove(KUBELET.into())));
}

#[cfg(unix)]
#[tokio::test]
async fn steps_are_carried_out_below_another_root() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let systemctl = crate::control::Systemctl::new("/nonexistent");
    let kubelet = desired(Part::Kubelet, &["--v=2"]);
    std::fs::create_dir_all(root.join("etc/systemd/system")).unwrap();
    std::fs::write(root.join(UNIT.trim_start_matches('/')), "theirs").unwrap();
    let look = async || observe(&kubelet, root, &systemctl).await.unwrap();
    let first = plan(&kubelet, &look().await, Wishes { starts: false, replaces: true }).unwrap();
    apply(&first, root, &systemctl, &|_| {}).await.unwrap();
    assert_eq!(plan(&kubelet, &look().await, Wishes::default()).unwrap(), Plan::default());
    let last = removal(&kubelet, &look().await).unwrap();
    apply(&last, root, &systemctl, &|_| {}).await.unwrap();
    assert_eq!(std::fs::read_to_string(root.join(UNIT.trim_start_matches('/'))).unwrap(), "theirs");
    assert!(!root.join(DROP_IN.trim_start_matches('/')).parent().unwrap().exists() && !root.join("usr/local/bin/kubelet").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_of_an_image_does_not_lead_to_this_machines_files() {
    let (dir, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = dir.path();
    std::fs::create_dir_all(root.join("etc/systemd")).unwrap();
    std::os::unix::fs::symlink(host.path(), root.join("etc/systemd/system")).unwrap();
    let systemctl = crate::control::Systemctl::new("/nonexistent");
    let kubelet = desired(Part::Kubelet, &[]);
    assert!(observe(&kubelet, root, &systemctl).await.is_err());
    let steps = plan(&kubelet, &Observed::default(), Wishes::default()).unwrap();
    let error = apply(&steps, root, &systemctl, &|_| {}).await.unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("leads out of"), "{error}");
    assert_eq!(std::fs::read_dir(host.path()).unwrap().count(), 0);
}

/// systemd's own judgement, where its program is installed (tools/setup installs it).
#[cfg(target_os = "linux")]
#[test]
fn systemd_finds_no_fault_in_the_units() {
    let program = "/usr/bin/systemd-analyze";
    assert!(std::path::Path::new(program).exists(), "there is no {program}: run tools/setup");
    for part in Part::ALL {
        let dir = tempfile::tempdir().unwrap();
        // A program that is there.
        let runs = Desired::new(part, "/usr/bin/env", vec!["--a=50% of $HOME".into()], false).unwrap();
        for (path, content) in artefacts(&runs) {
            let Content::File(text) = content else { continue };
            let path = dir.path().join(path.trim_start_matches(UNITS).trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let verify = |name: &str| {
            let unit = dir.path().join(name);
            std::process::Command::new(program).args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit).output().unwrap()
        };
        let name = format!("{}.service", part.service());
        let output = verify(&name);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains(&name), "{part:?}: {said}");
        // It does find faults.
        std::fs::write(dir.path().join("wrong.service"), "[Service]\nType=notify\nExecStart=relative\nWatchdogSec=often\n").unwrap();
        let said = String::from_utf8_lossy(&verify("wrong.service").stderr).into_owned();
        assert!(said.contains("wrong.service"), "{said}");
    }
}
