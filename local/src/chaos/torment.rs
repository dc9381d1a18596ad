//! Carries a plan out on a running stack.
//!
//! Invariants: one part of the first row is away at a time, and the next fault waits until it is back; a server that
//! does not come back ends it all with an error; functions that end are started again, as Lambda does.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::sync::{broadcast, watch};

use super::OWN_SERVERS;
use super::history::Clock;
use super::plan::{Fault, Kind, Part, Plan};
use crate::functions::Functions;
use crate::servers::Servers;
use crate::up::Stack;

/// How often we look for functions that ended by themselves.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A part gets at least this much time between coming back and the next fault, also when it came back late.
const LEAST_GAP_MS: u64 = 3_000;

/// A fault as it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// What failed.
    pub part: Part,
    /// How.
    pub kind: Kind,
    /// When it began.
    pub from_ms: u64,
    /// When we began to undo it: a server that has to be started again takes longer to be back.
    pub undone_ms: Option<u64>,
    /// When the part was back and healthy; not yet, if there is nothing.
    pub to_ms: Option<u64>,
}

impl Mark {
    /// Whether a stretch of time has a moment with this fault, or with the time `after_ms` after it.
    #[must_use]
    pub fn touches(&self, from_ms: u64, to_ms: u64, after_ms: u64) -> bool {
        from_ms <= self.to_ms.unwrap_or(u64::MAX).saturating_add(after_ms) && self.from_ms <= to_ms
    }

    /// Whether the part was away at this moment, and not yet on its way back.
    #[must_use]
    pub fn is_down(&self, at_ms: u64) -> bool {
        (self.from_ms..=self.undone_ms.unwrap_or(u64::MAX)).contains(&at_ms)
    }
}

/// What happened so far, for whoever wants to know.
#[derive(Clone, Debug)]
pub struct Marks {
    clock: Clock,
    marks: Arc<Mutex<Vec<Mark>>>,
    ended: Arc<Mutex<Vec<(u64, &'static str)>>>,
    news: broadcast::Sender<String>,
    over: watch::Sender<Option<u64>>,
}

impl Marks {
    /// Nothing happened.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let (news, over) = (broadcast::Sender::new(64), watch::Sender::new(None));
        Self { clock, marks: Arc::default(), ended: Arc::default(), news, over }
    }

    /// The faults so far.
    #[must_use]
    pub fn all(&self) -> Vec<Mark> {
        lock(&self.marks).clone()
    }

    /// Functions that ended by themselves, and when it was seen.
    #[must_use]
    pub fn ended(&self) -> Vec<(u64, &'static str)> {
        lock(&self.ended).clone()
    }

    /// The time on the clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.ms()
    }

    /// One line for each thing that happens from now on.
    #[must_use]
    pub fn news(&self) -> broadcast::Receiver<String> {
        self.news.subscribe()
    }

    /// When the last fault was over, as soon as it is.
    #[must_use]
    pub fn over(&self) -> watch::Receiver<Option<u64>> {
        self.over.subscribe()
    }

    fn begin(&self, fault: &Fault) -> usize {
        let from_ms = self.clock.ms();
        let mut marks = lock(&self.marks);
        marks.push(Mark { part: fault.part, kind: fault.kind, from_ms, undone_ms: None, to_ms: None });
        let how_long = fault.lasts_ms as f64 / 1_000.0;
        self.tell(from_ms, &format!("{} {} for {how_long:.1} s", fault.part, fault.kind));
        marks.len() - 1
    }

    fn undo(&self, index: usize) {
        if let Some(mark) = lock(&self.marks).get_mut(index) {
            mark.undone_ms = Some(self.clock.ms());
        }
    }

    fn end(&self, index: usize) {
        let to_ms = self.clock.ms();
        if let Some(mark) = lock(&self.marks).get_mut(index) {
            mark.undone_ms.get_or_insert(to_ms);
            mark.to_ms = Some(to_ms);
            self.tell(to_ms, &format!("{} is back after {:.1} s", mark.part, (to_ms - mark.from_ms) as f64 / 1_000.0));
        }
    }

    fn by_itself(&self, functions: Vec<&'static str>) {
        let at_ms = self.clock.ms();
        for function in functions {
            lock(&self.ended).push((at_ms, function));
            self.tell(at_ms, &format!("{function} ended by itself and is started again"));
        }
    }

    fn tell(&self, at_ms: u64, what: &str) {
        // Nobody may be listening.
        let _ = self.news.send(format!("{:6.1} s  {what}", at_ms as f64 / 1_000.0));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions, and how many of them are away on purpose.
struct Hands<'a> {
    functions: &'a mut Functions,
    away: usize,
}

type Shared<'a> = tokio::sync::Mutex<Hands<'a>>;

/// Carries the plan out, then keeps the functions running. Ends with an error only.
pub async fn torment(stack: &mut Stack, plan: &Plan, marks: &Marks) -> anyhow::Result<Infallible> {
    let servers = stack.servers.as_mut().context(OWN_SERVERS)?;
    let hands = tokio::sync::Mutex::new(Hands { functions: &mut stack.functions, away: 0 });
    let faults = async {
        for fault in &plan.faults {
            wait_for_turn(fault, marks).await;
            inflict(fault, servers, &hands, marks).await?;
        }
        anyhow::Ok(())
    };
    let kills = async {
        for kill in &plan.kills {
            wait_until(marks.clock, kill.begins_ms).await;
            kill_function(kill, &hands, marks).await?;
        }
        anyhow::Ok(())
    };
    let rows = async {
        tokio::try_join!(faults, kills)?;
        marks.over.send_replace(Some(marks.clock.ms()));
        std::future::pending::<anyhow::Result<Infallible>>().await
    };
    tokio::select! {
        ended = rows => ended,
        ended = keep_running(&hands, marks) => ended,
    }
}

