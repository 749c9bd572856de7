//! Loading and refusing archives.
