//! Tables: from what is desired and what there is to steps, on any system.

use super::*;

fn desired(part: Part, flags: &[&str]) -> Desired {
    Desired::new(part, r"C:\k\mullion.exe", flags.iter().map(|flag| (*flag).to_owned()).collect(), true).unwrap()
}

/// What there is after an install.
fn installed(desired: &Desired, has_containerd: bool) -> Observed {
    let wanted = registration(desired, has_containerd);
    let service = Registered {
        command_line: wanted.command_line(),
        display_name: wanted.display_name.clone(),
        description: wanted.description.clone(),
        dependencies: wanted.dependencies.clone(),
        is_automatic: true,
        recovery: Some(Recovery::RESTART),
        is_active: false,
    };
    Observed { service: Some(service), source: Some(MESSAGES.into()), has_logs: true, has_containerd, is_in_order: true }
}

fn lines(plan: &Plan<Step>) -> Vec<String> {
    plan.steps.iter().map(ToString::to_string).collect()
}

#[test]
fn a_bare_machine_gets_the_service_with_all_that_belongs_to_it() {
    let observed = Observed { has_containerd: true, ..Observed::default() };
    let plan = plan(&desired(Part::Kubelet, &["--node-ip=10.0.0.5"]), &observed, true).unwrap();
    assert_eq!(
        lines(&plan),
        [
            r"make the directory C:\var\log\mullion",
            concat!(
                r"make the service kubelet, started with Windows: C:\k\mullion.exe kubelet --windows-service ",
                r"--log-file=C:\var\log\mullion\kubelet.log --windows-priorityclass=ABOVE_NORMAL_PRIORITY_CLASS ",
                r"--bootstrap-kubeconfig=C:\etc\kubernetes\bootstrap-kubelet.conf --kubeconfig=C:\etc\kubernetes\kubelet.conf ",
                r"--config=C:\var\lib\kubelet\config.yaml --kubeadm-flags=C:\var\lib\kubelet\kubeadm-flags.env --node-ip=10.0.0.5",
                "; it depends on containerd"
            ),
            "have the service kubelet started again when it fails: after 5s, 15s, and then 60s",
            "add the source kubelet to the event log Application",
            "start the service kubelet",
        ]
    );
    assert!(plan.remarks.is_empty(), "{:?}", plan.remarks);
}

#[test]
fn a_second_run_changes_nothing_and_a_difference_alone_is_changed() {
    let kubelet = desired(Part::Kubelet, &[]);
    for has_containerd in [true, false] {
        let there = installed(&kubelet, has_containerd);
        assert_eq!(plan(&kubelet, &there, false).unwrap().steps, []);
        let service = || there.service.clone().unwrap();
        let with = |service: Registered| Observed { service: Some(service), ..there.clone() };
        let cases = [
            (Registered { command_line: "other".into(), ..service() }, "the command line"),
            (Registered { display_name: "other".into(), ..service() }, "the name"),
            (Registered { is_automatic: false, ..service() }, "the start with Windows"),
        ];
        for (present, what) in cases {
            let steps = plan(&kubelet, &with(present), false).unwrap().steps;
            assert!(matches!(&steps[..], [Step::Change(_, differences)] if *differences == [what]), "{what}: {steps:?}");
        }
        // What Wine does not tell is taken to be right.
        assert_eq!(plan(&kubelet, &with(Registered { recovery: None, ..service() }), false).unwrap().steps, []);
        let never = Recovery { reset: Duration::MAX, ..Recovery::RESTART };
        let steps = plan(&kubelet, &with(Registered { recovery: Some(never), ..service() }), false).unwrap().steps;
        assert_eq!(steps, [Step::SetRecovery("kubelet", Recovery::RESTART)]);
    }
}

