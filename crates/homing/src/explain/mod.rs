//! `homing why` and `homing preview`: what a running router says of a decision, as a table. The first asks for the
//! record of one that was made, the second for one that would be.
//!
//! * `admin`: asking the router;
//! * `why`, `preview`: the commands;
//! * `table`: what both print.

pub(crate) mod admin;
pub(crate) mod preview;
mod table;
pub(crate) mod why;
