//! The tests, one module for each thing that must hold.

mod consumer;
mod consumer_capacity;
mod consumer_outages;
mod consumer_poison;
mod consumer_together;
mod flow;
mod model;
mod scripts;
mod settings;
mod signup_api;
mod signup_outages;
mod signup_refusals;
