//! Pod Security: which level and version a Namespace asks for, which pods violate it (k8s.io/pod-security-admission).

mod admit;
mod checks;
mod level;

pub use admit::{Configuration, Exemptions, MAX_PODS, Source, validate};
pub use checks::{Pod, Violation, evaluate};
pub use level::{Level, LevelVersion, Policy, Version, policy_of};

#[cfg(test)]
mod tests;