#[test]
fn dependencies_of_others_stay_and_a_running_service_starts_again() {
    let kubelet = desired(Part::Kubelet, &[]);
    let there = installed(&kubelet, true);
    let service = || there.service.clone().unwrap();
    let added = Registered { dependencies: vec!["Containerd".into(), "rpcss".into()], ..service() };
    assert_eq!(plan(&kubelet, &Observed { service: Some(added), ..there.clone() }, false).unwrap().steps, []);
    let other = Registered { dependencies: vec!["rpcss".into()], is_active: true, ..service() };
    let steps = plan(&kubelet, &Observed { service: Some(other.clone()), ..there.clone() }, true).unwrap().steps;
    let [Step::Change(change, what), Step::Stop("kubelet"), Step::Start("kubelet")] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((change.dependencies.join(" ").as_str(), what[0]), ("containerd rpcss", "the dependencies"));
    let quiet = plan(&kubelet, &Observed { service: Some(other), ..there }, false).unwrap();
    assert!(quiet.remarks[0].contains("Restart-Service kubelet"), "{:?}", quiet.remarks);
}

#[test]
fn services_of_others_are_neither_changed_nor_removed() {
    let kubelet = desired(Part::Node, &[]);
    let mut there = installed(&kubelet, true);
    if let Some(service) = &mut there.service {
        service.description = "kubelet".into();
        service.command_line = r"C:\k\nssm.exe".into();
    }
    let error = plan(&kubelet, &there, false).unwrap_err().to_string();
    assert!(error.contains(r#"it runs "C:\\k\\nssm.exe": remove it with sc delete kubelet"#), "{error}");
    assert_eq!(removal(&kubelet, &there), Err(PlanError::NotInstalled("kubelet")));
    assert_eq!(removal(&kubelet, &Observed::default()), Err(PlanError::NotInstalled("kubelet")));
}

#[test]
fn a_removal_leaves_nothing_also_after_one_that_was_cut_off() {
    let kubelet = desired(Part::Kubelet, &[]);
    let mut there = installed(&kubelet, true);
    there.service.as_mut().unwrap().is_active = true;
    let all =
        [Step::Stop("kubelet"), Step::Unregister("kubelet"), Step::RemoveSource("kubelet"), Step::LeaveOrder("kubelet"), Step::RemoveLogs("kubelet")];
    assert_eq!(removal(&kubelet, &there).unwrap().steps, all);
    there.service = None;
    assert_eq!(removal(&kubelet, &there).unwrap().steps, all[2..]);
}

#[test]
fn an_installation_that_was_cut_off_goes_on_or_is_removed() {
    let kubelet = desired(Part::Kubelet, &["--v=2"]);
    let mut there = installed(&kubelet, true);
    let service = there.service.as_mut().unwrap();
    (service.description, service.recovery) = (String::new(), None);
    let steps = plan(&desired(Part::Kubelet, &[]), &there, false).unwrap().steps;
    let [Step::Change(_, differences), Step::SetRecovery("kubelet", _)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(*differences, ["the command line", "the description"]);
    assert!(removal(&kubelet, &there).is_ok());
    // Another program's service without a description is another's.
    there.service.as_mut().unwrap().command_line = r"C:\k\mullion.exe kubelet --windows-service".into();
    assert!(plan(&kubelet, &there, false).is_err() && removal(&kubelet, &there).is_err());
}

#[test]
fn the_proxy_depends_on_nothing_and_has_kubeadms_configuration() {
    let with = |flags: &[&str]| registration(&desired(Part::KubeProxy, flags), true);
    assert_eq!(with(&[]).dependencies, [""; 0]);
    assert!(with(&[]).command_line().ends_with(r"--config=C:\var\lib\kube-proxy\config.conf"));
    assert!(with(&["--v=4"]).command_line().ends_with(r"--config=C:\var\lib\kube-proxy\config.conf --v=4"));
    assert!(with(&["--proxy-mode=kernelspace"]).command_line().ends_with(r"--log-file=C:\var\log\mullion\kube-proxy.log --proxy-mode=kernelspace"));
}

#[test]
fn words_are_quoted_as_windows_takes_them_apart() {
    for (word, quoted_word) in [
        ("--v=4", "--v=4"),
        ("", r#""""#),
        (r"C:\a b\m.exe", r#""C:\a b\m.exe""#),
        (r"C:\a b\", r#""C:\a b\\""#),
        (r#"a"b"#, r#""a\"b""#),
        (r#"a\"b"#, r#""a\\\"b""#),
        (r"C:\a\b\", r"C:\a\b\"),
    ] {
        assert_eq!(quoted(word), quoted_word);
    }
}
