//! The node's and controllers' view of the API: informers with compact rows, events, leases.
