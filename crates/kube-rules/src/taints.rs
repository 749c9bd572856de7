//! Taints and tolerations (upstream: `Toleration.ToleratesTaint`, `component-helpers/scheduling/corev1`).

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Taints with these effects keep a pod from being scheduled (upstream: `DoNotScheduleTaintsFilterFunc`).
pub fn prevents_scheduling(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
}

/// Whether a taint evicts pods that do not tolerate it.
pub fn evicts(taint: &Taint) -> bool {
    taint.effect == "NoExecute"
}

/// Whether a toleration tolerates a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
            "Exists" => true,
            _ => false,
        }
}

/// Whether one of the tolerations tolerates a taint.
pub fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|one| tolerates(one, taint))
}

/// The first taint that `counts` and that no toleration tolerates (upstream: `FindMatchingUntoleratedTaint`).
pub fn find_untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], counts: impl Fn(&Taint) -> bool) -> Option<&'a Taint> {
    taints.iter().find(|taint| counts(taint) && !is_tolerated(taint, tolerations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        Toleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations_match_taints_as_upstream() {
        let taint = Taint { key: "os".into(), value: Some("windows".into()), effect: "NoSchedule".into(), time_added: None };
        for (toleration, expected) in [
            (toleration("os", "Equal", "windows", "NoSchedule"), true),
            (toleration("os", "Equal", "windows", ""), true),
            (toleration("os", "", "windows", "NoSchedule"), true),
            (toleration("os", "Equal", "linux", "NoSchedule"), false),
            (toleration("os", "Exists", "", "NoExecute"), false),
            (toleration("os", "Exists", "", ""), true),
            (toleration("", "Exists", "", ""), true),
            (toleration("other", "Exists", "", ""), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }

    #[test]
    fn tolerations_that_validation_refuses_match_as_upstream() {
        let taint = Taint { key: "os".into(), value: Some("windows".into()), effect: "NoSchedule".into(), time_added: None };
        // An empty key matches every key, whatever the operator.
        assert!(tolerates(&toleration("", "Equal", "windows", ""), &taint));
        assert!(!tolerates(&toleration("", "Equal", "linux", ""), &taint));
        assert!(tolerates(&Toleration::default(), &Taint { value: None, ..taint.clone() }));
        // An unknown operator matches nothing.
        assert!(!tolerates(&toleration("os", "Nonsense", "windows", ""), &taint));
    }

    #[test]
    fn first_untolerated_taint_of_the_effect_is_found() {
        let taint = |key: &str, effect: &str| Taint { key: key.into(), effect: effect.into(), ..Default::default() };
        let taints = [taint("soft", "PreferNoSchedule"), taint("a", "NoSchedule"), taint("b", "NoExecute")];
        let found =
            |tolerations: &[Toleration], counts: fn(&Taint) -> bool| find_untolerated(&taints, tolerations, counts).map(|one| one.key.clone());
        assert_eq!(found(&[], prevents_scheduling).as_deref(), Some("a"));
        assert_eq!(found(&[], evicts).as_deref(), Some("b"));
        assert_eq!(found(&[toleration("a", "Exists", "", "")], prevents_scheduling).as_deref(), Some("b"));
        assert_eq!(found(&[toleration("", "Exists", "", "")], prevents_scheduling), None);
    }
}
