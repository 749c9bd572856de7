//! Address management: `host-local`, `azure-vnet-ipam`, and delegation to whatever plug-in a configuration names.

pub mod azure;
pub mod host_local;

use std::io::Write;
use std::process::{Command as Process, Stdio};

use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, code};

/// Runs the plug-in that `ipam.type` names with the whole request: `host-local` inside this process, any other from
/// `CNI_PATH`. A failed ADD is followed by DEL. `None` when the configuration has no address management.
pub fn delegate(request: &Request, command: Command) -> Result<Option<AddResult>, CniError> {
    let kind = request.config.ipam_type().to_owned();
    if kind.is_empty() {
        return Ok(None);
    }
    let answer = delegate_once(request, command, &kind);
    if answer.is_err() && command == Command::Add {
        // Best effort: the error of ADD is the one to report.
        let _ = delegate_once(request, Command::Del, &kind);
    }
    answer
}

/// The same GC, but for every interface of these containers as well.
pub(crate) fn sparing(request: &Request, containers: &[&str]) -> Request {
    let mut request = request.clone();
    if !containers.is_empty() {
        let all = request.valid_attachments().into_iter().chain(containers.iter().map(|id| ((*id).to_owned(), String::new())));
        let list: Vec<_> = all.map(|(id, ifname)| serde_json::json!({"containerID": id, "ifname": ifname})).collect();
        request.config.document.insert("cni.dev/valid-attachments".into(), list.into());
    }
    request
}

fn delegate_once(request: &Request, command: Command, kind: &str) -> Result<Option<AddResult>, CniError> {
    match kind.trim_end_matches(".exe") {
        "host-local" => return host_local::handle(&Request { command, ..request.clone() }),
        "azure-vnet-ipam" => return azure::handle(&Request { command, ..request.clone() }),
        _ => {}
    }
    run_program(request, command, kind)
}

/// Runs a program of `CNI_PATH` with the whole request.
pub(crate) fn run_program(request: &Request, command: Command, kind: &str) -> Result<Option<AddResult>, CniError> {
    let output = exec(request, command, kind)?;
    if !output.status.success() {
        let error = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| CniError::internal(format!("{kind}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
        // Plug-ins built before 1.1.0 do not know these commands.
        if matches!(command, Command::Gc | Command::Status) && error.code == code::INVALID_ENVIRONMENT {
            return Ok(None);
        }
        return Err(error);
    }
    if command != Command::Add {
        return Ok(None);
    }
    let doc = serde_json::from_slice(&output.stdout).map_err(|e| CniError::decode(format_args!("the result of {kind}"), &e))?;
    AddResult::from_json(&doc, request.config.cni_version).map(Some)
}

fn exec(request: &Request, command: Command, kind: &str) -> Result<std::process::Output, CniError> {
    let bad_name = kind.contains(['/', '\\']) || kind.contains("..");
    let program = (!bad_name)
        .then(|| std::env::split_paths(&request.path).flat_map(|dir| [dir.join(kind), dir.join(format!("{kind}.exe"))]).find(|p| p.is_file()))
        .flatten()
        .ok_or_else(|| CniError::config(format!("plug-in {kind:?} is not a program in CNI_PATH {:?}; install it there", request.path)))?;
    let failed = |e: &std::io::Error| CniError::io(format_args!("run {}", program.display()), e);
    let args: Vec<String> = request.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let mut child = Process::new(&program)
        .env("CNI_COMMAND", command.as_str())
        .env("CNI_CONTAINERID", &request.container_id)
        .env("CNI_NETNS", &request.netns)
        .env("CNI_IFNAME", &request.ifname)
        .env("CNI_ARGS", args.join(";"))
        .env("CNI_PATH", &request.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plug-in may answer without reading all of it.
        let _ = stdin.write_all(&request.stdin);
    }
    child.wait_with_output().map_err(|e| failed(&e))
}
