//! Which test of ours holds each case of upstream's tests and each of its bugs.

use std::path::Path;

/// Every function of proxier_test.go and hns_test.go.
const CASES: &[(&str, &str)] = &[
    ("TestCreateServiceVip", "an_overlay_service_has_its_address_even_without_back_ends"),
    ("TestCreateRemoteEndpointOverlay", "an_overlay_service_gets_source_vip_address_and_back_end"),
    ("TestCreateRemoteEndpointL2Bridge", "a_bridge_gets_the_back_end_alone"),
    ("TestDsrEndpointsAreCreatedCorrectly", "an_overlay_service_gets_source_vip_address_and_back_end"),
    ("TestDsrNotAppliedToClusterTrafficPolicy", "dsr_is_for_cluster_ips_where_it_is_on"),
    ("TestClusterIPSvcWithITPLocal", "internal_policy_local_follows_the_local_pods_only"),
    ("TestSharedRemoteEndpointDelete", "services_share_an_endpoint_until_the_last_lets_go"),
    ("TestSharedRemoteEndpointUpdate", "services_share_an_endpoint_until_the_last_lets_go"),
    ("TestCreateLoadBalancerWithoutDSR", "dsr_is_for_cluster_ips_where_it_is_on"),
    ("TestCreateLoadBalancerWithDSR", "dsr_is_for_cluster_ips_where_it_is_on"),
    ("TestUpdateLoadBalancerWhenSupported", "a_replaced_pod_changes_the_load_balancer_in_place_where_hns_can"),
    ("TestUpdateLoadBalancerWhenUnsupported", "a_replaced_pod_changes_the_load_balancer_in_place_where_hns_can"),
    ("TestCreateDsrLoadBalancer", "external_policy_local_needs_a_local_pod_and_the_cluster_ip_does_not"),
    ("TestClusterIPLBInCreateDsrLoadBalancer", "external_policy_local_needs_a_local_pod_and_the_cluster_ip_does_not"),
    ("TestEndpointSliceWithInternalPortDifferentFromServicePort", "the_slices_port_counts"),
    ("TestEndpointSlice", "an_overlay_service_gets_source_vip_address_and_back_end"),
    ("TestNoopEndpointSlice", "slices_without_a_service_cost_nothing"),
    ("TestFindRemoteSubnetProviderAddress", "an_overlays_endpoints_say_behind_which_host_they_are"),
    ("TestWinDSRWithOverlayEnabled", "external_policy_local_asks_for_direct_server_return_on_overlays_too"),
    ("TestETPLocalIngressIPServiceWithPreferDualStack", "both_families_are_served_with_policy_local_and_never_mixed"),
    ("TestETPLocalIngressIPServiceWithRequireDualStack", "both_families_are_served_with_policy_local_and_never_mixed"),
    ("TestETPClusterIngressIPServiceWithPreferDualStack", "both_families_use_every_pod_with_policy_cluster"),
    ("TestETPClusterIngressIPServiceWithRequireDualStack", "both_families_use_every_pod_with_policy_cluster"),
    ("TestRemoteAndLocalEndpointsSameIP", "of_two_endpoints_with_one_address_the_pods_own_counts"),
    ("TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP", "what_becomes_of_a_remote_endpoint_does_not_touch_the_pods_own"),
    ("TestEndpointTransitionWithLBFailures", "endpoints_stay_as_long_as_a_load_balancer_that_cannot_be_deleted_names_them"),
    ("TestGetAllEndpointsByNetworkWithDupEP", "of_doubles_the_pods_own_counts_at_both_addresses_and_ours_goes"),
    ("TestGetNetworkByName", "the_network_is_found_by_its_name"),
    ("TestGetAllEndpointsByNetwork", "an_endpoint_is_the_same_by_id_by_either_address_and_by_name"),
    ("TestGetEndpointByID", "an_endpoint_is_the_same_by_id_by_either_address_and_by_name"),
    ("TestGetEndpointByIpAddressAndName", "an_endpoint_is_the_same_by_id_by_either_address_and_by_name"),
    ("TestCreateEndpointLocal", "endpoints_read_back_as_they_were_made_and_are_gone_when_deleted"),
    ("TestCreateEndpointRemote", "endpoints_read_back_as_they_were_made_and_are_gone_when_deleted"),
    ("TestDeleteEndpoint", "endpoints_read_back_as_they_were_made_and_are_gone_when_deleted"),
    ("TestGetLoadBalancerExisting", "a_load_balancer_that_is_there_already_is_taken_as_it_is"),
    ("TestGetLoadBalancerNew", "load_balancers_read_back_as_they_were_made_and_are_gone_when_deleted"),
    ("TestDeleteLoadBalancer", "load_balancers_read_back_as_they_were_made_and_are_gone_when_deleted"),
    ("TestHashEndpoints", "the_order_of_back_ends_means_nothing_and_none_cancels_another"),
];

