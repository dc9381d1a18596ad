//! The tests, one module for each thing that must hold.

mod flow;
mod model;
mod scripts;
