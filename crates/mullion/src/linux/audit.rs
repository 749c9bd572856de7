//! Options of the audit log and its webhook, for `mullion up` and `mullion control-plane`, under upstream's names.

mod webhook;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use apiserver::{AuditConfig, AuditLog, AuditMode, AuditPolicy, LogConfig};
use clap::{Args, ValueEnum};
use lab::dir::Dirs;
use serde::{Deserialize, Serialize};

use self::webhook::WebhookArgs;
use super::cli::NONE;
use crate::exit::{Code, Failure};

/// The copy of the policy in DIR.
const POLICY: &str = "audit-policy.yaml";

/// What is logged of requests, and where.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditArgs {
    /// Whether DIR has a policy.
    #[arg(skip)]
    pub audited: bool,
    /// Log requests as this file says, a Policy of audit.k8s.io/v1; none ends it [default: what DIR holds, else no log]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub audit_policy_file: Option<PathBuf>,
    /// Write the audit log to this file; - is the standard output [default: what DIR holds, else DIR/log/audit.log]
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Set the file aside when it would grow above this many MiB; 0 lets it grow [default: 100]
    #[arg(long, value_name = "MIB")]
    pub audit_log_maxsize: Option<u64>,
    /// Remove files that were set aside this many days ago; 0 keeps them [default: 366]
    #[arg(long, value_name = "DAYS")]
    pub audit_log_maxage: Option<u64>,
    /// Keep this many files that were set aside; 0 keeps all [default: 100]
    #[arg(long, value_name = "FILES")]
    pub audit_log_maxbackup: Option<usize>,
    /// Whether requests wait for their lines [default: blocking]
    #[arg(long, value_enum, value_name = "MODE")]
    pub audit_log_mode: Option<LogMode>,
    /// Whether large events lose their objects [default: false]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub audit_log_truncate_enabled: Option<bool>,
    /// Bytes of an event [default: 102400]
    #[arg(long, value_name = "BYTES")]
    pub audit_log_truncate_max_event_size: Option<usize>,
    #[command(flatten)]
    #[serde(flatten)]
    pub webhook: WebhookArgs,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogMode {
    /// Nothing; lines are dropped while the file is slower than requests
    Batch,
    /// Its line is written, or could not be
    Blocking,
    /// The same; a request whose first line could not be written is refused
    BlockingStrict,
}

impl LogMode {
    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Blocking => "blocking",
            Self::BlockingStrict => "blocking-strict",
        }
    }

    fn mode(self) -> AuditMode {
        match self {
            Self::Batch => AuditMode::Batch,
            Self::Blocking => AuditMode::Blocking,
            Self::BlockingStrict => AuditMode::BlockingStrict,
        }
    }
}

/// Reads and checks a policy; members that have no effect are reported.
fn read(path: &Path) -> Result<(String, AuditPolicy)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the audit policy {}", path.display()))?;
    let (policy, unknown) = AuditPolicy::read(&text).with_context(|| format!("{} cannot be used", path.display()))?;
    if !unknown.is_empty() {
        tracing::warn!(path = %path.display(), members = unknown.join(", "), "the audit policy has members that no policy has: they have no effect");
    }
    Ok((text, policy))
}

impl AuditArgs {
    /// What these options say over those that DIR remembers.
    #[must_use]
    pub fn over(&self, known: Self) -> Self {
        let audited = self.audit_policy_file.as_ref().map_or(known.audited, |path| path != Path::new(NONE));
        Self {
            audited,
            audit_policy_file: None,
            audit_log_path: self.audit_log_path.as_deref().map(absolute).or(known.audit_log_path),
            audit_log_maxsize: self.audit_log_maxsize.or(known.audit_log_maxsize),
            audit_log_maxage: self.audit_log_maxage.or(known.audit_log_maxage),
            audit_log_maxbackup: self.audit_log_maxbackup.or(known.audit_log_maxbackup),
            audit_log_mode: self.audit_log_mode.or(known.audit_log_mode),
            audit_log_truncate_enabled: self.audit_log_truncate_enabled.or(known.audit_log_truncate_enabled),
            audit_log_truncate_max_event_size: self.audit_log_truncate_max_event_size.or(known.audit_log_truncate_max_event_size),
            webhook: self.webhook.over(known.webhook),
        }
    }

    /// What `up` is given to keep, checked.
    pub fn given(&self) -> Result<Given, Failure> {
        let policy = match self.audit_policy_file.as_deref().filter(|path| *path != Path::new(NONE)) {
            Some(path) => read(path).map(|(text, _)| Some(text)),
            None => Ok(None),
        };
        let given = policy.and_then(|policy| Ok(Given { policy, kubeconfig: self.webhook.kubeconfig()? }));
        given.map_err(|error| Failure::new(Code::Usage, error))
    }

    /// Keeps it in DIR, or removes what is there.
    pub fn keep(&self, given: &Given, dirs: &Dirs) -> Result<()> {
        keep(&dirs.dir.join(POLICY), given.policy.as_deref(), self.audit_policy_file.is_some()).context("keeping the audit policy failed")?;
        self.webhook.keep(given.kubeconfig.as_deref(), dirs)
    }

