//! Every CNI plug-in in a program of their own, which starts several times faster than `mullion`: link it under a plug-in's name into the
//! directory of plug-ins.

fn main() -> std::process::ExitCode {
    cni::program_main()
}
