//! Sessions and load shared between routers (R23, R24).
//!
//! * [`port`]: what is needed of the outside.

pub mod port;