    /// The options of the control plane of DIR: none without a policy there.
    pub fn options(&self, dirs: &Dirs) -> Vec<(&'static str, String)> {
        if !self.audited {
            return Vec::new();
        }
        let policy = dirs.dir.join(POLICY);
        let log = self.audit_log_path.clone().unwrap_or_else(|| dirs.dir.join("log").join("audit.log"));
        let mut options = vec![("audit-policy-file", policy.display().to_string()), ("audit-log-path", log.display().to_string())];
        let numbers = [
            ("audit-log-maxsize", self.audit_log_maxsize),
            ("audit-log-maxage", self.audit_log_maxage),
            ("audit-log-maxbackup", self.audit_log_maxbackup.and_then(|files| u64::try_from(files).ok())),
            ("audit-log-truncate-max-event-size", self.audit_log_truncate_max_event_size.and_then(|bytes| u64::try_from(bytes).ok())),
        ];
        options.extend(numbers.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))));
        options.extend(self.audit_log_mode.map(|mode| ("audit-log-mode", mode.name().to_owned())));
        options.extend(self.audit_log_truncate_enabled.map(|enabled| ("audit-log-truncate-enabled", enabled.to_string())));
        options.extend(self.webhook.options(dirs));
        options
    }

    /// What the API server is told: nothing without a policy and somebody who gets events, as upstream.
    pub async fn config(&self) -> Result<Option<AuditConfig>> {
        let Some(policy) = &self.audit_policy_file else { return Ok(None) };
        let usual = LogConfig::default();
        let log = self.audit_log_path.as_ref().map(|path| AuditLog {
            config: LogConfig {
                path: path.clone(),
                max_size: self.audit_log_maxsize.unwrap_or(usual.max_size),
                max_age: self.audit_log_maxage.unwrap_or(usual.max_age),
                max_backups: self.audit_log_maxbackup.unwrap_or(usual.max_backups),
                mode: self.audit_log_mode.map(LogMode::mode).unwrap_or_default(),
            },
            truncate: webhook::truncate(self.audit_log_truncate_enabled, self.audit_log_truncate_max_event_size),
        });
        let webhook = self.webhook.config().await?;
        if log.is_none() && webhook.is_none() {
            return Ok(None);
        }
        Ok(Some(AuditConfig { policy: read(policy)?.1, log, webhook }))
    }
}

/// What `up` is given: texts of files for DIR.
#[derive(Debug)]
pub struct Given {
    policy: Option<String>,
    kubeconfig: Option<String>,
}

/// Writes a file of DIR that nobody else reads; without a text removes it where that `is_asked`.
fn keep(path: &Path, text: Option<&str>, is_asked: bool) -> Result<()> {
    if let Some(text) = text {
        return Ok(pki::write_private(path, text)?);
    }
    if is_asked {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// The next `up` may be called from elsewhere.
fn absolute(path: &Path) -> PathBuf {
    if path == Path::new("-") { path.to_owned() } else { std::path::absolute(path).unwrap_or_else(|_| path.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::dir::Env;

    const TEXT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";

    #[test]
    fn a_cluster_keeps_its_policy_until_it_is_told_to_have_none() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::resolve(&dir.path().join("cluster"), &Env::of_process()).unwrap();
        std::fs::create_dir_all(&dirs.dir).unwrap();
        let file = dir.path().join("policy.yaml");
        std::fs::write(&file, TEXT).unwrap();
        let given = AuditArgs { audit_policy_file: Some(file.clone()), audit_log_maxsize: Some(7), ..AuditArgs::default() };
        let before = AuditArgs { audit_log_mode: Some(LogMode::BlockingStrict), ..AuditArgs::default() };
        assert!(before.options(&dirs).is_empty(), "nothing is logged without a policy");
        let kept = given.over(before);
        given.keep(&given.given().unwrap(), &dirs).unwrap();
        let (policy, log) = (dirs.dir.join("audit-policy.yaml").display().to_string(), dirs.dir.join("log/audit.log").display().to_string());
        let expected =
            [("audit-policy-file", policy), ("audit-log-path", log), ("audit-log-maxsize", "7".into()), ("audit-log-mode", "blocking-strict".into())];
        assert_eq!(kept.options(&dirs), expected);
        let later = AuditArgs::default();
        later.keep(&later.given().unwrap(), &dirs).unwrap();
        assert_eq!(later.over(kept.clone()).options(&dirs), expected, "a later start has what the first was given");
        assert_eq!(std::fs::read_to_string(dirs.dir.join(POLICY)).unwrap(), TEXT);
        let none = AuditArgs { audit_policy_file: Some("none".into()), ..AuditArgs::default() };
        none.keep(&none.given().unwrap(), &dirs).unwrap();
        assert!(none.over(kept).options(&dirs).is_empty() && !dirs.dir.join(POLICY).exists());
        std::fs::write(&file, "kind: Policy").unwrap();
        assert_eq!(given.given().unwrap_err().code, Code::Usage);
    }

    #[tokio::test]
    async fn the_log_needs_a_policy_and_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.yaml");
        std::fs::write(&file, TEXT).unwrap();
        let mut args = AuditArgs { audit_policy_file: Some(file), ..AuditArgs::default() };
        assert!(args.config().await.unwrap().is_none());
        args.audit_log_path = Some("/tmp/x".into());
        args.audit_log_maxbackup = Some(3);
        args.audit_log_truncate_enabled = Some(true);
        let config = args.config().await.unwrap().unwrap();
        let log = config.log.unwrap();
        assert_eq!((log.config.max_backups, log.config.max_age, log.config.mode), (3, 366, AuditMode::Blocking));
        assert_eq!(log.truncate.map(|bounds| bounds.max_event), Some(102_400));
    }
}
