//! Wiring of `mullion config`: configurations of a node, printed and checked without starting it.

use anyhow::{Result, bail};
use node_config::node::flags::{Options, Program};
use node_config::{KubeProxyConfiguration, KubeletConfiguration, NodeConfig, NodeConfiguration, document};
use serde_json::Value;

use crate::cli::config_cli::{ConfigArgs, ConfigCommand};
use crate::exit::{Code, Failure, printable};

/// Runs the subcommand.
pub fn main(args: &ConfigArgs) -> Result<(), Failure> {
    let usage = |error: anyhow::Error| Failure::new(Code::Usage, error);
    let (text, warnings) = match &args.command {
        ConfigCommand::Default => (defaults(), Vec::new()),
        ConfigCommand::Check { file, config_dir } => {
            let dir = config_dir.iter().map(|dir| format!("--config-dir={}", dir.display()));
            let flags = std::iter::once(format!("--config={}", file.display())).chain(dir);
            let options = Options::parse(Program::Node, flags).map_err(|error| usage(error.into()))?;
            (format!("{} can be used.\n", file.display()), options.warnings)
        }
        ConfigCommand::Migrate { kube_proxy, flags } => migrate(*kube_proxy, flags).map_err(usage)?,
    };
    print!("{text}");
    for warning in warnings {
        eprintln!("mullion: {}", printable(&warning));
    }
    Ok(())
}

/// All members of the three kinds.
fn defaults() -> String {
    let kinds = [
        document::to_yaml(&NodeConfiguration::default()),
        document::to_yaml(&KubeletConfiguration::default()),
        document::to_yaml(&KubeProxyConfiguration::default()),
    ];
    kinds.join("---\n")
}

/// The documents that say what flags say, and what of them has no effect.
fn migrate(is_proxy: bool, flags: &[String]) -> Result<(String, Vec<String>)> {
    let flags = flags.iter().cloned();
    let (config, warnings) = if is_proxy {
        let options = node_config::kube_proxy::flags::Options::parse(flags)?;
        (NodeConfig { kube_proxy: options.config, ..NodeConfig::default() }, options.warnings)
    } else {
        let options = Options::parse(Program::Node, flags)?;
        (options.config, options.warnings)
    };
    let text = documents(&config);
    // Of a few members a file cannot say what a flag can: there the empty value is the default.
    match NodeConfig::read(&text) {
        Ok(read) if read.config == config => Ok((text, warnings)),
        Ok(read) => bail!("a file cannot say all of it: keep the flags of {}", difference(&config, &read.config)),
        Err(error) => Err(error.into()),
    }
}

/// The three kinds, each where it has a member that is not at its default.
fn documents(config: &NodeConfig) -> String {
    let kinds = [
        (document::to_document(&config.node), document::to_document(&NodeConfiguration::default())),
        (document::to_document(&config.kubelet), document::to_document(&KubeletConfiguration::default())),
        (document::to_document(&config.kube_proxy), document::to_document(&KubeProxyConfiguration::default())),
    ];
    let changed = kinds.into_iter().filter_map(|(document, default)| {
        let Value::Object(members) = document else { return None };
        let is_kind = |name: &str| matches!(name, "apiVersion" | "kind");
        let members: serde_json::Map<_, _> = members.into_iter().filter(|(name, value)| is_kind(name) || default[name] != *value).collect();
        (members.len() > 2).then(|| serde_yaml_ng::to_string(&members).unwrap_or_default())
    });
    changed.collect::<Vec<_>>().join("---\n")
}

/// Names of members in which two configurations differ.
fn difference(wanted: &NodeConfig, read: &NodeConfig) -> String {
    let all = |config: &NodeConfig| {
        [document::to_document(&config.node), document::to_document(&config.kubelet), document::to_document(&config.kube_proxy)]
    };
    let names = all(wanted).into_iter().zip(all(read)).flat_map(|(wanted, read)| {
        let names = wanted.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
        names.into_iter().filter(move |name| wanted[name] != read[name])
    });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn defaults_are_read_as_defaults() {
        assert_eq!(NodeConfig::read(&defaults()).unwrap().config, NodeConfig::default());
        assert!(NodeConfig::read(&defaults()).unwrap().warnings.is_empty());
    }

    #[test]
    fn flags_become_the_members_that_they_set_and_no_others() {
        let line = "--hostname-override=win01 --node-ip=10.0.0.5 --max-pods=30 --cluster-dns=10.96.0.10 --register-with-taints=os=windows:NoSchedule \
                    --cgroups-per-qos=false --pod-infra-container-image=pause";
        let (text, warnings) = migrate(false, &words(line)).unwrap();
        let node = "apiVersion: mullion.io/v1alpha1\nkind: NodeConfiguration\nnodeName: win01\nnodeIP: 10.0.0.5\n";
        assert!(text.starts_with(node), "{text}");
        assert!(text.contains("kind: KubeletConfiguration\n") && text.contains("\nmaxPods: 30\n") && text.contains("cgroupsPerQOS: false"), "{text}");
        assert!(!text.contains("port:") && !text.contains("KubeProxyConfiguration"), "{text}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let (text, _) = migrate(true, &words("--proxy-mode=kernelspace --cluster-cidr=10.244.0.0/16 --enable-dsr=false")).unwrap();
        assert!(text.contains("kind: KubeProxyConfiguration") && text.contains("mode: kernelspace"), "{text}");
        assert!(migrate(false, &words("--fly")).is_err());
        assert_eq!(migrate(false, &[]).unwrap().0, "");
    }
}
