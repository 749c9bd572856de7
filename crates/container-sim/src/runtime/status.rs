//! CRI's status and list messages.

use std::collections::HashMap;

use cri::annotations::NETWORK_PROBLEM;
use k8s_cri::v1;
use serde_json::json;

use super::filter::{by_prefix, selected};
use super::limits::UNENFORCED;
use super::record::ContainerRecord;
use super::{Runtime, Sandbox};
use crate::shim::Identity;
use images::stand_in::LABEL;

impl Runtime {
    pub(super) fn sandbox_status(&self, sandbox: &Sandbox) -> v1::PodSandboxStatus {
        let record = &sandbox.record;
        let mut ips = record.ips.iter().map(std::net::IpAddr::to_string);
        let network = v1::PodSandboxNetworkStatus { ip: ips.next().unwrap_or_default(), additional_ips: ips.map(|ip| v1::PodIp { ip }).collect() };
        v1::PodSandboxStatus {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            state: sandbox_state(sandbox) as i32,
            created_at: record.created_at,
            network: Some(network),
            linux: self.system.sandbox_status(&record.config),
            labels: record.config.labels.clone(),
            annotations: sandbox_annotations(sandbox),
            runtime_handler: record.runtime_handler.clone(),
        }
    }

    pub(super) fn sandbox_info(&self, sandbox: &Sandbox) -> HashMap<String, String> {
        let info = json!({
            "pid": sandbox.record.shim_pid,
            "processStatus": if sandbox.is_ready() { "running" } else { "deleted" },
            "networkNamespace": self.network.path(&sandbox.record),
            "directory": self.records.sandbox_dir(&sandbox.record.id),
        });
        HashMap::from([("info".to_owned(), info.to_string())])
    }

    pub(super) fn container_status(&self, record: &ContainerRecord) -> v1::ContainerStatus {
        let exit = record.exit.as_ref();
        let state = record.state();
        let reason = match exit {
            None => "",
            Some(exit) if exit.oom => "OOMKilled",
            Some(exit) if exit.code == 255 && exit.message.is_some() => "Unknown",
            Some(exit) if record.started.is_none() && exit.code == 128 => "StartError",
            Some(exit) if exit.code == 0 => "Completed",
            Some(_) => "Error",
        };
        let resources = v1::ContainerResources {
            linux: record.config.linux.as_ref().and_then(|linux| linux.resources.clone()),
            windows: record.config.windows.as_ref().and_then(|windows| windows.resources.clone()),
        };
        v1::ContainerStatus {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            state: state as i32,
            created_at: record.created_at,
            started_at: record.started.as_ref().map_or(0, |started| started.at),
            finished_at: exit.map_or(0, |exit| exit.at),
            exit_code: exit.map_or(0, |exit| exit.code),
            image: Some(image_spec(record)),
            image_ref: record.image_ref.clone(),
            reason: reason.to_owned(),
            message: exit.and_then(|exit| exit.message.clone()).unwrap_or_default(),
            labels: record.config.labels.clone(),
            annotations: annotations(record),
            mounts: record.config.mounts.clone(),
            log_path: record.log_path.clone(),
            resources: Some(resources),
            image_id: record.image_id.clone(),
            user: record.started.as_ref().and_then(|started| started.user.as_ref()).map(user),
        }
    }

    pub(super) fn container_info(&self, record: &ContainerRecord) -> HashMap<String, String> {
        let info = json!({
            "sandboxID": record.sandbox,
            "pid": record.started.as_ref().map_or(0, |started| started.pid),
            "standIn": record.stand_in.map(|stand_in| format!("this container runs Mullion's stand-in {:?}, not the image's own program", stand_in.program())),
            "resources": record.holders.info(),
            "config": record.config,
            "directory": self.records.container_dir(&record.sandbox, &record.id),
        });
        HashMap::from([("info".to_owned(), info.to_string())])
    }

    pub(super) fn list_sandboxes(&self, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let state = self.state();
        let id = by_prefix(&state.sandboxes, &filter.id).map(|sandbox| sandbox.record.id.clone());
        let selected = state.sandboxes.values().filter(|sandbox| {
            (filter.id.is_empty() || id.as_ref() == Some(&sandbox.record.id))
                && filter.state.is_none_or(|asked| asked.state == sandbox_state(sandbox) as i32)
                && selected(&sandbox.record.config.labels, &filter.label_selector)
        });
        let item = |sandbox: &Sandbox| v1::PodSandbox {
            id: sandbox.record.id.clone(),
            metadata: sandbox.record.config.metadata.clone(),
            state: sandbox_state(sandbox) as i32,
            created_at: sandbox.record.created_at,
            labels: sandbox.record.config.labels.clone(),
            annotations: sandbox_annotations(sandbox),
            runtime_handler: sandbox.record.runtime_handler.clone(),
        };
        selected.map(item).collect()
    }

    pub(super) fn list_containers(&self, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
        let state = self.state();
        let id = by_prefix(&state.containers, &filter.id).map(|container| container.id.clone());
        let sandbox = by_prefix(&state.sandboxes, &filter.pod_sandbox_id).map(|sandbox| sandbox.record.id.clone());
        let selected = state.containers.values().filter(|record| {
            (filter.id.is_empty() || id.as_ref() == Some(&record.id))
                && (filter.pod_sandbox_id.is_empty() || sandbox.as_ref() == Some(&record.sandbox))
                && filter.state.is_none_or(|asked| asked.state == record.state() as i32)
                && selected(&record.config.labels, &filter.label_selector)
        });
        let item = |record: &ContainerRecord| v1::Container {
            id: record.id.clone(),
            pod_sandbox_id: record.sandbox.clone(),
            metadata: record.config.metadata.clone(),
            image: Some(image_spec(record)),
            image_ref: record.image_ref.clone(),
            state: record.state() as i32,
            created_at: record.created_at,
            labels: record.config.labels.clone(),
            annotations: annotations(record),
            image_id: record.image_id.clone(),
        };
        selected.map(item).collect()
    }
}

fn user(user: &Identity) -> v1::ContainerUser {
    let groups = user.groups.iter().map(|gid| i64::from(*gid)).collect();
    v1::ContainerUser { linux: Some(v1::LinuxContainerUser { uid: user.uid.into(), gid: user.gid.into(), supplemental_groups: groups }) }
}

/// As given, and what is wrong with the network.
fn sandbox_annotations(sandbox: &Sandbox) -> HashMap<String, String> {
    let mut annotations = sandbox.record.config.annotations.clone();
    annotations.extend(sandbox.problem.as_ref().map(|problem| (NETWORK_PROBLEM.to_owned(), problem.reason().to_owned())));
    annotations
}

fn sandbox_state(sandbox: &Sandbox) -> v1::PodSandboxState {
    if sandbox.is_ready() { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready }
}

fn image_spec(record: &ContainerRecord) -> v1::ImageSpec {
    let mut spec = record.config.image.clone().unwrap_or_default();
    spec.annotations.extend(stand_in_mark(record));
    spec
}

fn annotations(record: &ContainerRecord) -> HashMap<String, String> {
    let mut annotations = record.config.annotations.clone();
    annotations.extend(stand_in_mark(record));
    annotations.extend(record.holders.unenforced().map(|limits| (UNENFORCED.to_owned(), limits)));
    annotations
}

fn stand_in_mark(record: &ContainerRecord) -> Option<(String, String)> {
    record.stand_in.map(|stand_in| (LABEL.to_owned(), stand_in.program().to_owned()))
}
