//! Tests of the command line.

use clap::Parser as _;

use super::*;

#[test]
fn help_lists_every_command_in_a_group() {
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, members)| *members).copied().collect();
    let command = command();
    let mut visible: Vec<&str> = command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
    grouped.sort_unstable();
    visible.sort_unstable();
    assert_eq!(grouped, visible);
    let help = command.clone().render_help().to_string();
    assert!(help.contains("\nClusters:\n  up              Start a cluster") && help.contains("\nNodes:\n  node "), "{help}");
    assert!(help.contains("\nExamples:\n") && help.contains("docs/README.md") && help.contains("\nOptions:\n  -h, --help"), "{help}");
    let examples: Vec<&str> = AFTER_HELP.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        let words = example.split("  ").next().unwrap().split(' ');
        assert!(Cli::try_parse_from(words).is_ok(), "{example}");
    }
}

#[test]
fn flags_of_a_node_are_upstreams_and_explain_is_a_command() {
    let node = |args: &[&str]| match Cli::try_parse_from(["mullion", "node"].iter().chain(args)).unwrap().command {
        Command::Node(args) => args,
        other => panic!("another command: {other:?}"),
    };
    assert_eq!(node(&["--config", "node.yaml", "--v=4"]).flags, ["--config", "node.yaml", "--v=4"]);
    assert_eq!(node(&["--help"]).flags, ["--help"]);
    assert!(node(&[]).command.is_none() && node(&[]).flags.is_empty());
    let Some(NodeCommand::Explain(explain)) = node(&["explain", "web", "-n", "shop"]).command else { panic!("no command") };
    assert_eq!((explain.pod.as_str(), explain.namespace.as_deref()), ("web", Some("shop")));
    let Command::Kubelet(kubelet) = Cli::try_parse_from(["mullion", "kubelet", "--kubeconfig", "k"]).unwrap().command else {
        panic!("another command")
    };
    assert_eq!(kubelet.flags, ["--kubeconfig", "k"]);
}
