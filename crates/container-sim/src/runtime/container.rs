//! Operations on containers.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_cri::v1;
use thiserror_ext::AsReport as _;
use tonic::Status;

use super::isolation::Isolation;
use super::record::{ContainerRecord, Records, SandboxRecord};
use super::{Runtime, failed, limits, new_id, not_found};
use crate::shim::{StartSpec, now, read_json, write_json};
use images::Image;
use images::platform::NoMatch;

/// How long a killed container may take to disappear.
const KILL: Duration = Duration::from_secs(10);

/// Interval between looks whether a program has installed a handler for its stop signal.
const DEAF: Duration = Duration::from_millis(200);

/// Refuses CDI devices, which no specification of a simulated host describes, in the words of containerd.
fn check_cdi(config: &v1::ContainerConfig) -> Result<(), Status> {
    let names: Vec<&str> = config.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(failed(&anyhow!(
        "failed to inject CDI devices: unresolvable CDI devices {}: simulated hosts have no CDI specifications; let the device plug-in give \
         devices, mounts and variables",
        names.join(", ")
    )))
}

impl Runtime {
    pub(super) async fn create_container(&self, request: v1::CreateContainerRequest, extras: &cri::Extras) -> Result<String, Status> {
        let config = request.config.ok_or_else(|| Status::invalid_argument("container config is missing"))?;
        let metadata = config.metadata.clone().ok_or_else(|| Status::invalid_argument("container config must include metadata"))?;
        check_cdi(&config)?;
        let (sandbox_id, turn) = self.sandbox_turn(&request.pod_sandbox_id).ok_or_else(|| not_found("sandbox", &request.pod_sandbox_id))?;
        let _turn = turn.lock().await;
        let sandbox = self.ready_sandbox(&sandbox_id)?;
        let image = self.image_for(&sandbox, &config)?;
        {
            let state = self.state();
            let mut others = state.containers.values().filter(|container| container.sandbox == sandbox_id);
            if let Some(other) = others.clone().find(|other| other.config.metadata.as_ref() == Some(&metadata)) {
                return Err(failed(&anyhow!(
                    "failed to reserve container name {:?}: attempt {} is reserved for {:?}",
                    metadata.name,
                    metadata.attempt,
                    other.id
                )));
            }
            // Compartments are shared by containers since 1709 only (contracts of Windows, not of ours).
            let single = self.config.os.build().is_some_and(|build| build < 16299);
            if single && others.any(|other| other.exit.is_none()) {
                return Err(Status::failed_precondition(
                    "a pod on a Windows host before build 16299 (version 1709) can have one container only: \
                     network compartments cannot be shared there",
                ));
            }
        }
        let id = new_id();
        let amounts = self.system.amounts(&config, self.config.processors);
        let (limits, holders) = limits::set(&self.cgroups, self.system, &id, amounts).map_err(|error| failed(&error))?;
        let record = ContainerRecord {
            id,
            sandbox: sandbox_id.clone(),
            created_at: now(),
            image_id: image.id.clone(),
            image_ref: image.digests.first().cloned().unwrap_or_else(|| image.id.clone()),
            stand_in: image.stand_in_for(&config.command),
            stop_signal: extras.stop_signal.map_or_else(|| stop_signal(&image.config.stop_signal), cri::Signal::linux),
            log_path: self.log_path(&sandbox.config.log_directory, &config.log_path),
            config,
            holders,
            started: None,
            exit: None,
        };
        let dir = self.records.container_dir(&record.sandbox, &record.id);
        let written = self.start_spec(&sandbox, &record, &image, &extras.sub_paths).and_then(|spec| {
            self.records.write_container(&record)?;
            write_json(&dir.join("start.json"), &StartSpec { limits, ..spec })
        });
        if let Err(error) = written {
            let _ = Records::remove(&dir);
            self.cgroups.remove(&record.id);
            return Err(failed(&error));
        }
        let id = record.id.clone();
        self.state().containers.insert(id.clone(), record);
        self.changed(&id, &sandbox_id, v1::ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    /// The image of a container, if this node can run it in this sandbox.
    fn image_for(&self, sandbox: &SandboxRecord, config: &v1::ContainerConfig) -> Result<Image, Status> {
        let name = config.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
        let image = self.store.find(name).map_err(|error| failed(&anyhow!(error)))?;
        let image = image
            .ok_or_else(|| Status::not_found(format!("failed to get image {name:?}: not found: pull it, or load it with `mullion image load`")))?;
        if self.isolation(sandbox)?.fit(self.config.os, &image.platform).is_none() {
            let image_name = image.tags.first().cloned().unwrap_or_else(|| name.to_owned());
            let no_match = NoMatch { image: image_name, available: vec![image.platform], node: self.config.os };
            return Err(Status::failed_precondition(no_match.to_string()));
        }
        match image.stand_in {
            Some(_) if !self.config.stand_ins => {
                Err(Status::failed_precondition(format!("image {name:?} is here as a stand-in only, and stand-ins are switched off on this node")))
            }
            _ => Ok(image),
        }
    }

    /// Isolation of a sandbox's pod.
    pub(super) fn isolation(&self, sandbox: &SandboxRecord) -> Result<Isolation, Status> {
        Isolation::asked(self.config.os, &sandbox.runtime_handler, &sandbox.config.annotations).map_err(Status::unknown)
    }

    fn log_path(&self, directory: &str, file: &str) -> String {
        let separator = self.system.path_separator();
        match (directory.is_empty(), file.is_empty()) {
            (false, false) => format!("{}{separator}{}", directory.trim_end_matches(['/', '\\']), file.replace('/', separator)),
            _ => String::new(),
        }
    }

    pub(super) async fn start_container(&self, id: &str) -> Result<(), Status> {
        let record = self.container(id).ok_or_else(|| not_found("container", id))?;
        let turn = self.sandbox_turn(&record.sandbox).ok_or_else(|| not_found("sandbox", &record.sandbox))?.1;
        let _turn = turn.lock().await;
        let record = self.container(&record.id).ok_or_else(|| not_found("container", id))?;
        if record.state() != v1::ContainerState::ContainerCreated {
            return Err(failed(&anyhow!("container {:?} is in {} state", record.id, record.state().as_str_name())));
        }
        self.ready_sandbox(&record.sandbox)?;
        let shim = self.shim(&record.sandbox).ok_or_else(|| failed(&anyhow!("the sandbox's shim is gone")))?;
        match shim.start(&record.id).await {
            Ok(started) => {
                if let Some(known) = self.state().containers.get_mut(&record.id) {
                    known.started = Some(started);
                }
                self.changed(&record.id, &record.sandbox, v1::ContainerEventType::ContainerStartedEvent);
                Ok(())
            }
            Err(error) => {
                // As containerd: a container that could not start has ended with code 128.
                let exit = crate::shim::Exit { code: 128, signal: None, at: now(), oom: false, message: Some(error.to_report_string()) };
                let _ = self.records.write_exit(&record, &exit);
                self.exited(&record.sandbox, &record.id, exit);
                let error = error.context("failed to create containerd task: failed to create shim task: container init failed");
                Err(failed(&error))
            }
        }
    }

    pub(super) async fn stop_container(&self, id: &str, timeout: i64) -> Result<(), Status> {
        // Unknown means already gone, as requested.
        let Some(record) = self.container(id) else { return Ok(()) };
        if !record.is_running() {
            return Ok(());
        }
        let Some(shim) = self.shim(&record.sandbox) else { return Ok(()) };
        if let Ok(timeout @ 1..) = u64::try_from(timeout) {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(timeout);
            let pid = record.started.as_ref().map_or(0, |started| started.pid);
            let mut caught = catches(pid, record.stop_signal);
            shim.signal(&record.id, record.stop_signal).await.map_err(|error| failed(&error))?;
            loop {
                let left = deadline.saturating_duration_since(tokio::time::Instant::now());
                if self.ended(&record.id, if caught { left } else { left.min(DEAF) }).await {
                    return Ok(());
                }
                if left.is_zero() {
                    break;
                }
                // The kernel drops a signal that pid 1 has no handler for, and a program may have just begun to set it up.
                if !caught && catches(pid, record.stop_signal) {
                    caught = true;
                    shim.signal(&record.id, record.stop_signal).await.map_err(|error| failed(&error))?;
                }
            }
        }
        shim.signal(&record.id, nix::libc::SIGKILL).await.map_err(|error| failed(&error))?;
        if self.ended(&record.id, KILL).await {
            Ok(())
        } else {
            Err(failed(&anyhow!("container {:?} was killed but has not ended after {} s", record.id, KILL.as_secs())))
        }
    }

    pub(super) async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let Some(record) = self.container(id) else { return Ok(()) };
        if record.is_running() {
            self.stop_container(&record.id, 0).await?;
        }
        let turn = self.sandbox_turn(&record.sandbox).map(|(_, turn)| turn);
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        Records::remove(&self.records.container_dir(&record.sandbox, &record.id)).map_err(|error| failed(&error))?;
        self.cgroups.remove(&record.id);
        let event = self.event(&record.id, &record.sandbox, v1::ContainerEventType::ContainerDeletedEvent);
        self.state().containers.remove(&record.id);
        let _ = self.events.send(event);
        Ok(())
    }

    pub(super) async fn reopen_log(&self, id: &str) -> Result<(), Status> {
        let record = self.container(id).ok_or_else(|| not_found("container", id))?;
        if !record.is_running() {
            return Err(failed(&anyhow!("container is not running")));
        }
        let shim = self.shim(&record.sandbox).context("the sandbox's shim is gone").map_err(|error| failed(&error))?;
        shim.reopen(&record.id).await.map_err(|error| failed(&error))
    }

    /// Changes limits, of the processes that run too. What nothing enforces is remembered and reported.
    pub(super) async fn update_resources(&self, request: v1::UpdateContainerResourcesRequest) -> Result<(), Status> {
        let known = self.container(&request.container_id).ok_or_else(|| not_found("container", &request.container_id))?;
        let turn = self.sandbox_turn(&known.sandbox).ok_or_else(|| not_found("sandbox", &known.sandbox))?.1;
        let _turn = turn.lock().await;
        let mut record = self.container(&known.id).ok_or_else(|| not_found("container", &known.id))?;
        if record.state() == v1::ContainerState::ContainerExited {
            return Err(failed(&anyhow!("failed to update resources: container {:?} is in {} state", record.id, record.state().as_str_name())));
        }
        if let Some(resources) = request.linux {
            limits::merge(record.config.linux.get_or_insert_default().resources.get_or_insert_default(), resources);
        }
        if let Some(resources) = request.windows {
            record.config.windows.get_or_insert_default().resources = Some(resources);
        }
        record.config.annotations.extend(request.annotations);
        self.apply_limits(&mut record).map_err(|error| failed(&error.context("failed to update resources")))?;
        if let Some(container) = self.state().containers.get_mut(&record.id) {
            (container.config, container.holders) = (record.config, record.holders);
        }
        Ok(())
    }

    fn apply_limits(&self, record: &mut ContainerRecord) -> anyhow::Result<()> {
        let amounts = self.system.amounts(&record.config, self.config.processors);
        let (limits, holders) = limits::set(&self.cgroups, self.system, &record.id, amounts)?;
        limits::bind(&limits, &self.pids(record));
        record.holders = holders;
        let path = self.records.container_dir(&record.sandbox, &record.id).join("start.json");
        let spec: StartSpec = read_json(&path)?;
        write_json(&path, &StartSpec { limits, ..spec })?;
        self.records.write_container(record)
    }
}

/// Whether a process has a handler for a signal.
fn catches(pid: i32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    mask.is_some_and(|mask| (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1)
}

/// Number of an image's stop signal; SIGTERM when it names none.
fn stop_signal(name: &str) -> i32 {
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let named = cri::Signal::named(&full).map(cri::Signal::linux);
    name.parse().ok().filter(|number| (1..65).contains(number)).or(named).unwrap_or(nix::libc::SIGTERM)
}

#[cfg(test)]
mod tests {
    #[test]
    fn cdi_devices_are_refused_by_name() {
        let check = |names: &[&str]| {
            let cdi_devices = names.iter().map(|name| super::v1::CdiDevice { name: (*name).to_owned() }).collect();
            super::check_cdi(&super::v1::ContainerConfig { cdi_devices, ..Default::default() }).map_err(|status| status.message().to_owned())
        };
        assert_eq!(check(&[]), Ok(()));
        let error = check(&["example.com/gpu=0", "example.com/gpu=1"]).unwrap_err();
        assert!(error.starts_with("failed to inject CDI devices: unresolvable CDI devices example.com/gpu=0, example.com/gpu=1: "), "{error}");
    }

    #[test]
    fn stop_signals_are_names_or_numbers() {
        let of = super::stop_signal;
        assert_eq!((of(""), of("SIGQUIT"), of("quit"), of("9"), of("nonsense"), of("99")), (15, 3, 3, 9, 15, 15));
        assert_eq!((of("SIGRTMIN+3"), of("rtmax"), of("SIGCLD")), (37, 64, 17));
    }
}
