//! The sale: many people ask for one activity's places at once, and some of them make trouble.
//!
//! A closed loop: each person stands at the door until answered, and leaves room for the next. A share of the people
//! click twice at the same moment; a share lose their connection after they asked, and ask again. What comes back is
//! kept as it came, receipt by receipt, so that a check can hold the system to it.

mod door;
mod people;
mod progress;
mod reply;
mod tally;

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use shared::domain::ActivityId;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::report::{Table, count, millis, sparkline};
use door::Door;
use people::Person;
use progress::Progress;
use tally::Event;
pub use tally::{Sale, in_words};

/// How many events may wait for the tally before the people at the door wait too.
const EVENTS_WAITING: usize = 1_024;

/// Options of `local sale`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    plan: Plan,
    /// Write every receipt to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    receipts: Option<PathBuf>,
}

/// Who comes to which door.
#[derive(clap::Args, Clone, Debug)]
pub struct Plan {
    /// Where the API answers, with its stage path if it has one
    #[arg(long, default_value = "http://127.0.0.1:9000", value_name = "URL")]
    pub base_url: String,
    /// The activity whose places are asked for
    #[arg(long, default_value = "42")]
    pub activity: ActivityId,
    /// How many people come
    #[arg(long, default_value_t = 5_000, value_name = "N")]
    pub people: u64,
    /// How many connections ask at once; a double click takes two; keep to 100 against `make up`
    #[arg(long, default_value_t = 64, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub concurrency: u32,
    /// Share of the people who click twice at the same moment, 0 to 1
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", value_parser = share)]
    pub double_click_share: f64,
    /// Share of the people whose connection is cut after they asked, 0 to 1
    #[arg(long, default_value_t = 0.05, value_name = "SHARE", value_parser = share)]
    pub cut_share: f64,
    /// The same seed brings the same people
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Header that tells the API who asks
    #[arg(long, default_value = "x-user-id", value_name = "HEADER")]
    pub user_header: String,
    /// How often one click is tried while the answer is 503, 429 or a broken connection
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub attempts: u32,
    /// How long one request may take
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub timeout_secs: u64,
    /// Show no progress
    #[arg(long)]
    pub quiet: bool,
}

fn share(text: &str) -> anyhow::Result<f64> {
    let share: f64 = text.parse()?;
    anyhow::ensure!((0.0..=1.0).contains(&share), "a share lies between 0 and 1");
    Ok(share)
}

/// Holds the sale that the options describe and prints what came of it.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sale = hold(&args.plan).await?;
    print!("{}", table(&sale));
    if let Some(path) = &args.receipts {
        write_receipts(&sale, path).with_context(|| format!("writing receipts to {}", path.display()))?;
    }
    Ok(if sale.errors == 0 && sale.granted_twice().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets everyone of the plan come and waits until the last has left. Bounded: each request has a timeout, each click a
/// number of attempts.
pub async fn hold(plan: &Plan) -> anyhow::Result<Sale> {
    let (events, reported) = mpsc::channel(EVENTS_WAITING);
    let door = Arc::new(Door::new(plan, events)?);
    let (arrived, counted) = tokio::join!(arrive(plan, door), tally(plan, reported));
    arrived.context("the crowd did not get through")?;
    counted
}

/// Counts what happens at the door until it is closed.
async fn tally(plan: &Plan, mut reported: mpsc::Receiver<Event>) -> anyhow::Result<Sale> {
    let mut sale = Sale::new()?;
    let mut progress = Progress::new(plan.people, plan.quiet, std::io::stderr().is_terminal());
    let begun = Instant::now();
    while let Some(event) = reported.recv().await {
        sale.note(event);
        progress.show(&sale, begun.elapsed());
    }
    sale.elapsed = begun.elapsed();
    progress.finish();
    Ok(sale)
}

/// Sends people to the door, never more than it has connections for. The door closes behind the last of them, and
/// with it the channel of events.
async fn arrive(plan: &Plan, door: Arc<Door>) -> anyhow::Result<()> {
    let connections = if plan.double_click_share > 0.0 { plan.concurrency.max(2) } else { plan.concurrency };
    let free = Arc::new(Semaphore::new(connections as usize));
    let mut at_the_door = JoinSet::new();
    for person in people::crowd(plan) {
        let connections = free.clone().acquire_many_owned(connections_of(&person)).await?;
        let door = door.clone();
        at_the_door.spawn(async move {
            door.visit(&person).await;
            drop(connections);
        });
        while let Some(left) = at_the_door.try_join_next() {
            left?;
        }
    }
    while let Some(left) = at_the_door.join_next().await {
        left?;
    }
    Ok(())
}

fn connections_of(person: &Person) -> u32 {
    if person.double_click { 2 } else { 1 }
}

/// What a person reads after a sale.
fn table(sale: &Sale) -> Table {
    let mut table = Table::new("Sale");
    table.row("people", count(sale.people), "");
    table.row("requests", count(sale.requests), format!("{} a second", count(sale.requests_per_second() as u64)));
    table.row("granted", count(sale.granted()), "people who hold a receipt");
    table.row("repeated", count(sale.repeated), "replies that gave the receipt again");
    table.row("sold out", count(sale.sold_out), "replies");
    table.row("cut", count(sale.cut), "connections cut by the sale itself");
    table.row("tried again", count(sale.setbacks), in_words(&sale.setback_kinds));
    table.row("errors", count(sale.errors), in_words(&sale.error_kinds));
    table.row("granted twice", count(sale.granted_twice().len() as u64), "people with two different receipts");
    latency_rows(&mut table, sale);
    table.row("took", millis(sale.elapsed.as_secs_f64() * 1_000.0), "");
    table
}

/// The latency of a sale, in two lines of a table.
pub(crate) fn latency_rows(table: &mut Table, sale: &Sale) {
    if sale.latency_us.is_empty() {
        return table.row("latency", "", "no request was answered");
    }
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| millis(sale.latency_ms(quantile)));
    table.row("latency", format!("{p50} median"), format!("{p99} p99, {max} at most"));
    let bins = sale.latency_bins(24);
    let counts: Vec<u64> = bins.iter().map(|bin| bin.requests).collect();
    let (from, to) = (bins.first().map_or(0.0, |bin| bin.from_ms), bins.last().map_or(0.0, |bin| bin.to_ms));
    table.row("", sparkline(&counts), format!("requests by latency, {} to {}", millis(from), millis(to)));
}

fn write_receipts(sale: &Sale, path: &Path) -> anyhow::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for receipt in sale.receipts.values().flatten() {
        serde_json::to_writer(&mut file, receipt)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    Ok(())
}

/// How long until the next attempt: what the server asked for, or a pause that doubles; never over two seconds.
fn pause_before(attempt: u32, asked_for: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_secs(2);
    let growing = Duration::from_millis(50) * 2u32.saturating_pow(attempt.min(10));
    asked_for.unwrap_or(growing).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_follows_the_server_and_stays_bounded() {
        assert_eq!(pause_before(0, None), Duration::from_millis(50));
        assert_eq!(pause_before(2, None), Duration::from_millis(200));
        assert_eq!(pause_before(1, Some(Duration::from_secs(1))), Duration::from_secs(1));
        assert_eq!(pause_before(99, None), Duration::from_secs(2));
        assert_eq!(pause_before(0, Some(Duration::from_secs(3_600))), Duration::from_secs(2));
    }

    #[test]
    fn a_share_is_a_number_from_0_to_1() {
        assert!(share("0").is_ok() && share("0.25").is_ok() && share("1").is_ok());
        for text in ["-0.1", "1.1", "NaN", "many"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
