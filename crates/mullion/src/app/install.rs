//! Wiring of `mullion install` and `uninstall`.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use install::{Desired, Part, Plan};
use node_config::ConfigError;

use crate::cli::install_cli::{InstallArgs, UninstallArgs};
use crate::exit::{Code, Failure};

/// `mullion install`.
pub fn install(args: &InstallArgs) -> Result<(), Failure> {
    let usage = |error: anyhow::Error| Failure::new(Code::Usage, error);
    let part = Part::from(args.part);
    if args.flags.iter().any(|flag| matches!(flag.as_str(), "-h" | "-help" | "--help")) {
        print!("{}", help(part));
        return Ok(());
    }
    check(part, &args.flags).map_err(|error| usage(error.into()))?;
    let desired = desired(part, args.program.as_deref(), args.flags.clone()).map_err(usage)?;
    let program = match &args.rootfs {
        // Where this program is says nothing of another machine.
        Some(_) if args.program.is_none() => return Err(usage(anyhow!("--rootfs needs --program: the program's path on that machine"))),
        Some(root) => root.join(desired.program().trim_start_matches('/')),
        None => Path::new(desired.program()).to_owned(),
    };
    if !program.is_file() {
        return Err(usage(anyhow!("cannot install a service of {}: there is no such program", program.display())));
    }
    #[cfg(unix)]
    if args.rootfs.is_none() && !args.dry_run {
        install::program::only_root_replaces(&program).map_err(|error| usage(error.into()))?;
    }
    system::install(&desired, args).map_err(Failure::from)
}

/// `mullion uninstall`.
pub fn uninstall(args: &UninstallArgs) -> Result<(), Failure> {
    let desired = desired(args.part.into(), None, Vec::new()).map_err(|error| Failure::new(Code::Usage, error))?;
    system::uninstall(&desired, args).map_err(Failure::from)
}

/// The flags of a part: a question for them must not become a service that prints them.
fn help(part: Part) -> String {
    use node_config::node::flags::{self, Program};
    match part {
        Part::Node => flags::help(Program::Node),
        Part::Kubelet => flags::help(Program::Kubelet),
        Part::KubeProxy => node_config::kube_proxy::flags::help(),
    }
}

/// A flag that the part does not know would be found when the service starts, which may be long after.
fn check(part: Part, flags: &[String]) -> Result<(), ConfigError> {
    match part {
        Part::Node | Part::Kubelet => node_config::node::flags::Options::check(flags.iter().cloned()),
        Part::KubeProxy => node_config::kube_proxy::flags::Options::check(flags.iter().cloned()),
    }
}

/// A service of a part of this program.
pub fn desired(part: Part, program: Option<&Path>, flags: Vec<String>) -> Result<Desired> {
    let own = || std::env::current_exe().context("this program does not find itself: give --program");
    let program = program.map_or_else(own, |path| Ok(path.to_owned()))?;
    let program = program.to_str().with_context(|| format!("the path {} is not in UTF-8: move the program", program.display()))?;
    // As other programs write it, without the prefix of Windows' own form.
    let program = program.strip_prefix(r"\\?\").unwrap_or(program);
    Ok(Desired::new(part, program, flags, cfg!(windows))?)
}

fn remark<S>(plan: &Plan<S>) {
    for remark in &plan.remarks {
        eprintln!("mullion: {remark}");
    }
}

/// Units of systemd.
#[cfg(not(windows))]
mod system {
    use std::path::PathBuf;

    use anyhow::Result;
    use install::control::Systemctl;
    use install::systemd::{self, Wishes};
    use install::{Desired, Plan};

    use super::remark;
    use crate::cli::install_cli::{InstallArgs, UninstallArgs};

    fn root(rootfs: Option<&PathBuf>) -> PathBuf {
        rootfs.cloned().unwrap_or_else(|| PathBuf::from("/"))
    }

    pub fn install(desired: &Desired, args: &InstallArgs) -> Result<()> {
        let (root, systemctl) = (root(args.rootfs.as_ref()), Systemctl::default());
        crate::agent_runtime()?.block_on(async {
            let observed = systemd::observe(desired, &root, &systemctl).await?;
            let wishes = Wishes { starts: args.now, replaces: args.replace };
            let plan = systemd::plan(desired, &observed, wishes)?;
            if plan.steps.is_empty() {
                println!("The service {} is installed as it should be.", desired.part().service());
            }
            carry_out(&plan, args.dry_run, &root, &systemctl).await
        })
    }

    pub fn uninstall(desired: &Desired, args: &UninstallArgs) -> Result<()> {
        let (root, systemctl) = (root(args.rootfs.as_ref()), Systemctl::default());
        crate::agent_runtime()?.block_on(async {
            let observed = systemd::observe(desired, &root, &systemctl).await?;
            carry_out(&systemd::removal(desired, &observed)?, args.dry_run, &root, &systemctl).await
        })
    }

    async fn carry_out(plan: &Plan<systemd::Step>, is_dry_run: bool, root: &std::path::Path, systemctl: &Systemctl) -> Result<()> {
        if is_dry_run {
            print!("{}{}", plan.text(), plan.contents());
        } else {
            systemd::apply(plan, root, systemctl, &|step| println!("{step}")).await?;
        }
        remark(plan);
        Ok(())
    }
}

/// Services of the service control manager.
#[cfg(windows)]
mod system {
    use anyhow::{Result, bail};
    use install::{Desired, Plan, scm, windows};

    use super::remark;
    use crate::cli::install_cli::{InstallArgs, UninstallArgs};

    pub fn install(desired: &Desired, args: &InstallArgs) -> Result<()> {
        if args.rootfs.is_some() || args.replace {
            bail!("--rootfs and --replace are of Linux: leave them out");
        }
        let plan = scm::plan(desired, &windows::observe(desired)?, args.now)?;
        if plan.steps.is_empty() {
            println!("The service {} is installed as it should be.", desired.part().service());
        }
        carry_out(&plan, args.dry_run)
    }

    pub fn uninstall(desired: &Desired, args: &UninstallArgs) -> Result<()> {
        if args.rootfs.is_some() {
            bail!("--rootfs is of Linux: leave it out");
        }
        carry_out(&scm::removal(desired, &windows::observe(desired)?)?, args.dry_run)
    }

    fn carry_out(plan: &Plan<scm::Step>, is_dry_run: bool) -> Result<()> {
        if is_dry_run {
            print!("{}", plan.text());
        } else {
            windows::apply(plan, &|step| println!("{step}"))?;
        }
        remark(plan);
        Ok(())
    }
}
