//! Wiring of `mullion kubelet`, also called `kubelet`: the node agent alone, in the place of upstream's.

use node_config::node::flags::Program;

use super::node;
use crate::exit::Failure;

/// Whether a program of that name is this one.
pub fn is_own_name(name: &str) -> bool {
    name.strip_suffix(".exe").unwrap_or(name) == "kubelet"
}

/// Runs the node agent until the process is asked to end; pods stay.
pub fn main(args: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    node::main(Program::Kubelet, args)
}

/// Today's form of the variable with which the alpha chose Docker's network.
pub fn container_network(name: &str) -> String {
    format!(
        "CONTAINER_NETWORK={name} has no effect: the CNI configuration names the network today; write {{\"cniVersion\": \"1.0.0\", \"name\": \
         {name:?}, \"plugins\": [{{\"type\": \"win-bridge\"}}]}} to a file *.conflist where the container runtime reads the CNI configuration"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_program_names_are_ours() {
        assert!(is_own_name("kubelet") && is_own_name("kubelet.exe"));
        assert!(!is_own_name("mullion") && !is_own_name("kubelets"));
    }

    #[test]
    fn the_alphas_variable_gets_a_configuration_that_is_json() {
        let answer = container_network("nat");
        let (from, to) = (answer.find('{').unwrap(), answer.rfind('}').unwrap());
        let list: serde_json::Value = serde_json::from_str(&answer[from..=to]).unwrap();
        assert_eq!((&list["name"], &list["plugins"][0]["type"]), (&"nat".into(), &"win-bridge".into()));
    }
}
