//! Execution of one plug-in: its program, its environment, its streams.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::Attachment;
use crate::plugin::is_own_plugin;
use crate::spec::{CniError, code};

/// The most that is read of a plug-in's output.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// Everything a plug-in is called with.
pub struct Call<'a> {
    /// `CNI_COMMAND`.
    pub command: &'static str,
    /// Where the other variables come from.
    pub attachment: &'a Attachment,
    /// `CNI_PATH`.
    pub path: String,
    /// The configuration.
    pub stdin: Vec<u8>,
    /// Further variables.
    pub env: &'a [(String, String)],
    /// How long it may take.
    pub deadline: Duration,
}

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Our own program under a plug-in's name.
    Own { exe: PathBuf, name: String },
    /// A plug-in's file.
    File(PathBuf),
}

/// The program that is running, in a form that survives its file being replaced.
pub(super) fn self_exe() -> PathBuf {
    if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe().unwrap_or_default() }
}

pub(super) fn join_path(dirs: &[PathBuf]) -> String {
    std::env::join_paths(dirs).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Finds the program of plug-in `kind`: ours first, then a file of that name (on Windows also with `.exe`).
pub(super) fn program(kind: &str, self_exe: &Path, bin_dirs: &[PathBuf]) -> Result<Program, String> {
    if is_own_plugin(kind) {
        return Ok(Program::Own { exe: self_exe.to_owned(), name: kind.to_owned() });
    }
    if kind.is_empty() || kind.contains(['/', '\\']) || kind.contains("..") {
        return Err(format!("{kind:?} is not the name of a program"));
    }
    let names = if cfg!(windows) { vec![format!("{kind}.exe"), kind.to_owned()] } else { vec![kind.to_owned()] };
    bin_dirs
        .iter()
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)))
        .find(|path| path.is_file())
        .map(Program::File)
        .ok_or_else(|| format!("no such file in {}; install the plug-in there or correct the configuration's type", join_path(bin_dirs)))
}

fn command(program: &Program) -> Command {
    match program {
        Program::File(path) => Command::new(path),
        Program::Own { exe, name } => {
            let mut command = Command::new(exe);
            #[cfg(unix)]
            command.arg0(name);
            // Windows has no way to say another name than the file's.
            #[cfg(not(unix))]
            command.args(["cni", name]);
            command
        }
    }
}

/// Runs the plug-in. The outer error says why it could not be run; the inner one is what it answered.
pub(super) async fn run(program: &Program, call: &Call<'_>) -> Result<Result<Value, CniError>, String> {
    let mut command = command(program);
    let a = call.attachment;
    let args: Vec<String> = a.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
    command
        .env_clear()
        .envs(["PATH", "SystemRoot", "TMPDIR", "TEMP"].into_iter().filter_map(|key| Some((key, std::env::var_os(key)?))))
        .env("CNI_COMMAND", call.command)
        .env("CNI_PATH", &call.path)
        .envs(call.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    for (key, value) in [("CNI_CONTAINERID", &a.container_id), ("CNI_NETNS", &a.netns), ("CNI_IFNAME", &a.ifname), ("CNI_ARGS", &args.join(";"))] {
        if !value.is_empty() {
            command.env(key, value);
        }
    }
    let mut child = command.spawn().map_err(|e| format!("{program:?} does not start: {e}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let talk = async {
        let write = async {
            if let Some(mut stdin) = stdin {
                // A plug-in may answer without reading all of it.
                let _ = stdin.write_all(&call.stdin).await;
            }
        };
        let ((), out, err, status) = tokio::join!(write, read_bounded(stdout), read_bounded(stderr), child.wait());
        status.map(|status| (status, out, err))
    };
    let (status, out, err) = tokio::time::timeout(call.deadline, talk)
        .await
        .map_err(|_| format!("no answer within {} s; it was stopped", call.deadline.as_secs()))?
        .map_err(|e| e.to_string())?;
    Ok(answer(status.success(), &out, &err, &status.to_string()))
}

async fn read_bounded(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before a broken pipe is what there is.
        let _ = stream.take(OUTPUT_LIMIT).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Reads a plug-in's answer as libcni does: the error object is on stdout; without one, stderr is its message.
fn answer(success: bool, stdout: &[u8], stderr: &[u8], status: &str) -> Result<Value, CniError> {
    let stderr = String::from_utf8_lossy(stderr);
    if success {
        if !stderr.trim().is_empty() {
            tracing::debug!("plug-in says: {}", stderr.trim());
        }
        if stdout.trim_ascii().is_empty() {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        return serde_json::from_slice(stdout).map_err(|e| CniError::decode("a plug-in's result", &e));
    }
    match serde_json::from_slice::<CniError>(stdout) {
        Ok(error) if error.code != 0 || !error.msg.is_empty() => Err(error),
        _ if stdout.trim_ascii().is_empty() => Err(CniError::new(code::INTERNAL, format!("{status}: {:?}", stderr.trim()))),
        _ => Err(CniError::new(code::DECODE, format!("{status}, with an answer that is not a CNI error: {:?}", String::from_utf8_lossy(stdout)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("macvlan"), b"").unwrap();
        let dirs = [dir.path().to_owned()];
        let exe = Path::new("/self");
        assert_eq!(program("host-local", exe, &dirs).unwrap(), Program::Own { exe: exe.into(), name: "host-local".into() });
        assert_eq!(program("macvlan", exe, &dirs).unwrap(), Program::File(dir.path().join("macvlan")));
        assert!(program("nothing", exe, &dirs).unwrap_err().contains("no such file"));
        assert!(program("../macvlan", exe, &dirs).unwrap_err().contains("not the name"));
    }

    #[test]
    fn reads_answers_as_libcni_does() {
        assert_eq!(answer(true, b"", b"", "").unwrap(), serde_json::json!({}));
        assert_eq!(answer(true, b"nonsense", b"", "").unwrap_err().code, code::DECODE);
        let error = answer(false, br#"{"code":11,"msg":"later"}"#, b"", "exit status: 1").unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (11, "later"));
        assert!(answer(false, b"", b"boom", "exit status: 1").unwrap_err().msg.contains("boom"));
    }
}
