//! Accounts of programs, and the rights that they remove.

use std::path::PathBuf;

use cri::v1;

use crate::support::{Node, describe, windows_sandbox};
use crate::{node, second, waiting};

fn named(name: &str, account: &str) -> v1::ContainerConfig {
    let security = v1::WindowsContainerSecurityContext { run_as_username: account.into(), ..Default::default() };
    v1::ContainerConfig { windows: Some(v1::WindowsContainerConfig { resources: None, security_context: Some(security) }), ..waiting(name) }
}

async fn run(node: &Node, id: &str, line: &str) -> (i32, String) {
    second(node, id, &["cmd", "/c", line]).await
}

pub async fn all(dir: PathBuf) {
    let node = node(&dir, 20348).await;
    let pod = node.run(windows_sandbox("who")).await;
    for (number, (asked, whoami, names)) in [
        ("", r"user manager\containeradministrator", r"User Manager|ContainerAdministrator|C:\Users\ContainerAdministrator"),
        ("containeruser", r"user manager\containeruser", r"User Manager|ContainerUser|C:\Users\ContainerUser"),
        (r"NT AUTHORITY\SYSTEM", r"nt authority\system", r"WORKGROUP|WHO$|C:\Windows\system32\config\systemprofile"),
        (r"NT AUTHORITY\NETWORK SERVICE", r"nt authority\network service", r"WORKGROUP|WHO$|C:\Windows\ServiceProfiles\NetworkService"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = node.start(&pod, named(&format!("c{number}"), asked)).await;
        let script = r"whoami&echo %USERDOMAIN%^|%USERNAME%^|%USERPROFILE%&echo x>%USERPROFILE%\x.txt&type %USERPROFILE%\x.txt&echo y>%TEMP%\y.txt&type %TEMP%\y.txt";
        let (code, text) = run(&node, &id, script).await;
        assert_eq!((code, text), (0, format!("{whoami}\n{names}\nx\ny\n")), "{asked:?}");
        let is_limited = number == 1 || number == 3;
        for (action, made) in
            [(r"echo x>C:\Windows\x.txt", r"C:\Windows\x.txt"), (r"md C:\Users\ContainerAdministrator\x", r"C:\Users\ContainerAdministrator\x")]
        {
            let (_, text) = run(&node, &id, &format!("{action}&if exist {made} (echo there) else (echo missing)")).await;
            assert_eq!(text.contains("missing"), is_limited, "{asked:?}: {action}: {text}");
        }
        let (code, text) = run(&node, &id, r"echo x>C:\Windows\Temp\x.txt&&md C:\mine&&reg add HKCU\Software\Mine /v a /d b /f").await;
        assert_eq!(code, 0, "{asked:?}: {text}");
        node.client.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
    }
    // Nobody knows him: neither the container nor the sandbox starts.
    let id = node.create(&pod, named("unknown", r"CORP\nobody")).await.unwrap();
    let error = node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap_err().to_string();
    assert!(error.contains("The user name or password is incorrect.") && error.contains("0x52e"), "{error}");
    let status = node.status(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{}", describe(&status));
    let security = v1::WindowsSandboxSecurityContext { run_as_username: "nobody".into(), ..Default::default() };
    let config =
        v1::PodSandboxConfig { windows: Some(v1::WindowsPodSandboxConfig { security_context: Some(security) }), ..windows_sandbox("unknown") };
    let error = node.client.run_pod_sandbox(v1::RunPodSandboxRequest { config: Some(config), ..Default::default() }).await.unwrap_err().to_string();
    assert!(error.contains("The user name or password is incorrect."), "{error}");
    node.remove(&pod).await;
}