/// Waits for the time of a fault, and for a gap after the one before where that took longer than planned.
async fn wait_for_turn(fault: &Fault, marks: &Marks) {
    let back_ms = marks.all().iter().filter(|mark| !is_kill_of_function(mark)).filter_map(|mark| mark.to_ms).max();
    let earliest_ms = back_ms.map_or(0, |back_ms| back_ms + LEAST_GAP_MS);
    wait_until(marks.clock, fault.begins_ms.max(earliest_ms)).await;
}

fn is_kill_of_function(mark: &Mark) -> bool {
    mark.kind == Kind::Kill && mark.part.function().is_some()
}

async fn wait_until(clock: Clock, at_ms: u64) {
    tokio::time::sleep(Duration::from_millis(at_ms.saturating_sub(clock.ms()))).await;
}

async fn inflict(fault: &Fault, servers: &mut Servers, hands: &Shared<'_>, marks: &Marks) -> anyhow::Result<()> {
    let undo_at_ms = marks.clock.ms() + fault.lasts_ms;
    let mark = marks.begin(fault);
    match (fault.part, fault.kind) {
        (Part::Redis, Kind::Freeze) => servers.redis.pause()?,
        (Part::RabbitMq, Kind::Freeze) => servers.rabbitmq.pause()?,
        (Part::MySql, Kind::Freeze) => servers.mysql.pause()?,
        (Part::Redis, Kind::Kill) => servers.redis.kill().await?,
        (Part::RabbitMq, Kind::Kill) => servers.rabbitmq.kill().await?,
        (Part::MySql, Kind::Kill) => servers.mysql.kill().await?,
        (Part::Redis, Kind::Stop) => servers.redis.stop().await?,
        (Part::RabbitMq, Kind::Stop) => servers.rabbitmq.stop().await?,
        (Part::MySql, Kind::Stop) => servers.mysql.stop().await?,
        (Part::Signup | Part::Consumer | Part::Reconcile, _) => {
            freeze_function(fault, hands).await?;
            marks.end(mark);
            return Ok(());
        }
    }
    wait_until(marks.clock, undo_at_ms).await; // an orderly stop took some of it
    marks.undo(mark);
    let back = match (fault.part, fault.kind) {
        (Part::Redis, Kind::Freeze) => servers.redis.resume(),
        (Part::RabbitMq, Kind::Freeze) => servers.rabbitmq.resume(),
        (Part::MySql, Kind::Freeze) => servers.mysql.resume(),
        (Part::Redis, _) => servers.redis.restart().await,
        (Part::RabbitMq, _) => servers.rabbitmq.restart().await,
        (Part::MySql, _) => servers.mysql.restart().await,
        (Part::Signup | Part::Consumer | Part::Reconcile, _) => Ok(()),
    };
    back.with_context(|| format!("{} did not come back", fault.part))?;
    marks.end(mark);
    Ok(())
}

/// Freezes and thaws, unless the second row kills it meanwhile; then another one runs already.
async fn freeze_function(fault: &Fault, hands: &Shared<'_>) -> anyhow::Result<()> {
    let Some(name) = fault.part.function() else { return Ok(()) };
    let frozen = {
        let mut hands = hands.lock().await;
        let environment = hands.functions.environment(name)?;
        // One that just ended is started again by those who keep them running; then there is nothing to freeze.
        environment.is_running().then(|| environment.pause().map(|()| environment.pid())).transpose()?
    };
    tokio::time::sleep(Duration::from_millis(fault.lasts_ms)).await;
    let mut hands = hands.lock().await;
    let environment = hands.functions.environment(name)?;
    if frozen == Some(environment.pid()) && environment.is_running() {
        environment.resume()?;
    }
    Ok(())
}

async fn kill_function(kill: &Fault, hands: &Shared<'_>, marks: &Marks) -> anyhow::Result<()> {
    let Some(name) = kill.part.function() else { return Ok(()) };
    let mark = marks.begin(kill);
    {
        let mut hands = hands.lock().await;
        hands.functions.environment(name)?.kill().await?;
        hands.away += 1;
    }
    tokio::time::sleep(Duration::from_millis(kill.lasts_ms)).await;
    let mut hands = hands.lock().await;
    hands.away -= 1;
    let others = hands.functions.replace_ended()?.into_iter().filter(|replaced| *replaced != name).collect();
    marks.by_itself(others);
    marks.end(mark);
    Ok(())
}

/// Starts functions again that ended by themselves.
async fn keep_running(hands: &Shared<'_>, marks: &Marks) -> anyhow::Result<Infallible> {
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        look.tick().await;
        let mut hands = hands.lock().await;
        if hands.away == 0 {
            marks.by_itself(hands.functions.replace_ended()?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_time_touches_a_fault_that_it_overlaps_or_that_was_just_over() {
        let mark = Mark { part: Part::Redis, kind: Kind::Kill, from_ms: 100, undone_ms: Some(150), to_ms: Some(200) };
        assert!(mark.touches(50, 100, 0) && mark.touches(150, 160, 0) && mark.touches(200, 300, 0));
        assert!(!mark.touches(50, 99, 0) && !mark.touches(201, 300, 0));
        assert!(mark.touches(250, 300, 50) && !mark.touches(251, 300, 50));
        assert!(Mark { to_ms: None, ..mark }.touches(10_000, 10_001, 0));
    }

    #[test]
    fn a_part_on_its_way_back_is_not_down_any_more() {
        let mark = Mark { part: Part::Redis, kind: Kind::Kill, from_ms: 100, undone_ms: Some(150), to_ms: Some(200) };
        assert_eq!([99, 100, 150, 151].map(|at_ms| mark.is_down(at_ms)), [false, true, true, false]);
    }
}
