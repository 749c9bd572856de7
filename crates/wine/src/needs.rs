//! Programs known not to run under Wine, by name.
//!
//! Checked when a container is made, so that its creation is refused, and again for the file of the command line when it starts.

/// Why a program of that file name cannot run here, and what to do instead.
pub fn known(file: &str) -> Option<&'static str> {
    let name = file.to_ascii_lowercase();
    Some(match name.strip_suffix(".exe").unwrap_or(&name) {
        "servicemonitor" | "w3wp" | "inetinfo" | "iisexpress" => {
            "it is part of IIS, which needs the services and drivers of a real Windows: the images of IIS itself (microsoft/iis and \
             mcr.microsoft.com/windows/servercore/iis) have a stand-in here, whose content can be mounted at C:\\inetpub\\wwwroot"
        }
        "sqlservr" | "logmonitor" | "msmdsrv" => "it needs services and drivers of a real Windows: run it on a Windows node",
        _ => return None,
    })
}

/// Why a program that Windows itself has is not here, and what to do instead. An image may have its own of that name.
pub fn missing(file: &str) -> Option<&'static str> {
    let name = file.to_ascii_lowercase();
    (name.strip_suffix(".exe").unwrap_or(&name) == "powershell")
        .then_some("it needs .NET Framework, which only a real Windows has: use cmd, or a program of your own")
}

/// Why the program of a command line cannot run here, and what to do instead. `is_brought`: whether the image has that program.
pub fn refusal(argv: &[String], is_brought: impl FnOnce(&str) -> bool) -> Option<String> {
    let program = argv.first()?;
    let file = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let reason = known(file).or_else(|| missing(file).filter(|_| !is_brought(program)))?;
    Some(format!("{program} cannot run on a simulated node: {reason}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_programs_are_refused() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let refusal = |argv: &[&str]| super::refusal(&words(argv), |_| false);
        assert!(
            refusal(&[r"C:\ServiceMonitor.exe", "w3svc"])
                .unwrap()
                .starts_with(r"C:\ServiceMonitor.exe cannot run on a simulated node: it is part of IIS")
        );
        assert!(refusal(&["PowerShell", "-Command", "ls"]).unwrap().contains(".NET Framework"));
        assert_eq!(super::refusal(&words(&["powershell.exe"]), |program| program == "powershell.exe"), None, "the image's own");
        assert!(super::refusal(&words(&["w3wp.exe"]), |_| true).unwrap().contains("part of IIS"));
        assert_eq!(refusal(&["cmd.exe"]), None);
        assert_eq!(refusal(&[]), None);
    }
}
