//! Services and EndpointSlices to one backend-neutral table, its diff, and the backends.