/// Bugs of upstream's: issues of kubernetes/kubernetes and of microsoft/Windows-Containers (WC), and what its source shows without an issue.
const BUGS: &[(&str, &str)] = &[
    ("#109162, #109124: every change asks for everything", "a_change_costs_the_same_however_many_services_there_are"),
    ("#110674, #110849: all load balancers vanish", "everything_that_a_restart_loses_comes_back_names_and_the_api_server_first"),
    ("#135802: one that is lost is never remade", "a_load_balancer_that_somebody_deletes_comes_back_and_nothing_else_is_written"),
    ("#139519, #139503: any error means gone", "an_error_proves_nothing_and_what_exists_is_adopted"),
    ("#137530: an orphan holds the front end", "an_empty_list_is_never_sent_and_leaves_no_orphan"),
    ("#112836, #112837: one is leaked by each change", "changes_of_back_ends_leave_no_load_balancer_behind"),
    ("#113524, #113521: a failed delete is taken for the new one", "a_failed_delete_is_neither_forgotten_nor_done_to_what_is_needed_again"),
    ("#133928, #133953: policy Local loses its load balancer", "internal_policy_local_follows_the_local_pods_only"),
    ("#136241, #115501: families are mixed", "both_families_are_served_with_policy_local_and_never_mixed"),
    ("#131466, #131506: a modify that does nothing", "a_modify_that_does_nothing_or_is_refused_falls_back_for_good"),
    ("#130963, #131138, #138000: one address, local and remote", "a_pods_own_endpoint_takes_the_place_of_a_remote_one_and_survives_it"),
    ("#135144, #135146: a batch leaks endpoints", "services_that_change_together_leave_no_endpoint"),
    ("WC#631: endpoints are left after churn", "no_endpoint_is_left_after_churn_even_when_deletes_fail_or_pretend"),
    ("#91703, #93229, #76316: a shared endpoint goes with the first", "a_shared_endpoint_goes_with_its_last_service"),
    ("#141488, #141489, #116749, #100384: half-made objects end the process", "half_made_documents_equal_nothing_and_break_nothing"),
    ("#106936: an empty list is sent again and again", "an_empty_list_is_never_sent_and_leaves_no_orphan"),
    ("#113841: all-terminating Services lose their address", "terminating_and_unready_pods_are_followed_at_every_front_end"),
    ("#113842: flows to other pods are cut", "untouched_services_lose_nothing"),
    ("#115783, #109780: policy Local takes the ClusterIP away", "external_policy_local_needs_a_local_pod_and_the_cluster_ip_does_not"),
    ("#132646, #132647: the Service's target port is used", "the_slices_port_counts"),
    ("#106636: clients inside and policy Local", "what_hns_cannot_do_is_said"),
    ("#123014, #96996, #100962: the source VIP fails, and all with it", "a_source_vip_that_cannot_be_made_at_first_is_made_later"),
    ("#106580, #137766: failures are not counted", "failed_calls_are_counted"),
    ("image-builder#566: a call hangs", "a_hanging_call_ends_at_its_deadline_and_others_go_on"),
    ("WC#19: load balancers come back without direct server return", "what_comes_back_changed_is_read_and_put_right"),
    ("a failure at an external address is marked as applied", "failures_are_named_retried_and_hold_up_nobody"),
    ("a failure at a node port skips the other addresses", "failures_are_named_retried_and_hold_up_nobody"),
    ("a back end whose endpoint fails stays out", "half_a_service_is_better_than_none_and_the_rest_follows"),
    ("a pod whose endpoint comes late stays out", "a_pod_that_comes_late_is_found"),
    ("adopted, then deleted as stale", "a_failed_delete_is_neither_forgotten_nor_done_to_what_is_needed_again"),
    ("a failed delete of an endpoint is not tried again", "no_endpoint_is_left_after_churn_even_when_deletes_fail_or_pretend"),
    ("unready pods elsewhere get the ClusterIP's traffic", "unready_pods_elsewhere_are_nobodys_back_ends"),
    ("any error about the network wipes everything", "without_the_network_it_waits_and_touches_nothing"),
    ("an overlay's address goes and comes with every change", "an_overlay_service_gets_source_vip_address_and_back_end"),
    ("an overlay's address leaks after a restart", "an_overlays_addresses_are_known_again_after_a_restart"),
    ("dangling ids of endpoints stay in load balancers", "a_crash_leaves_no_dangling_reference_and_no_double"),
    ("two ports of one address cancel each other out", "the_order_of_back_ends_means_nothing_and_none_cancels_another"),
    ("ports share a health check that each believes to own", "ports_share_a_health_check_until_the_last_is_gone"),
    ("all terminating: node ports keep old back ends", "terminating_and_unready_pods_are_followed_at_every_front_end"),
    ("a failed delete of an external address's is forgotten", "a_failed_delete_is_neither_forgotten_nor_done_to_what_is_needed_again"),
    ("unready pods keep their endpoints", "terminating_and_unready_pods_are_followed_at_every_front_end"),
    ("health says synced although Services failed", "health_follows_what_waits_not_what_was_tried"),
    ("the start wipes what others made", "a_restart_adopts_writes_nothing_and_removes_only_its_own_leftovers"),
    ("publishNotReadyAddresses has no effect", "unready_endpoints_that_are_published_count_as_ready"),
    ("pods of the host's network are left out in silence", "host_network_pods_are_told_and_hold_up_nobody"),
];

#[test]
fn every_case_and_every_bug_of_upstreams_has_its_test() {
    let mut text = String::new();
    crate::parity::sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    assert_eq!(CASES.len(), 26 + 12);
    for (what, test) in CASES.iter().chain(BUGS) {
        assert!(text.contains(&format!("fn {test}(")), "{what}: there is no test {test}");
    }
}
