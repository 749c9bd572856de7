//! Mounts that are read-only at every level (upstream kubelet_pods.go `resolveRecursiveReadOnly`).

use k8s_openapi::api::core::v1::VolumeMount;

/// Why a mount cannot be what it asks for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to resolve recursive read-only mode: {0}")]
pub(crate) struct RecursiveError(String);

/// Whether a mount is read-only at every level, on a runtime's handler that has such mounts or not.
///
/// # Errors
/// When it asks for something that contradicts itself, or that the handler does not have.
pub(crate) fn is_recursive(mount: &VolumeMount, offered: bool) -> Result<bool, RecursiveError> {
    let name = &mount.name;
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let error = |why: String| Err(RecursiveError(why));
    if mount.read_only != Some(true) {
        return error(format!("volume {name:?} requested recursive read-only mode, but it is not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|propagation| *propagation != "None") {
        return error(format!("volume {name:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(offered),
        "Enabled" if offered => Ok(true),
        "Enabled" => error(format!("volume {name:?} requested recursive read-only mode, but it is not supported by the runtime")),
        mode => error(format!("unknown recursive read-only mode {mode:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_as_deeply_read_only_as_it_asks_and_as_its_handler_can() {
        let read_only =
            |mode: &str| VolumeMount { name: "v".into(), read_only: Some(true), recursive_read_only: Some(mode.into()), ..VolumeMount::default() };
        let writable = VolumeMount { read_only: None, ..read_only("IfPossible") };
        let spreads = |how: &str| VolumeMount { mount_propagation: Some(how.into()), ..read_only("Enabled") };
        let plain = VolumeMount { recursive_read_only: None, ..read_only("") };
        for (mount, with, without) in [
            (plain, Ok(false), Ok(false)),
            (read_only("Disabled"), Ok(false), Ok(false)),
            (VolumeMount { read_only: None, ..read_only("Disabled") }, Ok(false), Ok(false)),
            (read_only("IfPossible"), Ok(true), Ok(false)),
            (read_only("Enabled"), Ok(true), Err("it is not supported by the runtime")),
            (writable, Err("it is not read-only"), Err("it is not read-only")),
            (spreads("None"), Ok(true), Err("it is not supported by the runtime")),
            (
                spreads("HostToContainer"),
                Err(r#"it is not compatible with propagation "HostToContainer""#),
                Err(r#"it is not compatible with propagation "HostToContainer""#),
            ),
        ] {
            for (offered, want) in [(true, with), (false, without)] {
                let got = is_recursive(&mount, offered).map_err(|error| error.to_string());
                let prefix = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but ";
                assert_eq!(got, want.map_err(|why| format!("{prefix}{why}")), "{mount:?} {offered}");
            }
        }
        let unknown = is_recursive(&read_only("Deep"), true).unwrap_err().to_string();
        assert_eq!(unknown, "failed to resolve recursive read-only mode: unknown recursive read-only mode \"Deep\"");
    }
}
